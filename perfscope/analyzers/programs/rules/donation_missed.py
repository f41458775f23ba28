"""A compiled JAX program keeps the old copy of the data that it replaces.

Example:
    Before::

        step = jax.jit(train_step)

    After::

        step = jax.jit(train_step, donate_argnames=("state",))

Why it costs:
    A step that returns new weights, optimizer state or a cache needs memory for both copies: the arguments belong to
    the caller, so XLA may not write into them. If an argument is donated, its memory is reused for the result. In a
    training step, weights and optimizer state then exist once instead of twice, often the largest part of the memory.

How it is found:
    Results of a compiled program that have the shape, type and layout of an argument, are computed from it element by
    element or by updates in place (also within loops), and are not aliased to it (``input_output_alias``), if nothing
    reads the argument after the result is written. Left out are gradients, which have the shape of their weights but
    are not computed from them in this way, and arguments that do not look like state (no leaf of a tree, in a program
    that neither differentiates nor writes into it). The saving follows from XLA's heap trace with the donated
    arguments; without a buffer assignment (text) it is modelled from schedule and shapes. A finding requires that the
    peak falls by `MIN_SAVED_BYTES` and by `MIN_SHARE` of it. XLA assigns memory differently once arguments are donated:
    in steps of a transformer the peak was within 1% of the predicted one. The program does not show whether the caller
    uses the argument again; check this before donating it.

    In a run of ours, also jax's warnings about donated buffers that no result can use, because none has their shape,
    type and layout. Their size is reported without a saving, because the intended result is unknown.

Fix:
    ::

        step = jax.jit(step, donate_argnames=("state",))   # or donate_argnums=0
        state = step(state, batch)                         # the old state must not be used after this

    The memory on the device is given up with the call; a later use of the old array raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfscope.analyzers.examined import program_records
from perfscope.analyzers.hlo import program_label, where_of
from perfscope.analyzers.ops import spans_of_instructions
from perfscope.analyzers.programs.donation import (
    Donation,
    Update,
    donations,
    refused_bytes,
    refused_donations,
    refused_sizes,
    writers,
)
from perfscope.model.finding import AbstainError, Finding, Where, fit_title
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

MIN_SAVED_BYTES = 1 << 20
"""Smallest saving at the peak. Smaller programs fit into any memory."""

MIN_SHARE = 0.01
"""Smallest saving as a share of the program's peak: the smallest useful increase of a batch on most models."""

MEDIUM_SHARE = 0.05
"""Share of the program's peak from which severity is medium. The use of the device's memory is not in the program, so
severity is never high.
"""

MAX_ROWS = 20

_EQUINOX = "dynamic_nodonate"
"""Name that `equinox.filter_jit` gives to all arrays among its arguments that are not donated."""

_ARGUMENT = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r"\['[^']*'\]")


examined = program_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per program whose peak would fall."""
    if not any(module.is_scheduled for module in trace.hlo):
        raise AbstainError("no compiled program among the XLA programs: only compiled programs have an order of reads")
    for donation in trace.fact(donations):
        if donation.saved_bytes >= max(MIN_SAVED_BYTES, MIN_SHARE * donation.peak_bytes):
            yield _finding(trace, donation)
    for refused in trace.fact(refused_donations):
        if refused_bytes(refused) >= MIN_SAVED_BYTES:
            yield _refused(refused)


def _refused(refused: CompileEvent) -> Finding:
    """Return a finding about donated buffers that no result used."""
    name = refused.module or "a program"
    number = refused.count or 0
    count = f"{number:,} donated {'buffer' if number == 1 else 'buffers'}"
    size = f"{'more than ' if number > len(refused.shapes) else ''}{format_bytes(refused_bytes(refused))}"
    return Finding(
        subject=f"donated buffers of {name} not usable",
        title=fit_title(f"{count} of {name} cannot be used: {size}", name),
        detail=f"No result of the program has their shape and type: {', '.join(refused.shapes[:3])}"
        f"{' ...' if len(refused.shapes) > 3 else ''}.",
        severity="low",
        basis="structural",
        where=Where(file=refused.file, line=refused.line, module=None if refused.file is not None else refused.module),
        evidence=tuple(
            {"shape": shape, "size_bytes": size, "program": refused.module}
            for shape, size in refused_sizes(refused)[:MAX_ROWS]
        ),
        advice="Return the new state with the shape and type it came in with, or do not donate unreturned inputs. "
        "A donated buffer becomes a result of the same shape, type and layout; a changed dtype is the usual reason "
        "(x.astype(old.dtype)).",
    )


def _finding(trace: Trace, donation: Donation) -> Finding:
    label = program_label(donation.module, trace)
    names = _arguments(donation)
    shown = ", ".join(names) if names and _EQUINOX not in names else "old arguments"
    peak = "peak" if donation.assigned else "peak as modelled"
    new = f"{len(donation.updates):,} {'array' if len(donation.updates) == 1 else 'arrays'}"
    return Finding(
        subject=f"arguments of {donation.module.name.partition('(')[0]} not donated",
        title=fit_title(
            f"{label} does not donate {shown}",
            shown,
            label,
        ),
        detail=f"It keeps {shown} in addition to the new values ({new}, {format_bytes(donation.bytes)}). Donated, its "
        f"{peak} of {format_bytes(donation.peak_bytes)} falls by about {format_bytes(donation.saved_bytes)}.",
        severity="medium" if donation.saved_bytes >= MEDIUM_SHARE * donation.peak_bytes else "low",
        basis="structural",
        cost_bytes=donation.saved_bytes,
        bytes_are="freed",
        memory_bytes=donation.peak_bytes,
        where=_where(donation),
        evidence=tuple(_row(donation, update) for update in donation.updates[:MAX_ROWS]),
        spans=spans_of_instructions(trace, donation.module, (update.written_by for update in donation.updates)),
        advice=_advice(donation, names),
    )


def _arguments(donation: Donation) -> tuple[str, ...]:
    """Return the names of the function's arguments that hold the arrays, largest first.

    Empty if the program has none.
    """
    sizes: dict[str, int] = {}
    for update in donation.updates:
        path = update.parameter.op_name
        name = _ARGUMENT.match(path)
        if name is None or "/" in _KEY.sub("", path):  # an op's name; Haiku's keys have slashes, too
            return ()
        sizes[name[0]] = sizes.get(name[0], 0) + update.bytes
    return tuple(sorted(sizes, key=lambda name: -sizes[name]))


def _where(donation: Donation) -> Where:
    """Return the line that computes the largest of the new values."""
    where = where_of(writers(donation.module, donation.updates[0].written_by)[-1])
    return Where(file=where.file, line=where.line, module=None if where.file is not None else donation.module.name)


def _row(donation: Donation, update: Update) -> dict[str, str | int | None]:
    shape = update.parameter.shape
    return {
        "argument": update.parameter.op_name or update.parameter.name,
        "shape": f"{shape.dtype}[{','.join(map(str, shape.dims))}]",
        "size_bytes": update.bytes,
        "result": update.output,
        "written_by": update.written_by,
        "program": donation.module.name,
    }


def _advice(donation: Donation, names: tuple[str, ...]) -> str:
    if _EQUINOX in names:
        how, named = (
            '@eqx.filter_jit(donate="all"), or "all-except-first" where the first argument is used again',
            "them",
        )
    elif names:
        listed = ", ".join(f'"{name}"' for name in names)
        how = f"jax.jit(f, donate_argnames=({listed}{',' if len(names) == 1 else ''}))"
        named = " and ".join(names)
    else:
        how, named = "jax.jit(f, donate_argnums=(...)) with the arguments that hold them", "them"
    already = f" {donation.donated:,} other arrays of the program are donated already." if donation.donated else ""
    return (
        f"Donate the memory: {how}. Assign the result to the same name (state = step(state, batch)). Do so only if the "
        f"caller does not use {named} again: a later use of the old arrays raises an error, so first copy what a "
        f"checkpoint or an average still needs.{already}"
    )
