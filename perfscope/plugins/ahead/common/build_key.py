"""The key of a sweep's variant: variants with equal keys compile to the same program, so one of them is enough."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.plugins.ahead.request import Framework, Request, TargetRequest
from perfscope.plugins.ahead.targets import plugins

SUFFIXES = (".py", ".toml", ".yaml", ".yml", ".ini", ".cfg")
"""Suffixes of source files; other files count only if the arguments name them."""
MOST_FILES = 20_000
MOST_BYTES = 256 << 20
PACKAGES = ("jax", "jaxlib", "numpy", "torch", "triton", "flax", "equinox", "optax", "perfscope")
VARIABLES = ("JAX_", "LIBTPU_", "PYTHONPATH", "TORCH", "TRITON_", "XLA_")
"""Prefixes of environment variables that affect compilation. Only a digest of their values is kept."""


def sources_digest(arguments: Sequence[str], *, module: bool) -> str | None:
    """SHA-256 over the program's sources: its folder or package, the working folder, files named in its arguments.

    None if they are too large or cannot be read: then nothing is reused.
    """
    digest = hashlib.sha256()
    count = size = 0
    try:
        for path in sorted(set(_files(arguments, module=module))):
            count, size = count + 1, size + path.stat().st_size
            if count > MOST_FILES or size > MOST_BYTES:
                return None
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path}\0{content}\n".encode(errors="surrogateescape"))
    except OSError:
        return None
    return digest.hexdigest() if count else None


def variant_key(request: Request, sources: str) -> str:
    """SHA-256 over everything that affects a variant's compilation: request, sources, versions, variables."""
    canonical = msgspec.structs.replace(request, folder="", plugins=(), skipped=())
    settings = msgspec.to_builtins(canonical)
    del settings["limits"]
    compiler_plugin = plugins.find(compiler_kind(request))
    compiler = compiler_plugin.versions if isinstance(compiler_plugin, plugins.Plugin) else {}
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    parts = (settings, sources, compiler, {name: _version(name) for name in PACKAGES}, variables)
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def compiler_kind(request: Request) -> plugins.Kind:
    """The compiler that a request needs."""
    return compiler_kind_of(request.framework, request.target)


def compiler_kind_of(framework: Framework, target: TargetRequest) -> plugins.Kind:
    """The compiler of a framework for a target."""
    if framework == "torch":
        return "torch"
    if target.machine.platform == "tpu":
        return "tpu"
    return "gpu-amd" if target.vendor == "AMD" else "gpu-nvidia"


def _files(arguments: Sequence[str], *, module: bool) -> Iterator[Path]:
    here = Path.cwd()
    folders = [here]
    if module:
        spec = importlib.util.find_spec(arguments[0].partition(".")[0])
        folders += [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    else:
        folders.append(Path(arguments[0]).resolve().parent)
    for word in arguments[0 if not module else 1 :]:
        for part in (word, word.partition("=")[2]):
            if part and len(part) < 4096 and "\0" not in part and Path(part).is_file():
                yield Path(part).resolve()
    seen: set[Path] = set()
    for folder in folders:
        for top, below, names in os.walk(folder):
            folder_path = Path(top).resolve()
            if folder_path in seen:
                below.clear()
                continue
            seen.add(folder_path)
            below[:] = [name for name in below if not _is_excluded(folder_path / name)]
            yield from (
                folder_path / name for name in names if name.endswith(SUFFIXES) and (folder_path / name).is_file()
            )


def _is_excluded(folder: Path) -> bool:
    """Folders without sources of the program: hidden folders, caches, environments, our own runs."""
    return (
        folder.name.startswith(".")
        or folder.name in ("__pycache__", "node_modules", "site-packages", RUNS_FOLDER)
        or (folder / "pyvenv.cfg").exists()
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
