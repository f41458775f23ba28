"""``perfscope try``: interventions that answer the findings of a program, applied from outside and measured."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare.commits import SEEDS, AbCommand, launch_options
from perfscope.commands.compare.outputs import new_folder
from perfscope.commands.options import (
    STDOUT,
    announce,
    output_folder_option,
    parse_time,
    quiet_option,
    screen,
    verbose_option,
    write_answers,
)
from perfscope.commands.run import TARGET
from perfscope.model.errors import DataError, UsageError

if TYPE_CHECKING:
    from perfscope.plugins.trials.document import Try
    from perfscope.plugins.trials.interventions.base import Intervention
    from perfscope.plugins.trials.judge import Promise, TrialJudge
    from perfscope.plugins.trials.launches import TrialPlan, Trials
    from perfscope.profiler.launch.program import Target

PAIRS = 45
"""At most, of an intervention: on a busy machine ten left every second gain of a quarter open (docs/try.md)."""
RECORD_STEPS = 5


@click.command(
    "try",
    cls=AbCommand,
    epilog="The program is not edited, and runs where it lies. Everything is kept in perfscope-runs/try-...",
)
@click.option("--only", metavar="NAME,NAME", help="Try these interventions, in this order, whatever was found.")
@click.option("--all", "all_", is_flag=True, help="Try all interventions that fit the program, whatever was found.")
@click.option("--list", "list_", is_flag=True, help="List the interventions and end.")
@click.option("--ladder", is_flag=True, help="Climb: each intervention on top of those before it that helped.")
@click.option("--budget", metavar="TIME", help="End in about this time (90s, 20m, 1h), each intervention in its share.")
@launch_options("program", pairs=PAIRS)
@click.option(
    "--record-steps",
    type=click.IntRange(1, 100),
    default=RECORD_STEPS,
    show_default=True,
    metavar="K",
    help="Steps whose outputs, losses and gradients are compared with the baseline's.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RELATIVE",
    help="Relative error up to which results are the same, in the first step. [by dtype: float32 1e-4]",
)
@click.option("--no-profile", is_flag=True, help="With --only or --all: no launch under capture, so no predictions.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON (- for stdout, alone).")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as a comment on a pull request.")
@output_folder_option("the launches")
@quiet_option
@verbose_option
@click.pass_context
def try_(context: click.Context, /, **settings: Any) -> int:
    """Try fixes on a program and measure what each really gains, without editing it.

    The program runs under `perfscope run`; interventions that answer its findings are then applied one by one from
    outside. Each must leave the losses, outputs and gradients of the first steps as they are; its gain comes from
    pairs of launches with and without it.
    """
    if settings["list_"]:
        return _list()
    words, kind = context.meta[TARGET]
    if not words:
        raise UsageError("nothing to run: give script.py, -m module, or -- command")
    if settings["only"] is not None and settings["all_"]:
        raise UsageError("--only and --all: one of them")
    if settings["no_profile"] and settings["only"] is None and not settings["all_"]:
        raise UsageError(
            "--no-profile: which interventions answer the program's findings is not known then; give --only or --all"
        )
    if settings["json_file"] is not None and settings["json_file"] == settings["markdown_file"]:
        raise UsageError(f"{settings['json_file']}: two reports cannot go there")
    chosen = _chosen(settings["only"])
    deadline = (
        None if settings["budget"] is None else time.monotonic() + parse_time("--budget", settings["budget"], unit="m")
    )
    from perfscope.profiler.launch.program import Target

    target = Target(arguments=words, module=kind == "module", command=kind == "command")
    target.command_line()  # a missing program is a usage error before anything runs
    folder = new_folder(settings["output"], "try")
    promised, notes = ({}, []) if settings["no_profile"] else _profiled(target, folder, settings)
    return _measure(target, folder, chosen, promised, notes, deadline, settings)


def _list() -> int:
    from perfscope.plugins.trials.interventions import intervention_names, load_intervention
    from perfscope.plugins.trials.sections import render_list

    interventions = [load_intervention(name) for name in intervention_names()]
    click.echo(render_list(interventions, **screen(sys.stdout)), nl=False, color=True)
    return 0


def _chosen(only: str | None) -> list[Intervention] | None:
    """Interventions that the user named."""
    from perfscope.plugins.trials.interventions import load_intervention

    if only is None:
        return None
    names = [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        raise UsageError("--only: give names, such as compile,fused-optimizer; --list lists them")
    return [load_intervention(name) for name in dict.fromkeys(names)]


def _profiled(target: Target, folder: Path, settings: dict[str, Any]) -> tuple[dict[str, Promise], list[str]]:
    """Run the program under capture; return the savings that its findings predict, and its problems."""
    from perfscope.analyzers.configuration import find_configuration
    from perfscope.analyzers.judge import judge_paths
    from perfscope.plugins.trials.judge import promises
    from perfscope.plugins.trials.launches import profile

    configuration = find_configuration()  # its errors come before a long run
    announce("profiling the unchanged program", quiet=settings["quiet"])
    launch = profile(target, folder, timeout_s=settings["timeout_s"], step_annotation=settings["step_annotation"])
    if launch.code:
        raise DataError(f"{target.name()}: {launch.problem}")
    if launch.problem is not None or launch.run is None:
        return {}, [f"the program was not profiled: {launch.problem}"]
    return promises(judge_paths([folder / launch.run], configuration=configuration).analysis), []


def _measure(
    target: Target,
    folder: Path,
    chosen: list[Intervention] | None,
    promised: dict[str, Promise],
    notes: list[str],
    deadline: float | None,
    settings: dict[str, Any],
) -> int:
    """Launch the baseline and the interventions, and show the results."""
    from perfscope.plugins.trials.interventions import intervention_names, load_intervention
    from perfscope.plugins.trials.judge import TrialJudge, signs
    from perfscope.plugins.trials.launches import Trials

    plan = _plan(target, folder, deadline, settings)
    judge = TrialJudge(pairs=settings["pairs"], least=settings["least"], tolerance=settings["tolerance"])
    trials = Trials(plan, judge, announce=partial(announce, quiet=settings["quiet"]))
    trials.baseline()
    known = [load_intervention(name) for name in intervention_names()] if chosen is None else chosen
    promised |= signs(trials.unchanged, trials.evident(known))
    interventions = _ordered(trials, chosen, promised, every=settings["all_"])
    if not interventions:
        notes.append("no intervention answers what was found: --all tries all that fit the program")
    interrupted: KeyboardInterrupt | None = None
    try:
        trials.try_all(interventions)
        trials.try_helpful()
        complete = not any(attempt.stop == "not reached" for attempt in trials.attempts)
    except KeyboardInterrupt as error:
        interrupted, complete = error, False
        notes.append("interrupted: what was not measured by then is missing")
    document = _document(trials, judge, promised, settings, target, notes=notes, complete=complete)
    _show(document, folder, settings)
    if interrupted is not None:
        raise interrupted  # earlier measurements are shown
    return 0


def _plan(target: Target, folder: Path, deadline: float | None, settings: dict[str, Any]) -> TrialPlan:
    import secrets

    from perfscope.model.documents.ab import AbPlan
    from perfscope.plugins.trials.launches import BASELINE, TrialPlan

    seed = secrets.randbelow(SEEDS) if settings["seed"] is None else settings["seed"]
    kind = "module" if target.module else "command" if target.command else "script"
    return TrialPlan(
        target=target,
        directory=folder,
        ab=AbPlan(
            command=target.arguments,
            kind=kind,
            base=BASELINE,
            head="",
            base_ref=BASELINE,
            head_ref="",
            pairs=settings["pairs"],
            calibration=settings["calibration"],
            seed=seed,
            least=settings["least"],
            confirm=False,
            timeout_s=settings["timeout_s"],
            step_annotation=settings["step_annotation"],
        ),
        record_steps=settings["record_steps"],
        deadline=deadline,
        ladder=settings["ladder"],
    )


def _ordered(
    trials: Trials, chosen: list[Intervention] | None, promised: dict[str, Promise], *, every: bool
) -> list[Intervention]:
    """Interventions to try, best first; with ``--only`` in the given order."""
    from perfscope.plugins.trials.interventions import intervention_names, load_intervention
    from perfscope.plugins.trials.judge import answered, best_first
    from perfscope.plugins.trials.launches import fits_framework, unfit

    if chosen is not None:
        return chosen
    known = [load_intervention(name) for name in intervention_names()]
    known = [one for one in known if every or not one.evident or one.name in promised]  # the others change nothing
    wanted = (
        one
        for one in known
        if fits_framework(one, trials.facts)
        and (unfit(one, trials.facts) is None if every else answered(one, promised)[0])
    )
    return best_first(wanted, promised)


def _document(
    trials: Trials,
    judge: TrialJudge,
    promised: dict[str, Promise],
    settings: dict[str, Any],
    target: Target,
    *,
    notes: list[str],
    complete: bool,
) -> Try:
    from perfscope.model.untrusted_text import scrub_command
    from perfscope.plugins.trials import judge as judged
    from perfscope.plugins.trials.document import SCHEMA
    from perfscope.plugins.trials.interventions import intervention_names, load_intervention

    every = [load_intervention(name) for name in intervention_names()]
    launched = judged.Trials(
        unchanged=trials.unchanged,
        attempts=tuple(trials.attempts),
        together=trials.together,
        promised=promised,
        ladder=settings["ladder"],
    )
    return judged.document_of(
        launched,
        judge,
        settings["least"],
        schema=SCHEMA,
        command=tuple(scrub_command((*(("-m",) if target.module else ()), *target.arguments))),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=dict(trials.unchanged.first.environment),
        record_steps=settings["record_steps"],
        unanswered=judged.unanswered(every, promised),
        notes=tuple(notes),
        complete=complete,
    )


def _show(document: Try, folder: Path, settings: dict[str, Any]) -> None:
    """Write the document into its folder and the requested files; print it unless stdout is taken."""
    from perfscope.model.files import write_atomically
    from perfscope.plugins.trials.document import FILE, dump, keep
    from perfscope.plugins.trials.sections import render_markdown, render_text

    write_atomically(folder / FILE, dump(document))
    try:
        keep(document, folder.name)
    except OSError as error:
        announce(f"not kept for `perfscope rules --calibration`: {error.strerror or error}", quiet=settings["quiet"])
    answers = (
        (settings["json_file"], lambda: dump(document).decode()),
        (settings["markdown_file"], lambda: render_markdown(document)),
    )
    write_answers(answers, quiet=settings["quiet"])
    if STDOUT not in (settings["json_file"], settings["markdown_file"]):
        text = render_text(document, **screen(sys.stdout), verbose=settings["verbose"])
        click.echo(text, nl=False, color=True)
    announce(f"launches and result kept in {folder}", quiet=settings["quiet"])
