"""What the backward of a compiled layer computes again where less is kept for it: which kernels, and what arithmetic.

Learnt from programs that XLA compiled for a GPU with and without ``jax.checkpoint``: what is not kept is computed again
from what is, through products, reductions and loops on the way. All else is computed within its readers and launches
nothing, unless a product reads it. Nothing is computed that nobody needs: neither the layer's last product nor its
output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.jax_layers.layer import Layer
from perfscope.analyzers.checkpointing.jax_layers.layers import Kept
from perfscope.analyzers.checkpointing.jax_layers.policies import Keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What one policy makes of the layers, by number in ``Flow``."""

    computed: frozenset[int]
    """All that is computed again."""
    launched: frozenset[int]
    """Those of them that take a kernel: the others are computed within their readers."""


def again_of(layer: Layer, dropped: Sequence[Kept], keeps: Keeps) -> Again:
    """What runs again where the values of ``dropped`` are gone, but for what the policy keeps and a layer's input."""
    memory: dict[int, frozenset[int]] = {}
    held: set[int] = set()
    waiting: list[int] = []
    for one in dropped:
        for made in layer.made(one.number):
            for reader in one.readers:
                waiting += [made] if reader.into_product else layer.bases(made, keeps, memory)
    while waiting:
        number = layer.first_of_its_kind(waiting.pop())
        if number in held:
            continue
        held.add(number)
        if not keeps(number):
            for source in layer.behind(number):
                buffer = layer.is_product(number) and not layer.of_loop(number)
                waiting += [source] if buffer else layer.bases(source, keeps, memory)
    computed = frozenset(_computed(layer, (one.number for one in dropped), keeps))
    return Again(computed=computed, launched=frozenset(one for one in computed if one in held or layer.is_product(one)))


def _computed(layer: Layer, numbers: Iterable[int], keeps: Keeps) -> set[int]:
    """All that making values again computes, whatever has a buffer."""
    waiting = [made for number in numbers for made in layer.made(number)]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one in seen or layer.carried(one) or keeps(one):
            continue
        seen.add(one)
        waiting.extend(layer.behind(one))
    return seen
