"""``perfscope advise memory RUN --verify``: the plans of a compiled run, compiled with their policy and kept with it.

The program is compiled again as the run says, with ``--checkpoint``: so it must be there still, unchanged. What was
compiled lies in the run's folder, and is not compiled twice.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.model.errors import DataError, PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.advice.plans import Plan
    from perfscope.analyzers.advice.step_model import StepModel
    from perfscope.analyzers.advice.verified import VerifiedPlan
    from perfscope.analyzers.hardware.target import Target
    from perfscope.model.documents.compile_manifest import Compiled, CompiledProgram
    from perfscope.model.trace import Trace

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
    from perfscope.analyzers.advice.verified import predictions

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
    from perfscope.analyzers.facts.program_device import program_device
    from perfscope.analyzers.hardware.target_text import parse_target
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
    from perfscope.analyzers.advice.verified import program_of

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
    from perfscope.analyzers.advice.verified import compiled_step
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
