"""``perfscope analyze``: judge a run, a trace file, or a folder of traces."""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.completion import complete_rules, complete_runs
from perfscope.commands.options import (
    AFTER_ANALYSIS,
    announce,
    checkout_folder,
    device_named,
    quiet_option,
    screen,
    selection_options,
    spare,
    verbose_option,
    write_answers,
)
from perfscope.model.errors import DONE, GATE_NOT_MET, UsageError
from perfscope.model.severity import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.analysis_cache import Kept
    from perfscope.analyzers.critical_path import Hypothesis, WhatIf
    from perfscope.analyzers.engine import Analysis
    from perfscope.analyzers.readers import Loaded, Skipped

FORMATS = ("text", "json", "markdown", "html", "github", "llm", "sarif")
NO_GATE = "none"

LEAST_BUDGET = 500
"""Tokens: the head of a report and its first finding."""


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice((*SEVERITIES, NO_GATE)),
    help="Exit 1 if a finding is as severe as this or worse. [none, or that of pyproject.toml]",
)
"""The gate on findings. The command gets ``fail_on: str | None``."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_runs)
@click.option("--format", "form", type=click.Choice(FORMATS), help="What to print. [text, or by the suffix of -o]")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", help="Write here, not to stdout (repeatable)."
)
@click.option(
    "--budget",
    type=click.IntRange(min=LEAST_BUDGET),
    metavar="TOKENS",
    help="Size of --format llm, at 4 characters per token. [4000]",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="ID",
    help="Ask this rule only (repeatable).",
    shell_complete=complete_rules,
)
@click.option(
    "--device",
    metavar="NAME",
    help="Judge compiled programs for this device (H200, MI300X, TPU v5p ...) where the recording names none.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read at most N files of a set, or ranks of a run, at once, each in its own process. [cores]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Read them on the workers of this Dask scheduler, which see the same paths.",
)
@selection_options
@click.option("--topology", metavar="FILE", help="Ranks of a node, their links, the network (TOML), for nvlink_stall.")
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="Model a change: 'aten::mm x0.5', 'sync x0', 'launch x0', 'communication x0' (repeatable).",
)
@click.option("--no-cache", is_flag=True, help="Judge again what was judged before.")
@fail_on_option
@quiet_option
@verbose_option
def analyze(
    paths: tuple[str, ...],
    form: str | None,
    outputs: tuple[str, ...],
    budget: int | None,
    rules: tuple[str, ...],
    device: str | None,
    jobs: int | None,
    scheduler: str | None,
    steps: str | None,
    ranks: str | None,
    time: str | None,
    topology: str | None,
    changes: tuple[str, ...],
    no_cache: bool,
    fail_on: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Show where the time goes and the gain of fixing it.

    PATH is a run (`latest`, or its name), a trace file, or a folder with the traces of one job's
    ranks; if a folder has several jobs, the largest is judged and the others are named. Several paths
    are taken as ranks of one job; compiled programs (HLO) alone are judged one by one and compared.
    """
    from perfscope.analyzers.configuration import find_configuration
    from perfscope.analyzers.critical_path import parse_hypothesis
    from perfscope.analyzers.devices import read_topology
    from perfscope.analyzers.registry import load_rule
    from perfscope.analyzers.selection import parse_selection
    from perfscope.dashboards.report import render

    configuration = find_configuration()
    device = configuration.device if device is None else device
    topology = configuration.topology if topology is None else topology
    targets = [(_format_for(output, form), output) for output in outputs]
    chosen = list(dict.fromkeys(load_rule(rule).id for rule in rules)) or None
    named = None if device is None else device_named(device)
    links = None if topology is None else read_topology(topology)
    if budget is not None and form != "llm":
        raise UsageError("--budget: only --format llm has one")
    if scheduler is not None and jobs is not None:
        raise UsageError("--jobs is for this machine; with --scheduler the cluster's workers decide")
    hypotheses = [parse_hypothesis(change) for change in changes]
    how = {"device": named, "topology": links, "configuration": configuration,
           "selection": parse_selection(steps, ranks, time)}  # fmt: skip
    if hypotheses or scheduler is not None:  # what-ifs need the trace itself
        judged = _judge(paths, chosen, hypotheses, jobs=jobs, scheduler=scheduler, **how)
    else:
        judged = _judged(paths, chosen, again=no_cache, quiet=quiet, jobs=jobs, **how)
    analysis = judged.analysis
    spare(judged.files, outputs)
    if not quiet:
        _print_skipped(judged.skipped)
    options = _options(verbose, budget)
    answers = [(file, partial(render, analysis, form, **options.get(form, {}))) for form, file in targets]
    write_answers(answers, quiet=quiet)
    if not targets:
        _show(analysis, form or "text", options)
    return _end(analysis, paths[0], fail_on or configuration.fail_on)


def _end(analysis: Analysis, path: str, fail_on: str | None) -> int:
    """Give the analysis to plug-ins, and return the exit code; the run's name is that of the first path."""
    from perfscope.analyzers.readers import resolve

    for take in click.get_current_context().meta.get(AFTER_ANALYSIS, ()):
        take(analysis, Path(resolve(path)).name)
    return GATE_NOT_MET if gate(analysis, fail_on) else DONE


def _show(analysis: Analysis, form: str, options: dict[str, dict[str, Any]]) -> None:
    """The report on stdout."""
    from perfscope.dashboards.report import render

    sized = {**screen(sys.stdout), "links": sys.stdout.isatty()} if form == "text" else {}
    click.echo(render(analysis, form, **sized, **options.get(form, {})), nl=False, color=True)


def _judged(
    paths: Sequence[str], rules: Sequence[str] | None, *, again: bool, quiet: bool, jobs: int | None, **how: Any
) -> Kept:
    """The analysis that was kept when the same files were judged before, unless ``again`` requests a new one."""
    from perfscope.analyzers.analysis_cache import entry_for, keep, recall

    entry = entry_for(paths, rules, **how)
    kept = None if again else recall(entry, how["configuration"])
    if kept is not None:
        when = datetime.fromtimestamp(kept.judged_s).strftime("%Y-%m-%d %H:%M")
        announce(f"as judged on {when}; --no-cache judges again", quiet=quiet)
        return kept
    judged = _judge(paths, rules, (), jobs=jobs, **how)
    if entry is not None and entry == entry_for(paths, rules, **how):  # nothing was written meanwhile
        keep(entry, judged)
    return judged


def _judge(paths: Sequence[str], rules: Sequence[str] | None, changes: Sequence[Hypothesis], **how: Any) -> Kept:
    from msgspec.structs import replace

    from perfscope.analyzers.analysis_cache import Kept
    from perfscope.analyzers.judge import judge_paths
    from perfscope.commands.allocator import keep_freed_memory

    keep_freed_memory(map(Path, paths))
    judged = judge_paths(paths, rules, **how)
    traces = judged.loaded.traces
    files = [trace.source.path for trace in traces]
    files += [module.source for trace in traces if trace.source.programs for module in trace.hlo]
    return Kept(
        analysis=replace(judged.analysis, what_ifs=_what_ifs(judged.loaded, changes)),
        files=tuple(files),
        skipped=judged.loaded.skipped,
        judged_s=datetime.now().timestamp(),
    )


def _what_ifs(loaded: Loaded, changes: Sequence[Hypothesis]) -> tuple[WhatIf, ...]:
    """The answer to each change. A set of traces lacks the data to replay one."""
    from perfscope.analyzers.critical_path import what_if

    if changes and len(loaded.traces) > 1:
        raise UsageError("--what-if plays one recording again: give the trace of one rank")
    answers = [what_if(trace, change) for trace in loaded.traces for change in changes]
    if changes and None in answers:
        raise UsageError("--what-if: no host thread and no device worked in this recording")
    return tuple(answer for answer in answers if answer is not None)


def gate(analysis: Analysis, fail_on: str | None) -> bool:
    """True if a finding is as severe as ``fail_on`` or worse; an abstention and a silenced finding do not count.

    Without ``fail_on`` (or with ``none``) always False.
    """
    if fail_on is None or fail_on == NO_GATE:
        return False
    worst = SEVERITIES.index(fail_on)
    return any(SEVERITIES.index(finding.severity) >= worst for _, finding in analysis.findings())


def _format_for(output: str, form: str | None) -> str:
    """The format of an output file: ``--format``, else by its suffix."""
    from perfscope.dashboards.report import format_of

    result = form or format_of(output)
    if result is None:
        raise click.UsageError(f"{output}: which format? Give --format, or a suffix: .txt .json .md .html .sarif")
    return result


def _print_skipped(skipped: Sequence[Skipped]) -> None:
    """On stderr: which files of a folder were left out; each damaged trace has its own line."""
    from perfscope.analyzers.readers import MOST_NAMED, left_out_sentence
    from perfscope.model.untrusted_text import sanitize

    others = [item for item in skipped if not item.broken and not item.other_job]
    for item in skipped:
        if item.broken:
            announce(f"{sanitize(item.path)}: not read: {sanitize(item.reason)}")
    if others:
        named = ", ".join(sanitize(other.path) for other in others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        announce(f"skipped, not a trace: {named}{more}")
    if any(item.other_job for item in skipped):
        announce(left_out_sentence(skipped))


def _options(verbose: bool, budget: int | None) -> dict[str, dict[str, Any]]:
    """Options of `render` by format."""
    return {
        "text": {"verbose": verbose},
        "github": {"repository": checkout_folder()},
        "sarif": {"repository": checkout_folder()},
        "llm": {} if budget is None else {"budget": budget},
    }
