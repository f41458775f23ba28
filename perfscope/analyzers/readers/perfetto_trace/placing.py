"""Which table an event goes to, by its category."""

from __future__ import annotations

from enum import IntEnum

from perfscope.analyzers.readers.perfetto_trace import vocabulary as words
from perfscope.analyzers.trace import SliceKind


class Place(IntEnum):
    """Where an event goes."""

    SLICE = 0
    CALL = 1
    KERNEL = 2
    COPY = 3
    SYNC = 4
    STEP = 5
    COLLECTIVE = 6
    HLO_OP = 7
    MEMORY = 8
    SOURCE = 9
    DEVICE = 10
    FINDING = 11
    DRAWN = 12


PLACES: dict[str, Place] = {
    # Kineto's, in files that other tools made of its traces
    "cuda_runtime": Place.CALL,
    "cuda_driver": Place.CALL,
    "kernel": Place.KERNEL,
    "gpu_memcpy": Place.COPY,
    "gpu_memset": Place.COPY,
    # rocprofv3's
    "hip_api": Place.CALL,
    "hip_runtime_api": Place.CALL,
    "hsa_api": Place.CALL,
    "kernel_dispatch": Place.KERNEL,
    "memory_copy": Place.COPY,
}
"""Category (lower case) -> place, in any file. Everything else is a slice."""

OWN_PLACES: dict[str, Place] = {
    words.SYNC: Place.SYNC,
    words.STEP: Place.STEP,
    words.COLLECTIVE: Place.COLLECTIVE,
    words.HLO_OP: Place.HLO_OP,
    words.MEMORY: Place.MEMORY,
    words.SOURCE: Place.SOURCE,
    words.DEVICE: Place.DEVICE,
    words.FINDING: Place.FINDING,
    words.DRAWN: Place.DRAWN,
}
"""Further ones in our own exports."""

SLICE_KINDS: dict[str, SliceKind] = {
    **{category: kind for kind, category in words.SLICE_CATEGORIES.items()},
    "operator": SliceKind.OP,
    "marker_api": SliceKind.ANNOTATION,
    "fee": SliceKind.PYTHON,  # viztracer's functions
}
"""Category (lower case) -> kind of the slice; any other is ``OTHER``."""


def place_of(category: str, *, own: bool) -> Place:
    """Where events of a category go; ``own``: the file is an export of ours."""
    lowered = category.lower()
    found = PLACES.get(lowered)
    if found is None and own:
        found = OWN_PLACES.get(lowered)
    return Place.SLICE if found is None else found
