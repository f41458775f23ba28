"""Compilations as jax logged them."""

from __future__ import annotations

from perfscope.model.jax_log import CompileEvent
from perfscope.model.results import Column, Place, ResultTable

_WORDS = {
    "trace": "tracing", "lower": "lowering", "compile": "compiling", "cache_hit": "found in the cache",
    "cache_miss": "not in the cache", "cache_read": "read from the cache", "cache_saved": "saved by the cache",
    "first_trace": "traced first", "retrace": "traced again", "donation_unusable": "donation not used",
}  # fmt: skip


def _place(event: CompileEvent) -> Place | None:
    return None if event.file is None else Place(event.file, event.line)


RESULT: ResultTable[CompileEvent] = ResultTable(
    name="jax_compilations",
    title="JAX compilations",
    doc="Events of jax's compiler in order: tracing (with what is traced inside it), lowering, compiling, its cache.",
    columns=(
        Column("what", str, "text", "kind of event", of=lambda event: _WORDS[event.kind]),
        Column("time_ns", int | None, "ns", "how long it took", of=lambda event: event.duration_ns, title="took"),
        Column(
            "function", str | None, "code", "function or module", "key", lambda event: event.function or event.module
        ),
        Column("step", int | None, "count", "number of the step in which it happened"),
        Column("place", Place | None, "place", "the user's line that called it", "key", _place, "called at"),
        Column("reason", str | None, "text", "reason in jax's words", title="why, in jax's words"),
    ),
    rows=lambda trace: trace.compile_events,
)
