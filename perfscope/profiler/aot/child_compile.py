"""Compiles one program after the other and keeps of XLA's dump what the manifest lists, the rest is removed."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from pathlib import Path
from typing import Any

from perfscope.profiler.aot import jax_plugin_compat as compat
from perfscope.profiler.aot import scrub
from perfscope.profiler.aot.compiled_file import PROGRAMS
from perfscope.profiler.aot.request import Request
from perfscope.profiler.errors import DataError

MOST_NAME = 80
"""Characters of a program's name in the name of its file."""

MOST_NAMED = 4
"""Files that an error names."""
KEPT = {
    "before_optimizations.hlo.pb": "before_optimizations.hlo.pb",
    "priority_fusion_dump.txt": "priority_fusion_dump.txt",
    "thunk_sequence.txt": "thunk_sequence.txt",
}
"""How names of XLA's files end -> how ours end."""
FINAL = {
    "gpu": ("gpu_after_optimizations.hlo.pb",),
    "tpu": (".after_optimizations.hlo.pb", "after_optimizations_after_buffer_assignment.hlo.pb"),
}
"""The program with its memory assigned; the first that is there counts."""

UNTILED = "Couldn't find output tile sizes"
"""Of XLA's error where a product's shape does not go into the tiles that its own kernels have when nothing was tried on
a device: 1,568 rows, for one. On the device the autotuner would have tried other tiles, and the library."""
OF_LIBRARY = (
    "XLA's own kernels for products do not take one of its shapes with the tiles that they have without a device to "
    "try others on; compiled with all products by the library, as the device's autotuner may choose as well"
)


class Compiler:
    """Compiles the programs of one request into its folder."""

    def __init__(self, request: Request, here: Path) -> None:
        self._request = request
        self._folder = Path(request.folder) / PROGRAMS
        self._folder.mkdir(exist_ok=True)
        self._private = scrub.private_texts(here)

    def compile(self, number: int, program: Any) -> dict[str, Any]:
        """What the manifest says of the program, whose files are written. Exceptions of jax and XLA pass."""
        import jax

        # a compilation that comes from a cache writes nothing; the program may have set one up
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
            text = compat.text_of(compiled)
            name = text.partition("\n")[0].removeprefix("HloModule ").partition(",")[0].strip() or program.name
            stem = f"{number:02d}.{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:MOST_NAME]}"
            file = self._keep(dump, stem)
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
            **_memory(compiled),
        }

    def _compiled(self, lowered: Any, dump: Path) -> tuple[Any, tuple[str, ...]]:
        """The program, and what is special about how it was compiled."""
        options = self._options(dump)
        try:
            return lowered.compile(compiler_options=options), ()
        except Exception as error:
            if self._request.target.platform != "gpu" or UNTILED not in str(error):
                raise
        shutil.rmtree(dump, ignore_errors=True)
        return lowered.compile(compiler_options=options | {"xla_gpu_enable_triton_gemm": False}), (OF_LIBRARY,)

    def _options(self, dump: Path) -> dict[str, Any]:
        options: dict[str, Any] = {
            "xla_dump_to": str(dump),
            "xla_dump_hlo_as_proto": True,
            "xla_dump_module_metadata": True,
        }
        if self._request.target.platform == "gpu":
            options |= {
                "xla_gpu_autotune_level": 0,  # nothing can be timed
                "xla_dump_hlo_as_text": True,  # the fusion decisions, which come as text only then
                "xla_dump_hlo_pass_re": "priority-fusion",
            }
        return options

    def _keep(self, dump: Path, stem: str) -> str:
        """Move what is kept to its name, without paths of this machine. The name of the compiled program's file."""
        files = sorted(dump.iterdir()) if dump.is_dir() else []
        final = self._final(files)
        module = final.name.partition(".")[0]  # module_0012
        file = f"{stem}.hlo.pb"
        self._write(final, file)
        for one in files:
            if not one.name.startswith(f"{module}."):
                continue
            for ending, ours in KEPT.items():
                if one.name.endswith(f".{ending}"):
                    self._write(one, f"{stem}.{ours}")
            if one.name == f"{module}.metadata.textproto":
                self._write(one, f"{stem}.passes.textproto")
            elif self._request.keep_ptx and one.suffix == ".ptx" and one.stat().st_size:
                self._write(one, f"{stem}.{one.name.split('.')[-2]}.ptx")
        return file

    def _final(self, files: list[Path]) -> Path:
        for ending in FINAL[self._request.target.platform]:
            found = [one for one in files if one.name.endswith(ending)]
            if found:
                return max(found, key=lambda one: one.stat().st_size)
        if any(".cpu_after_optimizations" in one.name for one in files):
            raise DataError("the program puts it on the CPU of its host and not on a device of the target")
        held = ", ".join(one.name for one in files[:MOST_NAMED]) or "nothing"
        raise DataError(f"XLA did not write the compiled program, but {held}")

    def _write(self, source: Path, name: str) -> None:
        draft = self._folder / f".{name}.part"
        draft.write_bytes(scrub.starred(source.read_bytes(), self._private))
        draft.replace(self._folder / name)


def _memory(compiled: Any) -> dict[str, int | None]:
    """XLA's own account of the program's memory, of one device."""
    try:
        found = compiled.memory_analysis()
    except Exception:  # not every compiler gives one
        found = None
    return {
        f"{ours}_bytes": getattr(found, f"{theirs}_size_in_bytes", None)
        for ours, theirs in (
            ("argument", "argument"), ("output", "output"), ("alias", "alias"), ("temporary", "temp"),
            ("code", "generated_code"),
        )
    }  # fmt: skip


def _mesh(program: Any) -> dict[str, int] | None:
    """The mesh that arguments are laid out on, axis -> devices; the largest where there are several."""
    import jax

    meshes = {}
    for leaf in jax.tree.leaves(program.arguments):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and getattr(mesh, "shape", None):
            meshes[tuple(mesh.shape.items())] = mesh.size
    if not meshes:
        return None
    widest = max(meshes, key=lambda one: meshes[one])
    return {str(axis): int(size) for axis, size in widest} if meshes[widest] > 1 else None
