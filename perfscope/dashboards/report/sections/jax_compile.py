"""JAX compilation: time of tracing, lowering and XLA, by function."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Section, notes, table, tables
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.sections import JaxCompile, JaxFunction

NAME_LIMIT = 40
"""Characters of a function in a table or sentence."""


def jax_compile_fact(jax: JaxCompile | None) -> str:
    """``'compiling: 12 programs in 3.20 s, train_step 2.41 s of it'``; ``''`` if nothing was compiled."""
    if jax is None or not jax.programs:
        return ""
    worst = jax.functions[0]
    share = f", {shorten(sanitize(worst.name), NAME_LIMIT)} {format_ns(worst.total_ns)} of it"
    programs = f"{jax.programs:,} program{'' if jax.programs == 1 else 's'}"
    return f"compiling: {programs} in {format_ns(jax.total_ns)} of the whole run{share if jax.programs > 1 else ''}"


def jax_compile_sections(jax: JaxCompile | None) -> tuple[Section, ...]:
    """One section; empty if nothing was compiled."""
    if jax is None or not jax.programs:
        return ()
    columns: tuple[Column[JaxFunction], ...] = (
        Column("function", lambda one: one.name, "code", limit=NAME_LIMIT),
        Column("called at", _place, "place"),
        Column("compiled", lambda one: one.compilations, "count"),
        Column("tracing", lambda one: one.trace_ns, "ns", drop=3),
        Column("lowering", lambda one: one.lower_ns, "ns", drop=2),
        Column("XLA", lambda one: one.compile_ns, "ns", drop=1),
        Column("time", lambda one: one.total_ns, "ns"),
    )
    return (
        Section(
            title="Compiling of JAX",
            summary=jax_compile_fact(jax).removeprefix("compiling: "),
            blocks=(
                *tables(table(columns, jax.functions, few=3, left=jax.left, rest="functions")),
                *notes("time of the whole run, moments once: a function may be traced inside another"),
            ),
        ),
    )


def _place(one: JaxFunction) -> str:
    if one.file is None:
        return ""
    return f"{PurePath(sanitize(one.file)).name}:{one.line}"
