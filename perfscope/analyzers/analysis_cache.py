"""A cache of analyses of large recordings in the user's cache folder, so that each file is analyzed once.

The key of an entry covers everything that the analysis depends on: for every file its device, inode, size, times (also
that of the last status change, which programs cannot set back) and its first and last bytes; the options; perfscope's
own code; the packages that add rules or readers. The whole content of a large file is not hashed, because that takes as
long as reading it. The user's source files (lines of code, comments that silence findings) are read again each time.

Entries are as private as the recordings (folder 0700, files 0600) and limited in total size (``ROOM``). They are
ignored if they are corrupt, if another user could have written them, or with ``PERFSCOPE_CACHE=off``. They are pickles,
and unpickling accepts only our own records.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.configuration import NO_CONFIGURATION, Configuration
from perfscope.analyzers.devices import Device, Topology
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.readers import MOST_FILES, Skipped, cache_folder, edge_bytes, is_remote, make_room, resolve
from perfscope.analyzers.selection import EVERYTHING, Selection
from perfscope.analyzers.source_code import with_code
from perfscope.model.errors import PerfscopeError
from perfscope.model.plugins import entries
from perfscope.model.version import package_version

MAGIC = b"perfscope analysis 1\n"
SMALLEST = 1 << 20
"""Smaller recordings, in bytes, are not cached: analyzing them again takes at most a second."""
ROOM = 256 << 20
"""Maximum size of all entries in bytes, enough for some thousand; the least recently used are removed first."""
_SUFFIX = ".analysis"
_PACKAGE = Path(__file__).resolve().parent.parent


class Kept(Struct, frozen=True, kw_only=True):
    """An analysis and the other results that a command prints with it."""

    analysis: Analysis
    files: tuple[str, ...]
    """Files of the analysis; reports never overwrite them."""
    skipped: tuple[Skipped, ...]
    judged_s: float
    """Time of the analysis, seconds since 1970."""


def entry_for(
    paths: Sequence[str | Path],
    rules: Sequence[str] | None = None,
    *,
    device: Device | None = None,
    topology: Topology | None = None,
    configuration: Configuration = NO_CONFIGURATION,
    selection: Selection = EVERYTHING,
) -> Path | None:
    """Return the cache file for the analysis of these paths with these options; ``None`` if it is not cached.

    It is not cached without a cache folder, for remote, small or unreadable files.
    """
    folder = cache_folder()
    if folder is None or any(map(is_remote, paths)):
        return None
    try:
        files = [state for path in paths for state in _states(resolve(path))]
    except (OSError, ValueError, PerfscopeError):  # the analysis reports the error
        return None
    if sum(size for _, size, *_ in files) < SMALLEST or len(files) > MOST_FILES:
        return None
    ranks = None if selection.ranks is None else sorted(selection.ranks)
    options = (rules, device, topology, configuration, selection.steps, selection.time_ns, ranks)
    key = [package_version(), sys.version, _own_code(), entries(), repr(options), [str(path) for path in paths], files]
    digest = hashlib.blake2b(json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return folder / f"{digest}{_SUFFIX}"


def _states(place: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the values that identify each file at or below ``place`` and change when it changes."""
    if place.is_dir():
        files = [Path(root, name) for root, folders, names in os.walk(place) if folders.sort() is None
                 for name in sorted(names)]  # fmt: skip
        if len(files) > MOST_FILES:
            raise ValueError(f"{place}: too many files")
    else:
        files = [place]
    for file in files:
        state = file.stat()
        edges = hashlib.blake2b(edge_bytes(file, state.st_size), digest_size=16).hexdigest()
        yield (str(file.absolute()), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev,
               edges)  # fmt: skip


def _own_code() -> str:
    """Return a value that changes with every file of perfscope, because the version of a checkout does not."""
    digest = hashlib.blake2b(digest_size=16)
    for root, folders, names in os.walk(_PACKAGE):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for name in sorted(names):
            state = os.stat(os.path.join(root, name))  # noqa: PTH116, PTH118 (of 700 files; a Path each takes longer)
            digest.update(f"{root}|{name}|{state.st_size}|{state.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def recall(entry: Path | None, configuration: Configuration = NO_CONFIGURATION) -> Kept | None:
    """Return the entry, with the current source code of its findings; ``None`` if it is missing or unusable."""
    if entry is None:
        return None
    try:
        if not _private(entry.parent) or not _private(entry):
            return None
        content = entry.read_bytes()
        start = len(MAGIC) + hashlib.blake2b().digest_size
        if content[: len(MAGIC)] != MAGIC or hashlib.blake2b(content[start:]).digest() != content[len(MAGIC) : start]:
            return None
        kept = _DataOnly(io.BytesIO(content[start:])).load()
        os.utime(entry)
    except Exception:  # absent, corrupt, or of classes that no longer exist: it is analyzed again
        return None
    if not isinstance(kept, Kept):
        return None
    analysis = kept.analysis
    outcomes = with_code(analysis.outcomes, [source.path for source in analysis.sources], configuration.ignore)
    return replace(kept, analysis=replace(analysis, outcomes=outcomes))


def keep(entry: Path, kept: Kept) -> None:
    """Store an analysis. Errors (a full disk, a read-only home) are ignored: the recording is analyzed again next time.

    Files that hold only compiled programs are not cached, because the analysis also reads the files next to them.
    """
    if any(source.programs for source in kept.analysis.sources):
        return
    with contextlib.suppress(OSError, pickle.PicklingError, TypeError, AttributeError):
        content = pickle.dumps(kept, protocol=5)
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _private(entry.parent):
            return
        make_room(entry.parent, f"*{_SUFFIX}", len(content), ROOM)
        with tempfile.NamedTemporaryFile(dir=entry.parent, prefix=".new-", delete=False) as file:
            try:
                file.write(MAGIC + hashlib.blake2b(content).digest() + content)
                file.flush()
                Path(file.name).replace(entry)
            except OSError:
                Path(file.name).unlink()
                raise


def _private(path: Path) -> bool:
    """Whether only the user can write the file."""
    state = path.stat()
    return not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not state.st_mode & 0o022)


class _DataOnly(pickle.Unpickler):
    """Unpickler that creates only records and enumerations of perfscope, and numeric arrays."""

    _BUILDERS = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy._core.numeric", "_frombuffer"),
            ("numpy._core.multiarray", "scalar"),
            ("msgspec._utils", "rebuild"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of that name; ``UnpicklingError`` if it is not allowed."""
        if (module, name) in self._BUILDERS:
            return super().find_class(module, name)
        if module.split(".")[0] == "perfscope" and name.isidentifier():
            named = getattr(importlib.import_module(module), name)
            if isinstance(named, type) and (is_dataclass(named) or issubclass(named, Struct | Enum | tuple)):
                return named
        raise pickle.UnpicklingError(f"{module}.{name} is not a record of perfscope")
