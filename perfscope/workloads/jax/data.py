"""The synthetic text of the PyTorch workloads, the same tokens: an affine walk over the vocabulary.

Shapes: B sequences a batch, L tokens a sequence. A batch is tokens_BM with M = L + 1: input and target overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from perfscope.workloads.options import Options

WINDOWS = 64
"""Sequences a document holds; sequence ``index`` is window ``index % WINDOWS`` of document ``index``."""


def device_of(options: Options) -> jax.Device:
    """The requested device: ``cpu``, ``gpu:1`` ... RuntimeError if jax has no device of that kind."""
    kind, _, index = options.device.partition(":")
    return jax.devices(kind)[int(index or 0)]


def text(index: int, length: int, vocab: int, seed: int) -> list[int]:
    """The tokens of one sequence."""
    token, tokens, first = (index * 7919 + seed) % vocab, [], index % WINDOWS
    for place in range(first + length):
        if place >= first:
            tokens.append(token)
        token = (token * 5 + 3) % vocab
    return tokens


def batches(options: Options) -> Iterator[np.ndarray]:
    """One tokens_BM a step, int32, made before the first step."""
    size = options.size
    prepared = [
        np.array(
            [text(step * size.batch + row, size.seq + 1, size.vocab, options.seed) for row in range(size.batch)],
            dtype=np.int32,
        )
        for step in range(options.steps)
    ]
    yield from prepared
