"""Schedules of pipelines: what fills the time besides the work, what stays in memory, and how layers are divided.

``F`` forward, ``B`` backward for inputs, ``W`` backward for weights of one micro-batch on one stage; ``p`` stages,
``m`` micro-batches, ``v`` chunks on each stage.

=============  ======================  ===========================================  =================================
schedule       bubble                  micro-batches in memory of stage ``i``        source
=============  ======================  ===========================================  =================================
gpipe          ``(p-1)(F+B+W)``        ``m``                                         Huang et al. 2019
1f1b           ``(p-1)(F+B+W)``        ``min(m, p-i)``                               Narayanan et al. 2021
interleaved    ``(p-1)(F+B+W)/v``      ``min(m, p-i + (p-1)(v-1)/v)``                Narayanan et al. 2021
zb-h1          ``(p-1)(F+B-W)``        ``min(m, p-i)``                               Qi et al. 2023
zb-h2          ``(p-1)(F+B-2W)``       ``min(m, 2(p-i)-1)``                          Qi et al. 2023
=============  ======================  ===========================================  =================================

Stages that differ: the slowest counts for every micro-batch, and the others once (a line of machines).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> float:
    """Micro-batches whose activations a stage holds at once, each of all its layers."""
    left = stages - stage
    if stages == 1:
        return 1.0
    if schedule == "gpipe":
        return float(micro_batches)
    if schedule == "interleaved":
        return min(float(micro_batches), left + (stages - 1) * (chunks - 1) / chunks)
    if schedule == "zb-h2":
        return float(min(micro_batches, 2 * left - 1))
    return float(min(micro_batches, left))


def bubble_weights(schedule: str, chunks: int) -> tuple[float, float]:
    """How often ``F + B`` and ``W`` of each other stage are part of the bubble."""
    if schedule == "interleaved":
        return 1 / chunks, 1 / chunks
    return 1.0, {"zb-h1": -1.0, "zb-h2": -2.0}.get(schedule, 1.0)


def sends(schedule: str, stages: int, micro_batches: int, chunks: int) -> int:
    """Sends of one stage in the middle in one step: an activation and a gradient per micro-batch and chunk."""
    return 0 if stages == 1 else 2 * micro_batches * (chunks if schedule == "interleaved" else 1)


def allowed(schedule: str, stages: int, micro_batches: int) -> bool:
    """Whether a schedule exists: interleaved needs whole rounds of micro-batches."""
    if schedule == "interleaved":
        return micro_batches % stages == 0
    return micro_batches >= stages if schedule.startswith("zb") else True


@lru_cache(maxsize=65536)
def divided(layers: int, stages: int, chunks: int, first: float, last: float) -> tuple[int, ...] | None:
    """Layers of each stage so that the slowest is as fast as possible; None if they do not divide.

    ``first`` and ``last``: time of the embedding and of the head, in layers. With chunks every chunk has as many
    layers, or the first and the last chunk have one less (Llama Team 2024, section 3.3.2).
    """
    if stages == 1:
        return (layers,)
    if chunks > 1:
        pieces = stages * chunks
        if layers % pieces == 0:
            return (layers // stages,) * stages
        if (layers + 2) % pieces == 0:
            each = (layers + 2) // stages
            return (each - 1, *[each] * (stages - 2), each - 1)
        return None
    if layers < stages:
        return None
    return _balanced(layers, stages, first, last)


def _balanced(layers: int, stages: int, first: float, last: float) -> tuple[int, ...]:
    extra = [0.0] * stages
    extra[0] += first
    extra[-1] += last
    counts = [1] * stages
    for _ in range(layers - stages):  # the next layer goes to the stage that has least to do
        least = min(range(stages), key=lambda stage: (counts[stage] + extra[stage], -stage))
        counts[least] += 1
    return tuple(counts)


def makespan(times: Sequence[float], micro_batches: int, chunks: int = 1) -> float:
    """Time of ``gpipe``, ``1f1b`` or ``interleaved`` with ``times`` of one micro-batch per stage, without sends."""
    slowest = max(times)
    return micro_batches * slowest + (sum(times) - slowest) / chunks
