"""The page of `perfscope compile` for a terminal: target, outcome, cost, and what is not covered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.hlo import collectives_of
from perfscope.analyzers.predict import estimate
from perfscope.analyzers.programs import programs
from perfscope.dashboards.report.blocks import Column, Marked, Range, table
from perfscope.dashboards.report.renderers.text import WIDTH, line_of, printed, sections_text, table_text
from perfscope.dashboards.report.sections.plan import plan_sections
from perfscope.dashboards.report.summary import Summary, summarize
from perfscope.dashboards.report.text import coverage, findings_part, not_flagged
from perfscope.model.errors import DataError
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.analyzers.devices import Target
    from perfscope.analyzers.engine import Analysis
    from perfscope.analyzers.hlo import HloModule
    from perfscope.analyzers.predict import Estimate
    from perfscope.analyzers.programs import Program
    from perfscope.dashboards.report.blocks import Value
    from perfscope.model.documents.compile_manifest import Compiled, CompiledProgram
    from perfscope.model.trace import Trace

MOST_ROWS = 12
"""Programs in the table; the report holds all."""
MOST_NOTES = 6
"""Most notes on assumed values and gaps; `compile.json` has all."""
MOST_LINE = 300
"""Characters of a note."""
PLACE = 34
"""Characters of a place: the end of a path identifies it."""


def compiled_page(
    manifest: Compiled,
    trace: Trace,
    analysis: Analysis,
    folder: str,
    *,
    width: int = WIDTH,
    color: bool = False,
    verbose: bool = False,
) -> str:
    """The page as text of ``width`` columns. ``folder``: the path to print in follow-up commands."""

    def parts(columns: int) -> Iterator[RenderableType]:
        summary = summarize(analysis)
        yield line_of("perfscope: ", _headline(manifest, trace), style="bold")
        if trace.target is not None:
            yield from (line_of("  ", text) for text in _target_lines(trace.target))
        yield ""
        if trace.hlo:
            yield _programs_table(manifest, trace, columns)
            yield from _known_by(trace)
            yield ""
        yield from sections_text(plan_sections(analysis.plans), columns, verbose=verbose)
        yield from findings_part(summary, columns, verbose=verbose)
        yield from not_flagged(summary) if verbose else coverage(summary)
        yield from _not_here(manifest, verbose=verbose)
        yield ""
        yield line_of("  kept  ", folder)
        for number, command in enumerate(_next(manifest, summary, folder)):
            yield line_of("        " if number else "  next  ", command)

    return printed(parts, width=width, color=color)


def _headline(manifest: Compiled, trace: Trace) -> str:
    many = len(manifest.programs)
    what = {"jax": "program", "torch": "graph"}[manifest.framework]
    verb = "compiled" if manifest.framework == "jax" else "planned"
    target = sanitize(manifest.target.device) if trace.target is None else trace.target.shown
    command = sanitize(" ".join(manifest.command))
    policy = "" if manifest.checkpoint is None else f" with --checkpoint {sanitize(manifest.checkpoint.policy)}"
    took = "" if manifest.seconds is None else f" in {manifest.seconds:.0f} s"
    return f"{many} {what}{'' if many == 1 else 's'} of {command} {verb} for {target}{policy}{took}; nothing ran on one"


def _target_lines(target: Target) -> Iterator[str]:
    """The device's figures used for the estimate."""
    device = target.device
    peaks = device.peak_flops
    numbers = []
    if target.memory_bytes is not None:
        numbers.append(f"{format_bytes(target.memory_bytes)} at {device.memory_bandwidth / 1e12:.2f} TB/s")
    else:
        numbers.append(f"{device.memory_bandwidth / 1e12:.2f} TB/s of memory")
    numbers += [
        f"{peaks[name] / 1e12:,.0f} TFLOP/s {name}" for name in ("bfloat16", "tf32", "float32") if peaks.get(name)
    ]
    if target.count > 1 and device.link_bandwidth:
        numbers.append(f"{device.link} {device.link_bandwidth / 1e9:,.0f} GB/s a direction")
    yield f"each: {', '.join(numbers)}"
    yield from (f"assumed: {sanitize(text)}" for text in target.assumptions)


def _programs_table(manifest: Compiled, trace: Trace, width: int) -> RenderableType:
    by_file = {f"{trace.source.path}/{program.file}": program for program in manifest.programs}
    rows = [program for program in trace.fact(programs) if program.module_index is not None][:MOST_ROWS]
    made = table(_columns(by_file, trace), rows)
    return table_text(made.heads, made.rows, width)


def _columns(by_file: dict[str, CompiledProgram], trace: Trace) -> tuple[Column[Program], ...]:
    def compiled(row: Program) -> CompiledProgram | None:
        return by_file.get(module(row).source)

    def module(row: Program) -> HloModule:
        return trace.hlo[row.module_index or 0]

    def place(row: Program) -> str:
        program = compiled(row)
        return "" if program is None or program.place is None else f"{program.place.file}:{program.place.line}"

    def seconds(row: Program) -> str:
        program = compiled(row)
        known = program is not None and program.seconds_to_compile is not None
        return f"{program.seconds_to_compile:.1f} s" if known and program is not None else "-"

    return (
        Column("program", lambda row: row.name, "code"),
        Column("at", place, "place", drop=1, limit=PLACE),
        Column("calls", lambda row: "-" if (program := compiled(row)) is None else program.calls, "count", drop=2),
        Column("compiled in", seconds, "count", drop=3),
        Column("peak memory", lambda row: _peak(row, trace), "bytes"),
        Column("FLOPs", lambda row: _bounded(row.flops, row), "quantity", drop=5),
        Column("HBM bytes", lambda row: _bounded(row.bytes, row), "bytes"),
        Column("collectives", lambda row: _collectives(module(row)), "count", drop=4),
        Column("time per run", lambda row: _modelled(module(row), trace), "ns"),
    )


def _bounded(value: float | None, row: Program) -> Value:
    return "-" if value is None else Marked(value, "" if row.exact else ">=")


def _peak(row: Program, trace: Trace) -> str:
    if row.peak_bytes is None:
        return "-"
    most = None if trace.target is None else trace.target.memory_bytes
    return format_bytes(row.peak_bytes) + (f" ({format_share(row.peak_bytes, most)})" if most else "")


def _collectives(module: HloModule) -> str:
    collectives = collectives_of(module)
    blocking = sum(collective.blocks is not None for collective in collectives)
    if not collectives:
        return "none"
    return f"{len(collectives)}" + (f", {blocking} block" if blocking else "")


def _modelled(module: HloModule, trace: Trace) -> Value:
    """The modelled time of a run as a range."""
    estimate = _estimate(module, trace)
    return "-" if estimate is None else Range(estimate.step_ns.low, estimate.step_ns.high)


def _estimate(module: HloModule, trace: Trace) -> Estimate | None:
    if trace.target is None:
        return None
    try:
        return estimate(module, trace.target)
    except DataError:
        return None


def _known_by(trace: Trace) -> Iterator[RenderableType]:
    known = {row.peak_known_by for row in trace.fact(programs)}
    memory = "as XLA assigned it" if known <= {"assigned"} else "as XLA assigned it, where it said so"
    yield line_of(
        "    ",
        f"one run on one device; peak memory {memory}; FLOPs, bytes and time are modelled, nothing is measured",
    )
    sizes = [(row, trace.target.memory_bytes) for row in trace.fact(programs) if trace.target is not None]
    for row, most in sizes:
        if row.peak_bytes is not None and most is not None and row.peak_bytes > most:
            over = format_bytes(row.peak_bytes - most)
            yield line_of("  ", f"{sanitize(row.name)} does not fit: its peak is {over} above the memory of one device")


def _not_here(manifest: Compiled, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield what was not compiled, where the program was stopped, and the values that were assumed."""
    for not_compiled in manifest.not_compiled[: None if verbose else MOST_NOTES]:
        where = "" if not_compiled.place is None else f" ({not_compiled.place.file}:{not_compiled.place.line})"
        yield line_of("  not compiled: ", sanitize(f"{not_compiled.name}{where}: {not_compiled.reason}", MOST_LINE))
    if manifest.stopped:
        yield line_of("  stopped: ", sanitize(manifest.stopped, MOST_LINE))
    for note in manifest.notes[: None if verbose else MOST_NOTES]:
        yield line_of("  note: ", sanitize(note, MOST_LINE))
    left = max(len(manifest.notes), len(manifest.not_compiled)) - MOST_NOTES
    if left > 0 and not verbose:
        yield f"  and {left} more: -v shows all"


def _next(manifest: Compiled, summary: Summary, folder: str) -> Iterator[str]:
    """Commands to run next."""
    if summary.findings:
        yield f"perfscope explain {summary.findings[0].rule}"
    if manifest.framework == "jax":
        yield f"perfscope advise memory {folder}"
    yield f"perfscope serve {folder}"
