"""``perfscope lower``: what each line of a program became at each stage of its compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import STDOUT, announce, quiet_option, screen, verbose_option, write_answers
from perfscope.commands.run import TARGET, RunCommand
from perfscope.model.errors import DONE, DataError, UsageError

if TYPE_CHECKING:
    from perfscope.plugins.lower.inputs import Read

_COMPILED_BY = {"torch": "`torch.compile`", "jax": "`jax.jit`"}
"""Framework -> how a program has code that is compiled."""

DEFAULT_LIMIT_S = 900.0


class LowerCommand(RunCommand):
    """As of `run`; a file or folder has no arguments, so options may follow it."""

    def split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str], str]:
        """Return words of perfscope, words of the program, and the kind of program."""
        ours, target, kind = super().split(ctx, args)
        if len(target) > 1 and kind != "module" and not target[0].endswith(".py"):
            return [*ours, *target[1:]], target[:1], kind
        return ours, target, kind

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the ways to select the program."""
        return ["[OPTIONS]", "RUN|FOLDER|FILE | script.py ARGS... | -m module ARGS..."]


@click.command(
    cls=LowerCommand,
    epilog="Exit code: 0 done, 2 asked wrongly, 4 nothing compiled is there, or a file is damaged. "
    "Options come before script.py.",
)
@click.option("--line", metavar="N|FILE:N", help="Follow one line of the program through all stages.")
@click.option("--op", metavar="NAME", help="Follow an op: an instruction, a node, a primitive, or part of a scope.")
@click.option("--stages", is_flag=True, help="List the stages of every program, not only of the largest.")
@click.option("--warm", is_flag=True, help="Run the program a second time, with the compilers' caches of the first.")
@click.option(
    "--target", metavar="DEVICES", help="Compile for a machine that is not here, as `perfscope compile` does."
)
@click.option("--framework", type=click.Choice(("auto", "jax", "torch")), default="auto", show_default=True,
              help="Framework of the program.")  # fmt: skip
@click.option("--limit", type=click.FloatRange(min=1), default=DEFAULT_LIMIT_S, show_default=True, metavar="SECONDS",
              help="End the program after this time; what it compiled by then is shown.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the lowering as JSON (- for stdout, alone).")
@click.option("-o", "--output", metavar="FILE", help="Write the page here: .html, or .md for Markdown.")
@quiet_option
@verbose_option
@click.pass_context
def lower(
    context: click.Context,
    *,
    line: str | None,
    op: str | None,
    stages: bool,
    warm: bool,
    target: str | None,
    framework: str,
    limit: float,
    json_file: str | None,
    output: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Show what each line of a program became at each stage of its compiler, and the compile time by pass.

    A program is run here on the CPU, and its compiler writes every stage. RUN is a run of `perfscope run --xla-dump`
    or `perfscope compile`, FOLDER a dump of XLA or of TORCH_TRACE, FILE one program in HLO or one log.
    """
    from perfscope.plugins.lower import lowering, pages
    from perfscope.plugins.lower.document import dump

    words, kind = context.meta[TARGET]
    if not words or kind == "command":
        raise UsageError("nothing to lower: give script.py, -m module, a run, a folder of dumps, or a file")
    if line is not None and op is not None:
        raise UsageError("--line and --op: give one of them")
    if line is not None and not line.rpartition(":")[2].isdecimal():
        raise UsageError(f"--line {line}: give a number, or FILE:NUMBER")
    if output is not None and not output.endswith((".html", ".md")):
        raise UsageError(f"-o {output}: its name must end in .html or .md")
    found, subject = _read(words, kind, framework, target, warm=warm, limit=limit, quiet=quiet)
    made = lowering.of(found, subject, line=line, op=op)
    answers = [(json_file, lambda: dump(made).decode())]
    answers.append((output, lambda: pages.page(made, str(output), all_stages=stages)))
    write_answers(answers, quiet=quiet)
    if STDOUT not in (json_file, output):
        click.echo(pages.text(made, **screen(sys.stdout), verbose=verbose, all_stages=stages), nl=False, color=True)
    return DONE


def _read(
    words: tuple[str, ...], kind: str, framework: str, target: str | None, *, warm: bool, limit: float, quiet: bool
) -> tuple[Read, str]:
    """Programs and times of the input, and its name; a program runs first."""
    from perfscope.plugins.lower.inputs import read

    if kind != "module" and not words[0].endswith(".py"):
        if warm or target is not None:
            raise UsageError(f"{words[0]}: --warm and --target are for programs")
        return read(_place(words[0])), words[0]
    if target is not None:
        if warm:
            raise UsageError("--warm: a machine that is not here has no caches; leave out --target")
        return read(_compiled(words, kind, framework, target, limit, quiet=quiet)), words[0]
    from perfscope.commands.compare.outputs import new_folder
    from perfscope.model.documents import run_folders
    from perfscope.plugins.ahead import frameworks_asked
    from perfscope.plugins.lower.capture import run_program

    (first, *_) = frameworks_asked(framework, words, module=kind == "module")
    folder = new_folder(Path(run_folders.RUNS_FOLDER), "lower")
    announce(f"running {words[0]} with the dumps of its compiler, into {folder}", quiet=quiet)
    failed = run_program(folder, first, words, module=kind == "module", warm=warm, limit_s=limit)
    try:
        found = read(folder)
    except DataError as error:
        why = failed or f"perfscope lower shows code of {_COMPILED_BY[first]}"
        raise DataError(f"{words[0]}: compiled nothing with {first} ({why})") from error
    found.failed = failed
    found.remarks += [f"other lines without running it again: perfscope lower {folder} --line N"]
    return found, words[0]


def _place(text: str) -> Path:
    """The file or folder, else the run of that name."""
    from perfscope.model.documents import run_folders

    path = Path(text)
    return path if path.exists() else run_folders.find(text)


def _compiled(words: tuple[str, ...], kind: str, framework: str, target: str, limit: float, *, quiet: bool) -> Path:
    """The run folder of `perfscope compile --target`; of a PyTorch program the folder of it and of torch's log."""
    import os
    import subprocess

    from perfscope.commands.compare.outputs import new_folder
    from perfscope.model.documents import run_folders
    from perfscope.plugins.lower.inputs import TORCH_TRACE, run_below

    folder = new_folder(Path(run_folders.RUNS_FOLDER), "lower")
    announce(f"compiling {words[0]} for {target}, into {folder}", quiet=quiet)
    ours = ["--target", target, "--framework", framework, "--limit", f"{limit:g}", "--keep-ptx", "-q"]
    ours += ["-o", str(folder)]
    program = ["-m", *words] if kind == "module" else [*words]
    (folder / TORCH_TRACE).mkdir()
    environment = {**os.environ, "TORCH_TRACE": str((folder / TORCH_TRACE).resolve()), "INDUCTOR_PROVENANCE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "compile", *ours, *program], capture_output=True, text=True, check=False,
        env=environment,
    )  # fmt: skip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise DataError(said[-1].removeprefix("perfscope: ") if said else f"{words[0]}: not compiled for {target}")
    if any((folder / TORCH_TRACE).iterdir()):
        return folder
    (folder / TORCH_TRACE).rmdir()
    return run_below(folder)
