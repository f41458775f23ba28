"""The program of a compiled run, compiled again with each checkpoint policy of its plans: their exact peaks.

The program is compiled as in the run, with ``--checkpoint``, so its files must still exist, unchanged. Policies are
compiled in parallel. Compiled programs are kept in the run's folder, and are not compiled twice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.commands.options import announce
from perfscope.model.errors import DataError, PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.devices import Target
    from perfscope.model.documents.compile_manifest import Compiled, CompiledProgram
    from perfscope.model.trace import Trace
    from perfscope.plugins.ahead import PolicyName, Request
    from perfscope.plugins.memory_advice.plans import Plan
    from perfscope.plugins.memory_advice.step_model import StepModel
    from perfscope.plugins.memory_advice.verified import VerifiedPlan

VERIFIED = "verified"
"""Folder of a run that holds its program compiled with other policies."""
TIME_LIMIT_S = 900.0
"""For each policy, as `perfscope compile` has it."""
HIDDEN = "***"
"""Placeholder in a command for a value that looked like a secret."""
MOST_KEPT = 1_000


class PolicyProgram(Struct, frozen=True, kw_only=True):
    """The program with one policy."""

    folder: Path | None
    """Its run folder; ``None``: it was not compiled."""
    reason: str = ""
    """Why not."""
    kept: bool = False
    """It had been compiled before."""


class _CompiledRun(Struct, frozen=True, kw_only=True):
    """A run of `perfscope compile` whose program can be compiled again."""

    folder: Path
    manifest: Compiled
    program: CompiledProgram
    target: Target


def verified_plans(
    trace: Trace, model: StepModel, plans: Sequence[Plan], *, most: int | None, quiet: bool
) -> tuple[VerifiedPlan, ...]:
    """Each plan with the program compiled for it, in the given order; at most ``most`` are compiled or read.

    ``UsageError``: the trace is not a run of `perfscope compile`. ``DataError``: its program has changed. The plan's
    reason has the refusal of the compiler.
    """
    from msgspec.structs import replace

    from perfscope.plugins.memory_advice.verified import predictions

    run = _run_of(trace, model)
    predicted = predictions(model, trace, plans)
    settable = [plan for plan in predicted if plan.checkpoint is not None]
    chosen = settable if most is None else settable[:most]
    programs = _with_policies(run, [plan.checkpoint for plan in chosen if plan.checkpoint is not None], quiet=quiet)
    result = []
    for plan in predicted:
        if plan.checkpoint is None:
            result.append(plan)
        elif plan.checkpoint in programs:
            result.append(_compared(plan, programs[plan.checkpoint], run))
        else:
            result.append(replace(plan, reason="not asked for: --verify takes more of them"))
    return tuple(result)


def with_compiled_peaks(trace: Trace, model: StepModel, *, quiet: bool) -> tuple[StepModel, str]:
    """The model with the compiler's peak of each policy for all layers; else unchanged, with the reason in one line.

    A policy that the compiler refuses, or that is out of time, keeps its estimate.
    """
    from perfscope.analyzers.readers import load_path
    from perfscope.plugins.memory_advice.verified import WORDS, compiled_step, with_exact_peaks

    try:
        run = _run_of(trace, model)
    except PerfscopeError as error:
        return model, str(error)
    wanted = {policy: word for policy, word in WORDS.items() if _is_new(model, policy)}
    programs = _with_policies(run, list(wanted.values()), quiet=quiet)
    peaks = {}
    for policy, word in wanted.items():
        folder = programs[word].folder
        if folder is not None:
            (compiled,) = load_path(str(folder)).traces
            step = compiled_step(compiled, run.program.name)
            if step is not None:
                peaks[policy] = step[0]
    missing = [f"--checkpoint {word}: {programs[word].reason}" for word in wanted.values() if programs[word].reason]
    return with_exact_peaks(model, peaks), "; ".join(missing)


def _is_new(model: StepModel, policy: str) -> bool:
    """Whether all layers can get a policy that no layer has."""
    return all(region.offers(policy) and region.today != policy for region in model.regions)  # type: ignore[arg-type]


def exact_command(trace: Trace) -> str | None:
    """The command that compiles the policies of a run; ``None`` if the recording has no program's name."""
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
    from perfscope.analyzers.devices import parse_target
    from perfscope.analyzers.hlo import program_device
    from perfscope.model.documents import run_folders

    try:
        command = run_folders.read(Path(trace.source.path)).command
    except PerfscopeError:
        return None
    words = command[1:] if command[:1] == ("python",) else command
    if not words or HIDDEN in "".join(words):
        return None
    device, name = trace.fact(program_device), "NAME"
    if device is not None and (device.recorded or device.given):
        try:
            name = parse_target(device.device.name).asked
        except PerfscopeError:
            name = "NAME"
    return shlex.join(["perfscope", "compile", "--target", name, "--sweep", "checkpoint=none,dots,full", *words])


def exact_note(command: str, *, verifiable: bool) -> str:
    """The note with the command, in place of the note without a program's name."""
    here = "--verify compiles the plans above and shows them next to their predictions; " if verifiable else ""
    return f"compiling a policy gives its exact number: {here}{command} compiles all of them (docs/compile-sweeps.md)"


def compiled_run(trace: Trace) -> tuple[Path, Compiled]:
    """Folder and manifest of a run of `perfscope compile`; ``UsageError`` for whatever else."""
    from perfscope.model.documents import compile_manifest

    path = Path(trace.source.path)
    if trace.source.format != "compiled":
        raise UsageError(f"{path}: --verify takes a run of perfscope compile, whose program it compiles again")
    manifest = compile_manifest.load(path)
    if manifest.framework != "jax":
        raise UsageError(f"{path}: --verify is for JAX programs; this is a plan of PyTorch")
    return path, manifest


def _program(trace: Trace, folder: Path, manifest: Compiled, model: StepModel) -> CompiledProgram:
    from perfscope.plugins.memory_advice.verified import program_of

    source = trace.hlo[program_of(trace, model.label)].source
    for program in manifest.programs:
        if source == f"{trace.source.path}/{program.file}":
            return program
    raise DataError(f"{folder}: the manifest has no program {model.label}")


def _unchanged(folder: Path, manifest: Compiled) -> None:
    """``DataError`` in one line if the program has changed since it was compiled."""
    from perfscope.plugins.ahead import sources_digest

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


def _run_of(trace: Trace, model: StepModel) -> _CompiledRun:
    """The run of a trace; ``UsageError``, ``DataError`` if its program cannot be compiled again."""
    folder, manifest = compiled_run(trace)
    program = _program(trace, folder, manifest, model)
    if trace.target is None:
        raise DataError(f"{folder}: it does not say for what it was compiled")
    _unchanged(folder, manifest)
    return _CompiledRun(folder=folder, manifest=manifest, program=program, target=trace.target)


def _compared(plan: VerifiedPlan, program: PolicyProgram, run: _CompiledRun) -> VerifiedPlan:
    """A plan with the program that was compiled with its policy."""
    from msgspec.structs import replace

    from perfscope.analyzers.readers import load_path
    from perfscope.plugins.memory_advice.verified import compiled_step

    if program.folder is None:
        return replace(plan, reason=program.reason)
    try:
        (trace,) = load_path(str(program.folder)).traces
    except PerfscopeError as error:
        return replace(plan, reason=str(error))
    step = compiled_step(trace, run.program.name)
    if step is None:
        return replace(plan, reason=f"{program.folder}: {run.program.name} is not in it")
    return replace(
        plan,
        compiled_peak_bytes=step[0],
        compiled_recompute_flops=step[1],
        folder=f"{VERIFIED}/{program.folder.name}",
        kept=program.kept,
    )


def _with_policies(
    run: _CompiledRun, words: Sequence[PolicyName], *, quiet: bool
) -> Mapping[PolicyName, PolicyProgram]:
    """The run's program with each policy: kept ones, and the others compiled in parallel, as the machine allows."""
    from perfscope.plugins.ahead import Job, SweptVariant, run_jobs

    result: dict[PolicyName, PolicyProgram] = {}
    for word in dict.fromkeys(words):
        folder = _kept(run.folder, run.manifest, word)
        if folder is not None:
            result[word] = PolicyProgram(folder=folder, kept=True)
    left = [word for word in dict.fromkeys(words) if word not in result]
    root = run.folder / VERIFIED
    jobs = [
        Job(request=_request(run, word), root=str(root), settings={"program": run.program.name, "checkpoint": word})
        for word in left
    ]

    def finished(number: int, outcome: SweptVariant) -> None:
        folder = root / outcome.folder if outcome.state == "compiled" else None
        reason = "" if folder is not None else outcome.reason or "interrupted"
        result[left[number]] = PolicyProgram(folder=folder, reason=reason)
        announce(f"--checkpoint {left[number]}: {reason or 'compiled'}", quiet=quiet)

    if jobs:
        announce(f"compiling {run.program.name} with --checkpoint {', '.join(left)}", quiet=quiet)
        run_jobs(jobs, finished)
    return {word: result.get(word, PolicyProgram(folder=None, reason="interrupted")) for word in words}


def _request(run: _CompiledRun, word: PolicyName) -> Request:
    from perfscope.plugins.ahead import request_of

    words, module = _words(run.manifest)
    return request_of(
        words, module=module, framework="jax", target=run.target, functions=_function(run.program),
        checkpoint=word, until_exit=run.manifest.until_exit, seconds=TIME_LIMIT_S,
    )  # fmt: skip


def _kept(folder: Path, manifest: Compiled, word: str) -> Path | None:
    """The latest program that an earlier call compiled from the same sources with the same compiler."""
    from perfscope.model.documents import compile_manifest

    for path in _folders(folder / VERIFIED):
        try:
            compiled = compile_manifest.load(path)
        except DataError:
            continue
        same = compiled.sources == manifest.sources and compiled.versions == manifest.versions
        if same and compiled.complete and compiled.checkpoint is not None and compiled.checkpoint.policy == word:
            return path
    return None


def _folders(root: Path) -> Iterator[Path]:
    held = sorted((item for item in root.glob("*") if item.is_dir() and not item.is_symlink()), reverse=True)
    yield from held[:MOST_KEPT]


def _function(program: CompiledProgram) -> tuple[str, ...]:
    """The selected function, so that only it is compiled."""
    name = program.function.rpartition(".")[2]
    return (name,) if name else ()
