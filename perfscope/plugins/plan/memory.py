"""Memory of one device, in closed form, as a range by category.

Adam with float32 weights and two float32 moments: 12 bytes per parameter of the device's part (Rajbhandari et al. 2020,
ZeRO, section 3.1), besides the gradients, in 16 or 32 bits. Activations of a layer per token: its inputs and outputs of
norms (4 arrays of ``h``), queries, keys, values and the output of attention, and those of the feed-forward; without the
outputs of norms, the residual between and the activation at the low end, which a compiler computes again. Attention
keeps no scores (FlashAttention). With tensor parallelism all of it is divided along the sequence or the features.
"""

from __future__ import annotations

from msgspec import Struct

from perfscope.plugins.plan.candidate import Candidate
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.exchanges import GRADIENT, Stage, stage_parameters
from perfscope.plugins.plan.kernels import WIDE
from perfscope.plugins.plan.schedules import in_flight

OPTIMIZER = 12
"""Bytes per parameter: float32 weights and two moments."""

RUNTIME = {"gpu": (400 << 20, 2 << 30), "tpu": (0, 1 << 28)}
"""Bytes of the framework's context, library workspaces and collectives' buffers: assumed, not looked up."""


class Bytes(Struct, frozen=True):
    """Bytes, at least and at most as far as the model goes."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.low + other.low, self.high + other.high)


class Memory(Struct, frozen=True, kw_only=True):
    """Memory of one device of a stage at its peak."""

    weights: Bytes
    """Copies in 16 bits that are not divided, or those of the layers in use."""
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    logits: Bytes
    runtime: Bytes

    @property
    def total(self) -> Bytes:
        """Sum of the categories."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.runtime


def layer_bytes(model: Decoder, policy: str, tensor: int) -> Bytes:
    """Bytes that one layer keeps for its backward per token on one device."""
    h, q, k = model.hidden, model.queries, model.keys
    if policy == "full":
        return Bytes(WIDE * h / tensor, WIDE * h / tensor)
    share = model.expert_layers / model.layers
    visited = model.experts_per_token * model.expert_ffn + model.shared_ffn
    features = (1 - share) * model.ffn + share * visited
    arrays = model.matrices - 1
    products = 2 * q + 2 * k + 2 * h + arrays * features
    routed = share * (model.experts_per_token * h if model.experts else 0)
    if policy == "dots":
        return Bytes(WIDE * products / tensor, WIDE * (products + h + routed) / tensor)
    return Bytes(WIDE * products / tensor, WIDE * (products + 2 * h + features + 2 * routed) / tensor)


def memory_of(
    model: Decoder, candidate: Candidate, stage: Stage, index: int, *, sequence: int, micro_batches: int, platform: str
) -> Memory:
    """Memory of a device of one stage. ``index``: its place in the pipeline, from 0."""
    mesh = candidate.mesh
    dense, experts = stage_parameters(model, stage, mesh.tensor, mesh.expert)
    parts = dense / mesh.shards + experts / (mesh.fsdp * mesh.context)
    state = 0.0 if candidate.offload == "optimizer" else OPTIMIZER * parts
    tokens = candidate.micro_batch * (sequence // mesh.context)
    kept = layer_bytes(model, candidate.policy, mesh.tensor)
    held = in_flight(candidate.schedule, index, mesh.pipeline, micro_batches, candidate.chunks)
    count = 0.0 if candidate.offload == "activations" else tokens * stage.layers * held
    work = layer_bytes(model, "none", mesh.tensor)
    again = 0.0 if candidate.policy == "none" else tokens
    offloaded = 2.0 * tokens if candidate.offload == "activations" else 0.0
    logits = tokens * model.vocab / mesh.tensor if stage.last else 0.0
    low, high = RUNTIME.get(platform, RUNTIME["gpu"])
    return Memory(
        weights=_weights(candidate, stage, dense, experts, parts),
        gradients=_gradients(candidate, stage, dense, experts, parts),
        optimizer=Bytes(state, state),
        activations=Bytes(
            count * kept.low + again * work.low + offloaded * kept.low,
            count * kept.high + again * work.high + offloaded * kept.high,
        ),
        logits=Bytes(WIDE * logits, (WIDE + 2 * GRADIENT) * logits),
        runtime=Bytes(low, high),
    )


def _layers_in_use(stage: Stage, dense: float, experts: float) -> tuple[float, float]:
    """Undivided parameters of one layer, and of two (the next is fetched meanwhile)."""
    one = (dense + experts) / max(1, stage.layers)
    return one, min(2 * one, dense + experts)


def _weights(candidate: Candidate, stage: Stage, dense: float, experts: float, parts: float) -> Bytes:
    whole = dense + experts
    if candidate.mesh.shards == 1:
        # the copy in 16 bits is made whole, or layer by layer as it is used
        one, _ = _layers_in_use(stage, dense, experts)
        return Bytes(WIDE * one, WIDE * whole)
    if not candidate.regather:
        return Bytes(WIDE * whole, WIDE * whole)
    one, two = _layers_in_use(stage, dense, experts)
    return Bytes(WIDE * one, WIDE * (two + parts))


def _gradients(candidate: Candidate, stage: Stage, dense: float, experts: float, parts: float) -> Bytes:
    if candidate.mesh.shards == 1 or not candidate.regather:
        return Bytes(WIDE * (dense + experts), GRADIENT * (dense + experts))
    one, two = _layers_in_use(stage, dense, experts)
    return Bytes(WIDE * (parts + one), GRADIENT * (parts + two))


def least_state(model: Decoder, candidate: Candidate) -> float:
    """Bytes that no device of the fullest stage can do without: its part of the optimizer and of the gradients.

    Layers are divided among stages in whole numbers, so some stage has at least the mean.
    """
    mesh = candidate.mesh
    each = model.dense_parameters / mesh.tensor / mesh.shards
    each += model.expert_parameters / mesh.tensor / mesh.expert / (mesh.fsdp * mesh.context)
    return (WIDE + (0 if candidate.offload == "optimizer" else OPTIMIZER)) * each / mesh.pipeline
