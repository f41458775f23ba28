"""Finds compilers for absent machines and checks whether they fit the installed jax, without loading them.

Searched are the folders of ``PERFSCOPE_PLUGINS``, then those of `perfscope setup`, then the environment. A separate
folder is better: a CPU-only jax prints errors at every start if the CUDA plugin or libtpu is installed with it. Only
the child process sees the folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.model.version import install_command

VARIABLE = "PERFSCOPE_PLUGINS"
Kind = Literal["gpu-nvidia", "gpu-amd", "tpu", "torch"]
KINDS: tuple[Kind, ...] = ("gpu-nvidia", "gpu-amd", "tpu", "torch")
SETUP_NAMES: dict[Kind, str] = {"gpu-nvidia": "h100", "tpu": "v5e", "gpu-amd": "mi300", "torch": "torch"}
"""Names for `perfscope setup`: the usual target of each."""
MEGABYTES: dict[Kind, int] = {"gpu-amd": 155, "gpu-nvidia": 125, "tpu": 210, "torch": 190}
"""Approximate size of the download."""

_GPU: dict[str, tuple[str, tuple[str, ...], str]] = {
    "gpu-nvidia": ("cuda", ("cuda13", "cuda12"), "xla_cuda_plugin.so"),
    "gpu-amd": ("rocm", ("rocm7", "rocm60"), "xla_rocm_plugin.so"),
}
"""Kind -> PJRT platform, generations of wheels (the first is requested), name of the library."""


OLDEST_JAX = (0, 10)
"""Tested: 0.10.0 to 0.10.2, 0.12.0.1. Earlier versions use other XLA GPU descriptions and other meshes."""

TRITON = {"2.13": "==3.7.0"}
"""By version of torch, if known: wheels for the CPU do not require triton."""

STDERR = 2


class Plugin(Struct, frozen=True, kw_only=True):
    """A compiler that can be loaded."""

    kind: Kind
    versions: dict[str, str]
    """Package -> version."""
    folder: Path
    """Folder to put on the child's path."""
    own_folder: bool
    """False: it is installed in the environment."""
    library: Path | None = None
    """The shared object of a PJRT plugin."""
    platform: str = ""
    """``cuda`` or ``rocm``."""
    note: str | None = None
    """Its limitations."""


class MissingPlugin(Struct, frozen=True, kw_only=True):
    """Why the compiler is not available here, and the command that installs it."""

    kind: Kind
    reason: str
    install: str | None
    wrong: bool = False
    """An installed compiler does not fit, or is damaged."""
    packages: tuple[str, ...] = ()
    """Packages that `perfscope setup` installs for it, in pip's syntax; empty if something else must be installed
    first."""

    def advice(self) -> str:
        """How to get it, for the end of an error."""
        if not self.packages:
            return str(self.install)
        return f"`{self.install}` installs it, about {MEGABYTES[self.kind]} MB, and so does compile --setup"


def find(kind: Kind) -> Plugin | MissingPlugin:
    """The compiler of a kind, or the reason for its absence. Reads metadata and files; imports nothing."""
    if kind == "torch":
        return _triton()
    jax = _version_of("jax", None)
    if jax is None:
        return MissingPlugin(kind=kind, reason="jax is not installed for this Python", install=install_command("jax"))
    if _numbers(jax)[:2] < OLDEST_JAX:
        needed = ".".join(map(str, OLDEST_JAX))
        return MissingPlugin(
            kind=kind, reason=f"jax {jax} is too old, compiling ahead needs {needed} or later",
            install=f"pip install -U 'jax>={needed}'",
        )  # fmt: skip
    if kind == "tpu":
        return _libtpu(jax)
    return _gpu(kind, jax)


def plugin_folders() -> tuple[Path, ...]:
    """The folders in ``PERFSCOPE_PLUGINS``, then those of `perfscope setup` for the installed versions."""
    named = [Path(folder).resolve() for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    own = [folder for folder in map(setup_folder, KINDS) if folder is not None and folder.is_dir()]
    return (*named, *own)


def setup_folder(kind: Kind) -> Path | None:
    """Folder in which `perfscope setup` installs a compiler: one per version of its framework and of Python.

    ``None`` if the framework is not installed.
    """
    framework = "torch" if kind == "torch" else "jax"
    version = _version_of(framework, None)
    if version is None:
        return None
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return data_folder() / "plugins" / f"{kind}-{framework}-{version.partition('+')[0]}-{python}"


def data_folder() -> Path:
    """The user's data folder for perfscope: in ``XDG_DATA_HOME``, else the system's default."""
    named = os.environ.get("XDG_DATA_HOME", "")
    if named:
        return Path(named).absolute() / "perfscope"
    shared = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return Path.home() / shared / "perfscope"


def _gpu(kind: Kind, jax: str) -> Plugin | MissingPlugin:
    platform, generations, name = _GPU[kind]
    packages = (f"jax-{generations[0]}-pjrt=={jax}",)
    wrong: list[str] = []
    for generation in generations:
        for folder, version in _find_package(f"jax-{generation}-pjrt"):
            library = _file(f"jax-{generation}-pjrt", folder, f"jax_plugins/xla_{generation}/{name}")
            if version != jax:
                wrong.append(f"jax-{generation}-pjrt {version} {_location(folder)} does not fit jax {jax}")
            elif library is None:
                wrong.append(f"jax-{generation}-pjrt {version} {_location(folder)} lacks {name}")
            else:
                versions = {f"jax-{generation}-pjrt": version}
                kernels = _version_of(f"jax-{generation}-plugin", folder)
                if kernels == jax:  # not needed to compile, even for Pallas kernels through Triton
                    versions[f"jax-{generation}-plugin"] = kernels
                return Plugin(
                    kind=kind, versions=versions, folder=library.parents[2], own_folder=folder is not None,
                    library=library, platform=platform,
                )  # fmt: skip
    return _missing(kind, f"no jax-{generations[0]}-pjrt", packages, wrong)


def _libtpu(jax: str) -> Plugin | MissingPlugin:
    wanted = required_version("jax", "libtpu") or ""
    packages = (f"libtpu{wanted}",)
    wrong: list[str] = []
    for folder, version in _find_package("libtpu"):
        library = _file("libtpu", folder, "libtpu/libtpu.so")
        if wanted and not _satisfies(version, wanted):
            wrong.append(f"libtpu {version} {_location(folder)} does not fit jax {jax}, which requires libtpu{wanted}")
        elif library is None:
            wrong.append(f"libtpu {version} {_location(folder)} lacks libtpu.so")
        else:
            return Plugin(
                kind="tpu", versions={"libtpu": version}, folder=library.parents[1], own_folder=folder is not None,
                library=library, platform="tpu",
            )  # fmt: skip
    return _missing("tpu", "no libtpu", packages, wrong)


def _triton() -> Plugin | MissingPlugin:
    torch = _version_of("torch", None)
    if torch is None:
        return MissingPlugin(
            kind="torch", reason="torch is not installed for this Python", install=install_command("torch")
        )
    # The environment's own first: it came with a CUDA build of torch, and would be imported.
    for folder, version in sorted(_find_package("triton"), key=lambda candidate: candidate[0] is not None):
        init = _file("triton", folder, "triton/__init__.py")
        if init is not None:
            return Plugin(
                kind="torch", versions={"torch": torch, "triton": version}, folder=init.parents[1],
                own_folder=folder is not None,
            )  # fmt: skip
    return _missing("torch", "no triton, which inductor plans kernels with", (f"triton{required_triton(torch)}",))


def _missing(kind: Kind, reason: str, packages: tuple[str, ...], wrong: Sequence[str] = ()) -> MissingPlugin:
    """``wrong``: the installed one, which does not fit."""
    return MissingPlugin(
        kind=kind, reason=wrong[0] if wrong else reason, install=f"perfscope setup {SETUP_NAMES[kind]}",
        wrong=bool(wrong), packages=packages,
    )  # fmt: skip


def required_triton(torch: str) -> str:
    """Version of triton required by a version of torch: ``==3.7.0``; empty if not specified."""
    return required_version("torch", "triton") or TRITON.get(".".join(torch.split(".")[:2]), "")


def _find_package(package: str) -> Iterator[tuple[Path | None, str]]:
    """Location of a package (``None``: in the environment) and its version; our folders come first."""
    for folder in (*plugin_folders(), None):
        version = _version_of(package, folder)
        if version is not None:
            yield folder, version


def _version_of(package: str, folder: Path | None) -> str | None:
    distribution = _distribution(package, folder)
    return None if distribution is None else distribution.version


def _distribution(package: str, folder: Path | None) -> importlib.metadata.Distribution | None:
    try:
        if folder is None:
            return importlib.metadata.distribution(package)
        return next(iter(importlib.metadata.distributions(name=package, path=[str(folder)])), None)
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None


def _file(package: str, folder: Path | None, name: str) -> Path | None:
    if folder is not None:
        return folder / name if (folder / name).is_file() else None
    distribution = _distribution(package, None)
    path = None if distribution is None else Path(str(distribution.locate_file(name)))
    return path if path is not None and path.is_file() else None


def required_version(package: str, other: str) -> str | None:
    """Version of another package required by a package's metadata: ``==0.0.42.*``. The first one stated counts."""
    for line in importlib.metadata.requires(package) or ():
        match = re.match(rf"{re.escape(other)}\s*\(?([=<>!~][^;)]*)", line)
        if match is not None:
            return match[1].replace(" ", "")
    return None


def _satisfies(version: str, wanted: str) -> bool:
    """Whether a version satisfies ``==X`` or ``==X.*``; other requirements are left to pip."""
    return not wanted.startswith("==") or f"{version}.".startswith(wanted[2:].rstrip("*").rstrip(".") + ".")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version.partition("+")[0]))


def _location(folder: Path | None) -> str:
    if folder is None:
        return "of the environment"
    return f"in {folder.name} of {'perfscope setup' if folder.is_relative_to(data_folder()) else VARIABLE}"


# Installs a compiler for an absent machine with pip (or uv) into a separate folder.


def install(kind: Kind, *, announce: Callable[[str], None]) -> Plugin:
    """The compiler of a kind, installed if necessary. The installer's output goes to stderr.

    ``announce`` gets a line before a download. ``DataError``: jax or torch is missing, or the installation failed.
    """
    missing = find(kind)
    if isinstance(missing, Plugin):
        return missing
    folder = setup_folder(kind)
    if not missing.packages or folder is None:
        raise DataError(f"{missing.reason}; {missing.install}")
    announce(f"installing {' '.join(missing.packages)} (about {MEGABYTES[kind]} MB) into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".setup-", dir=folder.parent) as scratch:
            draft = Path(scratch, "plugin")
            done = subprocess.run([*installer(), "--no-deps", "--target", str(draft), *missing.packages], stdout=STDERR)
            if done.returncode or not draft.is_dir():
                raise DataError(f"{' '.join(missing.packages)}: could not be installed; see the lines above")
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    installed = find(kind)
    if isinstance(installed, MissingPlugin):
        raise DataError(f"{folder}: installed, but not usable: {installed.reason}")
    return installed


def remove(kind: Kind) -> Path | None:
    """Remove the compiler installed for the current framework version; return its folder, or ``None``."""
    folder = setup_folder(kind)
    if folder is None or not folder.is_dir():
        return None
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be removed: {error.strerror or error}") from error
    return folder


def installer() -> list[str]:
    """The command that installs for this Python. ``DataError`` if neither pip nor uv is available."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    uv = shutil.which("uv")
    if uv is None:
        raise DataError("neither pip nor uv is installed; `python -m ensurepip` installs pip")
    return [uv, "pip", "install", "--python", sys.executable]
