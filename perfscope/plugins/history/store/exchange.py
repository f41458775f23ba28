"""A store, or part of it, as one file for another store: a tar of JSON lines and packs (docs/store.md)."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.plugins.history.store.packs import Packed, fetch, members, unpack
from perfscope.plugins.history.store.runs import RunStore
from perfscope.plugins.history.stored_run import MOST_BYTES, StoredRun, decode, encode

EXPORT_SCHEMA = "perfscope.store-export/1"

HEAD, RUNS, BASELINES, PACKS = "export.json", "runs.jsonl", "baselines.jsonl", "packs"
"""Members, in this order; then one pack per file."""

MOST_RUNS = 1_000_000
MOST_BASELINES = 10_000
MOST_PACK = 4 << 30

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".tar.gz"
_UID = re.compile(r"[0-9a-f]{32}")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,99}")


class Exported(Struct, frozen=True, kw_only=True):
    """Number of items written."""

    runs: int
    baselines: int
    packs: int


class Imported(Struct, frozen=True, kw_only=True):
    """Number of new items, and of those that existed."""

    runs: int
    runs_there: int
    baselines: int
    baselines_there: int


def export(store: RunStore, file: Path, *, runs: Sequence[StoredRun], packs: bool = True) -> Exported:
    """Write runs, their baselines and, with ``packs``, their files into ``file``, completely or not at all.

    ``DataError``: it cannot be written, or the store is damaged.
    """
    uids = {run.uid for run in runs}
    baselines = [baseline for baseline in store.baselines() if baseline.run.uid in uids]
    digests = sorted({baseline.digest for baseline in baselines if baseline.digest is not None and packs})
    head = {
        "schema": EXPORT_SCHEMA,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": len(runs),
        "baselines": len(baselines),
        "packs": len(digests),
    }
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".perfscope-export.") as scratch:
            draft = Path(scratch, "export")
            with tarfile.open(draft, "w", format=tarfile.PAX_FORMAT) as tar:
                content = json.dumps(head, indent=1).encode()
                tar.addfile(_member(HEAD, len(content)), io.BytesIO(content))
                _add_lines(tar, RUNS, (encode(run) for run in runs), Path(scratch, "lines"))
                lines = (
                    {"name": one.name, "uid": one.run.uid, "set_utc": one.set_utc, "digest": one.digest}
                    for one in baselines
                )
                _add_lines(tar, BASELINES, map(json.dumps, lines), Path(scratch, "lines"))
                for digest in digests:
                    packed = fetch(store.database, digest, Path(scratch, "pack"))
                    with packed.file.open("rb") as pack:
                        tar.addfile(_member(f"{PACKS}/{digest}{_SUFFIX}", packed.bytes), pack)
            draft.replace(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    return Exported(runs=len(runs), baselines=len(baselines), packs=len(digests))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _add_lines(tar: tarfile.TarFile, name: str, lines: Iterator[str], scratch: Path) -> None:
    """Written through a file: a tar needs the size first, and a store may exceed memory."""
    with scratch.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    with scratch.open("rb") as content:
        tar.addfile(_member(name, scratch.stat().st_size), content)


def looks_like_export(file: Path) -> bool:
    """Whether a file begins like an export."""
    try:
        with file.open("rb") as stream:
            return stream.read(512).startswith(HEAD.encode() + b"\0")
    except OSError:
        return False


def import_file(store: RunStore, file: Path, *, clean: Callable[[StoredRun], StoredRun]) -> Imported:
    """Add the runs of an export to a store. Existing runs stay unchanged, so a second import has no effect.

    All of it is read and checked before anything is written. ``clean`` sanitizes untrusted texts.
    ``DataError``: damaged, of another schema, or with a member that does not belong to an export.
    """
    with tempfile.TemporaryDirectory(prefix="perfscope-import-") as scratch:
        for _ in _read(file, Path(scratch)):
            pass
        runs = there = 0
        known: set[str] = set()
        added = had = 0
        wanted: dict[str, list[dict[str, Any]]] = {}
        for kind, value in _read(file, Path(scratch)):
            if isinstance(value, StoredRun):
                new = store.put(clean(value))
                runs, there = runs + new, there + (not new)
                known.add(value.uid)
            elif kind == BASELINES:
                if value["uid"] in known:
                    wanted.setdefault(value["digest"] or "", []).append(value)
            elif isinstance(value, Packed):
                for baseline in wanted.pop(value.digest, []):
                    new = store.import_baseline(
                        baseline["name"], baseline["uid"], baseline["digest"], baseline["set_utc"], value
                    )
                    added, had = added + new, had + (not new)
        for rest in wanted.values():
            for baseline in rest:
                new = store.import_baseline(baseline["name"], baseline["uid"], None, baseline["set_utc"], None)
                added, had = added + new, had + (not new)
    return Imported(runs=runs, runs_there=there, baselines=added, baselines_there=had)


def _read(file: Path, scratch: Path) -> Iterator[tuple[str, Any]]:
    """(member, content) of an export, one by one."""
    expected = iter((HEAD, RUNS, BASELINES))
    with members(file, str(file), packed=False) as archive:
        for path, size, content in archive:
            name = str(path)
            if name != next(expected, name):
                raise DataError(f"{file}: not an export of a perfscope store: it begins with {name[:80]!r}")
            if name == HEAD:
                _check_head(file, size, content)
            elif name == RUNS:
                for number, line in _lines(file, name, content, MOST_RUNS):
                    record = decode(line, f"{file}: {name}: line {number}")
                    if not _UID.fullmatch(record.uid):
                        raise DataError(f"{file}: {name}: line {number}: invalid uid {record.uid[:40]!r}")
                    yield name, record
            elif name == BASELINES:
                for number, line in _lines(file, name, content, MOST_BASELINES):
                    yield name, _baseline(line, f"{file}: {name}: line {number}")
            else:
                with _checked_pack(file, name, size, content, scratch) as packed:
                    yield name, packed
    missing = next(expected, None)
    if missing is not None:
        raise DataError(f"{file}: not an export of a perfscope store, or cut off: it lacks {missing}")


def _check_head(file: Path, size: int, content: IO[bytes]) -> None:
    try:
        head = json.loads(content.read(min(size, 1 << 16)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: {HEAD}: not valid JSON ({error})") from error
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema != EXPORT_SCHEMA:
        raise DataError(f"{file}: its schema is {schema!r}; this perfscope reads {EXPORT_SCHEMA!r}")


def _lines(file: Path, name: str, content: IO[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := content.readline(MOST_BYTES + 1):
        number += 1
        if len(line) > MOST_BYTES or number > most:
            raise DataError(f"{file}: {name}: line {number}: larger than any line of a store")
        yield number, line


def _baseline(line: bytes, origin: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{origin}: not valid JSON ({error})") from error
    texts = ("name", "uid", "set_utc")
    fits = isinstance(values, dict) and all(isinstance(values.get(key), str) for key in texts)
    if not fits or not (values.get("digest") is None or _DIGEST.fullmatch(str(values["digest"]))):
        raise DataError(f"{origin}: no baseline")
    check_name(values["name"], origin)
    if len(values["set_utc"]) > 40 or not values["set_utc"].isprintable():
        raise DataError(f"{origin}: no baseline")
    return {key: values.get(key) for key in (*texts, "digest")}


def check_name(name: str, origin: str | None = None) -> str:
    """Return the name of a baseline; ``DataError`` if it is invalid: letters, digits and ``. _ / + -``, at most 100."""
    if not _NAME.fullmatch(name):
        lead = "" if origin is None else f"{origin}: "
        raise DataError(f"{lead}invalid baseline name {name[:100]!r}: use up to 100 letters, digits and . _ / + -")
    return name


@contextmanager
def _checked_pack(file: Path, name: str, size: int, content: IO[bytes], scratch: Path) -> Iterator[Packed]:
    """Copy a pack to a file; check that its name is its digest and that it can be unpacked."""
    digest = name.removeprefix(f"{PACKS}/").removesuffix(_SUFFIX)
    if name != f"{PACKS}/{digest}{_SUFFIX}" or not _DIGEST.fullmatch(digest) or size > MOST_PACK:
        raise DataError(f"{file}: holds {name[:80]!r}, which does not belong to an export; refused")
    path = scratch / "pack"
    checksum = hashlib.sha256()
    with path.open("wb") as stream:
        while piece := content.read(1 << 20):
            checksum.update(piece)
            stream.write(piece)
    if checksum.hexdigest() != digest:
        raise DataError(f"{file}: {name}: damaged, its digest differs")
    unpacked, count = _sizes(path, f"{file}: {name}", scratch)
    yield Packed(file=path, digest=digest, bytes=size, unpacked=unpacked, files=count)
    path.unlink()


def _sizes(path: Path, origin: str, scratch: Path) -> tuple[int, int]:
    """Bytes and files of a pack, by unpacking it: invalid packs are refused."""
    top = unpack(path, scratch / "unpacked", origin)
    try:
        files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files), len(files)
    finally:
        shutil.rmtree(scratch / "unpacked", ignore_errors=True)
