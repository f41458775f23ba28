"""``perfscope compare programs``: two commits, both compiled for a machine that is not here, compared exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare.commits import AbCommand
from perfscope.commands.compare.outputs import (
    Outputs,
    check_gates,
    finish,
    new_folder,
    output_options,
    own_gates,
)
from perfscope.commands.options import announce, output_folder_option
from perfscope.commands.run import TARGET
from perfscope.model.errors import UsageError
from perfscope.plugins.ahead.command import DEFAULT_LIMIT_S, DEFAULT_TARGET, FRAMEWORKS
from perfscope.plugins.ahead.targets.completion import complete_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.model.documents.ab import Arm
    from perfscope.model.trace import Trace


class ProgramsCommand(AbCommand):
    """As `compare commits` splits its line, for programs that are Python."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the two ways to select the program."""
        return ["[OPTIONS]", "-- script.py ARGS... | -m module ARGS..."]


@click.command(
    "programs",
    cls=ProgramsCommand,
    epilog="Exit code: 0 done, 1 a gate was not met, 2 asked wrongly, 4 one of them was not compiled.",
)
@click.option("--base", metavar="REF", help="The commit to compare with: a branch, a tag, a hash.")
@click.option("--head", metavar="REF", default="HEAD", show_default=True, help="The commit that is in question.")
@click.option(
    "--target",
    metavar="DEVICES",
    shell_complete=complete_targets,
    default=DEFAULT_TARGET,
    show_default=True,
    help="As of `perfscope compile`.",
)
@click.option("--memory", metavar="SIZE", help="Memory of one device, if it is not the usual size: 40GiB.")
@click.option("--framework", type=click.Choice(FRAMEWORKS), default="auto", show_default=True, help="Its framework.")
@click.option("--function", "functions", multiple=True, metavar="NAME", help="Only this: step, train.step. Repeatable.")
@click.option(
    "--limit",
    type=click.FloatRange(min=1),
    default=DEFAULT_LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="For each of the two.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="PATH",
    help="A file or folder that git does not track (data), relative to the top, for both. Repeatable.",
)
@click.option("--build", metavar="CMD", help="A shell command that is run once in each worktree beforehand.")
@output_folder_option("what was compiled")
@output_options(
    "As of `perfscope compare`. [programs: lost fusions, more bytes through memory, a higher peak, more "
    "bytes between devices, collectives that block, graph breaks]"
)
@click.pass_context
def programs(
    context: click.Context,
    *,
    base: str | None,
    head: str,
    target: str,
    memory: str | None,
    framework: str,
    functions: tuple[str, ...],
    limit: float,
    links: tuple[str, ...],
    build: str | None,
    output: Path,
    outputs: Outputs,
) -> int:
    """Compile a program at two commits for a machine that is not present, and show the changes by instruction.

    Both are checked out in temporary worktrees; the checkout is not touched. The program runs without data and
    without devices, far enough to see what it compiles. The compiler is deterministic, so once each is enough.
    """
    from perfscope.analyzers.devices import parse_target
    from perfscope.plugins.ahead.two_commits import Compilation, compile_both, refused
    from perfscope.profiler.ab.worktrees import checkout

    words, kind = context.meta[TARGET]
    if not words or kind == "command":
        raise UsageError("nothing to compile: give -- script.py or -m module")
    if base is None:
        raise UsageError("--base REF: which commit to compare with?")
    check_gates(outputs.fail_on)
    machine = parse_target(target, memory)
    repository = checkout()
    commits: dict[Arm, str] = {"base": repository.commit(base), "head": repository.commit(head)}
    log = partial(announce, quiet=outputs.quiet)
    for remark in (*repository.remarks(), *refused(commits)):
        log(remark)
    wanted = Compilation(
        options=_options(target, memory, framework, functions, limit),
        program=("-m", *words) if kind == "module" else words,
        limit_s=limit,
        links=links,
        build=build,
    )
    directory = new_folder(output, "programs")
    folders = compile_both(wanted, repository, commits, directory, announce=log)
    method = {
        "kind": f"compiled once each for {machine.shown}; nothing ran on one",
        "base_ref": base,
        "base_commit": commits["base"],
        "head_ref": head,
        "head_commit": commits["head"],
        "command": [*words],
    }
    return end(folders, method, directory, outputs)


def end(folders: dict[Arm, Path], method: dict[str, Any], directory: Path, outputs: Outputs) -> int:
    """Compare the compiled programs, write the document to every output, show it; return the exit code."""
    from msgspec.structs import replace

    from perfscope.analyzers.compare import compare
    from perfscope.analyzers.readers import load_all
    from perfscope.dashboards.report.compare import json
    from perfscope.model.untrusted_text import sanitize_value

    sides = load_all(folders["base"]), load_all(folders["head"])
    comparison = compare(*sides)
    comparison = replace(comparison, notes=tuple(dict.fromkeys((*comparison.notes, *_not_compiled(folders)))))
    gates = own_gates(comparison, outputs.fail_on)
    document = json.document(comparison, failed=comparison.gates(gates), gates=gates)
    document["method"] |= sanitize_value(method | _planned(sides))
    unsettled = bool(comparison.inconclusive) or any("not compiled" in note for note in comparison.notes)
    return finish(document, outputs, unsettled=unsettled, directory=directory, kept="what was compiled is")


def _planned(sides: Sequence[Sequence[Trace]]) -> dict[str, str]:
    """The method if programs were only planned, not compiled."""
    traces = [trace for side in sides for trace in side]
    machines = {trace.target.shown for trace in traces if trace.target is not None}
    planned = any(trace.torch_plans for trace in traces)
    if not planned or len(machines) != 1 or any(trace.hlo for trace in traces):
        return {}
    return {"kind": f"planned once each for {machines.pop()}, over CPU tensors; nothing was compiled or run"}


def _not_compiled(folders: dict[Arm, Path]) -> list[str]:
    """Programs that a side saw and did not compile: no gate covers them."""
    from perfscope.model.documents import compile_manifest

    sentences = []
    for arm, folder in folders.items():
        manifest = compile_manifest.load(folder)
        if not manifest.complete:
            sentences.append(
                f"{arm} is not complete, not compiled to its end: {manifest.stopped or 'it does not log why'}"
            )
        sentences += [
            f"{arm}: {not_compiled.name} was not compiled: {not_compiled.reason}"
            for not_compiled in manifest.not_compiled
        ]
    return sentences


def _options(
    target: str,
    memory: str | None,
    framework: str,
    functions: tuple[str, ...],
    limit: float,
) -> tuple[str, ...]:
    """For `perfscope compile`, which runs in another folder."""
    file = Path(target)
    line = [
        "--target",
        str(file.resolve()) if file.is_file() else target,
        "--framework",
        framework,
        "--limit",
        f"{limit:g}",
    ]
    line += [] if memory is None else ["--memory", memory]
    return (*line, *(word for name in functions for word in ("--function", name)))
