"""What happens to the device memory of a planned step: storages come and go, planned graphs run.

Holds no framework, so the peak of a step can be counted where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.profiler.aot.torch_memory_file import StepPhase

Place = tuple[str | None, int | None, str | None]
"""(file, line, function) of the user's."""
NOWHERE: Place = (None, None, None)


@dataclass(slots=True, eq=False)
class Block:
    """One storage, or one buffer inside of a planned graph."""

    bytes: int
    op: str = ""
    phase: StepPhase = "other"
    place: Place = NOWHERE
    born: int = -1
    """Number of the op that made it."""
    died: int | None = None
    """Number of the op before which it was freed."""
    node: int = -1
    """Autograd's number of the node that made it in a backward."""
    device: bool = False
    """Made or moved to the device by the program's own words."""
    touched: int = -1
    """Number of the last op that had it."""
    category: str | None = None
    """Where the program itself says: ``parameter``, ``gradient``, ``optimizer_state``."""


@dataclass(slots=True, eq=False, kw_only=True)
class GraphCall:
    """A run of a planned graph: its own buffers come and go between what is there before and after."""

    number: int
    inputs: tuple[Block | None, ...]
    given_up: frozenset[int]
    """Inputs (by their place) that nobody else holds: the graph frees them after their last use."""
    outputs: tuple[Block | None, ...]
    phase: StepPhase


Event = tuple[str, Block] | tuple[str, GraphCall]
"""``born``, ``died`` or ``graph``."""
