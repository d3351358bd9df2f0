"""Names of new variables.

In: `fresh("p")`, and `p` is taken. Out: `pv1`.
"""


class Names:
    """Generator of names for new variables."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def fresh(self, name: str) -> str:
        """`name`, or `name` with an unused number."""
        candidate, number = name, 0
        while candidate in self.taken:
            number += 1
            candidate = f"{name}v{number}"
        self.taken.add(candidate)
        return candidate
