"""``perfscope run``: the user's program under capture, then its report."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.options import (
    AFTER_ANALYSIS,
    AFTER_RUN,
    RECORDERS,
    WATCHERS,
    output_folder_option,
    parse_time,
    quiet_option,
    screen,
    verbose_option,
)
from perfscope.model.capture import DEFAULT_WARMUP, LEVELS, TOOLS, WAIT_S, CaptureOptions, parse_steps
from perfscope.model.errors import USAGE_ERROR, NotStartedError, PerfscopeError, UsageError
from perfscope.model.version import install_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscope.analyzers.configuration import Configuration
    from perfscope.analyzers.engine import Analysis
    from perfscope.profiler.launch.program import Target
    from perfscope.profiler.launch.record import Recorded

    _After = Sequence[Callable[[Analysis, str], None]]
    """Functions of plug-ins that get the analysis and the name of the run."""

TARGET = "perfscope.run.target"
"""Key of ``Context.meta`` for the words after our own options."""


class RunCommand(click.Command):
    """Splits the line where the program begins: all words from there belong to it, options too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep our options, put the rest aside for the callback."""
        ours, target, kind = self.split(ctx, args)
        ctx.meta[TARGET] = (tuple(target), kind)
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the ways to select the program."""
        return ["[OPTIONS]", "script.py ARGS... | torchrun ARGS... | -m module ARGS... | -- command ARGS..."]

    def split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str], str]:
        """Return words of perfscope, words of the program, and its kind: ``script``, ``module`` or ``command``."""
        takes_value = {
            name: isinstance(param, click.Option) and not param.is_flag and not param.count
            for param in self.get_params(ctx)
            for name in param.opts
        }
        index = 0
        while index < len(args):
            word = args[index]
            if word == "--":
                return args[:index], args[index + 1 :], "command"
            if word == "-m":
                return args[:index], args[index + 1 :], "module"
            if word.startswith("-m") and not word.startswith("--"):
                return args[:index], [word[2:], *args[index + 1 :]], "module"
            if not word.startswith("-") or word == "-":
                return args[:index], args[index:], "command" if _is_launcher(word) else "script"
            index += 2 if takes_value.get(word, False) else 1
        return args, [], "script"


def _check_recorders(recorders: Mapping[str, str], *, capture: Any, level: Any, steps: str | None) -> None:
    """``UsageError`` if an option is about a profile, which the recorders of plug-ins replace."""
    from perfscope.model.plugins import named

    known = named("recordings")
    for key in recorders:
        takes_steps = known[key].steps
        if capture is not None or level == "light" or (steps is not None and not takes_steps):
            options = "--capture and --level light" if takes_steps else "--capture, --steps and --level light"
            raise UsageError(f"--{key} records no profile: it goes without {options}")


LAUNCHERS = frozenset({"accelerate.commands.launch", "torch.distributed.launch", "torch.distributed.run"})
"""Modules that start the program's processes, which are then captured too."""


STARTERS = LAUNCHERS | {"nbconvert"}
"""Modules that run the program in other processes, so that `--no-follow` would capture nothing."""

NOTEBOOK = ".ipynb"


def _is_launcher(word: str) -> bool:
    """Whether a word is a command: ``torchrun`` on the path, or a file that starts itself, such as ``venv/bin/python``.

    A file with the suffix ``.py`` is a script, also where it could start itself.
    """
    path = Path(word)
    if word == "-" or path.suffix == ".py":
        return False
    if path.is_file():
        with path.open("rb") as file:
            return os.access(path, os.X_OK) and file.read(2) in (b"#!", b"\x7fE")
    return path.name == word and not path.exists() and shutil.which(word) is not None


@click.command(
    cls=RunCommand,
    epilog="The program's exit code is returned (128 + signal if one killed it), 125 if it could not be started.",
)
@click.option("--level", type=click.Choice(LEVELS), default="default", show_default=True, help="How much to record.")
@click.option(
    "--capture",
    type=click.Choice(TOOLS),
    help="Record with Nsight Systems (nsys on PATH) around the whole program, not with the framework's profiler.",
)
@click.option("--steps", metavar="A:B", help="Steps of the timing pass, B not included; counted from 0.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=DEFAULT_WARMUP,
    show_default=True,
    help="Steps left alone before the first capture (the very first always is).",
)
@click.option(
    "--whole",
    is_flag=True,
    help="Capture the whole program as one step, for programs without steps; of a JAX program two seconds of it.",
)
@click.option("--step-annotation", metavar="NAME", help="The record_function or NVTX range that is one step.")
@click.option(
    "--xla-dump", is_flag=True, help="JAX: have XLA write each program it compiles, and why ops were not fused."
)
@click.option(
    "--stacks/--no-stacks",
    default=True,
    show_default=True,
    help="Sample the Python stacks of all threads and worker processes, at about 1 % of processor time.",
)
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Capture in all Python processes that the program starts, or in none. [all with -- and launchers; else those "
    "that start before the program has steps]",
)
@click.option(
    "--for",
    "time",
    metavar="TIME",
    help="End the program with SIGTERM after this time (30s, 5m, 1h) and report: for services.",
)
@output_folder_option("the run directories")
@click.option("--name", help="Name of the run; the script's if not given.")
@click.option(
    "--run-id",
    metavar="ID",
    help="Name of the run directory, the same for all tasks of a job (or PERFSCOPE_RUN_ID). [under srun, mpirun or "
    "torchrun: the job's]",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the first task of a job waits for the others to end before it reports.",
)
@click.option("--no-report", is_flag=True, help="Capture only; `perfscope analyze latest` reports later.")
@quiet_option
@verbose_option
@click.pass_context
def run(
    context: click.Context,
    *,
    level: Any,
    capture: Any,
    steps: str | None,
    warmup: int,
    whole: bool,
    step_annotation: str | None,
    xla_dump: bool,
    stacks: bool,
    follow: bool | None,
    time: str | None,
    output: Path,
    name: str | None,
    run_id: str | None,
    wait: float,
    no_report: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Run a PyTorch or JAX program under profilers and report what costs time in it.

    Options before the program are perfscope's, everything after it is the program's. The program runs as
    under plain python; its steps are found automatically. A launcher on the path (torchrun, accelerate,
    deepspeed, mpirun ...) is started unchanged, and the Python processes that it starts are captured.
    """
    from perfscope.analyzers.configuration import NO_CONFIGURATION, find_configuration
    from perfscope.profiler.launch.record import record

    configuration = NO_CONFIGURATION if no_report else find_configuration()  # its errors come before a long run
    if whole and (steps is not None or step_annotation is not None):
        raise UsageError("--whole takes the program as one step: it goes without --steps and --step-annotation")
    recorders = context.meta.get(RECORDERS, {})
    _check_recorders(recorders, capture=capture, level=level, steps=steps)
    options = CaptureOptions(
        level=level,
        steps=None if steps is None else parse_steps(steps, least=0 if recorders else 1),
        warmup=warmup,
        whole=whole,
        step_annotation=step_annotation,
        quiet=quiet,
        xla_dump=xla_dump,
        capture=capture,
        stacks=stacks and not recorders,
        recorders=recorders,
        watchers=context.meta.get(WATCHERS, {}),
        seconds=None if time is None else parse_time("--for", time),
        alone=follow is False,
    )
    target = _target(context)
    follows = _follows(target, follow)
    recorded = record(target, options, root=output, name=name, follow=follows, run_id=run_id, wait_s=wait)
    if recorded.task.number and (recorded.task.key is not None or recorded.task.count is not None):
        return _print_alone(recorded, quiet=quiet)  # the first task speaks for all
    _print_outcome(recorded, configuration, reports=not no_report, quiet=quiet, verbose=verbose)
    return _with_hint(context, recorded.code, quiet=quiet)


def _follows(target: Target, asked: bool | None) -> bool:
    """Whether all processes that the program starts capture."""
    if asked is False and target.module and target.arguments[0] in STARTERS:
        raise UsageError(f"--no-follow: {target.arguments[0]} starts the program as another process")
    return bool(asked or (target.module and target.arguments[0] in LAUNCHERS))


def _with_hint(context: click.Context, code: int, *, quiet: bool) -> int:
    """Return the program's exit code; name options of perfscope among the arguments that the program refused."""
    words, _ = context.meta[TARGET]
    known = {name for param in context.command.params for name in param.opts if name.startswith("--")}
    mixed = ", ".join(word for word in words[1:] if word.partition("=")[0] in known)
    if code == USAGE_ERROR and mixed and not quiet:  # argparse and click exit with it
        print(f"perfscope: the program got {mixed}: options of perfscope belong before the program", file=sys.stderr)
    return code


def _print_outcome(
    recorded: Recorded, configuration: Configuration, *, reports: bool, quiet: bool, verbose: bool
) -> None:
    """Print the captures, and show the report."""
    from perfscope.profiler.launch.record import discard_if_empty

    discarded = recorded.lost is None and discard_if_empty(recorded)
    if recorded.lost is not None:  # also with --quiet: a lost run is never expected
        print(f"perfscope: {recorded.lost}", file=sys.stderr)
    elif not quiet:
        _print_captures(recorded, kept=not discarded, reports=reports)
    after = click.get_current_context().meta.get(AFTER_ANALYSIS, ())
    if after and not reports:
        print("perfscope: not logged: --no-report makes no analysis", file=sys.stderr)
    if reports and not discarded and recorded.lost is None:
        _try_to_report(recorded, configuration, quiet=quiet, verbose=verbose, after=after)
    for show in () if discarded or quiet else click.get_current_context().meta.get(AFTER_RUN, ()):
        try:
            show(recorded.directory)
        except PerfscopeError as error:
            print(f"perfscope: {error}", file=sys.stderr)


def _try_to_report(
    recorded: Recorded, configuration: Configuration, *, quiet: bool, verbose: bool, after: _After
) -> None:
    """The program's exit code is the answer, whatever becomes of our report."""
    from perfscope.model.untrusted_text import sanitize

    analysis = None
    try:
        analysis = _report(recorded, configuration, quiet=quiet)
        if analysis is not None:
            for take in after:
                take(analysis, recorded.directory.name)
    except Exception as error:
        if verbose:
            traceback.print_exc()
        cause = str(error) if isinstance(error, PerfscopeError) else f"{type(error).__name__}: {error}"
        print(f"perfscope: {sanitize(cause) if analysis else f'no report: {sanitize(cause)}'}", file=sys.stderr)


def _target(context: click.Context) -> Target:
    from perfscope.profiler.launch.program import Target

    words, kind = context.meta[TARGET]
    if not words:
        raise UsageError("nothing to run: give script.py, -m module, or -- command")
    if kind == "script" and words[0].endswith(NOTEBOOK):
        return _notebook(words)
    return Target(arguments=words, module=kind == "module", command=kind == "command")


def _notebook(words: Sequence[str]) -> Target:
    """The command that runs a notebook's cells in its kernel, as ``jupyter nbconvert --execute`` does."""
    from perfscope.profiler.launch.program import Target

    if importlib.util.find_spec("nbconvert") is None or importlib.util.find_spec("ipykernel") is None:
        raise UsageError(
            f"{words[0]} is a notebook, and nbconvert and ipykernel run it: `{sys.executable} -m pip install nbconvert "
            "ipykernel`"
        )
    if not Path(words[0]).exists():
        raise NotStartedError(f"{words[0]}: no such file")
    name = Path(words[0]).stem
    run = ("nbconvert", "--to", "notebook", "--execute", "--log-level", "WARN", "--output-dir", ".")
    # Without a name, an output folder that is the notebook's own has the notebook overwritten.
    output = ("--output", f"{name}.nbconvert")
    return Target(arguments=(*run, *output, *_kernel(Path(words[0])), *words), module=True, title=name)


def _kernel(notebook: Path) -> tuple[str, ...]:
    """Options for a notebook in Python that names the kernel of its author's environment: this Python's instead."""
    import json

    try:
        metadata = json.loads(notebook.read_bytes())["metadata"]
        named = metadata["kernelspec"]
        if named.get("language", metadata.get("language_info", {}).get("name", "python")) != "python":
            return ()
        from jupyter_client.kernelspec import KernelSpecManager

        if named["name"] in KernelSpecManager().find_kernel_specs():
            return ()
    except (ImportError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()  # nbconvert reports the cause
    return ("--ExecutePreprocessor.kernel_name=python3",)


def _print_alone(recorded: Recorded, *, quiet: bool) -> int:
    """Print the folder of a task's run that no manifest of task 0 joins: no job name, or task 0 writes elsewhere.

    Return the program's exit code.
    """
    task = recorded.task.number
    text = (
        f"task {task}: run kept in {recorded.directory}"
        if recorded.task.key is None
        else (
            f"task {task}: task 0 does not write here; what this machine captured is kept in {recorded.directory}, and "
            "`perfscope analyze DIR DIR ...` takes such folders as one job"
        )
    )
    if recorded.leads and not quiet:
        print(f"perfscope: {text}", file=sys.stderr)
    return recorded.code


def _print_captures(recorded: Recorded, *, kept: bool, reports: bool) -> None:
    """Print on stderr which captures succeeded, and the run's folder, if no report follows that names it."""
    from perfscope.model.documents.run import failure_of, list_numbers, missing_ranks, ranks_of
    from perfscope.profiler.session.ranks import RUN_ID

    lines = list(recorded.run.notes)
    failed = failure_of(recorded.run.state, recorded.run.exit_code, recorded.run.error)
    if failed is not None and not any(failed in line for line in lines):
        lines.insert(0, failed)
    if recorded.run.processes and (missing := missing_ranks(*ranks_of(recorded.run))):
        lines.append(missing)
    if recorded.earlier:
        lines.append(f"an earlier run has that name: this one is {recorded.directory.name}")
    if recorded.task.key is None and (recorded.task.count or 1) > 1:
        lines.append(
            f"{recorded.task.count} tasks, and no variable that names their job: each writes a separate run; "
            f"--run-id NAME (or {RUN_ID}) makes them one"
        )
    missing_in: dict[str, list[int]] = {}
    for process in recorded.run.processes:
        for capture in process.captures:
            if capture.reason is not None:
                what = f"{capture.pass_name} pass {'incomplete' if capture.artifact else 'missing'}: {capture.reason}"
                missing_in.setdefault(what, []).append(process.rank)
    for what, ranks in missing_in.items():
        lines.append(f"{list_numbers('rank', ranks)}: {what}" if len(recorded.run.processes) > 1 else what)
    if kept and not (reports and recorded.run.artifacts(recorded.directory)):
        lines.append(f"run kept in {recorded.directory}")
    for line in lines:
        print(f"perfscope: {line}", file=sys.stderr)


def _report(recorded: Recorded, configuration: Configuration, *, quiet: bool) -> Analysis | None:
    """Analyze the run, write its reports into it, print the short one on stderr; ``None`` without a recording."""
    if not recorded.run.artifacts(recorded.directory):
        return None
    from perfscope.analyzers.judge import judge_paths
    from perfscope.dashboards.report import render, write
    from perfscope.dashboards.report.run_index import write_index

    analysis = judge_paths([recorded.directory], configuration=configuration).analysis
    for form in ("html", "json"):
        write(recorded.directory / f"report.{form}", render(analysis, form))
    write_index(recorded.directory)
    if not quiet:
        print(render(analysis, "text", **screen(sys.stderr), links=sys.stderr.isatty()), file=sys.stderr)
        print(f"  report  {recorded.directory / 'report.html'}", file=sys.stderr)
        print(f"  look    {_serving(recorded.directory)}", file=sys.stderr)
    return analysis


def _serving(directory: Path) -> str:
    """The line that opens a run in the browser, and the missing packages for it."""
    from importlib.util import find_spec

    from perfscope.commands.serve import NEEDED
    from perfscope.model.documents.run_folders import LATEST, RUNS_FOLDER

    newest = Path(RUNS_FOLDER, LATEST)
    which = LATEST if newest.exists() and newest.samefile(directory) else shlex.quote(str(directory))
    absent = any(find_spec(name) is None for name in NEEDED)
    return f"perfscope serve {which}" + (f"   ({install_command('ui')})" if absent else "")
