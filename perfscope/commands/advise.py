"""``perfscope advise``: what another plan of the same program would need and take, before it is written."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import device_named, quiet_option, spare, verbose_option
from perfscope.model.errors import DONE, DataError, PerfscopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.checkpointing.plans import Plan
    from perfscope.analyzers.checkpointing.step_model import StepModel
    from perfscope.analyzers.checkpointing.verified import VerifiedPlan
    from perfscope.analyzers.devices.target import Target
    from perfscope.dashboards.report.sections.advice import PlansView
    from perfscope.model.documents.compile_manifest import Compiled, CompiledProgram
    from perfscope.model.trace import Trace


MOST_VERIFIED = 9_999
"""Plans that ``--verify`` without a number compiles: all."""
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@click.group()
def advise() -> None:
    """Say what to change, with what it is predicted to gain and cost."""


@advise.command()
@click.argument("path", metavar="PATH")
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
    json_file: str | None,
    html_file: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Which modules to checkpoint, offload or divide among devices, and what each plan needs and takes.

    PATH is a run of `perfscope run` (`latest`, or its name), or compiled programs of JAX. All plans that are worth
    having are listed, from the quickest to the leanest; the quickest that fits the budget comes first.
    """
    from perfscope.analyzers.checkpointing.models import step_models
    from perfscope.analyzers.checkpointing.plans import plan_memory
    from perfscope.analyzers.readers.load import load_path
    from perfscope.dashboards.report.sections.advice import plans_view

    allowed = None if budget is None else parse_size(budget)
    name = None if device is None else device_named(device).name
    most = None if verify is None else parse_most(verify)
    if html_file == "-":
        raise UsageError("--html -: a page goes into a file; --json - prints the plans")
    loaded = load_path(path)
    target = next((trace.target for trace in loaded.traces if trace.target is not None), None)
    if target is not None and name is not None:
        raise UsageError(f"--device {name}: {path} was compiled for {target.shown}")
    traces = [trace if trace.target is not None else replace(trace, judged_device=name) for trace in loaded.traces]
    steps = step_models(traces)
    unseen = (*steps.unseen, *(f"{one.path}: {one.reason}" for one in loaded.skipped if one.broken))
    if not steps.models:
        raise DataError(unseen[0] if unseen else f"{path}: no step to plan for")
    model, trace = _with_command(steps.models[0], traces)
    plans = plan_memory(model, budget_bytes=allowed, devices=devices, device=name)
    verified = None
    if most is not None:
        verified = verified_plans(trace, model, plans.front, most=most, quiet=quiet)
    view = plans_view(plans, path, unseen, len(steps.models) - 1, verified)
    _write(view, json_file, html_file, inputs=[trace.source.path for trace in loaded.traces], quiet=quiet)
    if json_file != "-":
        _print(view)
    return DONE


def parse_most(text: str) -> int:
    """How many plans ``--verify`` compiles; ``AskedWronglyError`` where it is no number."""
    if text == "all":
        return MOST_VERIFIED
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(
            f"--verify {text[:40]}: how many plans? The run goes in front: perfscope advise memory RUN --verify 2"
        )
    return int(text)


def _with_command(model: StepModel, traces: Sequence[Trace]) -> tuple[StepModel, Trace]:
    """The step with the command that compiles its policies, where its run names it; and the trace it is of."""
    from perfscope.analyzers.checkpointing.xla_model.bounds import EXACT

    trace = next((one for one in traces if model.framework == "jax" and one.hlo and one.op_graph is None), traces[0])
    command = exact_command(trace) if EXACT in model.notes else None
    if command is None:
        return model, trace
    note = exact_note(command, verifiable=trace.source.format == "compiled")
    return replace(model, notes=tuple(note if one == EXACT else one for one in model.notes)), trace


def parse_size(text: str) -> int:
    """``80GiB``, ``80G``, ``80GB`` (decimal), ``1.5 TiB``, ``1073741824`` in bytes; ``AskedWronglyError`` else."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt]?)(i?b)?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise UsageError(f"--budget {text[:40]}: not a size; write 80GiB, 512MiB or a number of bytes")
    number, prefix, suffix = found[1], found[2].lower(), (found[3] or "").lower()
    factor = _DECIMAL[prefix + "b"] if prefix and suffix == "b" else 1 << _UNITS[prefix]
    size = round(float(number) * factor)
    if not 0 < size < 1 << 62:
        raise UsageError(f"--budget {text[:40]}: not a memory; write 80GiB, 512MiB or a number of bytes")
    return size


def _write(
    view: PlansView, json_file: str | None, html_file: str | None, *, inputs: Sequence[str], quiet: bool
) -> None:
    from perfscope.dashboards.report import write
    from perfscope.dashboards.report.sections import advice_formats
    from perfscope.model.untrusted_text import sanitize

    spare(inputs, [file for file in (json_file, html_file) if file is not None and file != "-"])
    for file, render_text in ((json_file, advice_formats.render_json), (html_file, advice_formats.render_html)):
        if file == "-":
            click.echo(render_text(view), nl=False)
        elif file is not None:
            write(file, render_text(view))
            if not quiet:
                click.echo(f"perfscope: wrote {sanitize(file)}", err=True)


def _print(view: PlansView) -> None:
    from perfscope.commands.options import color_wanted, width_of
    from perfscope.dashboards.report.sections.advice_formats import render_text

    click.echo(render_text(view, width=width_of(sys.stdout), color=color_wanted(sys.stdout)), nl=False, color=True)


# ``perfscope advise memory RUN --verify``: the plans of a compiled run, compiled with their policy and kept with it.
#
# The program is compiled again as the run says, with ``--checkpoint``: so it must be there still, unchanged. What was
# compiled lies in the run's folder, and is not compiled twice.


VERIFIED = "verified"
"""Folder of a run that holds the programs compiled to verify its plans."""
SECONDS = 900.0
"""For each plan, as `perfscope compile` has it."""
HIDDEN = "***"
"""What stands in a command for a value that looked like a secret."""
MOST_KEPT = 1_000


def verified_plans(
    trace: Trace, model: StepModel, plans: Sequence[Plan], *, most: int | None, quiet: bool
) -> tuple[VerifiedPlan, ...]:
    """Each plan with the program compiled for it, in the order given; at most ``most`` are compiled or read.

    ``AskedWronglyError`` where the trace is no run of `perfscope compile`; ``DataError`` where its program is not what
    it was. What the compiler refuses is in the plan's reason.
    """
    from perfscope.analyzers.checkpointing.verified import predictions

    folder, manifest = compiled_run(trace)
    program = _program(trace, folder, manifest, model)
    target = trace.target
    if target is None:
        raise DataError(f"{folder}: it does not say for what it was compiled")
    _unchanged(folder, manifest)
    found, left = [], most
    for one in predictions(model, trace, plans):
        if one.checkpoint is None:
            found.append(one)
        elif left == 0:
            found.append(replace(one, reason="not asked for: --verify takes more of them"))
        else:
            left = None if left is None else left - 1
            found.append(_verified(one, folder, manifest, program, target, quiet=quiet))
    return tuple(found)


def exact_command(trace: Trace) -> str | None:
    """The command that compiles the policies of a run; ``None`` where the recording names no program."""
    if trace.source.format == "run":
        return _of_recording(trace)
    if trace.source.format != "compiled" or trace.target is None:
        return None
    _, manifest = compiled_run(trace)
    if not manifest.command or HIDDEN in "".join(manifest.command):
        return None
    memory = trace.target.memory_bytes
    sized = memory is not None and memory != trace.target.device.memory_bytes
    words = [
        "perfscope", "compile", "--target", manifest.target.asked, *(("--memory", f"{memory}B") if sized else ()),
        *(word for name in manifest.functions for word in ("--function", name)),
        *(("--until-exit",) if manifest.until_exit else ()), "--sweep", "checkpoint=none,dots,full", *manifest.command,
    ]  # fmt: skip
    return shlex.join(words)


def _of_recording(trace: Trace) -> str | None:
    """That of a run of `perfscope run`, for the device that it was recorded on where that can be compiled for."""
    from perfscope.analyzers.devices.target_text import parse_target
    from perfscope.analyzers.hlo.program_device import program_device
    from perfscope.model.documents import run_folders

    try:
        command = run_folders.read(Path(trace.source.path)).command
    except PerfscopeError:
        return None
    words = command[1:] if command[:1] == ("python",) else command
    if not words or HIDDEN in "".join(words):
        return None
    found, name = trace.fact(program_device), "NAME"
    if found is not None and (found.recorded or found.given):
        try:
            name = parse_target(found.device.name).asked
        except PerfscopeError:
            name = "NAME"
    return shlex.join(["perfscope", "compile", "--target", name, "--sweep", "checkpoint=none,dots,full", *words])


def exact_note(command: str, *, verifiable: bool) -> str:
    """The sentence with it, in place of the one that has no program's name."""
    here = "--verify compiles the plans above and lays them beside their predictions; " if verifiable else ""
    return f"compiling a policy gives its exact number: {here}{command} compiles all of them (docs/compile-sweeps.md)"


def compiled_run(trace: Trace) -> tuple[Path, Compiled]:
    """Folder and manifest of a run of `perfscope compile`; ``AskedWronglyError`` for whatever else."""
    from perfscope.model.documents import compile_manifest

    path = Path(trace.source.path)
    if trace.source.format != "compiled":
        raise UsageError(f"{path}: --verify takes a run of perfscope compile, whose program it compiles again")
    manifest = compile_manifest.load(path)
    if manifest.framework != "jax":
        raise UsageError(f"{path}: --verify is for JAX programs; this is a plan of PyTorch")
    return path, manifest


def _program(trace: Trace, folder: Path, manifest: Compiled, model: StepModel) -> CompiledProgram:
    from perfscope.analyzers.checkpointing.verified import program_of

    source = trace.hlo[program_of(trace, model.label)].source
    for one in manifest.programs:
        if source == f"{trace.source.path}/{one.file}":
            return one
    raise DataError(f"{folder}: the manifest has no program {model.label}")


def _unchanged(folder: Path, manifest: Compiled) -> None:
    """``DataError`` in one line unless the program is there as it was compiled."""
    from perfscope.profiler.ahead.common.build_key import sources_digest

    words, module = _words(manifest)
    again = "compile it again (perfscope compile), then verify that run"
    if not words or any(HIDDEN in word for word in words):
        raise DataError(f"{folder}: its command is not kept in full (values that look like secrets are not); {again}")
    if not module and not Path(words[0]).is_file():
        raise DataError(f"{words[0]}: not here; --verify compiles the program again, from the folder it was started in")
    try:
        now = sources_digest(words, module=module)
    except (ImportError, ValueError) as error:
        raise DataError(f"{words[0]}: not here: {error}") from error
    if manifest.sources is None:
        raise DataError(f"{folder}: it does not say from which sources it was compiled; {again}")
    if now != manifest.sources:
        raise DataError(f"{words[0]}: its sources are not those that {folder.name} was compiled from; {again}")


def _words(manifest: Compiled) -> tuple[tuple[str, ...], bool]:
    """Script or module with its arguments, and whether it is a module."""
    module = manifest.command[:1] == ("-m",)
    return manifest.command[1:] if module else manifest.command, module


def _verified(
    one: VerifiedPlan, folder: Path, manifest: Compiled, program: CompiledProgram, target: Target, *, quiet: bool
) -> VerifiedPlan:
    from perfscope.analyzers.checkpointing.verified import compiled_step
    from perfscope.analyzers.readers.load import load_path

    assert one.checkpoint is not None
    place = _kept(folder, manifest, one.checkpoint)
    kept = place is not None
    try:
        place = place or _compiled(one.checkpoint, folder, manifest, program, target, quiet=quiet)
        (trace,) = load_path(str(place)).traces
    except PerfscopeError as error:
        return replace(one, reason=str(error))
    step = compiled_step(trace, program.name)
    if step is None:
        return replace(one, reason=f"{place}: {program.name} is not in it")
    return replace(
        one, compiled_peak_bytes=step[0], compiled_recompute_flops=step[1], folder=f"{VERIFIED}/{place.name}", kept=kept
    )  # fmt: skip


def _kept(folder: Path, manifest: Compiled, word: str) -> Path | None:
    """What an earlier call compiled from the same sources with the same compiler; the latest."""
    from perfscope.model.documents import compile_manifest

    for place in _folders(folder / VERIFIED):
        try:
            found = compile_manifest.load(place)
        except DataError:
            continue
        same = found.sources == manifest.sources and found.versions == manifest.versions
        if same and found.complete and found.checkpoint is not None and found.checkpoint.policy == word:
            return place
    return None


def _folders(root: Path) -> Iterator[Path]:
    held = sorted((one for one in root.glob("*") if one.is_dir() and not one.is_symlink()), reverse=True)
    yield from held[:MOST_KEPT]


def _function(program: CompiledProgram) -> tuple[str, ...]:
    """The function that is asked for, so that nothing else is compiled."""
    name = program.function.rpartition(".")[2]
    return (name,) if name else ()


def _compiled(
    word: str, folder: Path, manifest: Compiled, program: CompiledProgram, target: Target, *, quiet: bool
) -> Path:
    from perfscope.commands.compile import compiled_in, request_of
    from perfscope.model.untrusted_text import sanitize

    words, module = _words(manifest)
    request = request_of(
        words, module=module, framework="jax", target=target, functions=_function(program),
        checkpoint=word, until_exit=manifest.until_exit, seconds=SECONDS,
    )  # fmt: skip
    if not quiet:
        print(f"perfscope: compiling {sanitize(program.name)} with --checkpoint {word}", file=sys.stderr)
    return compiled_in(request, folder / VERIFIED, f"{program.name}-{word}", quiet=quiet)
