"""Defects that keep torch.compile from compiling a whole graph, each with a twin that computes the same without it.

Shapes: B batch, L sequence, D model features, N loud tokens.

    python -m perfscope.workloads.attention --compile-defect branch
    python -m perfscope.workloads.attention --compile-twin branch

A stage x_BLD -> x_BLD follows every block of the model, or the last one: if a graph ends inside a loop, dynamo leaves
the whole frame to eager mode; after the loop it goes on with a second graph. The rate is that of dropout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Stage = Callable[[torch.Tensor, "float | torch.Tensor"], torch.Tensor]

LIMIT = 30.0
"""Larger activations are scaled down; those of the workloads are far smaller."""

RATE, ANNEALED = 0.1, 0.01
"""Dropout rate of the first step, and by how much it falls a step."""

FEWEST = 4
"""Least length of a sequence in the defect ``shapes``."""


def rate_of(step: int) -> float:
    """Dropout rate of a step, at least 0."""
    return max(0.0, RATE - ANNEALED * step)


def length_of(step: int, length: int) -> int:
    """Length of the sequences of a step: a little shorter each time, at least ``FEWEST``."""
    return max(FEWEST, length - step)


def printing(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """Prints how loud the activations are."""
    print("loudest", x_BLD.detach().abs().amax().item())  # defect: graph_break, eager_fallback, host_sync: a break
    return x_BLD


def silent(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """The same numbers: nothing is printed."""
    return x_BLD


def branching(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """Scales loud activations down."""
    if x_BLD.abs().amax() > LIMIT:  # defect: graph_break, host_sync: Python must know the value, so the graph ends here
        return x_BLD * 0.5
    return x_BLD * 1.0


def selecting(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """The same numbers, chosen on the device."""
    return x_BLD * torch.where(x_BLD.abs().amax() > LIMIT, 0.5, 1.0)


def counting(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """Takes from every token the mean of those above the middle."""
    loud_ND = x_BLD[x_BLD.mean(-1) > 0]  # defect: graph_break, eager_fallback: N depends on the data
    return x_BLD - loud_ND.sum((0, 1)) / max(1, loud_ND.numel())


def masking(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """The same numbers by a mask: every shape is known."""
    loud_BL1 = (x_BLD.mean(-1, keepdim=True) > 0).to(x_BLD.dtype)
    count = (loud_BL1.sum() * x_BLD.shape[-1]).clamp(min=1)
    return x_BLD - (x_BLD * loud_BL1).sum() / count


def dropping(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """Dropout by a rate that falls from step to step."""
    return F.dropout(x_BLD, p=rate)  # defect: recompilation: the rate is burnt into the graph


def drawing(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """Dropout by a rate that is data: other draws of the same distribution."""
    return x_BLD * (torch.rand_like(x_BLD) >= rate) / (1 - rate)


def _halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


halved = torch.library.custom_op("perfscope_workloads::halved", _halved, mutates_args=())
"""Half of everything, in a custom kernel: a compiler has its name and its shapes, not its computation."""
halved.register_fake(torch.empty_like)
halved.register_autograd(lambda context, gradient: halved(gradient))


def calling(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """Adds the cosine of half the sine of the activations."""
    return x_BLD + halved(x_BLD.sin()).cos()  # defect: none: the code around it is two kernels, and this is a third


def inlining(x_BLD: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """The same numbers by ops that inductor can fuse."""
    return x_BLD + (x_BLD.sin() * 0.5).cos()


STAGES: dict[str, tuple[Stage, Stage]] = {
    "print": (printing, silent),
    "branch": (branching, selecting),
    "unsupported": (counting, masking),
    "float-arg": (dropping, drawing),
    "opaque": (calling, inlining),
}
"""(defect, twin)."""


AFTER_THE_LOOP = frozenset({"branch"})


def stages_of(defect: str | None, twin: str | None) -> tuple[Stage, Stage]:
    """The stage after every block, and the stage after the last."""
    name = defect or twin
    if name not in STAGES:
        return silent, silent
    stage = STAGES[name][0 if defect else 1]
    return (silent, stage) if name in AFTER_THE_LOOP else (stage, silent)
