"""Contractions: products of matrices, einsums and bilinear forms."""

from collections.abc import Sequence

from torch import fx

from sparsify.passes.program.operator_view import OperatorView, literal
from sparsify.passes.program.table.row import require, row


def product(view: OperatorView, left: fx.Node, right: fx.Node) -> str:
    """`sum(j, left[..,i,j] * right[..,j,k])`, batches broadcast, as `matmul` does."""
    ranks, out = (view.rank(left), view.rank(right)), list(view.out)
    j = view.index(view.shape(left)[-1])
    rows = [out[len(out) - 1 - (ranks[1] > 1)]] if ranks[0] > 1 else []
    columns = [out[-1]] if ranks[1] > 1 else []
    batch = out[: len(out) - len(rows) - len(columns)]
    a, b = view.at(left, [*batch, *rows, j]), view.at(right, [*batch, j, *columns] if ranks[1] > 1 else [j])
    return view.reduce("sum", [j], f"{a} * {b}")


@row("mm(a[m,n], b[n,k])", names=())
def mm(view: OperatorView) -> str:
    """`sum(j, self[i,j] * mat2[j,k])`."""
    return product(view, view["self"], view["mat2"])


@row("bmm(a[m,n,k], b[m,k,p])")
def bmm(view: OperatorView) -> str:
    """`sum(j, self[b,i,j] * mat2[b,j,k])`."""
    return product(view, view["self"], view["mat2"])


@row(
    "matrix_power(a[m,m], 2)", "matrix_power(a[p,m,m], 5)", "matrix_power(a[m,m], 4)",
    names=("linalg_matrix_power",),
)  # fmt: skip
def matrix_power(view: OperatorView) -> str:
    """`sum(j, self[i,j] * self[j,k])` for n = 2, others by repeated squaring."""
    n = view.number("n")
    require(n >= 2, "an inverse, the identity or the matrix itself")
    require(view.sizes[-1] not in (0, 1), "a mode of extent 0 or 1")
    *batch, i, k = view.out

    def multiplied(left: str, right: str) -> str:
        """The product of two powers, each the name of a statement or of the matrix."""
        j = view.index(view.sizes[-1])
        first, second = (entry(name, at) for name, at in ((left, [i, j]), (right, [j, k])))
        return f"sum({j}, {first} * {second})"

    def entry(name: str, at: list[str]) -> str:
        long_batch = [b for b in batch if view.program.extents[b] != 1]
        return (
            view.at(view["self"], [*batch, *at]) if name == "" else f"{name}[{', '.join([*long_batch, *at])}]"
        )

    def power(n: int) -> str:
        """The name of a statement of the power n, "" for the matrix itself."""
        return "" if n == 1 else view.let(f"power{n}", view.out, halves(n)).partition("[")[0]

    def halves(n: int) -> str:
        root = power(n // 2)
        return multiplied(root, root) if n % 2 == 0 else multiplied(power(n - 1), "")

    return halves(n)


@row("mv(a[m,n], x[n])")
def mv(view: OperatorView) -> str:
    """`sum(j, self[i,j] * vec[j])`."""
    return product(view, view["self"], view["vec"])


@row("dot(x[n], y[n])", names=("vdot",))
def dot(view: OperatorView) -> str:
    """`sum(j, self[j] * tensor[j])`."""
    return product(view, view["self"], view.get("tensor", "other"))


@row("matmul(a[m,n], b[n,k])", "matmul(a[p,m,n], b[n,k])", "matmul(a[m,n], x[n])", "matmul(x[n], b[p,n,k])")
def matmul(view: OperatorView) -> str:
    """`sum(j, self[..,i,j] * other[..,j,k])`."""
    return product(view, view["self"], view["other"])


@row("linear(x[p,m,n], w[k,n], b[k])", "linear(x[m,n], w[k,n])", "linear(x[m,n], w[n])")
def linear(view: OperatorView) -> str:
    """`sum(f, input[..,f] * weight[k,f]) + bias[k]`."""
    x, w = view["input"], view["weight"]
    f, is_matrix = view.index(view.shape(x)[-1]), view.rank(w) == 2
    rows, columns = (view.out[:-1], view.out[-1:]) if is_matrix else (view.out, ())
    y = view.reduce("sum", [f], f"{view.at(x, [*rows, f])} * {view.at(w, [*columns, f])}")
    return f"{y} + {view.at(view['bias'], columns)}" if "bias" in view else y


def added(view: OperatorView, text: str) -> str:
    """`beta * self + alpha * text`."""
    alpha, beta = view.number("alpha", 1), view.number("beta", 1)
    text = text if alpha == 1 else f"{literal(alpha)} * {text}"
    if beta == 0:
        return text
    return (
        f"{view.at(view['self'])} + {text}"
        if beta == 1
        else f"{literal(beta)} * {view.at(view['self'])} + {text}"
    )


@row("addmm(c[k], a[m,n], b[n,k])", "addmm(c[m,k], a[m,n], b[n,k], beta=0.5, alpha=2.0)")
def addmm(view: OperatorView) -> str:
    """`beta * self[i,k] + alpha * sum(j, mat1[i,j] * mat2[j,k])`."""
    return added(view, product(view, view["mat1"], view["mat2"]))


@row("addmv(c[m], a[m,n], x[n])")
def addmv(view: OperatorView) -> str:
    """`beta * self[i] + alpha * sum(j, mat[i,j] * vec[j])`."""
    return added(view, product(view, view["mat"], view["vec"]))


@row("baddbmm(c[p,m,k], a[p,m,n], b[p,n,k], alpha=0.5)")
def baddbmm(view: OperatorView) -> str:
    """`beta * self[b,i,k] + alpha * sum(j, batch1[b,i,j] * batch2[b,j,k])`."""
    return added(view, product(view, view["batch1"], view["batch2"]))


@row("addbmm(c[m,k], a[p,m,n], b[p,n,k])")
def addbmm(view: OperatorView) -> str:
    """`beta * self[i,k] + alpha * sum(b, j, batch1[b,i,j] * batch2[b,j,k])`."""
    left, right = view["batch1"], view["batch2"]
    b, j = view.index(view.shape(left)[0]), view.index(view.shape(left)[2])
    body = f"{view.at(left, [b, view.out[0], j])} * {view.at(right, [b, j, view.out[1]])}"
    return added(view, view.reduce("sum", [b, j], body))


@row("addr(c[m,n], x[m], y[n], beta=0.5)")
def addr(view: OperatorView) -> str:
    """`beta * self[i,j] + alpha * vec1[i] * vec2[j]`."""
    return added(view, f"{view.at(view['vec1'], view.out[:1])} * {view.at(view['vec2'], view.out[1:])}")


@row("outer(x[m], y[n])", names=("ger",))
def outer(view: OperatorView) -> str:
    """`self[i] * vec2[j]`."""
    return f"{view.at(view['self'], view.out[:1])} * {view.at(view['vec2'], view.out[1:])}"


@row("inner(a[m,n], b[k,n])")
def inner(view: OperatorView) -> str:
    """`sum(j, self[..,j] * other[..,j])`."""
    left, right = view["self"], view["other"]
    require(view.rank(left) > 0 and view.rank(right) > 0, "a product with a number")
    j, rows = view.index(view.shape(left)[-1]), view.rank(left) - 1
    body = f"{view.at(left, [*view.out[:rows], j])} * {view.at(right, [*view.out[rows:], j])}"
    return view.reduce("sum", [j], body)


@row("tensordot(a[m,n,k], b[k,n,p], [1, 2], [1, 0])")
def tensordot(view: OperatorView) -> str:
    """`sum(j, self[..,j] * other[j,..])` over pairs of modes."""
    left, right = view["self"], view["other"]
    pairs = list(zip(view["dims_self"], view["dims_other"], strict=True))
    out = iter(view.out)
    first = {a % view.rank(left): view.index(view.shape(left)[a]) for a, _ in pairs}
    second = {b % view.rank(right): first[a % view.rank(left)] for a, b in pairs}
    names = [first.get(mode) or next(out) for mode in range(view.rank(left))]
    others = [second.get(mode) or next(out) for mode in range(view.rank(right))]
    return view.reduce("sum", list(first.values()), f"{view.at(left, names)} * {view.at(right, others)}")


@row(
    'einsum("ij,jk->ik", [a[m,n], b[n,k]])',
    'einsum("bi,oi->bo", [a[m,n], b[k,n]])',
    'einsum("ii->i", [a[n,n]])',
    'einsum("...ij,jk", [a[p,m,n], b[n,k]])',
)
def einsum(view: OperatorView) -> str:
    """The Einstein sum that `equation` says."""
    left, arrow, right = view["equation"].replace(" ", "").partition("->")
    operands: Sequence[fx.Node] = view["tensors"]
    terms = left.split(",")
    require(len(terms) == len(operands), "the equation is not of these operands")
    leading = max(
        view.rank(t) - len(term.replace("...", "")) for term, t in zip(terms, operands, strict=True)
    )
    letters = [chr(0x100 + number) for number in range(leading)]  # letters distinct from those of equations
    terms = [
        term.replace("...", "".join(letters[leading - view.rank(t) + len(term) - 3 :]))
        for term, t in zip(terms, operands, strict=True)
    ]
    every = "".join(terms)
    if arrow:
        result = right.replace("...", "".join(letters))
    else:
        result = "".join([*letters, *sorted(c for c in set(every) - set(letters) if every.count(c) == 1)])
    names = dict(zip(result, view.out, strict=True))
    reads = []
    for term, tensor in zip(terms, operands, strict=True):
        shape = view.shape(tensor)
        for position, letter in enumerate(term):
            if letter not in names or (view.program.extents[names[letter]] == 1 and shape[position] != 1):
                require(letter not in result or letter not in names, "a broadcast index variable")
                names[letter] = view.index(shape[position])
        reads.append((tensor, term))
    over = [names[letter] for letter in dict.fromkeys(every) if letter not in result]
    body = " * ".join(view.at(tensor, [names[letter] for letter in term]) for tensor, term in reads)
    return view.reduce("sum", over, body)


@row("bilinear(x[p,m], y[p,n], w[k,m,n], b[k])")
def bilinear(view: OperatorView) -> str:
    """`sum(i, j, weight[k,i,j] * input1[..,i] * input2[..,j]) + bias[k]`."""
    x, y, lead = view["input1"], view["input2"], view.out[:-1]
    i, j = view.index(view.shape(x)[-1]), view.index(view.shape(y)[-1])
    weight = view.at(view["weight"], [view.out[-1], i, j])
    text = view.reduce("sum", [i, j], f"{weight} * {view.at(x, [*lead, i])} * {view.at(y, [*lead, j])}")
    return f"{text} + {view.at(view['bias'], view.out[-1:])}" if "bias" in view else text


@row("_cdist_forward(x[m,k], y[n,k], 2.0, None)", "cdist(x[p,m,k], y[p,n,k], 1.0)", names=("_cdist_forward",))
def cdist(view: OperatorView) -> str:
    """`sum(k, abs(x1[..,i,k] - x2[..,j,k]) ** p) ** (1 / p)`."""
    x, y, p = view["x1"], view["x2"], view.number("p", 2.0)
    k, (*lead, i, j) = view.index(view.shape(x)[-1]), view.out
    difference = f"{view.at(x, [*lead, i, k])} - {view.at(y, [*lead, j, k])}"
    if p == 1:
        return view.reduce("sum", [k], f"abs({difference})")
    require(p == 2, f"distances of order {p} have no index notation yet")
    return f"root({view.reduce('sum', [k], f'square({difference})')})"


@row("cosine_similarity(x[m,n], y[m,n])")
def cosine_similarity(view: OperatorView) -> str:
    """`sum(k, x[..,k] * y[..,k]) / (max(norm x, eps) * max(norm y, eps))`."""
    x, y, eps = view["x1"], view["x2"], literal(view.number("eps"))
    require(view.rank(x) == view.rank(y), "operands of different ranks")
    dtypes = {tensor.meta["val"].dtype for tensor in (x, y)}
    require(dtypes == {view.value.dtype}, "operands are cast before their norms")
    mode, names = view.mode(x, default=1), list(view.out)
    extent = next(size for size in (view.shape(x)[mode], view.shape(y)[mode]))
    require(extent == view.shape(y)[mode], "a broadcast mode")
    k = view.index(extent)
    a, b = (view.at(t, [*names[:mode], k, *names[mode:]]) for t in (x, y))
    top = view.reduce("sum", [k], f"{a} * {b}")
    left, right = (f"max(root({view.reduce('sum', [k], f'square({t})')}), {eps})" for t in (a, b))
    return f"{top} / ({left} * {right})"
