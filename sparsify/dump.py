"""Dumps: the text of each stage named in `SPARSIFY_DUMP`, written when the stage is reached.

In: `Dump(options, "spmm-3f2a").write("notation", text)`. Out: `--- notation` and the text on standard error, or the
file `spmm-3f2a/01-notation.txt` in `SPARSIFY_DUMP_DIR`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from sparsify.errors import SparsifyError
from sparsify.options import STAGES, Options


@dataclass(frozen=True, slots=True)
class Dump:
    """Destination of the stages of one graph or program.

    Attributes:
        options: options with the requested stages and the folder.
        key: name of the graph or program, and of the folder of files.
    """

    options: Options
    key: str

    def prepare(self) -> None:
        """Creates the folder early, so that an unwritable folder fails before any work.

        Raises:
            SparsifyError: the folder cannot be written.
        """
        if self.options.dump and self.options.dump_dir is not None:
            try:
                self.options.dump_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self.unwritable(error) from error

    def write(self, stage: str, text: str) -> None:
        """Writes the text of a stage, if requested.

        Raises:
            SparsifyError: the folder cannot be written.
        """
        if not self.wants(stage):
            return
        if self.options.dump_dir is None:
            print(f"--- {stage}  {self.key}\n{text.rstrip()}", file=sys.stderr)
            return
        path = self.options.dump_dir / self.key / f"{STAGES.index(stage):02d}-{stage}.txt"
        try:
            write_text(path, text.rstrip() + "\n")
        except OSError as error:
            raise self.unwritable(error) from error

    def unwritable(self, error: OSError) -> SparsifyError:
        """The error for an unwritable folder."""
        return SparsifyError(
            f"SPARSIFY_DUMP_DIR={self.options.dump_dir} cannot be written: {error.strerror}",
            "name another folder or unset it to dump to standard error",
        )

    def wants(self, stage: str) -> bool:
        """Whether a stage is asked for."""
        return stage in self.options.dump or "all" in self.options.dump


def write_text(path: Path, text: str) -> None:
    """Writes a file, creating parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
