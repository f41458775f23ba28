"""Files of a run as one pack: created, stored in chunks in the database, and unpacked, from untrusted senders."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from msgspec import Struct

from perfscope.model.documents.run_folders import MAX_RUN_FILES, run_files
from perfscope.model.errors import DataError
from perfscope.plugins.history.store.database import Database, Session

# Reading untrusted tar files: regular files with safe names, and headers of bounded size.


MOST_READ = 1 << 20
"""Most bytes of one read: contents are read in chunks, so a larger read is a header with a false size."""

MOST_NAME = 4_096
"""Characters of a member's name: the longest path on Linux."""

CHUNK = 1 << 20
"""Bytes of one row: one at a time is in memory, on both sides of the connection."""

MOST_PACKED = 64 << 20
"""Default limit of a pack in bytes: a recorded run has 1 to 10 MiB, twenty baselines stay near a gigabyte."""

MOST_UNPACKED = 4 << 30
"""Most bytes of a pack on disk, whatever its header claims."""


class _Bounded(io.RawIOBase):
    """A stream that refuses a single read beyond ``MOST_READ``."""

    def __init__(self, inner: IO[bytes] | gzip.GzipFile) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_READ:
            raise tarfile.ReadError("a header larger than any of ours")
        return self._inner.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()


@contextlib.contextmanager
def members(file: Path, origin: str, *, packed: bool) -> Iterator[Iterator[tuple[PurePosixPath, int, IO[bytes]]]]:
    """Name, size and content of every file in a tar, in order; each content is read before the next is requested.

    ``packed``: gzip. ``DataError``, starting with ``origin``: damaged, or a refused member.
    """
    try:
        with contextlib.ExitStack() as stack:
            raw: IO[bytes] | gzip.GzipFile = stack.enter_context(file.open("rb"))
            if packed:
                raw = stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb"))
            tar = stack.enter_context(tarfile.open(fileobj=_Bounded(raw), mode="r:"))
            yield _each(tar, raw, origin)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError) as error:
        raise DataError(f"{origin}: damaged, or not a pack: {error}") from error
    except OSError as error:
        raise DataError(f"{origin}: {(error.strerror or str(error)).lower()}") from error


def _each(
    tar: tarfile.TarFile, raw: IO[bytes] | gzip.GzipFile, origin: str
) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        name = _safe_name(member, origin)
        content = tar.extractfile(member)
        if content is None:
            raise DataError(f"{origin}: holds {member.name[:80]!r}, which is not a regular file; refused")
        with content:
            yield name, member.size, content
    # Up to the end, where a gzip stream has its checksum; after the archive there is padding.
    if raw.read(MOST_READ).strip(b"\0") or raw.read(1):
        raise DataError(f"{origin}: trailing data after the end of the archive; refused")


def _safe_name(member: tarfile.TarInfo, origin: str) -> PurePosixPath:
    """The path of a member that is a regular file inside; ``DataError`` for any other."""
    shown = repr(member.name[:80])
    if not member.isreg() or member.issparse():
        raise DataError(f"{origin}: holds {shown}, which is not a regular file; refused")
    name = PurePosixPath(member.name)
    leads_out = name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name
    hidden = not name.parts or any(part.startswith(".") for part in name.parts)
    if leads_out or hidden or len(member.name) > MOST_NAME:
        raise DataError(f"{origin}: holds {shown}, whose path leads outside or is hidden; refused")
    return name


class Packed(Struct, frozen=True, kw_only=True):
    """A pack in a separate file."""

    file: Path
    digest: str
    """SHA-256 of the packed bytes."""
    bytes: int
    unpacked: int
    files: int


def pack(folder: Path, into: Path, *, most: int = MOST_PACKED) -> Packed:
    """Pack a run's folder, or one file, into the new file ``into``.

    ``DataError``: nothing to pack, or more than ``most`` bytes; then no pack is left.
    """
    files = run_files(folder)
    if not files:
        raise DataError(f"{folder}: it has no files to keep")
    top = folder.resolve().name
    total = 0
    try:
        # No times and no owners: equal runs give equal packs, without data on their author.
        with (
            into.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as squeezed,
            tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in files:
                name = top if path == folder else f"{top}/{path.relative_to(folder).as_posix()}"
                member = tarfile.TarInfo(name)
                member.size = path.stat().st_size
                total += member.size
                with path.open("rb") as content:
                    tar.addfile(member, content)
                if raw.tell() > most:
                    raise DataError(
                        f"{folder}: its files are more than {most >> 20} MiB packed; allow more with --most-mib, or "
                        "keep only its numbers with --numbers-only"
                    )
        size = into.stat().st_size
        if size > most:
            raise DataError(
                f"{folder}: its files are {size / (1 << 20):.1f} MiB packed, more than {most >> 20}; allow more with "
                "--most-mib, or keep only its numbers with --numbers-only"
            )
        with into.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        into.unlink(missing_ok=True)
        raise DataError(f"{folder}: cannot be packed: {error.strerror or error}") from error
    except DataError:
        into.unlink(missing_ok=True)
        raise
    return Packed(file=into, digest=digest, bytes=size, unpacked=total, files=len(files))


def add_pack(session: Session, packed: Packed) -> None:
    """Store a pack unless it exists."""
    new = session.execute(
        "INSERT INTO perfscope_packs (digest, bytes, unpacked, files) VALUES (:digest, :bytes, :unpacked, :files) "
        "ON CONFLICT (digest) DO NOTHING",
        digest=packed.digest,
        bytes=packed.bytes,
        unpacked=packed.unpacked,
        files=packed.files,
    )
    if not new:
        return
    with packed.file.open("rb") as stream:
        for number, content in enumerate(iter(lambda: stream.read(CHUNK), b"")):
            session.execute(
                "INSERT INTO perfscope_chunks (digest, number, content) VALUES (:digest, :number, :content)",
                digest=packed.digest,
                number=number,
                content=content,
            )


def drop_loose_packs(session: Session) -> None:
    """Remove packs without a baseline."""
    for table in ("perfscope_chunks", "perfscope_packs"):
        session.execute(
            f"DELETE FROM {table} WHERE digest NOT IN "  # noqa: S608  (constants)
            "(SELECT digest FROM perfscope_baselines WHERE digest IS NOT NULL)"
        )


def fetch(database: Database, digest: str, into: Path) -> Packed:
    """Write a pack of the store to the new file ``into``; ``DataError`` if it is missing or damaged."""
    with database.session(write=False) as session:
        rows = session.rows("SELECT bytes, unpacked, files FROM perfscope_packs WHERE digest = :digest", digest=digest)
        if not rows:
            raise DataError(f"{database.shown}: the files of this baseline are not in it")
        size = 0
        with into.open("wb") as stream:
            for content in _chunks(session, digest):
                size += len(content)
                stream.write(content)
    with into.open("rb") as stream:
        digest_read = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest_read != digest:
        into.unlink()
        raise DataError(f"{database.shown}: the files of a baseline are damaged ({size:,} of {rows[0][0]:,} bytes)")
    return Packed(file=into, digest=digest, bytes=size, unpacked=int(rows[0][1]), files=int(rows[0][2]))


def _chunks(session: Session, digest: str) -> Iterator[bytes]:
    number = 0
    while rows := session.rows(
        "SELECT content FROM perfscope_chunks WHERE digest = :digest AND number = :number", digest=digest, number=number
    ):
        yield bytes(rows[0][0])
        number += 1


def unpack(file: Path, folder: Path, origin: str) -> Path:
    """Unpack into ``folder`` (completely, or not at all) and return the single entry at its top.

    ``DataError``, starting with ``origin``: not a pack, a member that is not a regular file or leads outside, or too
    much.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise DataError(f"{folder.parent}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    try:
        _extract(file, draft, origin)
        tops = list(draft.iterdir())
        if len(tops) != 1:
            raise DataError(f"{origin}: not a pack of perfscope: it has {len(tops)} entries at its top")
        try:
            draft.replace(folder)
        except OSError as error:
            if not folder.is_dir():  # another process was first, with the same content
                raise DataError(f"{folder}: cannot be made: {(error.strerror or str(error)).lower()}") from error
        return folder / tops[0].name
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _extract(file: Path, folder: Path, origin: str) -> None:
    total = count = 0
    with members(file, origin, packed=True) as archive:
        for name, size, content in archive:
            count, total = count + 1, total + size
            if count > MAX_RUN_FILES or total > MOST_UNPACKED:
                raise DataError(f"{origin}: the pack is larger than any run")
            target = folder.joinpath(*name.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as stream:
                shutil.copyfileobj(content, stream)
