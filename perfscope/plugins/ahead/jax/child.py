"""JAX programs in the child: load the target's compiler, find what the program jits, compile each and keep it."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.documents.compile_manifest import PROGRAMS
from perfscope.model.errors import DataError
from perfscope.model.files import write_atomically
from perfscope.model.units import format_bytes
from perfscope.plugins.ahead.common import scrub
from perfscope.plugins.ahead.common.build_key import compiler_kind
from perfscope.plugins.ahead.jax import plugin_devices
from perfscope.plugins.ahead.request import Request, parse_checkpoint
from perfscope.plugins.ahead.targets import plugins

if TYPE_CHECKING:
    from perfscope.plugins.ahead.common.child import EventWriter
    from perfscope.plugins.ahead.jax.checkpoint.rewrite import Checkpoints


MAX_TRACEBACK_LINES = 12
"""Most lines of the traceback of a program that failed."""
MAX_OPERATION_NAMES = 4
"""Most operations outside of jit that a note names."""
MAX_EAGER_LINES = 3
"""Most lines with operations outside of jit that a note names, most calls first."""

MAX_NAME_LENGTH = 80
"""Most characters of a program's name in its file name."""

MAX_FILES_NAMED = 4
"""Most files named in an error."""
KEPT_DUMPS = {
    "before_optimizations.hlo.pb": "before_optimizations.hlo.pb",
    "priority_fusion_dump.txt": "priority_fusion_dump.txt",
    "thunk_sequence.txt": "thunk_sequence.txt",
}
"""Suffixes of XLA's files -> suffixes of ours."""
FINAL_DUMPS = {
    "gpu": ("gpu_after_optimizations.hlo.pb",),
    "tpu": (".after_optimizations.hlo.pb", "after_optimizations_after_buffer_assignment.hlo.pb"),
}
"""Dumps of the program with assigned memory; the first one that exists is used."""

UNTILED_ERROR = "Couldn't find output tile sizes"
"""Start of XLA's error if a product's shape does not fit the tiles of its kernels when nothing can be tried on a
device, for example 1,568 rows. On the device the autotuner would have tried other tiles, and the library."""
LIBRARY_GEMM_NOTE = (
    "XLA's own kernels for products do not take one of its shapes with the tiles that they have without a device to "
    "try others on; compiled with all products by the library, as the device's autotuner may choose as well"
)

NO_PTX_NOTE = "this XLA wrote no PTX for --keep-ptx to keep"


def compile_all(request: Request, send: EventWriter) -> None:
    """All steps from the request to the last program; ``DataError`` with one line if it cannot continue."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    plugin = _plugin(request)
    here = Path.cwd()
    from perfscope.plugins.ahead.common.program import run_program
    from perfscope.plugins.ahead.jax import compat

    devices = _devices(request, plugin)
    notes = [] if plugin.note is None else [plugin.note]
    send("loaded", versions={**_versions(), **plugin.versions}, notes=notes)
    script_folder = "" if request.module else str(Path(request.arguments[0]).resolve().parent)
    pattern = scrub.source_pattern(here, [*sys.path, script_folder])
    plugin_devices.strip_source_paths(pattern)
    compat.exclude_own_frames()
    if request.exported is not None:
        _compile_exported(request, devices, send, here)
        return
    from perfscope.plugins.ahead.jax.checkpoint.rewrite import checkpointed
    from perfscope.plugins.ahead.jax.discover import RunLimits, discover_programs
    from perfscope.profiler.jax import pallas_costs

    checkpoint = None if request.checkpoint is None else parse_checkpoint(request.checkpoint)
    with checkpointed(checkpoint) as checkpoints:
        seen = discover_programs(lambda: run_program(request), devices, RunLimits(until_exit=request.until_exit))
    programs = list(seen.programs)
    if checkpoints is not None and not _report_checkpoints(checkpoints, send, failed=seen.failure is not None):
        programs = []  # programs seen before the failure are not those requested
    pattern = scrub.source_pattern(here, [*sys.path, *scrub.package_roots()])  # packages imported since
    plugin_devices.strip_source_paths(pattern)
    shorter = re.compile(pattern)
    send(
        "seen",
        programs=[
            {"name": program.name, "place": _place(program, shorter), "calls": program.calls} for program in programs
        ],
        notes=[*seen.notes, *eager_operation_notes(seen.operations)],
        stopped=seen.stopped,
        failure=None if seen.failure is None else _failure_event(seen.failure),
    )
    compiler = Compiler(request, here)
    pallas_costs.state_costs()  # until the end of this process
    for number, program in enumerate(programs):
        if number in request.skipped:
            continue
        if not _is_selected(program, request.functions, shorter):
            send("unwanted", number=number)
            continue
        _compile_one(compiler, number, program, send)


def _report_checkpoints(checkpoints: Checkpoints, send: EventWriter, *, failed: bool) -> bool:
    """Report the outcome for the layers; False if the program failed before it had one."""
    try:
        notes = checkpoints.notes()
    except DataError:
        if failed:
            return False
        raise
    send("checkpoint", checkpoint=checkpoints.as_data(), notes=notes)
    return True


def _compile_one(compiler: Compiler, number: int, program: Any, send: EventWriter) -> None:
    send("compiling", number=number, name=program.name)
    try:
        made = compiler.compile(number, program)
    except Exception as error:
        send("refused", number=number, reason=_one_line(error))
    else:
        send("compiled", number=number, **made)


def _compile_exported(request: Request, devices: Sequence[Any], send: EventWriter, here: Path) -> None:
    """Compile the single program of `compile_for`, lowered in the user's process, or of a file."""
    from perfscope.plugins.ahead.jax.export import is_ours, load, load_artifact, load_checkpoint

    file = Path(request.exported or "")
    shown: list[str] = []
    if is_ours(file):
        program = load(file, devices)
        checkpoint, notes = load_checkpoint(file)
        if checkpoint is not None:
            send("checkpoint", checkpoint=checkpoint, notes=notes)
    else:
        program, shown = load_artifact(file, devices)
    line = None if program.place is None else {"file": program.place[0], "line": program.place[1]}
    send("seen", programs=[{"name": program.name, "place": line, "calls": 1}], notes=shown, stopped=None, failure=None)
    if 0 not in request.skipped:
        _compile_one(Compiler(request, here), 0, program, send)


def _plugin(request: Request) -> plugins.Plugin:
    plugin = plugins.find(compiler_kind(request))
    if isinstance(plugin, plugins.MissingPlugin):
        asked = request.target.machine.asked
        raise DataError(f"{asked} cannot be compiled for here: {plugin.reason}; {plugin.advice()}")
    return plugin


def _devices(request: Request, plugin: plugins.Plugin) -> Sequence[Any]:
    target, machine = request.target, request.target.machine
    if plugin.kind == "tpu":
        name = f"{target.generation}:{machine.topology}"
        devices = plugin_devices.tpu_devices(plugin.folder if plugin.own_folder else None, name, target.host_shape)
    else:
        if plugin.library is None or target.config is None:
            raise DataError(f"{machine.asked}: XLA has no description of this device to compile for")
        devices = plugin_devices.gpu_devices(plugin.library, plugin.platform, target.config, machine.topology or "")
    if len(devices) != machine.count:
        raise DataError(f"{machine.asked}: the compiler gives {len(devices)} devices, {machine.count} were requested")
    return devices


def _versions() -> dict[str, str]:
    import platform

    from perfscope.profiler.jax.compat import version

    jax, jaxlib = version()
    return {"python": platform.python_version(), "jax": jax, "jaxlib": jaxlib}


def _place(program: Any, shorter: re.Pattern[str]) -> dict[str, Any] | None:
    """File and line of the function; the file as the program names it."""
    line = program.place
    return None if line is None else {"file": shorter.sub("", line.file), "line": line.line}


def _is_selected(program: Any, functions: Sequence[str], shorter: re.Pattern[str]) -> bool:
    """Whether ``step``, ``train.step`` or ``train.py:step`` selects it; without a selection all are."""
    if not functions:
        return True
    line = _place(program, shorter)
    file = Path(line["file"]) if line is not None else Path()
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


def eager_operation_notes(operations: Sequence[Any]) -> list[str]:
    """Notes on operations outside of jit: each is a separate launch, and none is compiled here."""
    calls, moved = sum(operation.calls for operation in operations), sum(operation.bytes for operation in operations)
    if not calls:
        return []
    lines = []
    for operation in operations[:MAX_EAGER_LINES]:
        line = "" if operation.place is None else f" at {operation.place}"
        more = " ..." if len(operation.names) > MAX_OPERATION_NAMES else ""
        names = ", ".join(operation.names[:MAX_OPERATION_NAMES])
        lines.append(f"{operation.calls:,}{line} ({names}{more}; {format_bytes(operation.bytes)})")
    left = len(operations) - len(lines)
    more = f" and at {left:,} more line{'s' if left > 1 else ''}" if left > 0 else ""
    return [
        f"ran op by op: {calls:,} operations outside of jit, not compiled here; each is a separate launch, they read "
        f"and write at least {format_bytes(moved)}: {', '.join(lines)}{more}"
    ]


def _failure_event(failure: Any) -> dict[str, Any]:
    lines = str(failure.text).strip().splitlines()
    where = "" if failure.place is None else f" ({failure.place})"
    return {"text": f"{failure.kind}: {failure.message}{where}", "lines": lines[-MAX_TRACEBACK_LINES:]}


def _one_line(error: BaseException) -> str:
    message = plugin_devices.first_line(error)
    return message if isinstance(error, DataError) else f"{type(error).__name__}: {message}"


# Compiles one program after another; of XLA's dump only the files in the manifest are kept.


class Compiler:
    """Compiles the programs of one request into its folder."""

    def __init__(self, request: Request, here: Path) -> None:
        self._request = request
        self._folder = Path(request.folder) / PROGRAMS
        self._folder.mkdir(exist_ok=True)
        self._private = scrub.private_texts(here)

    def compile(self, number: int, program: Any) -> dict[str, Any]:
        """The manifest's entry of the program, whose files are written. Exceptions of jax and XLA pass through."""
        import jax

        # a compilation from a cache writes nothing, and the program may have set one up
        jax.config.update("jax_enable_compilation_cache", False)
        began = time.monotonic()
        lowered = program.lower()
        lowering = time.monotonic() - began
        dump = self._folder / f".{number:02d}.dump"
        shutil.rmtree(dump, ignore_errors=True)
        began = time.monotonic()
        try:
            compiled, notes = self._compiled(lowered, dump)
            seconds = time.monotonic() - began
            text = plugin_devices.canonical_text(compiled)
            name = text.partition("\n")[0].removeprefix("HloModule ").partition(",")[0].strip() or program.name
            stem = f"{number:02d}.{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:MAX_NAME_LENGTH]}"
            file = self._keep(dump, stem)
            if self._request.keep_ptx and not any(self._folder.glob(f"{glob.escape(stem)}.*.ptx")):
                notes = (*notes, NO_PTX_NOTE)
        finally:
            shutil.rmtree(dump, ignore_errors=True)
        return {
            "file": f"{PROGRAMS}/{file}",
            "name": name,
            "function": program.function,
            "seconds_to_lower": round(lowering, 3),
            "seconds_to_compile": round(seconds, 3),
            "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
            "mesh": _mesh(program),
            "notes": [f"{name}: {note}" for note in notes],
            **_memory_analysis(compiled),
        }

    def _compiled(self, lowered: Any, dump: Path) -> tuple[Any, tuple[str, ...]]:
        """The compiled program, and remarks on how it was compiled."""
        options = self._options(dump)
        try:
            return lowered.compile(compiler_options=options), ()
        except Exception as error:
            if self._request.target.machine.platform != "gpu" or UNTILED_ERROR not in str(error):
                raise
        shutil.rmtree(dump, ignore_errors=True)
        return lowered.compile(compiler_options=options | {"xla_gpu_enable_triton_gemm": False}), (LIBRARY_GEMM_NOTE,)

    def _options(self, dump: Path) -> dict[str, Any]:
        options: dict[str, Any] = {
            "xla_dump_to": str(dump),
            "xla_dump_hlo_as_proto": True,
            "xla_dump_module_metadata": True,
        }
        if self._request.target.machine.platform == "gpu":
            options |= {
                "xla_gpu_autotune_level": 0,  # nothing can be timed
                "xla_dump_hlo_as_text": True,  # the fusion decisions, which are written as text only with this setting
                "xla_dump_hlo_pass_re": "priority-fusion",
            }
        return options

    def _keep(self, dump: Path, stem: str) -> str:
        """Move the kept files to their names, without paths of this machine; return the compiled program's file."""
        files = sorted(dump.iterdir()) if dump.is_dir() else []
        final = self._final(files)
        module = final.name.partition(".")[0]  # module_0012
        file = f"{stem}.hlo.pb"
        self._write(final, file)
        for dumped in files:
            if not dumped.name.startswith(f"{module}."):
                continue
            for ending, ours in KEPT_DUMPS.items():
                if dumped.name.endswith(f".{ending}"):
                    self._write(dumped, f"{stem}.{ours}")
            if dumped.name == f"{module}.metadata.textproto":
                self._write(dumped, f"{stem}.passes.textproto")
            elif self._request.keep_ptx and dumped.suffix == ".ptx" and dumped.stat().st_size:
                self._write(dumped, f"{stem}.{dumped.name.split('.')[-2]}.ptx")
        return file

    def _final(self, files: list[Path]) -> Path:
        for ending in FINAL_DUMPS[self._request.target.machine.platform]:
            matching = [file for file in files if file.name.endswith(ending)]
            if matching:
                return max(matching, key=lambda file: file.stat().st_size)
        if any(".cpu_after_optimizations" in file.name for file in files):
            raise DataError("the program puts it on the CPU of its host and not on a device of the target")
        names = ", ".join(file.name for file in files[:MAX_FILES_NAMED]) or "nothing"
        raise DataError(f"XLA did not write the compiled program, but {names}")

    def _write(self, source: Path, name: str) -> None:
        write_atomically(self._folder / name, scrub.masked(source.read_bytes(), self._private), durable=False)


def _memory_analysis(compiled: Any) -> dict[str, int | None]:
    """XLA's statistics of the program's memory on one device."""
    try:
        statistics = compiled.memory_analysis()
    except Exception:  # some compilers provide none
        statistics = None
    return {
        f"{ours}_bytes": getattr(statistics, f"{theirs}_size_in_bytes", None)
        for ours, theirs in (
            ("argument", "argument"), ("output", "output"), ("alias", "alias"), ("temporary", "temp"),
            ("code", "generated_code"),
        )
    }  # fmt: skip


def _mesh(program: Any) -> dict[str, int] | None:
    """The mesh of the arguments, axis -> devices; the largest if there are several."""
    import jax

    meshes = {}
    for leaf in jax.tree.leaves(program.arguments):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and getattr(mesh, "shape", None):
            meshes[tuple(mesh.shape.items())] = mesh.size
    if not meshes:
        return None
    widest = max(meshes, key=lambda axes: meshes[axes])
    return {str(axis): int(size) for axis, size in widest} if meshes[widest] > 1 else None
