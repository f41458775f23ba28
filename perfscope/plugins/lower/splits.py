"""Lines whose ops several kernels compute between them: which op each kernel has, and the bytes passed in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.program import Grouped, fate

MOST_KERNELS = 4
"""Most kernels whose ops a reason lists."""
MOST_OPS = 3

Where = tuple[str, str]
"""Line and phase."""


class Computed(Struct, frozen=True, kw_only=True):
    """An op of a line and a kernel that computes it."""

    where: Where
    op: str
    """Identity: equal for copies of the op in other kernels."""
    shown: str
    """Primitive or ATen op."""
    kernel: str


def split(program: str, computed: Iterable[Computed], between: Mapping[Where, int]) -> Iterator[Fate]:
    """Yield lines whose ops are in several kernels; a line that one kernel computes whole is left out.

    ``between``: bytes that kernels of a line write and other kernels of that line read.
    """
    lines: dict[Where, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for item in computed:
        if item.where[0]:
            lines[item.where][item.kernel][item.op] = item.shown
    for where, kernels in lines.items():
        every = {op for ops in kernels.values() for op in ops}
        if any(every <= ops.keys() for ops in kernels.values()):
            continue
        group = Grouped(bytes=between.get(where, 0), names=sorted(every), phases={where[1]: None} if where[1] else {})
        group.kernels |= dict.fromkeys(kernels)
        shown = [", ".join(list(dict.fromkeys(ops.values()))[:MOST_OPS]) for ops in kernels.values()]
        more = f" and {len(shown) - MOST_KERNELS} more" if len(shown) > MOST_KERNELS else ""
        reason = f"{len(kernels)} kernels{f' {where[1]}' if where[1] else ''}: {'; '.join(shown[:MOST_KERNELS])}{more}"
        yield fate("split", program, where[0], group, reason, times=len(kernels), by="compiler")
