"""``perfscope compile``: what XLA or torch.compile would make of a program on a machine that is not here."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.analyze import fail_on_option, gate
from perfscope.commands.options import output_folder_option, quiet_option, screen, verbose_option
from perfscope.commands.run import TARGET, RunCommand
from perfscope.model.errors import DONE, GATE_NOT_MET, UsageError
from perfscope.plugins.ahead.setup import kind_of, need_compilers, set_up, set_up_for
from perfscope.plugins.ahead.targets.completion import complete_targets

if TYPE_CHECKING:
    from perfscope.analyzers.devices import Target
    from perfscope.plugins.ahead.request import Framework, Request

DEFAULT_TARGET = "h100"
DEFAULT_LIMIT_S = 900.0
_SIZE = re.compile(r"[^\s=-][^\s=]*=\d+")
"""A size of an ONNX model's inputs after its file: ``batch=8``."""
FRAMEWORKS = ("auto", "jax", "torch")


class CompileCommand(RunCommand):
    """As of `run`, without commands of any kind: it must be Python. A file has no arguments: options may follow it."""

    def split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str], str]:
        """Return words of perfscope, words of the program, and the kind of program."""
        ours, target, kind = super().split(ctx, args)
        if len(target) > 1 and kind != "module" and _holds_program(Path(target[0])):
            sizes = list(takewhile(_SIZE.fullmatch, target[1:])) if target[0].lower().endswith(".onnx") else []
            return [*ours, *target[1 + len(sizes) :]], [target[0], *sizes], kind
        return ours, target, kind

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the two ways to select the program."""
        return ["[OPTIONS]", "script.py ARGS... | -m module ARGS... | FILE"]


@click.command(
    "compile",
    cls=CompileCommand,
    epilog="Exit code: 0 done, 1 a gate was not met, 2 asked wrongly, 4 nothing was compiled (also where the program "
    "failed before it called anything that is), 125 there is no such program.",
)
@click.option(
    "--target",
    metavar="DEVICES",
    shell_complete=complete_targets,
    default=DEFAULT_TARGET,
    show_default=True,
    help="For what: h100, h100x8, b200, mi300x, v5e:2x4 ... or a TOML file of your own.",
)
@click.option("--memory", metavar="SIZE", help="Memory of one device, if it is not the usual size: 40GiB.")
@click.option("--framework", type=click.Choice(FRAMEWORKS), default="auto", show_default=True, help="Its framework.")
@click.option(
    "--function", "functions", multiple=True, metavar="NAME", help="Only this: step, train.step, train.py:step."
)
@click.option(
    "--checkpoint",
    metavar="POLICY",
    help="JAX: give the program's layers this checkpoint policy without editing it: none, full, dots, all_dots, names; "
    "full@train.py:35 names a scan or checkpoint by its line. See docs/compile.md.",
)
@click.option("--until-exit", is_flag=True, help="Follow the program to its end, also when it only repeats itself.")
@click.option(
    "--limit",
    type=click.FloatRange(min=1),
    default=DEFAULT_LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="Limit for all of it; programs compiled by then are kept.",
)
@click.option("--host-memory", metavar="SIZE", help="Limit of the compiler's memory here. [3/4 of the free memory]")
@click.option("--setup", is_flag=True, help="Install the compiler for the target first, if it is missing.")
@click.option("--keep-ptx", is_flag=True, help="NVIDIA: keep the code of each kernel, too.")
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=VALUES",
    help="Compile many variants: policy=none,dots,full seq=1k..128k target=h100,h200; see docs/compile-sweeps.md.",
)
@click.option(
    "--fit",
    metavar="NAME=RANGE",
    help="Find the largest size that fits, compiling as few as that takes: seq=1k..128k, batch=1..512/1.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1, max=256), metavar="N", help="Sweep: as many at once. [cores, memory]"
)
@click.option("--again", is_flag=True, help="Sweep: compile all of it, also what an earlier sweep has.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report (or the sweep) as JSON.")
@click.option("--html", "html_file", metavar="FILE", help="Sweep: write the page with the picture here, too.")
@fail_on_option
@output_folder_option("the run directories")
@click.option("--name", help="Name of the run; the script's if not given.")
@quiet_option
@verbose_option
@click.pass_context
def compile_(
    context: click.Context,
    *,
    target: str,
    memory: str | None,
    framework: Any,
    functions: tuple[str, ...],
    checkpoint: str | None,
    until_exit: bool,
    limit: float,
    host_memory: str | None,
    setup: bool,
    keep_ptx: bool,
    sweeps: tuple[str, ...],
    fit: str | None,
    jobs: int | None,
    again: bool,
    json_file: str | None,
    html_file: str | None,
    fail_on: str | None,
    output: Path,
    name: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Compile a JAX or PyTorch program for a machine that is not present, and judge the compiled program.

    Options before the program are perfscope's, everything after it is the program's. It runs without data and without
    devices, far enough to see what it compiles.
    """
    from perfscope.analyzers.devices import parse_target, read_bytes_text

    words, kind = context.meta[TARGET]
    if not words or kind == "command":
        raise UsageError("nothing to compile: give script.py or -m module")
    most = None if host_memory is None else read_bytes_text(host_memory, "--host-memory")
    if sweeps or fit is not None:
        from perfscope.plugins.ahead.sweep.command import SweepOptions, compile_sweep

        if fail_on is not None:
            raise UsageError("--fail-on: a sweep has no findings to gate on; compile one variant by itself")
        (first, *_) = frameworks_asked(framework, words, module=kind == "module")
        if setup:
            set_up("torch" if first == "torch" else kind_of(target), quiet=quiet)
        options = SweepOptions(
            sweeps=sweeps, words=words, module=kind == "module", target=target, memory=memory, output=output, name=name,
            jobs=jobs, host_memory_bytes=most, json_file=json_file, html_file=html_file, again=again, quiet=quiet,
            fit=fit,
        )  # fmt: skip
        return compile_sweep(
            options,
            lambda arguments, wanted, policy: request_of(
                arguments, module=options.module, framework=first, target=wanted, functions=functions,
                checkpoint=policy or checkpoint, until_exit=until_exit, seconds=limit, memory_bytes=most,
                keep_ptx=keep_ptx,
            ),
        )  # fmt: skip
    if jobs is not None or again or html_file is not None:
        raise UsageError("--jobs, --again and --html belong to --sweep NAME=VALUES and --fit NAME=RANGE")
    resolved = parse_target(target, memory)
    file = _program_file(words, module=kind == "module")
    if file is not None:
        if checkpoint is not None or functions or until_exit:
            raise UsageError(f"{words[0]}: a file with one program takes no --checkpoint, --function or --until-exit")
        request = request_of(
            words, module=False, framework=file, target=resolved, exported=True, seconds=limit, memory_bytes=most,
            keep_ptx=keep_ptx,
        )  # fmt: skip
        if setup:
            set_up_for(request, quiet=quiet)
        need_compilers([request])
        label = name or Path(words[0]).name.partition(".")[0]
        folder = compiled_in(request, output, label, command=(words[0],), quiet=quiet)
        return _judge(folder, json_file, fail_on, quiet=quiet, verbose=verbose)
    worst = DONE
    for item in frameworks_asked(framework, words, module=kind == "module"):
        request = request_of(
            words, module=kind == "module", framework=item, target=resolved, functions=functions, checkpoint=checkpoint,
            until_exit=until_exit, seconds=limit, memory_bytes=most, keep_ptx=keep_ptx,
        )  # fmt: skip
        if setup:
            set_up_for(request, quiet=quiet)
        need_compilers([request])
        folder = compiled_in(request, output, name, quiet=quiet)
        worst = max(worst, _judge(folder, json_file, fail_on, quiet=quiet, verbose=verbose))
    return worst


def _program_file(words: tuple[str, ...], *, module: bool) -> Framework | None:
    """``jax`` or ``torch`` for a file with a program before optimization, None for Python.

    ``UsageError`` for a program that is compiled already.
    """
    path = Path(words[0])
    if module or not _holds_program(path):
        if not module and path.suffix.lower() == ".onnx" and path.is_file():
            raise UsageError(f"{words[0]}: not an ONNX model (empty, or a pointer of Git LFS?)")
        return None
    from perfscope.analyzers.readers import read_head
    from perfscope.model.documents.program_files import program_file

    head = read_head(path)
    kind = program_file(path, head)
    if kind is not None:
        if kind == "onnx":
            _need_converter(words[0])
        return "torch" if kind in ("torch_export", "onnx") else "jax"
    reader = _reader_of_hlo(path, head)
    if any(program.is_scheduled or program.platform is not None for program in reader.read(path).hlo):
        raise UsageError(f"{words[0]}: this program is compiled already; `perfscope analyze {words[0]}` judges it")
    return "jax"


def _need_converter(path: str) -> None:
    """``UsageError`` with the package to install if there is no converter of ONNX models."""
    missing = [name for name in ("onnx", "onnx2torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{path}: an ONNX model needs onnx2torch, which converts it to PyTorch: `pip install onnx2torch`, or "
            "export the model with torch.export.save"
        )


def _holds_program(path: Path) -> bool:
    """Whether a file holds a program, compiled or not, and is not Python."""
    from perfscope.analyzers.readers import read_head
    from perfscope.model.documents.program_files import program_file

    if path.suffix == ".py" or not path.is_file():
        return False
    head = read_head(path)
    return program_file(path, head) is not None or _reader_of_hlo(path, head) is not None


def _reader_of_hlo(path: Path, head: bytes) -> Any:
    """Return the reader of a file with HLO, None for other files."""
    from perfscope.analyzers.readers import READERS

    readers = (import_module(READERS[kind]) for kind in ("hlo_text", "hlo_proto"))
    return next((each for each in readers if each.sniff(path, head)), None)


def request_of(
    words: tuple[str, ...],
    *,
    module: bool,
    framework: Framework,
    target: Target,
    functions: tuple[str, ...] = (),
    checkpoint: str | None = None,
    until_exit: bool = False,
    seconds: float = DEFAULT_LIMIT_S,
    memory_bytes: int | None = None,
    keep_ptx: bool = False,
    exported: bool = False,
) -> Request:
    """The request for `compile_program`, with the target as plain data. ``UsageError``: unknown policy.

    ``exported``: the first word is a file with a program before optimization; sizes of an ONNX model follow it.
    """
    from perfscope.plugins.ahead.common.compile import default_memory_limit
    from perfscope.plugins.ahead.request import Limits, Request, parse_checkpoint
    from perfscope.plugins.ahead.target_request import target_request

    if checkpoint is not None and framework != "jax":
        raise UsageError("--checkpoint is for JAX; for PyTorch perfscope advise memory has the code")
    file = str(Path(words[0]).resolve()) if exported else None
    if file is not None and framework == "torch":
        program = "onnx_program" if file.lower().endswith(".onnx") else "exported_program"
        words, module = (f"perfscope.plugins.ahead.torch.{program}", file, *words[1:]), True
    return Request(
        framework=framework,
        arguments=words,
        module=module,
        exported=file,
        target=target_request(target, configured=framework == "jax"),
        limits=Limits(seconds=seconds, memory_bytes=memory_bytes or default_memory_limit()),
        functions=functions,
        checkpoint=None if checkpoint is None else str(parse_checkpoint(checkpoint)),
        until_exit=until_exit,
        keep_ptx=keep_ptx,
    )


def compiled_in(
    request: Request, output: Path, name: str | None, *, command: tuple[str, ...] | None = None, quiet: bool
) -> Path:
    """The run folder; a terminal shows the progress meanwhile. ``command``: as for `compile_program`."""
    from perfscope.model.untrusted_text import sanitize
    from perfscope.plugins.ahead.common.compile import NothingCompiledError, compile_program

    progress = _Progress(quiet=quiet)
    try:
        return compile_program(request, root=output, name=name, command=command, progress=progress)
    except NothingCompiledError as error:
        progress.clear()
        for line in error.lines:
            print(f"  {sanitize(line)}", file=sys.stderr)
        raise
    finally:
        progress.clear()


class _Progress:
    """One line that is written over, on a terminal only."""

    def __init__(self, *, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty()
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        if self._on:
            from perfscope.model.untrusted_text import sanitize

            sentence = f"perfscope: {sanitize(text)[:60]} ({time.monotonic() - self._began:.0f} s)"
            print(f"\r\x1b[2K{sentence}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the terminal's line empty."""
        if self._on:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def frameworks_asked(framework: str, words: tuple[str, ...], *, module: bool) -> tuple[Framework, ...]:
    """Frameworks whose parts of the program are compiled; ``UsageError`` without any."""
    from perfscope.plugins.ahead.common.program import frameworks_of

    results = frameworks_of(words, module=module)
    if framework == "jax":
        results = ("jax",)
    elif framework == "torch":
        results = ("torch",)
    if not results:
        raise UsageError(f"{words[0]}: it imports neither jax nor torch; select the framework with --framework")
    return results


def _judge(folder: Path, json_file: str | None, fail_on: str | None, *, quiet: bool, verbose: bool) -> int:
    """Analyze the folder, write its reports into it, print the page."""
    from perfscope.analyzers.configuration import find_configuration
    from perfscope.analyzers.judge import judge_paths
    from perfscope.dashboards.report import render, write
    from perfscope.model.documents import compile_manifest
    from perfscope.plugins.ahead.page import compiled_page

    configuration = find_configuration()
    judged = judge_paths([folder], configuration=configuration)
    for form in ("html", "json"):
        write(folder / f"report.{form}", render(judged.analysis, form))
    if json_file is not None:
        write(json_file, render(judged.analysis, "json"))
    if not quiet:
        page = compiled_page(
            compile_manifest.load(folder), judged.loaded.traces[0], judged.analysis, str(folder),
            **screen(sys.stdout), verbose=verbose,
        )  # fmt: skip
        click.echo(page, nl=False, color=True)
    return GATE_NOT_MET if gate(judged.analysis, fail_on or configuration.fail_on) else DONE
