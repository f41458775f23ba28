"""Analyses of large recordings, kept in the user's cache, so that a file that was judged before is not judged again.

An entry is named after what the analysis follows from: of every file its device, inode, size, times (that of the last
change of its status, too, which no program can set back) and its first and last bytes; the options; perfscope's own
code and the packages that add rules or readers. The whole content of a large file is not hashed: that takes as long as
reading it. The user's source files (lines of code, comments that silence) are read again each time.

Entries are as private as the recordings (folder 0700, files 0600), bounded (``ROOM``), and ignored when corrupt, when
somebody else could have written them, or where ``PERFSCOPE_CACHE=off``. They are pickles of our own records, and
nothing else can be named by one.
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
from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.topology import Topology
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.readers.cache import cache_folder, edge_bytes, make_room
from perfscope.analyzers.readers.load import MOST_FILES, Skipped, is_remote, resolve
from perfscope.analyzers.selection import EVERYTHING, Selection
from perfscope.analyzers.source_code import with_code
from perfscope.model.errors import PerfscopeError
from perfscope.model.plugins import entries
from perfscope.model.version import package_version

MAGIC = b"perfscope analysis 1\n"
SMALLEST = 1 << 20
"""Bytes of recordings below which judging again takes a second at most."""
ROOM = 256 << 20
"""Bytes all entries may take: some thousand; the longest unused go first."""
_SUFFIX = ".analysis"
_PACKAGE = Path(__file__).resolve().parent.parent


class Kept(Struct, frozen=True, kw_only=True):
    """An analysis and what a command tells beside it."""

    analysis: Analysis
    files: tuple[str, ...]
    """What it is about: reports are not written over it."""
    skipped: tuple[Skipped, ...]
    judged_s: float
    """When it was judged, seconds since 1970."""


def entry_for(
    paths: Sequence[str | Path],
    rules: Sequence[str] | None = None,
    *,
    device: Device | None = None,
    topology: Topology | None = None,
    configuration: Configuration = NO_CONFIGURATION,
    selection: Selection = EVERYTHING,
) -> Path | None:
    """Where the analysis of these paths with these options is kept; ``None``: nowhere.

    That is so without a cache, for files on other machines, small ones, and what cannot be read.
    """
    folder = cache_folder()
    if folder is None or any(map(is_remote, paths)):
        return None
    try:
        files = [state for path in paths for state in _states(resolve(path))]
    except (OSError, ValueError, PerfscopeError):  # judging says what is wrong
        return None
    if sum(size for _, size, *_ in files) < SMALLEST or len(files) > MOST_FILES:
        return None
    ranks = None if selection.ranks is None else sorted(selection.ranks)
    options = (rules, device, topology, configuration, selection.steps, selection.time_ns, ranks)
    key = [package_version(), sys.version, _own_code(), entries(), repr(options), [str(path) for path in paths], files]
    digest = hashlib.blake2b(json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return folder / f"{digest}{_SUFFIX}"


def _states(place: Path) -> Iterator[tuple[Any, ...]]:
    """What tells each file at ``place``, or below it, from another and from itself after a change."""
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
    """Changes with every file of perfscope: in a checkout its version stays the same."""
    digest = hashlib.blake2b(digest_size=16)
    for root, folders, names in os.walk(_PACKAGE):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for name in sorted(names):
            state = os.stat(os.path.join(root, name))  # noqa: PTH116, PTH118 (of 700 files; a Path each takes longer)
            digest.update(f"{root}|{name}|{state.st_size}|{state.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def recall(entry: Path | None, configuration: Configuration = NO_CONFIGURATION) -> Kept | None:
    """What is kept there, with the code that its findings name as it is now; ``None`` where nothing usable is."""
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
    except Exception:  # absent, corrupt, or of classes that are not there: it is judged again
        return None
    if not isinstance(kept, Kept):
        return None
    analysis = kept.analysis
    outcomes = with_code(analysis.outcomes, [source.path for source in analysis.sources], configuration.ignore)
    return replace(kept, analysis=replace(analysis, outcomes=outcomes))


def keep(entry: Path, kept: Kept) -> None:
    """Keep an analysis; a full disk or a read-only home costs nothing but judging again.

    Of files that hold compiled programs alone nothing is kept: files next to them are read, too.
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
    """Whether only the user can write it."""
    state = path.stat()
    return not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not state.st_mode & 0o022)


class _DataOnly(pickle.Unpickler):
    """Builds records and enumerations of perfscope, and arrays of numbers; it can name nothing else."""

    _BUILDERS = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy._core.numeric", "_frombuffer"),
            ("numpy._core.multiarray", "scalar"),
            ("msgspec._utils", "rebuild"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """The class of that name; ``UnpicklingError`` for anything else."""
        if (module, name) in self._BUILDERS:
            return super().find_class(module, name)
        if module.split(".")[0] == "perfscope" and name.isidentifier():
            named = getattr(importlib.import_module(module), name)
            if isinstance(named, type) and (is_dataclass(named) or issubclass(named, Struct | Enum | tuple)):
                return named
        raise pickle.UnpicklingError(f"{module}.{name} is no data of perfscope")
