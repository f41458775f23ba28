"""A training step as values with a lifetime: the input for predicting memory and time of other plans.

Built from the op graph of a PyTorch step or from a compiled XLA program (`step_model_torch.py`, `step_model_hlo.py`),
and simulated by `simulate.py`, which is independent of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from perfscope.model.finding import Basis

ValueKind = Literal["product", "attention", "random", "other", "view"]
"""Source of a value: a product that a selective policy keeps (without batch dimensions, or a convolution), fused
attention, random numbers, any other op (including batched products, whose results grow with the sequence squared), or
no op."""

Policy = Literal["keep", "full", "selective", "offload"]
"""Treatment of values that the backward needs from a region: all are kept; all are computed again; results of products
and attention are kept and the rest is computed again (torch's selective checkpointing, JAX's
``dots_with_no_batch_dims_saveable``); or they wait in host memory."""

POLICIES: tuple[Policy, ...] = ("keep", "full", "selective", "offload")

KEPT_PRODUCTS = ("mm", "addmm", "convolution", "_scaled_mm", "_grouped_mm")
"""Short names of ATen's products that the policy ``selective`` keeps, in the simulation and in the code of a plan. It
also keeps every op with ``attention`` in its name. Batched products are computed again."""


class Value(Struct, frozen=True, kw_only=True):
    """A block of memory within the step. Positions count the ops of the step, in the order they run."""

    bytes: int
    """Size as counted by the allocator."""
    birth: int
    """Position of its op."""
    death: int
    """First position at which it is gone; the step's length if it outlives the step."""
    last_forward_use: int
    """Position of the last op of the forward pass that reads it; ``birth`` if none does."""
    kind: ValueKind
    region: int | None
    """The region whose forward made it; ``None`` outside of all regions, and for values of the backward."""
    needed_by: frozenset[int | None]
    """Regions whose backward reads it; ``None``: the backward outside of all. Empty: not kept for the backward. A
    checkpointed region drops its own values that are not needed elsewhere; its inputs are kept."""
    cost_ns: int
    """Time of its op: the price of computing it again. Only one of several results of an op has it. An op that makes
    nothing new (in place) is a value of 0 bytes with its time."""
    gradient: bool = False
    """It is the gradient of a parameter, which sharding divides."""


class Change(Struct, frozen=True, kw_only=True):
    """The changes of a policy in a compiled program, derived from the program."""

    spans: tuple[tuple[int, int, int], ...]
    """From a position up to another: bytes more (or fewer) than in ``StepModel.values``."""
    recompute_ns: int
    """Time of repeated work."""
    recomputed: int
    """Number of values that are computed again."""
    stored_ns: int = 0
    """Additional time of keeping values relative to today (negative: less): a loop's stacks are filled, written, read.
    """


class Region(Struct, frozen=True, kw_only=True):
    """A part of the forward pass that can be checkpointed as a whole: a module, or a layer of a scan."""

    name: str
    """Qualified name of the module, or scope of the program."""
    group: str
    """Equal for copies of one layer, which share a line of advice."""
    forward: tuple[int, int]
    """Positions of its forward pass, half open."""
    backward: tuple[int, int]
    """Positions of its backward pass, half open; empty if it has none."""
    input_bytes: int
    """Bytes that must be kept to run it again and would otherwise be freed: inputs that nothing else keeps."""
    today: Policy = "keep"
    """Today's policy. The values are those of a step that keeps everything: today's plan is simulated like others."""
    parameter_bytes: int = 0
    """Bytes of its parameters, which FSDP gathers at once; 0 if unknown."""
    changes: tuple[tuple[Policy, Change], ...] = ()
    """For a compiled program: effect of each possible policy on the values. It then has no values, and a policy that is
    not listed is not possible (it counts as ``keep``). Empty: the general rules apply."""

    def offers(self, policy: Policy) -> bool:
        """False for a policy that is not possible for a compiled program's layers."""
        return not self.changes or any(policy == offered for offered, _ in self.changes)


class StepModel(Struct, frozen=True, kw_only=True):
    """A step: values, regions, and the state around them."""

    label: str
    """Device or program."""
    values: tuple[Value, ...]
    regions: tuple[Region, ...]
    length: int
    """Number of ops in the step."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes: int
    """Other bytes held all through the step: inputs, constants, and memory outside of the step."""
    gradients_in_values: bool
    """Gradients are made and freed within the step: they are in ``values`` and not held throughout."""
    step_ns: int | None
    """Time of a step today; ``None`` if unknown."""
    basis: Basis
    """Basis of ``cost_ns`` and ``step_ns``."""
    capacity_bytes: int | None
    notes: tuple[str, ...] = ()
    framework: Literal["torch", "jax"] = "torch"
    """The framework that the advice is written for."""
    device_name: str | None = None
    """Device name in the recording; ``None`` if it has none."""
    on_host: bool = False
    """The memory is the host's, so offloading is not possible."""
    measured_peak_bytes: int | None = None
    """The peak of the recorded step by the allocator or the compiler, for comparison with the model."""
    world_size: int = 1
    """Devices that train together now."""
    sharded: bool = False
    """Parameters are already divided among them."""
    peak_margin: float = 0.0
    """Share by which another plan may exceed its estimated peak; 0 if peaks come from the compiler."""
    reserve_share: float | None = None
    """Memory that the allocator held beyond the peak, as a share of the peak; ``None``: not recorded."""
    out_of_memory: int = 0
    """Number of failed allocations in the recording."""

    def needed_bytes(self, policies: Sequence[Policy], peak_bytes: int) -> int:
        """Bytes that a plan with this peak needs at worst: an estimate's margin, and the allocator's reserve.

        ``policies``: of the regions; today's peak is not an estimate.
        """
        same = all(policy == region.today for policy, region in zip(policies, self.regions, strict=True))
        margin = 0.0 if same else self.peak_margin
        return round(peak_bytes * (1 + margin) * (1 + (self.reserve_share or 0.0)))
