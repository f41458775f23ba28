"""Exchanges of a decoder on a mesh, in closed form: kind, bytes, group and number in one step of one device.

``T`` tokens of a micro-batch on a device (or on those that share its sequence along ``tensor``), ``h`` features, ``k``
features of keys, ``m`` micro-batches, ``L`` layers of the stage, ``P`` parameters of the stage on one device of
``tensor`` before they are divided. With tensor parallelism the sequence is divided between the matrices (Korthikanti
et al. 2022): two all-gathers and two reduce-scatters of ``T h`` forward, three and two backward, and the forward ones
again where the policy repeats them.

================  ==================================================  ===========================  ==========
axis              exchange                                            bytes ``S``                  times
================  ==================================================  ===========================  ==========
tensor            all-gather, reduce-scatter                          ``2 T h``                    see above
fsdp, per use     all-gather of weights, reduce-scatter of gradients  ``2 P``, ``4 P``             ``2m``, ``m``
                  (Rajbhandari et al. 2020, ZeRO-3)
fsdp, per step    the same (ZeRO-1)                                   ``2 P``, ``4 P``             1, 1
data              all-reduce of gradients                             ``4 P / shards``             1
context           all-gather of keys and values, forward and          ``4 s k``                    ``3 m L``
                  backward, reduce-scatter of their gradients
                  (Llama Team 2024, section 3.3.2)
expert            all-to-all to the experts and back, forward and     ``2 T h``, times experts     ``4 m L``
                  backward                                            per token
pipeline          send of an activation or gradient                   ``2 T h / tensor``           ``2 m v``
================  ==================================================  ===========================  ==========
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.plugins.plan.candidate import Candidate
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.kernels import WIDE

Hidden = Literal["weights hidden", "tensor hidden", "tokens hidden", "sends hidden"]

GRADIENT = 4
"""Bytes of a gradient in an exchange: float32, in which micro-batches are summed."""

SHARDED: tuple[str, ...] = ("fsdp", "expert", "context")


class Planned(Struct, frozen=True, kw_only=True):
    """Equal exchanges of one device in a step."""

    what: str
    """``weights``, ``gradients``, ``gradients of replicas``, ``activations``, ``keys and values``, ``tokens``,
    ``stages``."""
    kind: str
    """As in XLA: ``all-gather`` ..."""
    bytes: int
    """``S``: bytes of the whole array, as in docs/compile-model.md."""
    axes: tuple[str, ...]
    """Axes of the mesh along which the group lies."""
    times: int
    """In one step."""
    per: Literal["micro-batch", "step"]
    """Whether it happens in every micro-batch, or once."""
    hidden: Hidden
    """The assumption that hides it."""


class Stage(Struct, frozen=True, kw_only=True):
    """One stage of the pipeline."""

    layers: int
    first: bool
    last: bool


def stage_parameters(model: Decoder, stage: Stage, tensor: int, expert: int) -> tuple[float, float]:
    """Parameters of a stage on one device of ``tensor`` and ``expert``, before they are divided: others, in experts."""
    share = stage.layers / model.layers
    dense = model.dense_parameters * share + (model.hidden if stage.last else 0)
    table = model.embedding * (1 if stage.first else 0)
    if stage.last and not (model.tied and stage.first):
        table += model.embedding
    return (dense + table) / tensor, model.expert_parameters * share / tensor / expert


def exchanges(
    model: Decoder, candidate: Candidate, stage: Stage, *, sequence: int, micro_batches: int
) -> tuple[Planned, ...]:
    """Exchanges of one device of a stage in one step."""
    return (
        *_inside_layers(model, candidate, stage, sequence, micro_batches),
        *_weights(model, candidate, stage, micro_batches),
        *_stages(model, candidate, sequence, micro_batches),
    )


def _inside_layers(
    model: Decoder, candidate: Candidate, stage: Stage, sequence: int, micro_batches: int
) -> list[Planned]:
    mesh, result = candidate.mesh, list[Planned]()
    tokens = candidate.micro_batch * (sequence // mesh.context)
    runs = micro_batches * stage.layers
    again = 1 if candidate.policy == "full" else 0
    if mesh.tensor > 1:
        size = WIDE * tokens * model.hidden
        for kind, times in (("all-gather", 5 + 2 * again), ("reduce-scatter", 4 + 2 * again)):
            result.append(Planned(what="activations", kind=kind, bytes=size, axes=("tensor",), times=times * runs,
                                  per="micro-batch", hidden="tensor hidden"))  # fmt: skip
    if mesh.context > 1:
        size = 2 * WIDE * candidate.micro_batch * sequence * model.keys // mesh.tensor
        for kind, times in (("all-gather", 2), ("reduce-scatter", 1)):
            result.append(Planned(what="keys and values", kind=kind, bytes=size, axes=("context",), times=times * runs,
                                  per="micro-batch", hidden="tokens hidden"))  # fmt: skip
    if mesh.expert > 1:
        size = WIDE * tokens * model.hidden * model.experts_per_token // mesh.tensor
        layers = round(stage.layers * model.expert_layers / model.layers)
        result.append(Planned(what="tokens", kind="all-to-all", bytes=size, axes=("expert",),
                              times=(4 + 2 * again) * micro_batches * layers, per="micro-batch",
                              hidden="tokens hidden"))  # fmt: skip
    return result


def _weights(model: Decoder, candidate: Candidate, stage: Stage, micro_batches: int) -> list[Planned]:
    mesh, result = candidate.mesh, list[Planned]()
    dense, experts = stage_parameters(model, stage, mesh.tensor, mesh.expert)
    uses = micro_batches if candidate.regather else 1
    for parameters, axes in ((dense, SHARDED), (experts, ("fsdp", "context"))):
        among = 1
        named = tuple(axis for axis in axes if mesh.sizes[axis] > 1)
        for axis in named:
            among *= mesh.sizes[axis]
        if not parameters:
            continue
        if among > 1:
            per: Literal["micro-batch", "step"] = "micro-batch" if candidate.regather else "step"
            gathers = 2 * uses if candidate.regather else 1
            for what, kind, each, times in (
                ("weights", "all-gather", WIDE, gathers), ("gradients", "reduce-scatter", GRADIENT, uses),
            ):  # fmt: skip
                result.append(Planned(what=what, kind=kind, bytes=round(each * parameters), axes=named, times=times,
                                      per=per, hidden="weights hidden"))  # fmt: skip
        if mesh.data > 1:
            result.append(Planned(what="gradients of replicas", kind="all-reduce",
                                  bytes=round(GRADIENT * parameters / among), axes=("data",), times=1, per="step",
                                  hidden="weights hidden"))  # fmt: skip
    return result


def _stages(model: Decoder, candidate: Candidate, sequence: int, micro_batches: int) -> list[Planned]:
    from perfscope.plugins.plan.schedules import sends

    mesh = candidate.mesh
    times = sends(candidate.schedule, mesh.pipeline, micro_batches, candidate.chunks)
    if not times:
        return []
    size = WIDE * candidate.micro_batch * (sequence // mesh.context) * model.hidden // mesh.tensor
    return [Planned(what="stages", kind="collective-permute", bytes=size, axes=("pipeline",), times=times,
                    per="step", hidden="sends hidden")]  # fmt: skip
