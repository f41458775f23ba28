"""JAX programs in the child: load the target's compiler, see what the program jits, compile each and keep it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.profiler.aot import plugins, scrub
from perfscope.profiler.aot.checkpoint_asked import parse_checkpoint
from perfscope.profiler.aot.request import Request
from perfscope.profiler.errors import DataError

if TYPE_CHECKING:
    from perfscope.profiler.aot.child import Said
    from perfscope.profiler.aot.child_compile import Compiler
    from perfscope.profiler.aot.jax_checkpoint import Checkpoints

LAST_LINES = 12
"""Of the traceback of a program that failed."""
MOST_NAMES = 4
"""Of operations outside of jit that a note names."""
MOST_LINES = 3
"""Lines with operations outside of jit that a note names, those with most calls."""


def compile_all(request: Request, said: Said) -> None:
    """Everything between the request and the last program; ``DataError`` in one line where there is no way on."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    found = _plugin(request)
    here = Path.cwd()
    from perfscope.profiler.aot import jax_plugin_compat as compat
    from perfscope.profiler.aot.child_compile import Compiler
    from perfscope.profiler.aot.child_program import run_program

    devices = _devices(request, found)
    notes = [] if found.note is None else [found.note]
    said("loaded", versions={**_versions(), **found.versions}, notes=notes)
    pattern = scrub.source_pattern(here, [*sys.path, _script_folder(request)])
    compat.without_our_paths(pattern)
    compat.hide_our_frames()
    if request.exported is not None:
        _compile_exported(request, devices, said, here)
        return
    from perfscope.profiler.aot.jax_checkpoint import checkpointed
    from perfscope.profiler.aot.jax_seen import seen_programs

    asked = None if request.checkpoint is None else parse_checkpoint(request.checkpoint)
    with checkpointed(asked) as checkpoints:
        seen = seen_programs(lambda: run_program(request), devices, _limits(request))
    programs = list(seen.programs)
    if checkpoints is not None and not _say_checkpoints(checkpoints, said, failed=seen.failure is not None):
        programs = []  # what was seen before the program failed is not what was asked for
    pattern = scrub.source_pattern(here, [*sys.path, *scrub.package_roots()])  # of what has been imported since
    compat.without_our_paths(pattern)
    shorter = re.compile(pattern)
    said(
        "seen",
        programs=[_said_of(program, shorter) for program in programs],
        notes=[*seen.notes, *outside(seen.operations)],
        stopped=seen.stopped,
        failure=None if seen.failure is None else _failure(seen.failure),
    )
    compiler = Compiler(request, here)
    for number, program in enumerate(programs):
        if number in request.skipped:
            continue
        if not _is_wanted(program, request.functions, shorter):
            said("unwanted", number=number)
            continue
        _compile_one(compiler, number, program, said)


def _say_checkpoints(checkpoints: Checkpoints, said: Said, *, failed: bool) -> bool:
    """Tell what became of the layers; False where nothing did because the program failed before."""
    try:
        notes = checkpoints.notes()
    except DataError:
        if failed:
            return False
        raise
    said("checkpoint", checkpoint=checkpoints.as_data(), notes=notes)
    return True


def _compile_one(compiler: Compiler, number: int, program: Any, said: Said) -> None:
    said("compiling", number=number, name=program.name)
    try:
        made = compiler.compile(number, program)
    except Exception as error:
        said("refused", number=number, reason=_one_line(error))
    else:
        said("compiled", number=number, **made)


def _compile_exported(request: Request, devices: Sequence[Any], said: Said, here: Path) -> None:
    """Compile the one program of `compile_for`, which was lowered in the user's process."""
    from perfscope.profiler.aot.child_compile import Compiler
    from perfscope.profiler.aot.jax_export import load, load_checkpoint

    file = Path(request.exported or "")
    program = load(file, devices)
    checkpoint, notes = load_checkpoint(file)
    if checkpoint is not None:
        said("checkpoint", checkpoint=checkpoint, notes=notes)
    place = None if program.place is None else {"file": program.place[0], "line": program.place[1]}
    said("seen", programs=[{"name": program.name, "place": place, "calls": 1}], notes=[], stopped=None, failure=None)
    if 0 not in request.skipped:
        _compile_one(Compiler(request, here), 0, program, said)


def _plugin(request: Request) -> plugins.Plugin:
    kind: plugins.Kind = "tpu" if request.target.platform == "tpu" else (
        "gpu-amd" if request.target.vendor == "AMD" else "gpu-nvidia"
    )  # fmt: skip
    found = plugins.find(kind)
    if isinstance(found, plugins.Absent):
        raise DataError(f"{request.target.asked} cannot be compiled for here: {found.reason}; {found.install}")
    return found


def _devices(request: Request, found: plugins.Plugin) -> Sequence[Any]:
    from perfscope.profiler.aot import jax_plugin_compat as compat

    target = request.target
    if found.kind == "tpu":
        name = f"{target.generation}:{target.topology}"
        devices = compat.tpu_devices(found.folder if found.own_folder else None, name, target.host_shape)
    else:
        if found.library is None or target.config is None:
            raise DataError(f"{target.asked}: XLA has no description of this device to compile for")
        devices = compat.gpu_devices(found.library, found.platform, target.config, target.topology)
    if len(devices) != target.count:
        raise DataError(f"{target.asked}: the compiler gives {len(devices)} devices, {target.count} were asked for")
    return devices


def _limits(request: Request) -> Any:
    from perfscope.profiler.aot.jax_seen import Limits

    return Limits(seconds=request.limits.seconds, until_exit=request.until_exit)


def _versions() -> dict[str, str]:
    import platform

    from perfscope.profiler.jax_compat import version

    jax, jaxlib = version()
    return {"python": platform.python_version(), "jax": jax, "jaxlib": jaxlib}


def _script_folder(request: Request) -> str:
    return "" if request.module else str(Path(request.arguments[0]).resolve().parent)


def _said_of(program: Any, shorter: re.Pattern[str]) -> dict[str, Any]:
    return {"name": program.name, "place": _place(program, shorter), "calls": program.calls}


def _place(program: Any, shorter: re.Pattern[str]) -> dict[str, Any] | None:
    """File and line of the function, the file as it stands in the program."""
    place = program.place
    return None if place is None else {"file": shorter.sub("", place.file), "line": place.line}


def _is_wanted(program: Any, functions: Sequence[str], shorter: re.Pattern[str]) -> bool:
    """Whether ``step``, ``train.step`` or ``train.py:step`` names it; none named is all."""
    if not functions:
        return True
    place = _place(program, shorter)
    file = Path(place["file"]) if place is not None else Path()
    name = program.function.rpartition(".")[2]
    for wanted in functions:
        home, _, function = wanted.rpartition(":" if ":" in wanted else ".")
        if function != name:
            continue
        if not home or home in (file.as_posix(), file.name):
            return True
        dotted = ".".join(file.with_suffix("").parts)
        if ":" not in wanted and (dotted == home or dotted.endswith(f".{home}")):
            return True
    return False


def outside(operations: Sequence[Any]) -> list[str]:
    """Operations that the program calls outside of jit: each is a launch of its own, and none is compiled here."""
    calls, moved = sum(one.calls for one in operations), sum(one.bytes for one in operations)
    if not calls:
        return []
    said = [f"{one.calls:,}{_at(one)} ({_named(one)}; {_size(one.bytes)})" for one in operations[:MOST_LINES]]
    left = len(operations) - len(said)
    more = f" and at {left:,} more line{'s' if left > 1 else ''}" if left > 0 else ""
    return [
        f"ran op by op: {calls:,} operations outside of jit, not compiled here; each is a launch of its own, they read "
        f"and write {_size(moved)} at least: {', '.join(said)}{more}"
    ]


def _at(one: Any) -> str:
    return "" if one.place is None else f" at {one.place}"


def _named(one: Any) -> str:
    return ", ".join(one.names[:MOST_NAMES]) + (" ..." if len(one.names) > MOST_NAMES else "")


def _size(number: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >> shift:
            return f"{number / (1 << shift):.1f} {unit}"
    return f"{number} B"


def _failure(failure: Any) -> dict[str, Any]:
    lines = str(failure.text).strip().splitlines()
    where = "" if failure.place is None else f" ({failure.place})"
    return {"text": f"{failure.kind}: {failure.message}{where}", "lines": lines[-LAST_LINES:]}


def _one_line(error: BaseException) -> str:
    from perfscope.profiler.aot.jax_plugin_compat import first_line

    said = first_line(error)
    return said if isinstance(error, DataError) else f"{type(error).__name__}: {said}"
