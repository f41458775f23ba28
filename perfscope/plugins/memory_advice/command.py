"""``perfscope advise``: what another plan of the same program would need and take, before it is written."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.group import VerbGroup
from perfscope.commands.options import STDOUT, device_named, quiet_option, screen, spare, verbose_option, write_answers
from perfscope.model.errors import DONE, DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.model.trace import Trace
    from perfscope.plugins.memory_advice.step_model import StepModel


MOST_VERIFIED = 9_999
"""Plans that ``--verify`` without a number compiles: all."""


@click.group(cls=VerbGroup)
def advise() -> None:
    """Advise changes, with their predicted gain and cost."""


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
    help="For a run of `perfscope compile`: compile the plans (N of them) as well, and show the error of each.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="For a run of `perfscope compile`: estimate the peak of each policy instead of compiling it.",
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
    """Advise modules to checkpoint, offload or divide among devices; show memory and time of each plan.

    PATH is a run of `perfscope run` (`latest`, or its name), or compiled programs of JAX. All plans that are not worse
    than another are listed, from the quickest to the leanest; the quickest that fits the budget comes first. For a run
    of `perfscope compile` whose JAX program and compiler are here, the policies are compiled for their exact peaks.
    """
    from msgspec.structs import replace

    from perfscope.analyzers.devices import read_bytes_text
    from perfscope.analyzers.readers import load_path
    from perfscope.plugins.memory_advice import compile_plans
    from perfscope.plugins.memory_advice import sections as advice
    from perfscope.plugins.memory_advice.models import step_models
    from perfscope.plugins.memory_advice.plans import plan_memory

    allowed = None if budget is None else read_bytes_text(budget, "--budget")
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
        verified = compile_plans.verified_plans(trace, model, plans.front, most=most, quiet=quiet)
    report = advice.plans_report(plans, path, unseen, len(steps.models) - 1, verified)
    spare([trace.source.path for trace in loaded.traces], filter(None, (json_file, html_file)))
    answers = ((json_file, lambda: advice.render_json(report)), (html_file, lambda: advice.render_html(report)))
    write_answers(answers, quiet=quiet)
    if json_file != STDOUT:
        click.echo(advice.render_text(report, **screen(sys.stdout)), nl=False, color=True)
    return DONE


def parse_most(text: str) -> int:
    """Number of plans for ``--verify``; ``UsageError`` if it is invalid."""
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
    """The step, with the compiler's peaks if requested and available; and its trace.

    If estimates remain, the command that compiles the policies is printed, if the run has its program's name.
    """
    from msgspec.structs import replace

    from perfscope.plugins.memory_advice import compile_plans
    from perfscope.plugins.memory_advice.step_model_hlo import EXACT

    trace = next(
        (trace for trace in traces if model.framework == "jax" and trace.hlo and trace.op_graph is None), traces[0]
    )
    if not estimate and model.framework == "jax" and trace.source.format == "compiled":
        model, reason = compile_plans.with_compiled_peaks(trace, model, quiet=quiet)
        if reason:
            model = replace(model, notes=(*model.notes, f"peaks are estimated: {reason}"))
    command = compile_plans.exact_command(trace) if EXACT in model.notes else None
    if command is None:
        return model, trace
    note = compile_plans.exact_note(command, verifiable=trace.source.format == "compiled")
    return replace(model, notes=tuple(note if text == EXACT else text for text in model.notes)), trace
