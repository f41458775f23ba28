"""The lowering of a program, ``perfscope.lower/1``: its stages, what happened to its lines, and the compile time.

Bytes and FLOPs are structural: counted from the program, for one run of it. Times are ns, measured while it compiled.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import MANY, SOME, Count, Ns, Texts, Value, schema_of
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.lower/1"

What = Literal[
    "recomputed", "duplicated", "merged", "converted", "transposed", "resharded", "split", "materialised", "dropped"
]
"""``recomputed``: runs again in the backward. ``duplicated``: computed in several kernels. ``merged``: written several
times, computed once. ``converted``: to another dtype. ``transposed``: copied to another order or layout. ``resharded``:
exchanged between devices by the partitioner. ``split``: several kernels compute parts of it. ``materialised``: written
to memory for another kernel. ``dropped``: nothing of it is left."""


_NARROW = frozenset({"bf16", "f16", "bfloat16", "float16"})


class Fate(Value, frozen=True, kw_only=True):
    """Change of a line on its way through the compiler."""

    what: What
    program: str
    place: str
    """``file.py:12``; empty if the compiler's instruction has no line."""
    code: str = ""
    """Text of the line, if its file can be read."""
    phases: tuple[str, ...] = ()
    """``forward``, ``backward``, ``recompute``."""
    times: Count = 0
    """Runs of the line's ops (recomputed), kernels that compute it (duplicated, split), else number of ops."""
    before: str = ""
    """dtype or order before."""
    after: str = ""
    bytes: Count = 0
    """Bytes of the values concerned, in all runs."""
    flops: Count = 0
    """FLOPs done again, in all runs; transcendentals count as one."""
    reason: str = ""
    """Cause, with the pass or the line that introduced it."""
    by: Literal["program", "compiler"] = "program"
    """``program``: it is written there. ``compiler``: the compiler added it."""
    ops: Texts = ()
    """Names of the instructions or nodes, at most some."""
    kernels: Texts = ()

    @property
    def group(self) -> int:
        """Order among rows of its kind: the program's own, gradients and the compiler's, then narrower dtypes."""
        converts = self.what == "converted"
        if converts and self.after in _NARROW:
            return 2
        return int(self.by == "compiler" or (converts and self.phases == ("backward",)))


class Op(Value, frozen=True, kw_only=True):
    """An op of one stage that belongs to the asked line or name."""

    name: str
    op: str
    """Opcode, primitive or ATen op."""
    result: str = ""
    """dtype, sizes and order of its result: ``bf16[8,128]{1,0}``."""
    phase: str = ""
    inside: str = ""
    """Kernel that computes it."""
    text: str = ""
    """Excerpt of the stage."""


class Stage(Value, frozen=True, kw_only=True):
    """One stage of one program."""

    program: str
    name: str
    ops: Count = 0
    lines: Count = 0
    """Source lines that its ops name."""
    file: str = ""
    missing: str = ""
    """Why it is not there, and what would record it."""


class OnLine(Value, frozen=True, kw_only=True):
    """The ops of a stage that belong to the asked line or name."""

    program: str
    stage: str
    ops: Annotated[tuple[Op, ...], msgspec.Meta(max_length=SOME)]
    left: Count = 0


class Part(Value, frozen=True, kw_only=True):
    """Time in one part of the compiler. Every moment counts for the innermost part."""

    function: str
    """Function or program that was compiled."""
    layer: str
    """``tracing``, ``lowering``, ``XLA passes``, ``code generation``, or a stage of torch.compile."""
    name: str
    cold_ns: Ns | None = None
    calls: Count = 0
    warm_ns: Ns | None = None
    """With the caches of the first run."""


class CacheAnswer(Value, frozen=True, kw_only=True):
    """Answers of a compiler cache."""

    cache: str
    run: Literal["cold", "warm"]
    hits: Count = 0
    misses: Count = 0


class Lowering(Value, frozen=True, kw_only=True):
    """The document."""

    schema: str
    subject: str
    framework: str
    """``jax`` or ``torch``."""
    asked: str = ""
    """The line or name that `path` follows."""
    stages: Annotated[tuple[Stage, ...], msgspec.Meta(max_length=MANY)]
    fates: Annotated[tuple[Fate, ...], msgspec.Meta(max_length=MANY)]
    path: Annotated[tuple[OnLine, ...], msgspec.Meta(max_length=SOME)] = ()
    times: Annotated[tuple[Part, ...], msgspec.Meta(max_length=SOME)] = ()
    caches: Annotated[tuple[CacheAnswer, ...], msgspec.Meta(max_length=SOME)] = ()
    failed: str = ""
    """How the program ended early, if it did: stages are those up to then."""
    notes: Texts = ()


def dump(lowering: Lowering) -> bytes:
    """The document as UTF-8 JSON, its texts without control characters and secrets."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(lowering))), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the document, made from the types that read it."""
    return schema_of(Lowering, SCHEMA, what="Lines of a program at each stage of its compiler")
