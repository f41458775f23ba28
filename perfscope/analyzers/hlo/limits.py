"""What no real program reaches: sizes a file claims are held against these before anything is made of them."""

from __future__ import annotations

MAX_TEXT_BYTES = 512 << 20
"""Decompressed bytes of a module's text, printed literals included: the largest dumps known are tens of MB."""
MAX_PROTO_BYTES = 128 << 20
"""Decompressed bytes of a module's proto. A hostile one takes up to 30 times its size when it is parsed."""
MIN_INSTRUCTION_BYTES = 10
"""Bytes of an instruction on the wire: name, opcode, shape and id take more."""
MAX_INSTRUCTIONS = 2_000_000
"""Instructions of a module: each takes about 2 kB in the model, and the largest programs known have 10^5."""
MAX_RANK = 64
"""Dimensions of an array; XLA's own kernels end well below."""
MAX_DIMENSION = 2**63 - 1
"""XLA keeps sizes in 64 signed bits."""
MAX_TUPLE_DEPTH = 64
"""Tuples in tuples."""
MAX_GROUP_IDS = 1 << 22
"""Device ids a module's replica groups hold together, counted once a spelling: 4,096 spellings on 1,024 devices."""
MAX_CALL_DEPTH = 200
"""Computations that call one another in a row: what walks a module recursively stays far from the stack's end."""
