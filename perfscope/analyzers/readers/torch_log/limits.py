"""How much of a log is held, whatever it holds. Real logs stay far below all of them."""

from __future__ import annotations

MAX_HEAD_BYTES = 16 << 20
"""Of a record's own line: metrics with all configurations of torch have 60 kB."""
MAX_PAYLOAD_BYTES = 64 << 20
"""Of a payload that is parsed: the output code of a graph of 20,000 nodes has 20 MB."""
MAX_STRINGS = 100_000
"""File names that records refer to by number."""
MAX_COMPILES = 100_000
"""Compilations, breaks, recompiles and refusals each: torch gives up after 8 compilations of a frame."""
MAX_SPANS = 1_000_000
"""Timed phases: about 60 a compilation."""
MAX_NODES = 2_000_000
"""Nodes of all graphs together."""
MAX_KERNELS = 500_000
"""Kernels of all graphs together."""
MAX_TEXT = 2_000
"""Characters kept of a reason, a hint, a line of code."""
MAX_ITEMS = 64
"""Hints, reasons, restarts of one record."""
MAX_STACK = 200
"""Frames of a stack: the innermost ones."""
MAX_KINDS = 50
"""Unknown kinds of records that are named."""
