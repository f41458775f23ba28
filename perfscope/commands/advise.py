"""``perfscope advise``: what another plan of the same program would need and take, before it is written."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from perfscope.commands import advise_compile
from perfscope.commands.completion import complete_runs
from perfscope.commands.group import VerbGroup
from perfscope.commands.options import device_named, quiet_option, spare, verbose_option
from perfscope.model.errors import DONE, DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.checkpointing.step_model import StepModel
    from perfscope.dashboards.report.sections.advice import PlansReport
    from perfscope.model.trace import Trace


MOST_VERIFIED = 9_999
"""Plans that ``--verify`` without a number compiles: all."""
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@click.group(cls=VerbGroup)
def advise() -> None:
    """Say what to change, with what it is predicted to gain and cost."""


@advise.command()
@click.argument("path", metavar="PATH", shell_complete=complete_runs)
@click.option("--budget", metavar="SIZE", help="Memory a step may need: 80GiB, 512MiB. [90% of the device]")
@click.option("--devices", type=click.IntRange(min=1, max=1_000_000), metavar="N", help="Divide state among N devices.")
@click.option("--device", metavar="NAME", help="Device whose links and peaks count (H100 ...) where none is recorded.")
@click.option(
    "--verify",
    is_flag=False,
    flag_value="all",
    metavar="[N]",
    help="Of a run of `perfscope compile`: compile the plans (N of them) as well, and show how far off each is.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Of a run of `perfscope compile`: estimate the peak of each policy instead of compiling it.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the plans here as JSON (- for stdout).")
@click.option("--html", "html_file", metavar="FILE", help="Write the plans here as a page with the picture.")
@quiet_option
@verbose_option
def memory(
    path: str,
    budget: str | None,
    devices: int | None,
    device: str | None,
    verify: str | None,
    estimate: bool,
    json_file: str | None,
    html_file: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Which modules to checkpoint, offload or divide among devices, and what each plan needs and takes.

    PATH is a run of `perfscope run` (`latest`, or its name), or compiled programs of JAX. All plans that are worth
    having are listed, from the quickest to the leanest; the quickest that fits the budget comes first. Of a run of
    `perfscope compile` whose JAX program and compiler are here, the policies are compiled for their exact peaks.
    """
    from perfscope.analyzers.checkpointing.models import step_models
    from perfscope.analyzers.checkpointing.plans import plan_memory
    from perfscope.analyzers.readers.load import load_path
    from perfscope.dashboards.report.sections.advice import plans_report

    allowed = None if budget is None else parse_size(budget)
    name = None if device is None else device_named(device).name
    most = None if verify is None else parse_most(verify)
    if html_file == "-":
        raise UsageError("--html -: a page goes into a file; --json - prints the plans")
    loaded = load_path(path)
    target = next((trace.target for trace in loaded.traces if trace.target is not None), None)
    if target is not None and name is not None:
        raise UsageError(f"--device {name}: {path} was compiled for {target.shown}")
    traces = [
        trace if name is None or trace.target is not None else replace(trace, judged_device=name)
        for trace in loaded.traces
    ]
    steps = step_models(traces)
    unseen = (*steps.unseen, *(f"{skipped.path}: {skipped.reason}" for skipped in loaded.skipped if skipped.broken))
    if not steps.models:
        raise DataError(unseen[0] if unseen else f"{path}: no step to plan for")
    model, trace = _compiled_or_estimated(steps.models[0], traces, estimate=estimate or most is not None, quiet=quiet)
    plans = plan_memory(model, budget_bytes=allowed, devices=devices, device=name)
    verified = None
    if most is not None:
        verified = advise_compile.verified_plans(trace, model, plans.front, most=most, quiet=quiet)
    report = plans_report(plans, path, unseen, len(steps.models) - 1, verified)
    _write(report, json_file, html_file, inputs=[trace.source.path for trace in loaded.traces], quiet=quiet)
    if json_file != "-":
        _print(report)
    return DONE


def parse_most(text: str) -> int:
    """How many plans ``--verify`` compiles; ``UsageError`` where it is no number."""
    if text == "all":
        return MOST_VERIFIED
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(
            f"--verify {text[:40]}: how many plans? The run goes in front: perfscope advise memory RUN --verify 2"
        )
    return int(text)


def _compiled_or_estimated(
    model: StepModel, traces: Sequence[Trace], *, estimate: bool, quiet: bool
) -> tuple[StepModel, Trace]:
    """The step, with the compiler's peaks where they were asked for and can be had; and the trace it is of.

    Where estimates are left, the command that compiles the policies is named, if the run names its program.
    """
    from perfscope.analyzers.checkpointing.jax_layers.estimate import EXACT

    trace = next(
        (trace for trace in traces if model.framework == "jax" and trace.hlo and trace.op_graph is None), traces[0]
    )
    if not estimate and model.framework == "jax" and trace.source.format == "compiled":
        model, reason = advise_compile.with_compiled_peaks(trace, model, quiet=quiet)
        if reason:
            model = replace(model, notes=(*model.notes, f"peaks are estimated: {reason}"))
    command = advise_compile.exact_command(trace) if EXACT in model.notes else None
    if command is None:
        return model, trace
    note = advise_compile.exact_note(command, verifiable=trace.source.format == "compiled")
    return replace(model, notes=tuple(note if text == EXACT else text for text in model.notes)), trace


def parse_size(text: str) -> int:
    """``80GiB``, ``80G``, ``80GB`` (decimal), ``1.5 TiB``, ``1073741824`` in bytes; ``UsageError`` else."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt]?)(i?b)?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"--budget {text[:40]}: not a size; write 80GiB, 512MiB or a number of bytes")
    number, prefix, suffix = match[1], match[2].lower(), (match[3] or "").lower()
    factor = _DECIMAL[prefix + "b"] if prefix and suffix == "b" else 1 << _UNITS[prefix]
    size = round(float(number) * factor)
    if not 0 < size < 1 << 62:
        raise UsageError(f"--budget {text[:40]}: not a memory; write 80GiB, 512MiB or a number of bytes")
    return size


def _write(
    report: PlansReport, json_file: str | None, html_file: str | None, *, inputs: Sequence[str], quiet: bool
) -> None:
    from perfscope.dashboards.report import write
    from perfscope.dashboards.report.sections import advice
    from perfscope.model.untrusted_text import sanitize

    spare(inputs, [file for file in (json_file, html_file) if file is not None and file != "-"])
    for file, render_text in ((json_file, advice.render_json), (html_file, advice.render_html)):
        if file == "-":
            click.echo(render_text(report), nl=False)
        elif file is not None:
            write(file, render_text(report))
            if not quiet:
                click.echo(f"perfscope: wrote {sanitize(file)}", err=True)


def _print(report: PlansReport) -> None:
    from perfscope.commands.options import color_wanted, width_of
    from perfscope.dashboards.report.sections.advice import render_text

    click.echo(render_text(report, width=width_of(sys.stdout), color=color_wanted(sys.stdout)), nl=False, color=True)
