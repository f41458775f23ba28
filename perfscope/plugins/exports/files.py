"""Files and folders that appear complete or not at all, compressed by their suffix."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from perfscope.model.errors import DataError, UsageError
from perfscope.model.files import is_stream, resolve_links

PACKED = ".gz"


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes become ``target`` on success; gzip if its name ends in ``.gz``.

    Bytes go straight to a device or pipe. ``DataError`` if the folder is missing, not writable or full.
    """
    scratch = None
    try:
        if is_stream(target):
            with target.open("wb") as raw:
                yield raw
            return
        path = resolve_links(target)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
        with os.fdopen(handle, "wb") as raw:
            if target.name.endswith(PACKED):
                from isal import igzip

                with igzip.GzipFile(fileobj=raw, mode="wb", compresslevel=2, mtime=0, filename="") as packed:
                    yield packed
            else:
                yield raw
        Path(scratch).chmod(0o666 & ~_umask())
        Path(scratch).replace(path)
        scratch = None
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    finally:
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` on success.

    ``UsageError`` if ``target`` exists and is not an empty folder, ``DataError`` if it cannot be written.
    """
    scratch = None
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target}: exists; the export needs a new or an empty folder")
        parent = target.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f".{target.name[:40]}.", suffix=".part"))
        yield scratch
        scratch.chmod(0o777 & ~_umask())
        scratch.replace(target)
        scratch = None
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _umask() -> int:
    """Return the process's umask: temporary files are private, but an export is meant to be shared."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
