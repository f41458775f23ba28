"""One training step as values with a lifetime: all that predicting the memory and time of another plan needs.

Built from the op graph of a PyTorch step or from a compiled XLA program (`step_model_torch.py`, `step_model_hlo.py`),
and simulated by `simulate.py`, which knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from perfscope.model.finding import Basis

ValueKind = Literal["product", "attention", "random", "other", "view"]
"""What made a value: a matrix product without batch dimensions or a convolution, fused attention, random numbers,
anything else (batched products among it: their result grows with the sequence squared), nothing."""

Policy = Literal["keep", "full", "selective", "offload"]
"""What becomes of what the backward needs of a region: it stays; all is made again; results of products and of
attention stay and the rest is made again (torch's selective checkpointing, JAX's
``dots_with_no_batch_dims_saveable``); it waits in host memory."""

POLICIES: tuple[Policy, ...] = ("keep", "full", "selective", "offload")


class Value(Struct, frozen=True, kw_only=True):
    """A block of memory within the step. Positions count the ops of the step, in the order they run."""

    bytes: int
    """As the allocator counts it."""
    birth: int
    """Position of the op that made it."""
    death: int
    """First position at which it is gone; the step's length where it outlives the step."""
    last_forward_use: int
    """Position of the last op of the forward pass that reads it; ``birth`` where none does."""
    kind: ValueKind
    region: int | None
    """The region whose forward made it; ``None`` outside of all regions, and for what the backward makes."""
    needed_by: frozenset[int | None]
    """Regions whose backward reads it, ``None``: the backward outside of all. Empty: not kept for the backward. A
    checkpointed region drops what it made itself and nobody else needs; its inputs stay."""
    cost_ns: int
    """What the op that made it takes, alone: the price of making it again. Of several results of one op one has it.
    An op that makes nothing new (in place) is a value of no bytes with its time."""
    gradient: bool = False
    """It is the gradient of a parameter: sharding divides it."""


class Change(Struct, frozen=True, kw_only=True):
    """What a policy changes in a compiled program, worked out from the program."""

    spans: tuple[tuple[int, int, int], ...]
    """From a position up to another, that many bytes more (or fewer) than ``StepModel.values`` hold."""
    recompute_ns: int
    """Time of what runs again."""
    recomputed: int
    """Values that are made again."""
    stored_ns: int = 0
    """Time that keeping takes more than it does today (negative: less): a loop's stacks are filled, written, read."""


class Region(Struct, frozen=True, kw_only=True):
    """A part of the forward pass that can be checkpointed as a whole: a module, or a layer of a scan."""

    name: str
    """Qualified name of the module, or scope of the program."""
    group: str
    """Equal for copies of one layer: they get one line of advice."""
    forward: tuple[int, int]
    """Positions of its forward pass, half open."""
    backward: tuple[int, int]
    """Positions of its backward pass, half open; empty where it has none."""
    input_bytes: int
    """What must be kept to run it again and would otherwise not be alive: its inputs that nobody else keeps."""
    today: Policy = "keep"
    """What is done now. The values are those of a step that keeps everything: today's is simulated like others."""
    parameter_bytes: int = 0
    """Of its own parameters; 0 where not known. What FSDP gathers at a time."""
    changes: tuple[tuple[Policy, Change], ...] = ()
    """Of a compiled program: what each policy it can be given makes of the values; it has no values of its own then,
    and a policy that is not listed cannot be had (it counts as ``keep``). Empty: the general rules hold."""

    def offers(self, policy: Policy) -> bool:
        """False for a policy that a compiled program's layers cannot be given."""
        return not self.changes or any(policy == offered for offered, _ in self.changes)


class StepModel(Struct, frozen=True, kw_only=True):
    """A step: values, regions, and what surrounds them."""

    label: str
    """Device or program it is of."""
    values: tuple[Value, ...]
    regions: tuple[Region, ...]
    length: int
    """Ops of the step."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes: int
    """Held the whole step besides: inputs, constants, and what is held outside of the step."""
    gradients_in_values: bool
    """Gradients are made and freed within the step, so they are among ``values`` and not held all of it."""
    step_ns: int | None
    """A step today; ``None`` where nothing tells it."""
    basis: Basis
    """How ``cost_ns`` and ``step_ns`` are known."""
    capacity_bytes: int | None
    notes: tuple[str, ...] = ()
    framework: Literal["torch", "jax"] = "torch"
    """Whose words the advice is given in."""
    device_name: str | None = None
    """As the recording names the device; ``None`` where it names none."""
    on_host: bool = False
    """It is host memory: there is nowhere to offload to."""
    measured_peak_bytes: int | None = None
    """The peak of the recorded step as the allocator or the compiler saw it: what the model is held against."""
    world_size: int = 1
    """Devices that train together now."""
    sharded: bool = False
    """Parameters are divided among them already."""
    peak_margin: float = 0.0
    """Share by which another plan may need more than its estimated peak; 0 where peaks are the compiler's."""
    reserve_share: float | None = None
    """What the allocator held from the driver beyond the peak, as a share of it; ``None``: not recorded."""
    out_of_memory: int = 0
    """Allocations that failed in the recording."""

    def needed_bytes(self, policies: Sequence[Policy], peak_bytes: int) -> int:
        """Bytes that a plan with this peak needs at worst: an estimate's margin, and what the allocator holds beyond.

        ``policies``: of the regions; today's peak is no estimate.
        """
        same = all(policy == region.today for policy, region in zip(policies, self.regions, strict=True))
        margin = 0.0 if same else self.peak_margin
        return round(peak_bytes * (1 + margin) * (1 + (self.reserve_share or 0.0)))
