"""A seeded generator of models that write in place, through views, into edges, features, masks, inputs and buffers.

In: `Program(7)`. Out: a module over `x [nodes, 6]`, `edge_index [2, edges]`; `str(program)` lists its steps.
"""

import random

import torch
from torch import Tensor, nn

WIDTH = 6
# Expressions of a view of `t`, a tensor of floating numbers of two modes with six columns.
VIEWS = (
    "t",
    "t[0]",
    "t[1:]",
    "t[:, 2]",
    "t[:, 1:4]",
    "t[::2]",
    "t[-1:]",
    "t.t()",
    "t.t()[1]",
    "t.transpose(0, 1)[2:]",
    "t.view(-1)",
    "t.view(-1, 2, 3)[:, 1]",
    "t.view(-1)[3:]",
    "t.unsqueeze(1)[:, 0]",
    "t.permute(1, 0)[0]",
    "t.narrow(1, 1, 2)",
    "t.split(2, 1)[1]",
    "t.chunk(3, 1)[0]",
    "t.unbind(1)[4]",
    "t.detach()[:, 3]",
    "t[:, :4].diagonal()",
    "t.reshape(t.shape)[:, ::3]",
    "t.data[2:, 1]",
    "t.hsplit(3)[1]",
    "t[:6].vsplit(2)[1]",
    "t[:6].view(3, 2, 6).dsplit(2)[0]",
    "torch.dropout(t, 0.5, False)[1:]",
    "t.contiguous()[2:]",
    "t.reshape(-1)",
)
# Statements that write into the view `v`; `s` is a tensor of one mode with the nodes of the graph.
WRITES = (
    "v.add_(1.5)",
    "v.add_(s.mean())",
    "v.clamp_(min=-0.5, max=0.75)",
    "v.relu_()",
    "v.masked_fill_(v > 0.25, 0.5)",
    "v.copy_(v.flip(0))",
    "v.copy_(s[0])",
    "v.fill_(0.25)",
    "v.zero_()",
    "v[0] = s[1]",
    "v[1:] *= 2",
    "v[v > 0] = -1.0",
    "v[..., -1] += 0.5",
    "v.index_add_(0, torch.tensor([0, 1]), v[:2] * 2)",
    "v.index_fill_(0, torch.tensor([1]), 0.125)",
    "v.index_copy_(0, torch.tensor([1, 0]), v[:2] + 1)",
    "v.scatter_(0, torch.zeros_like(v, dtype=torch.long), 0.375)",
    "v.scatter_add_(0, torch.zeros_like(v, dtype=torch.long), v * 0.5)",
    "v.index_put_((torch.tensor([0, 1]),), v[:2] * 3, accumulate=True)",
    "v -= v.mean()",
    "v.gt_(0.25)",
    "v.sub_(torch.ones((), dtype=torch.float64))",
)
# Statements that write into edges `e`, whose nodes stay below `n`.
EDGES = (
    "e[0] += 1; e[0] %= n",
    "e[0].clamp_(max=9)",
    "e[1, 1:] = e[0, :-1]",
    "e[:, ::2] = e[:, ::2].flip(0)",
    "e[1].copy_(e[0])",
    "e.t()[3] = 0",
    "e[0][e[0] > 7] = 2",
    "e[1].masked_fill_(e[0] == e[1], 0)",
    "e.view(-1)[5:9] = 3",
    "r, c = e; r.add_(c).remainder_(n); c.clamp_(min=2)",
    "e.unbind(0)[1].bitwise_xor_(1).clamp_(max=n - 1)",
    "e[[1, 0]] = e.clone()",
    "e.copy_(e.flip(0))",
    "e.index_fill_(1, torch.tensor([0, 2]), 1)",
)
TARGETS = ("h", "m", "x", "self.state", "o", "p")


class Program(nn.Module):
    """A model of random steps."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.lin = nn.Linear(WIDTH, WIDTH).double()
        self.register_buffer("state", torch.rand(7, WIDTH, dtype=torch.float64))
        self.register_buffer("edges", torch.tensor([[0, 1, 2], [1, 2, 3]]))
        self.steps = [self.step(draw) for _ in range(draw.randint(2, 5))]
        self.steps.insert(draw.randint(0, 2), f"{draw.choice(EDGES)}")
        self.steps.insert(
            draw.randint(1, 3),
            "m = h.new_zeros(n, 6).index_add(0, e[1].clone(), h[e[0].clone()] * w[:, None])",
        )
        self.steps.append("o = h.new_zeros(n, 6).index_add(0, e[1].clone(), m[e[0].clone()])")
        self.steps += [self.step(draw) for _ in range(draw.randint(0, 2))]
        self.results = draw.choice(("o, s", "o, h", "o, m, p", "o, x", "o, e", "(o + m)"))

    def step(self, draw: random.Random) -> str:
        """A statement that writes in place."""
        if draw.random() < 0.3:
            return draw.choice(EDGES)
        target = draw.choice(TARGETS)
        view = draw.choice(VIEWS)
        text = f"t = {target}; v = {view}; {draw.choice(WRITES)}"
        is_part = any(name in view for name in ("split", "chunk", "unbind"))  # autograd refuses writes there
        if is_part or target == "self.state" or draw.random() < 0.15:
            return f"with torch.no_grad(): {text}"
        return text

    def __str__(self) -> str:
        return "\n".join([*self.steps, f"return {self.results}"])

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, ...]:
        """What the steps compute."""
        e = edge_index.clone()
        known = {
            "self": self,
            "torch": torch,
            "x": x,
            "e": e,
            "n": x.shape[0],
            "h": self.lin(x),
            "p": x[:, :3].repeat(1, 2),
            "o": torch.zeros_like(x),
            "w": torch.ones_like(e[0], dtype=x.dtype),
            "s": x.sum(1),
        }
        known["m"] = known["h"] * 1
        for step in self.steps:
            exec(step, known)
        return eval(self.results, known)
