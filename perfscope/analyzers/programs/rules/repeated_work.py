"""Several devices compute the same values: the work of a program is not divided among them.

Example:
    Before::

        x = jax.device_put(x)                   # all devices compute the whole batch

    After::

        x = jax.device_put(x, NamedSharding(mesh, P("data")))

Why it costs:
    A program that `jax.jit` compiles for a mesh runs on all its devices. The shardings of its arguments decide how work
    is divided. If no argument is divided along an axis of the mesh (replicated parameters and a batch that comes as a
    NumPy array), every device along it receives all data and computes all of it: eight devices take as long as one.

How it is found:
    From compiled programs: devices that get the same part of every argument compute the same values, unless the program
    reads the number of its device (`partition-id`). A program counts if its arithmetic is at least a tenth of that of
    all programs and it contains matrix products or convolutions. The cost is the part of its time that dividing the
    work would save: of `n` equal devices all but one n-th, measured if the recording has the program, else modelled.

    Arguments with the shape of a result (weights, states) are assumed to be replicated on purpose; the finding names
    the others.

Fix:
    Divide the batch over the mesh before the call::

        data = NamedSharding(mesh, P("data"))
        x = jax.device_put(x, data)                # or jax.jit(step, in_shardings=(None, data))

    In several processes `jax.make_array_from_process_local_data(data, x)`.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.examined import program_records
from perfscope.analyzers.hlo import call_line, costs, measured_run_ns, module_index, program_label, where_of
from perfscope.analyzers.ops import spans_of_instructions
from perfscope.analyzers.programs.repeated_work import RepeatedWork, repeated_work
from perfscope.analyzers.programs.saving import Part, price, priced, program_roof_ns
from perfscope.model.finding import AbstainError, Finding, Where, fit_title
from perfscope.model.trace import Trace

MIN_SHARE = 0.1
"""Smallest share of the arithmetic of all programs: smaller programs initialise, or sum metrics."""

MOST_NAMED = 3
"""Maximum number of arguments in a title."""

examined = program_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per program whose devices repeat each other's work."""
    judged = trace.fact(costs)
    if not judged:
        raise AbstainError("no compiled program among the XLA programs: the partitioner may still divide the work")
    whole = sum(cost.total.flops for cost in judged)
    for found in trace.fact(repeated_work):
        if found.cost.total.products and found.cost.total.flops >= MIN_SHARE * whole:
            yield _finding(trace, found)


def _finding(trace: Trace, found: RepeatedWork) -> Finding:
    module, entry = found.cost.module, found.cost.module.entry_computation()
    label = program_label(module, trace)
    rows = [row for row in found.cost.launched if row.computation == entry.name or row.runs]
    names = tuple(row.instruction.name for row in rows)
    saved = price(trace, [Part(module=module, instructions=names, modelled_ns=_saved_ns(trace, found, names))])
    arguments = ", ".join(found.data[:MOST_NAMED]) + (" ..." if found.data[MOST_NAMED:] else "")
    what = (
        f"all {found.devices:,}" if found.times == found.devices else f"groups of {found.times:,} of {found.devices:,}"
    )
    undivided = f"{arguments} {'is' if len(found.data) == 1 else 'are'} not divided" if arguments else "no argument is"
    finding = Finding(
        subject=f"work repeated on devices by {module.name.partition('(')[0]}",
        title=fit_title(f"{what} devices compute the same in {label}: {undivided}", label),
        detail=_detail(found),
        severity="medium",
        basis="structural",
        where=_where(trace, found),
        evidence=(
            {
                "program": module.name,
                "devices": found.devices,
                "devices_per_value": found.times,
                "flops_per_device": found.cost.total.flops,
                "not_divided": ", ".join(found.data)[:200],
                "divided": ", ".join(found.divided)[:200],
            },
        ),
        spans=spans_of_instructions(trace, module, names),
        advice=_advice(found),
    )
    return priced(finding, saved)


def _saved_ns(trace: Trace, found: RepeatedWork, names: tuple[str, ...]) -> float | None:
    """Return the time of one run that is saved if each device computes only its share."""
    module, part = found.cost.module, 1 - 1 / found.times
    measured = measured_run_ns(trace, module, names)
    if measured is not None:
        return measured * part
    roof = trace.fact(program_roof_ns).get(module_index(trace, module))
    return None if roof is None else roof * part


def _where(trace: Trace, found: RepeatedWork) -> Where:
    """Return the line that calls the program, else that of its first product."""
    module = found.cost.module
    called = call_line(trace, module.name.partition("(")[0])
    if called is not None:
        return called
    products = (where_of(row.instruction) for row in found.cost.launched if row.once.products)
    known = next((where for where in products if where.file is not None), None)
    return Where(module=module.name) if known is None else Where(file=known.file, line=known.line)


def _detail(found: RepeatedWork) -> str:
    if found.divided:
        listed = ", ".join(found.divided[:MOST_NAMED])
        return f"{listed} {'is' if len(found.divided) == 1 else 'are'} divided along other axes of the mesh only."
    return f"Every argument is replicated, so {found.devices:,} devices are as fast as one."


def _advice(found: RepeatedWork) -> str:
    names = found.data or ("x",)
    calls = "; ".join(f"{name} = jax.device_put({name}, data)" for name in names[:MOST_NAMED])
    axis = "P(axis), with an unused axis of the mesh" if found.divided else 'P("data")'
    return (
        f"Divide the batch over the mesh before the call: data = NamedSharding(mesh, {axis}); {calls}. Or give "
        "jax.jit in_shardings. A NumPy batch is copied whole to every device."
    )
