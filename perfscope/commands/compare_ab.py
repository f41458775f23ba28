"""``perfscope compare --ab``: two commits, launched in turns until the change of their step time is settled."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare_outputs import Outputs, output_options, show_screen, write_outputs
from perfscope.commands.options import output_folder_option, quiet_option, verbose_option
from perfscope.commands.run import TARGET, RunCommand
from perfscope.model.documents.run_folders import STAMP
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE, DataError, UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.compare.ab.judge import AbResult
    from perfscope.analyzers.compare.ab.profiles import Profiles
    from perfscope.model.documents.ab import AbState, Launch, Pairs


FLAG = "--ab"
PROGRAMS = "--programs"
PAIRS = 10
CALIBRATION = 5
PROFILE = 1
MOST_PROFILED = 30
GATES = ("regression", "inconclusive", "finding:low", "finding:medium", "finding:high")
SEEDS = 1 << 32


class CompareCommand(click.Command):
    """``compare BASE HEAD``; with ``--ab`` or ``--programs`` before the program begins, another command instead."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand over to ``--ab`` or ``--programs`` where it is asked for."""
        ours = args[: args.index("--")] if "--" in args else args
        flag = next((word for word in ours if word in (FLAG, PROGRAMS)), None)
        if flag is not None:
            rest = [*args[: args.index(flag)], *args[args.index(flag) + 1 :]]
            return _command(flag).make_context(f"{info_name} {flag}", rest, parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _command(flag: str) -> click.Command:
    if flag == FLAG:
        return ab
    from perfscope.commands.compare_programs import programs

    return programs


class AbCommand(RunCommand):
    """As `perfscope run` splits its line; behind ``--`` a script is one too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``-- train.py`` is run by this Python."""
        rest = super().parse_args(ctx, args)
        words, kind = ctx.meta[TARGET]
        if kind == "command" and words and words[0].endswith(".py"):
            ctx.meta[TARGET] = (words, "script")
        return rest


form_of_compare = click.command(
    "compare --ab",
    cls=AbCommand,
    epilog="What was interrupted goes on with --resume. Its times are taken without any profiler.",
)
"""No verb of its own: ``compare`` hands over to it."""


@form_of_compare
@click.option("--base", metavar="REF", help="The commit to compare with: a branch, a tag, a hash.")
@click.option("--head", metavar="REF", default="HEAD", show_default=True, help="The commit that is in question.")
@click.option(
    "--pairs",
    type=click.IntRange(2, 60),
    default=PAIRS,
    show_default=True,
    help="Pairs of launches at most; it stops at 6, 10, 15, 20, 30 or 45 where the answer is settled.",
)
@click.option(
    "--least",
    type=click.FloatRange(min=0, min_open=True, max=100),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="The smallest change of the step time that matters.",
)
@click.option(
    "--calibration",
    type=click.IntRange(0, 30),
    default=CALIBRATION,
    show_default=True,
    metavar="N",
    help="Pairs of the base against itself, from which it is chosen what stands for a launch.",
)
@click.option(
    "--profile",
    type=click.IntRange(0, MOST_PROFILED),
    default=PROFILE,
    show_default=True,
    metavar="N",
    help="Pairs of launches under capture behind the others, for the cause; from four on, kernels are judged one by "
    "one.",
)
@click.option("--no-confirm", is_flag=True, help="Believe a change without a second batch of launches.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Of the order inside the pairs. [random, printed]")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="End a launch that takes longer.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="PATH",
    help="A file or folder that git does not track (data), relative to the top, for both arms. Repeatable.",
)
@click.option("--build", metavar="CMD", help="A shell command that is run once in each worktree before any launch.")
@click.option("--step-annotation", metavar="NAME", help="The record_function or NVTX range that is one step.")
@output_folder_option("the launches")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Go on with the comparison in DIR: give the program again, everything else is known.",
)
@output_options
@click.option(
    "--fail-on",
    type=click.Choice(GATES),
    multiple=True,
    metavar="WHAT",
    help="Exit 1 on: regression (of the step time, or of what does not depend on chance), inconclusive, "
    "finding:low|medium|high (new, or costlier than before). Repeatable.",
)
@click.option("--strict", is_flag=True, help="Exit 3 if a metric could not be judged.")
@quiet_option
@verbose_option
@click.pass_context
def ab(
    context: click.Context,
    *,
    base: str | None,
    head: str,
    pairs: int,
    least: float,
    calibration: int,
    profile: int,
    no_confirm: bool,
    seed: int | None,
    timeout: float | None,
    links: tuple[str, ...],
    build: str | None,
    step_annotation: str | None,
    output: Path,
    resume: Path | None,
    outputs: Outputs,
    fail_on: tuple[str, ...],
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Compare two commits by launching a program at both, in turns: its step time, and what changed it.

    Both are checked out beside the checkout, which is not touched, and go again. A change is told when it is beyond
    chance and large enough to matter, and a second batch of launches agrees. Its cause is found by launches under
    capture behind the others.
    """
    from perfscope.analyzers.compare.ab.judge import AbJudge
    from perfscope.model.documents import ab as ab_state
    from perfscope.profiler.ab import runner as runner
    from perfscope.profiler.ab.worktrees import checkout

    words, kind = context.meta[TARGET]
    if not words:
        raise UsageError("nothing to run: give script.py, -m module, or -- command")
    repository = checkout()
    if resume is None:
        if base is None:
            raise UsageError("--base REF: which commit to compare with?")
        plan = ab_state.AbPlan(
            command=words,
            kind=kind,
            base=repository.commit(base),
            head=repository.commit(head),
            base_ref=base,
            head_ref=head,
            pairs=pairs,
            calibration=calibration,
            seed=secrets.randbelow(SEEDS) if seed is None else seed,
            least=least / 100,
            confirm=not no_confirm,
            timeout_s=timeout,
            links=links,
            step_annotation=step_annotation,
            profile=profile,
            build=build,
        )
        state = ab_state.begin(new_folder(output, "ab"), plan)
    else:
        state = ab_state.resume(resume, command=words, kind=kind, build=build)
    plan = state.plan
    judge = AbJudge(pairs=plan.pairs, least=plan.least, confirm=plan.confirm)
    tell = no_word if quiet else tell_user
    for remark in repository.remarks():
        tell(remark)
    try:
        found = runner.compare(state, repository, judge, tell=tell)
    except KeyboardInterrupt:
        tell_user(f"interrupted after {len(state.launches)} launches; --resume {state.directory} goes on from there")
        raise
    return end(
        judge.result(found),
        found,
        state,
        fail_on=fail_on,
        strict=strict,
        outputs=outputs,
        quiet=quiet,
        verbose=verbose,
    )


def new_folder(root: Path, kind: str) -> Path:
    """A new folder for a comparison, ``ab-...``; `latest` goes on naming a run. ``DataError``: it cannot be made."""
    path = root / f"{kind}-{datetime.now(UTC).strftime(STAMP)}-{secrets.token_hex(2)}"
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be made: {error.strerror or error}") from error
    return path


def no_word(line: str) -> None:
    """Of ``--quiet``: nothing is said."""


def tell_user(line: str) -> None:
    """A line on stderr, fit to be shown."""
    from perfscope.model.untrusted_text import sanitize

    print(f"perfscope: {sanitize(line)}", file=sys.stderr, flush=True)


# What a finished A/B comes to: its document, its gates and exit code, and where it is shown.


RESULT_FILE = "result.json"


def end(
    result: AbResult,
    found: Pairs,
    state: AbState,
    *,
    fail_on: Sequence[str],
    strict: bool,
    outputs: Outputs,
    quiet: bool,
    verbose: bool,
) -> int:
    """Compare the profiled launches, write the document everywhere it was asked for, show it; the exit code."""
    from perfscope.analyzers.compare.ab.profiles import compare_profiles
    from perfscope.dashboards.report import write
    from perfscope.dashboards.report.compare import document, json
    from perfscope.model.untrusted_text import sanitize

    pairs = [(_folder(state, base), _folder(state, head)) for base, head in found.profiled]
    lost = [f"profiled launch of {one.arm}: {one.problem}" for one in found.lost]
    profiles = compare_profiles(pairs, lost)
    failed = tuple(gates_not_met(result, profiles, fail_on))
    held = json.ab_document(result, state.plan, profiles, failed=failed, gates=fail_on)
    write(state.directory / RESULT_FILE, json.as_text(held))
    if not write_outputs(held, outputs, quiet=quiet):
        show_screen(document.of(held), failed, verbose=verbose)
        if not quiet:
            _say(f"launches and runs kept in {sanitize(str(state.directory), 400)}")
    if failed:
        return GATE_NOT_MET
    return INCONCLUSIVE if strict and any(inconclusive(result, profiles)) else DONE


def gates_not_met(result: AbResult, profiles: Profiles, fail_on: Sequence[str]) -> Iterator[str]:
    """Why a build must fail, one line each: of the launches, and of what the profiled ones say exactly."""
    gated = {metric.name: metric.verdict for metric in result.gating if metric.gates}
    if "regression" in fail_on:
        yield from (f"{name}: regression" for name, verdict in gated.items() if verdict == "regression")
    if "inconclusive" in fail_on:
        yield from (f"{name}: inconclusive" for name in inconclusive(result, profiles))
    if profiles.comparison is not None:
        exact = [one for one in fail_on if one != "inconclusive"]
        yield from (line for line in profiles.comparison.gates(exact) if line.partition(": ")[0] not in gated)


def inconclusive(result: AbResult, profiles: Profiles) -> Iterator[str]:
    """Metrics that could not be judged; the time of a profiled pair was not meant to be."""
    yield from (metric.name for metric in result.gating if metric.verdict == "inconclusive")
    if profiles.comparison is not None:
        for one in profiles.comparison.exact:
            if not one.neutral and one.result.verdict == "inconclusive":
                yield one.result.name


def _folder(state: AbState, launch: Launch) -> Path:
    assert launch.run is not None
    return state.profiled / launch.run


def _say(line: str) -> None:
    print(f"perfscope: {line}", file=sys.stderr, flush=True)
