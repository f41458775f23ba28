"""``perfscope compare commits``: two commits, launched in turns until the change of their step time is settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare.outputs import GATES, Outputs, finish, new_folder, output_options
from perfscope.commands.options import Decorated, announce, output_folder_option
from perfscope.commands.run import TARGET, RunCommand
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.compare import AbResult, Profiles
    from perfscope.model.documents.ab import AbState, Launch, Pairs
    from perfscope.profiler.ab.worktrees import Checkout

PAIRS = 10
CALIBRATION = 5
LOOKS = "6, 10, 15, 20, 30 or 45"
PROFILE = 1
MOST_PROFILED = 30
SEEDS = 1 << 32


class AbCommand(RunCommand):
    """Splits its line as `perfscope run` does; after ``--`` a script is allowed, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``-- train.py`` is run by this Python."""
        rest = super().parse_args(ctx, args)
        words, kind = ctx.meta[TARGET]
        if kind == "command" and words and words[0].endswith(".py"):
            ctx.meta[TARGET] = (words, "script")
        return rest


def launch_options(
    against: str, *, pairs: int = PAIRS, calibration: int = CALIBRATION, looks: str = LOOKS
) -> Callable[[Decorated], Decorated]:
    """Options of commands that launch a program in pairs; ``against``: what each pair is compared with.

    ``pairs``, ``calibration``: by default. ``looks``: numbers of pairs after which it may stop.
    """
    options = (
        click.option(
            "--pairs",
            type=click.IntRange(2, 60),
            default=pairs,
            show_default=True,
            help=f"Pairs of launches at most; it stops at {looks} where the answer is settled.",
        ),
        click.option(
            "--least",
            type=click.FloatRange(min=0, min_open=True, max=100),
            default=2.0,
            show_default=True,
            metavar="PERCENT",
            callback=lambda _context, _option, percent: percent / 100,
            help="The smallest change of the step time that matters.",
        ),
        click.option(
            "--calibration",
            type=click.IntRange(0, 30),
            default=calibration,
            show_default=True,
            metavar="N",
            help=f"Pairs of the {against} against itself, from which the estimate of a launch is chosen.",
        ),
        click.option(
            "--seed", type=click.IntRange(0), metavar="N", help="Seed of the order inside the pairs. [random]"
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            help="End a launch that takes longer.",
        ),
        click.option("--step-annotation", metavar="NAME", help="The record_function or NVTX range that is one step."),
    )

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(
    "commits",
    cls=AbCommand,
    epilog="--resume continues an interrupted comparison. Its times are taken without any profiler.",
)
@click.option("--base", metavar="REF", help="The commit to compare with: a branch, a tag, a hash.")
@click.option("--head", metavar="REF", default="HEAD", show_default=True, help="The commit that is in question.")
@launch_options("base")
@click.option(
    "--profile",
    type=click.IntRange(0, MOST_PROFILED),
    default=PROFILE,
    show_default=True,
    metavar="N",
    help="Pairs of launches under capture after the others, for the cause; with four or more, each kernel gets a "
    "verdict.",
)
@click.option(
    "--no-confirm",
    "confirm",
    flag_value=False,
    default=True,
    help="Believe a change without a second batch of launches.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="PATH",
    help="A file or folder that git does not track (data), relative to the top, for both arms. Repeatable.",
)
@click.option("--build", metavar="CMD", help="A shell command that is run once in each worktree before any launch.")
@output_folder_option("the launches")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Go on with the comparison in DIR: give the program again, everything else is known.",
)
@output_options(
    "Exit 1 on: regression (of the step time, or of what does not depend on chance), inconclusive, "
    "finding:low|medium|high (new, or costlier than before). Repeatable.",
    GATES,
)
@click.pass_context
def ab(context: click.Context, /, *, output: Path, resume: Path | None, outputs: Outputs, **settings: Any) -> int:
    """Compare two commits by launching a program at both, in turns: its step time, and the cause of a change.

    Both are checked out in temporary worktrees; the checkout is not touched. A change is reported if it is beyond
    chance and large enough to matter, and a second batch of launches confirms it. Its cause is found by launches
    under capture after the others.
    """
    from perfscope.analyzers.compare import AbJudge
    from perfscope.model.documents import ab as ab_state
    from perfscope.profiler.ab import runner
    from perfscope.profiler.ab.worktrees import checkout

    words, kind = context.meta[TARGET]
    if not words:
        raise UsageError("nothing to run: give script.py, -m module, or -- command")
    repository = checkout()
    if resume is None:
        state = _begin(repository, output, settings | {"command": words, "kind": kind})
    else:
        state = ab_state.resume(resume, command=words, kind=kind, build=settings["build"])
    plan = state.plan
    judge = AbJudge(pairs=plan.pairs, least=plan.least, confirm=plan.confirm)
    log = partial(announce, quiet=outputs.quiet)
    for remark in repository.remarks():
        log(remark)
    try:
        pairs = runner.compare(state, repository, judge, announce=log)
    except KeyboardInterrupt:
        announce(f"interrupted after {len(state.launches)} launches; --resume {state.directory} goes on from there")
        raise
    return end(judge.result(pairs), pairs, state, outputs)


def _begin(repository: Checkout, output: Path, settings: dict[str, Any]) -> AbState:
    """A new comparison; ``settings``: the fields of its plan, ``base`` and ``head`` as the user wrote them."""
    import secrets

    from perfscope.model.documents import ab as ab_state

    base, head = settings["base"], settings["head"]
    if base is None:
        raise UsageError("--base REF: which commit to compare with?")
    if settings["seed"] is None:
        settings["seed"] = secrets.randbelow(SEEDS)
    commits = {"base": repository.commit(base), "head": repository.commit(head)}
    plan = ab_state.AbPlan(**settings | commits, base_ref=base, head_ref=head)
    return ab_state.begin(new_folder(output, "ab"), plan)


def end(result: AbResult, launched: Pairs, state: AbState, outputs: Outputs) -> int:
    """Compare the profiled launches of a finished A/B, write and show all of it; the exit code."""
    from msgspec.structs import replace

    from perfscope.analyzers.compare import as_notes, compare_profiles
    from perfscope.dashboards.report.compare import json

    pairs = [(_folder(state, base), _folder(state, head)) for base, head in launched.profiled]
    lost = [f"profiled launch of {launch.arm}: {launch.problem}" for launch in launched.lost]
    profiles = compare_profiles(pairs, lost)
    if profiles.comparison is not None:
        exact = as_notes(profiles.comparison.exact, faster=result.step.verdict == "improvement")
        judged = replace(profiles.comparison, exact=exact, likely=None, settle="")
        profiles = replace(profiles, comparison=judged)
    failed = tuple(gates_not_met(result, profiles, outputs.fail_on))
    document = json.ab_document(result, state.plan, profiles, failed=failed, gates=outputs.fail_on)
    unsettled = any(inconclusive(result, profiles))
    return finish(document, outputs, unsettled=unsettled, directory=state.directory, kept="launches and runs")


def gates_not_met(result: AbResult, profiles: Profiles, fail_on: Sequence[str]) -> Iterator[str]:
    """Reasons why a build must fail, one line each: from the launches, and from exact metrics of the profiled ones."""
    gated = {metric.name: metric.verdict for metric in result.gating if metric.gates}
    if "regression" in fail_on:
        yield from (f"{name}: regression" for name, verdict in gated.items() if verdict == "regression")
    if "inconclusive" in fail_on:
        yield from (f"{name}: inconclusive" for name in inconclusive(result, profiles))
    if profiles.comparison is not None:
        exact = [gate for gate in fail_on if gate != "inconclusive"]
        yield from (line for line in profiles.comparison.gates(exact) if line.partition(": ")[0] not in gated)


def inconclusive(result: AbResult, profiles: Profiles) -> Iterator[str]:
    """Metrics that could not be judged; the time of a profiled pair was not meant to be."""
    yield from (metric.name for metric in result.gating if metric.verdict == "inconclusive")
    if profiles.comparison is not None:
        for exact_metric in profiles.comparison.exact:
            if not exact_metric.neutral and exact_metric.result.verdict == "inconclusive":
                yield exact_metric.result.name


def _folder(state: AbState, launch: Launch) -> Path:
    assert launch.run is not None
    return state.profiled / launch.run
