"""``perfscope export``: a run or traces in the format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import announce, quiet_option, spare, verbose_option
from perfscope.model.errors import DONE, UsageError
from perfscope.model.plugins import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.model.trace import Trace
    from perfscope.plugins.exports.export import Subject

FORMATS = tuple(named("exports"))
TIMELINES = ("perfetto", "chrome")
"""Formats with all ranks on one timeline, and findings on it."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_runs)
@click.option("--to", "form", type=click.Choice(FORMATS), required=True, help="Format of the export.")
@click.option("-o", "--output", metavar="FILE", help="Write here (a folder: parquet, tensorboard). [named after PATH]")
@click.option("--findings/--no-findings", default=True, help="Judge the traces and draw what was found.")
@click.option("--align-clocks", "align", is_flag=True, help="Put the ranks on one clock, by the ends of collectives.")
@quiet_option
@verbose_option
def export(
    paths: tuple[str, ...], form: str, output: str | None, findings: bool, align: bool, quiet: bool, verbose: bool
) -> int:
    """Write a run, a trace file, or a folder of traces in the format of another tool.

    `perfetto` (ui.perfetto.dev, trace_processor) and `chrome` (chrome://tracing, other readers of Kineto's JSON) hold
    all ranks on one timeline; a name that ends in .gz is packed. `speedscope` holds stacks of the host and of compiled
    programs, `parquet` every table as it is, `tensorboard` a folder that TensorBoard and XProf open.
    """
    from perfscope.analyzers.readers import load_paths
    from perfscope.plugins.exports.clocks import apart
    from perfscope.plugins.exports.export import Subject, module_of
    from perfscope.plugins.exports.export import export as write

    if align and form not in TIMELINES:
        raise UsageError(f"--align-clocks: --to {form} has no common timeline ({', '.join(TIMELINES)} have)")
    traces = load_paths(paths).traces
    target = Path(output) if output is not None else _named_after(paths[0], module_of(form).SUFFIX)
    _spare_inputs(paths, traces, target)
    subject = _judged(traces) if findings and form in TIMELINES else Subject(traces=tuple(traces))
    subject, remarks = _on_one_clock(subject) if align else (subject, apart(traces) if form in TIMELINES else [])
    remarks = [*remarks, *write(subject, form, target)]
    for line in (*remarks, f"wrote {target}"):
        announce(line, quiet=quiet)
    return DONE


def _judged(traces: Sequence[Trace]) -> Subject:
    from perfscope.analyzers.engine import analyze
    from perfscope.plugins.exports.export import Subject

    return Subject(traces=tuple(traces), findings=analyze(traces).findings())


def _on_one_clock(subject: Subject) -> tuple[Subject, list[str]]:
    from msgspec.structs import replace

    from perfscope.plugins.exports.clocks import aligned

    traces, remarks = aligned(subject.traces)
    return replace(subject, traces=traces), remarks


def _named_after(path: str, suffix: str) -> Path:
    """``trace.json.gz`` -> ``trace.pftrace.gz``, in the current folder."""
    name = Path(path).resolve().name
    for known in (".gz", ".xz", ".json", ".pb", ".xplane", ".sqlite", ".nsys-rep", ".pickle", ".pftrace", ".trace"):
        name = name.removesuffix(known) or name
    return Path(f"{name}{suffix}")


def _spare_inputs(paths: Sequence[str], traces: Sequence[Trace], target: Path) -> None:
    """Refuse to write over an exported file, or over a file in an exported folder."""
    spare([*paths, *(trace.source.path for trace in traces)], [str(target)])
    folder = target.resolve()
    for path in paths:
        if target.exists() and folder.is_relative_to(Path(path).resolve()):
            raise UsageError(f"{target}: is a file of {path} itself; the export needs another one")
