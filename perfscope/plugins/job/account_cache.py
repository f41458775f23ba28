"""Accounts of large jobs that have ended, in the user's cache folder, so that each is read once.

The key of an entry covers the files of the ledgers (path, size, times, inode) and the code that reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from perfscope.analyzers.readers import cache_folder, make_room
from perfscope.model.documents import run_folders
from perfscope.model.files import write_atomically
from perfscope.model.version import package_version
from perfscope.plugins.job.account import Executor, JobAccount, job_account
from perfscope.plugins.job.document import ledger_files

SMALLEST = 16 << 20
"""Bytes of ledgers: smaller ones are read in a second."""
ROOM = 128 << 20
"""Maximum size of all entries in bytes: a job of a thousand ranks takes 8 MB."""
_SUFFIX = ".job"


def kept_account(runs: Sequence[Path], read: Executor | None = None) -> JobAccount:
    """As `job_account`; read from the cache if nothing changed since."""
    entry = _entry(runs)
    if entry is not None:
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(entry.read_bytes(), type=JobAccount)
    account = job_account(runs, read)
    if entry is not None:
        content = msgspec.json.encode(account)
        with suppress(OSError):  # a full disk or a home that cannot be written: it is read again next time
            entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_room(entry.parent, f"*{_SUFFIX}", len(content), ROOM)
            write_atomically(entry, content, durable=False)
    return account


def _entry(runs: Sequence[Path]) -> Path | None:
    """The file of an account; ``None`` for a small job, one that still runs, or without a cache folder."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        if any(map(run_folders.is_running, runs)):
            return None
        states = [(str(file.absolute()), file.stat()) for run in runs for file in ledger_files(run)]
        own = [(file.name, file.stat()) for file in sorted(Path(__file__).parent.glob("*.py"))]
    except OSError:
        return None
    if sum(state.st_size for _, state in states) < SMALLEST:
        return None
    files = [(path, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino, at.st_dev) for path, at in states]
    code = [(name, at.st_size, at.st_mtime_ns) for name, at in own]
    key = json.dumps([package_version(), code, files]).encode("utf-8", "surrogatepass")
    return folder / f"{hashlib.blake2b(key, digest_size=16).hexdigest()}{_SUFFIX}"
