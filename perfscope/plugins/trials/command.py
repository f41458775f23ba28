"""``perfscope try``: interventions that answer the findings of a program, applied from outside and measured."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare.commits import LOOKS, SEEDS, AbCommand, launch_options
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
SETTINGS_FILE = "settings.json"
"""Options of a try in its folder, for ``--resume``."""
KEPT = (
    "only", "all_", "ladder", "to_the_end", "no_profile", "record_steps", "tolerance",
    "pairs", "least", "calibration", "seed", "timeout_s", "step_annotation",
)  # fmt: skip
"""Options that a resumed try takes from its folder."""
MOST_PROMISES = 3
"""Findings that are named if nothing else is known yet."""


@click.command(
    "try",
    cls=AbCommand,
    epilog="The program is not edited, and runs where it lies. Everything is kept in perfscope-runs/try-...; "
    "after Ctrl-C or --budget, --resume DIR goes on.",
)
@click.option("--only", metavar="NAME,NAME", help="Try these interventions, in this order, whatever was found.")
@click.option("--all", "all_", is_flag=True, help="Try all interventions that fit the program, whatever was found.")
@click.option("--list", "list_", is_flag=True, help="List the interventions and end.")
@click.option("--ladder", is_flag=True, help="Climb: each intervention on top of those before it that helped.")
@click.option("--budget", metavar="TIME", help="End in about this time (90s, 20m, 1h), each intervention in its share.")
@click.option(
    "--to-the-end",
    is_flag=True,
    help="Run every launch to the end of the program. Otherwise a launch ends when enough of its steps are timed.",
)
@launch_options("program", pairs=PAIRS, calibration=0, looks=f"4, {LOOKS}")
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
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Go on with the try in DIR: give the program again, everything else is known.",
)
@quiet_option
@verbose_option
@click.pass_context
def try_(context: click.Context, /, **settings: Any) -> int:
    """Try fixes on a program and measure what each really gains, without editing it.

    The program runs under `perfscope run`; interventions that answer its findings are then applied one by one from
    outside. Each must leave the losses, outputs and gradients of the first steps as they are; its gain comes from
    pairs of launches with and without it. The change so far is printed after each pair; Ctrl-C prints all results so
    far.
    """
    if settings["list_"]:
        return _list()
    if settings["resume"] is not None:
        settings |= _earlier_settings(settings["resume"])
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
    folder = settings["resume"] or _new_folder(settings)
    promised: dict[str, Promise] = {}
    notes: list[str] = []
    whole_s = None
    if not settings["no_profile"]:
        try:
            promised, notes, whole_s = _profiled(target, folder, settings)
        except KeyboardInterrupt:
            announce(f"interrupted while the program was profiled: nothing is known yet (--resume {folder})")
            raise
    plan = _plan(target, folder, settings, deadline=deadline, whole_s=whole_s)
    return _measure(plan, chosen, promised, notes, settings)


def _new_folder(settings: dict[str, Any]) -> Path:
    """A new folder that holds the options of this try."""
    import secrets

    from perfscope.model.files import json_bytes, write_atomically

    if settings["seed"] is None:
        settings["seed"] = secrets.randbelow(SEEDS)
    folder = new_folder(settings["output"], "try")
    write_atomically(folder / SETTINGS_FILE, json_bytes({name: settings[name] for name in KEPT}, indent=1))
    return folder


def _earlier_settings(folder: Path) -> dict[str, Any]:
    """Options of the try in ``folder``. ``DataError`` if it has none."""
    import json

    file = folder / SETTINGS_FILE
    try:
        kept = json.loads(file.read_bytes())
        return {name: kept[name] for name in KEPT}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: no options of a try ({type(error).__name__})") from error


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


def _profiled(
    target: Target, folder: Path, settings: dict[str, Any]
) -> tuple[dict[str, Promise], list[str], float | None]:
    """Run the program under capture, unless an earlier call did.

    Return the savings that its findings predict, its problems, and the seconds that it took.
    """
    from perfscope.analyzers.configuration import find_configuration
    from perfscope.analyzers.judge import judge_paths
    from perfscope.plugins.trials.judge import promises
    from perfscope.plugins.trials.launches import earlier_profile, profile

    configuration = find_configuration()  # its errors come before a long run
    earlier = earlier_profile(folder)
    if earlier is not None:
        return promises(judge_paths([folder / earlier], configuration=configuration).analysis), [], None
    announce("profiling the unchanged program", quiet=settings["quiet"])
    launch = profile(target, folder, timeout_s=settings["timeout_s"], step_annotation=settings["step_annotation"])
    if launch.code:
        raise DataError(f"{target.name()}: {launch.problem}")
    if launch.problem is not None or launch.run is None:
        return {}, [f"the program was not profiled: {launch.problem}"], launch.seconds
    analysis = judge_paths([folder / launch.run], configuration=configuration).analysis
    return promises(analysis), [], launch.seconds


def _measure(
    plan: TrialPlan,
    chosen: list[Intervention] | None,
    promised: dict[str, Promise],
    notes: list[str],
    settings: dict[str, Any],
) -> int:
    """Launch the baseline and the interventions, and show the results; also after an interruption."""
    from perfscope.plugins.trials.judge import TrialJudge
    from perfscope.plugins.trials.launches import Trials

    judge = TrialJudge(pairs=settings["pairs"], least=settings["least"], tolerance=settings["tolerance"])
    trials = Trials(plan, judge, announce=partial(announce, quiet=settings["quiet"]))
    interrupted: KeyboardInterrupt | None = None
    try:
        _try_all(trials, chosen, promised, notes, every=settings["all_"])
        complete = not any(attempt.stop == "not reached" for attempt in trials.attempts)
        if not complete:
            notes.append(f"the budget is used up: --resume {plan.directory} goes on from here")
    except KeyboardInterrupt as error:
        interrupted, complete = error, False
        notes.append(f"interrupted: --resume {plan.directory} goes on from here")
        if not trials.begun:
            announce(f"{notes[-1]}; {_promised_text(promised)}")
            raise
    document = _document(trials, judge, promised, settings, plan.target, notes=notes, complete=complete)
    _show(document, plan.directory, settings)
    if interrupted is not None:
        raise interrupted  # earlier measurements are shown
    return 0


def _try_all(
    trials: Trials,
    chosen: list[Intervention] | None,
    promised: dict[str, Promise],
    notes: list[str],
    *,
    every: bool,
) -> None:
    """Launch everything; signs in the launches are added to ``promised``, problems to ``notes``."""
    from perfscope.plugins.trials.interventions import intervention_names, load_intervention
    from perfscope.plugins.trials.judge import signs

    trials.baseline()
    known = [load_intervention(name) for name in intervention_names()] if chosen is None else chosen
    promised |= signs(trials.unchanged, trials.evident(known))
    interventions = _ordered(trials, chosen, promised, every=every)
    if not interventions:
        notes.append("no intervention answers what was found: --all tries all that fit the program")
    trials.try_all(interventions)
    trials.try_helpful()


def _promised_text(promised: dict[str, Promise]) -> str:
    """The largest savings that findings promise, in words."""
    known = sorted(((promise.ns, rule) for rule, promise in promised.items() if promise.ns is not None), reverse=True)
    if not known:
        return "nothing is known yet"
    named = ", ".join(f"{rule} {ns / 1e6:.3g} ms" for ns, rule in known[:MOST_PROMISES])
    return f"the profile promises per step at most: {named}"


def _plan(
    target: Target, folder: Path, settings: dict[str, Any], *, deadline: float | None, whole_s: float | None
) -> TrialPlan:
    from perfscope.model.documents.ab import AbPlan
    from perfscope.plugins.trials.launches import BASELINE, TrialPlan

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
            seed=settings["seed"],
            least=settings["least"],
            confirm=False,
            timeout_s=settings["timeout_s"],
            step_annotation=settings["step_annotation"],
        ),
        record_steps=settings["record_steps"],
        deadline=deadline,
        ladder=settings["ladder"],
        whole=settings["to_the_end"],
        whole_s=whole_s,
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
