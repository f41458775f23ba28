"""Reads the ledgers of a run: one file of JSON lines per process, as `recorder.py` appends them.

A file may be cut off anywhere, because its process may be killed or its disk full. Lines that are not whole and rows
whose times do not fit are left out; ``notes`` count them.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from perfscope.model.documents.bounded_json import Count, Ns
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import NAME_LIMIT, sanitize
from perfscope.plugins.job.recorder import FOLDER, LATEST_SUFFIX, SCHEMA, SUFFIX

MOST_BYTES = 256 << 20
"""Limit for one file: a month of a process has 20 MB."""
MOST_LINE = 16 << 20
MOST_FILES = 65_536
MOST_NODES = 100_000
_REQUEUED = re.compile(r"-r(\d{1,4})$")
"""End of the name of a run that a requeued or restarted job made after the first one."""

Triple = tuple[Annotated[int, msgspec.Meta(ge=-1)], Annotated[int, msgspec.Meta(ge=0, le=3)], Count]
"""(Node, phase, ns)."""
Node = tuple[Annotated[int, msgspec.Meta(ge=-1)], Count, int, Count]
"""(Caller, text of the file, line, text of the function)."""


class Head(Struct, frozen=True, kw_only=True):
    """The first line of a file."""

    schema: str
    host: str
    pid: int
    rank: Count | None = None
    world: Count | None = None
    restart: Count | None = None
    program: str = ""
    began_ns: Ns
    """Start of the process, ``perf_counter_ns``."""
    from_ns: Ns
    """Begin of the first row."""
    unix_ns: Ns
    """Start of the process, since 1970."""


class Row(Struct, frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """A line: the sums of an interval. A line without ``to`` holds the stacks of a stall."""

    begin: Ns = 0
    end: Ns | None = None
    unix: Ns = 0
    """Time of writing, since 1970."""
    at: tuple[Triple, ...] = ()
    core: Count = 0
    """Without a core, ns; not in ``at``."""
    ran: Count = 0
    """Processor time of the thread of the steps, ns; in ``at``."""
    late: tuple[Count, Count] = (0, 0)
    """Time that samples waited for the interpreter, ns; number of samples."""
    steps: Count = 0
    timed: tuple[Count, Count, Count, Count] = (0, 0, 0, 0)
    """Steps whose begin and end were seen, their time in ns; the same of those without a profiler."""
    resident: int = -1
    checkpoints: tuple[tuple[str, str, Ns, Ns, str, bool, Ns, str], ...] = ()
    """(Kind, call, begin, end, line, whether it succeeded, stored at or 0, digest of the path)."""
    storing: tuple[tuple[Ns, Count, Ns, Ns, Ns, Ns], ...] = ()
    """Asynchronous saves while they were stored: (begin of the save, steps, time, processor time, time without a
    core, time that samples waited for the interpreter)."""
    changed: tuple[tuple[str, float | None, float | None, Ns, Count, int], ...] = ()
    """Changes that the process found while it ran: `watch.Change`."""
    tokens: Count = 0
    loss: float | None = None
    rank: Count | None = None
    world: Count | None = None
    gpu: tuple[float, float, Count] | None = None
    """Utilisation, W, bytes."""
    stuck: tuple[Triple, ...] = ()
    """Since the last completed step, of a process that is stalled; in ``at`` of these or earlier rows too."""
    tail: tuple[Triple, ...] | None = None
    """The same of a process that ended by itself; its last row."""
    texts: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    calls: tuple[tuple[Count, Count], ...] = ()
    """(Node, text of what it calls)."""
    stalled: Ns | None = None
    """The last completed step, where no step ended for long."""
    stacks: tuple[tuple[str, int], ...] = ()
    """(Thread, innermost node)."""
    after: Count = 0
    """In the file next to the ledger: size of the ledger when it was written."""
    failed: str = ""
    """Why the ledger ends here, an error of perfscope."""


class ProcessLedger(Struct, frozen=True, kw_only=True):
    """The ledger of one process."""

    file: Path
    head: Head
    rank: int | None
    rows: tuple[Row, ...]
    """In order, without gaps or overlaps: a row begins where the one before ended."""
    stalls: tuple[Row, ...]
    texts: tuple[str, ...]
    nodes: tuple[Node, ...]
    calls: dict[int, int]
    changed: tuple[tuple[str, float | None, float | None, Ns, Count, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def end_ns(self) -> int:
        """End of the last row, ``perf_counter_ns``."""
        end = self.rows[-1].end if self.rows else None
        return self.head.from_ns if end is None else end

    @property
    def ended(self) -> bool:
        """Whether it ended by itself; else it was killed, or still runs."""
        return bool(self.rows) and self.rows[-1].tail is not None


_head = msgspec.json.Decoder(Head)
_row = msgspec.json.Decoder(Row)


def ledger_files(run: Path) -> list[Path]:
    """Ledgers in a run folder, by name; ``DataError`` if there are too many."""
    files = sorted((run / FOLDER).glob(f"*{SUFFIX}"))
    if len(files) > MOST_FILES:
        raise DataError(f"{run / FOLDER}: {len(files):,} files; at most {MOST_FILES:,} are read")
    return files


def with_requeued(run: Path) -> list[Path]:
    """All runs of a requeued or restarted job, of which ``run`` is one: ``NAME``, ``NAME-r1``, ``NAME-r2``."""
    run = run.resolve()
    first = run.with_name(first_name(run))
    numbers = {first: 0}
    for other in run.parent.glob(f"{glob.escape(first.name)}-r*"):
        number = _REQUEUED.search(other.name)
        if number is not None and first_name(other) == first.name:
            numbers[other] = int(number[1])
    return [other for other in sorted(numbers, key=lambda other: numbers[other]) if _has_ledger(other) or other == run]


def _has_ledger(run: Path) -> bool:
    return (run / FOLDER).is_dir()


def first_name(run: Path) -> str:
    """The name of the first run of its job."""
    return _REQUEUED.sub("", run.name)


def load_ledger(file: Path) -> ProcessLedger:
    """The ledger in a file; ``DataError`` if it is not one, or has not even a whole first line."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise DataError(f"{file}: larger than {MOST_BYTES >> 20} MiB, not a ledger")
        lines = _lines(file)
        head = _decode_head(file, next(lines, b""))
        return _assemble(file, head, chain(lines, _latest(file)))
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error


class _Brief(Struct, frozen=True):
    """Part of a row: its rank, and its number of steps."""

    rank: Count | None = None
    steps: Count = 0


_brief = msgspec.json.Decoder(_Brief)


def read_rank(file: Path) -> tuple[int | None, bool]:
    """(Rank, whether it has steps) of a ledger, without reading it whole where its first line has the rank.

    ``DataError`` if the file is not a ledger.
    """
    try:
        lines = _lines(file)
        head = _decode_head(file, next(lines, b""))
        rank, steps = head.rank, False
        if rank is not None:
            return rank, True
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                row = _brief.decode(line)
                rank, steps = row.rank if row.rank is not None else rank, steps or row.steps > 0
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    return rank, steps


def _decode_head(file: Path, line: bytes) -> Head:
    try:
        head = _head.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not a ledger of perfscope, or cut off in its first line") from error
    if head.schema != SCHEMA:
        raise DataError(f"{file}: schema {head.schema[:40]!r}, not {SCHEMA}: another version of perfscope wrote it")
    return head


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while line := stream.readline(MOST_LINE):
            if line.strip():
                yield line


def _latest(file: Path) -> Iterator[bytes]:
    """The row that a killed process had not appended yet."""
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        with file.with_name(f"{file.name}{LATEST_SUFFIX}").open("rb") as stream:
            line = stream.readline(MOST_LINE)
        if _row.decode(line).after == file.stat().st_size:
            yield line


def _assemble(file: Path, head: Head, lines: Iterator[bytes]) -> ProcessLedger:
    rows: list[Row] = []
    stalls: list[Row] = []
    texts: list[str] = []
    nodes: list[Node] = []
    calls: dict[int, int] = {}
    notes: list[str] = []
    changed: list[tuple[str, float | None, float | None, Ns, Count, int]] = []
    rank, at, broken = head.rank, head.from_ns, 0
    for line in lines:
        try:
            row = _row.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            broken += 1
            continue
        if row.failed:
            notes.append(f"{file.name}: the ledger ends early: {row.failed[:200]}")
        texts += [sanitize(text, NAME_LIMIT) for text in row.texts]
        nodes += row.nodes[: max(0, MOST_NODES - len(nodes))]
        calls.update(row.calls)
        if row.stalled is not None:
            stalls.append(row)
        changed += row.changed
        if row.end is None:
            continue
        if not _fits(row, at, row.end):
            broken += 1
            continue
        at = row.end
        rank = row.rank if row.rank is not None else rank
        rows.append(row)
    if broken:
        notes.append(f"{file.name}: {broken:,} of its lines were not whole or did not fit, and are left out")
    return ProcessLedger(
        file=file,
        head=head,
        rank=rank,
        rows=tuple(rows),
        stalls=tuple(stalls),
        texts=tuple(texts),
        nodes=tuple(nodes),
        calls={node: text for node, text in calls.items() if text < len(texts)},
        changed=tuple(changed),
        notes=tuple(notes),
    )


def _fits(row: Row, at: int, end: int) -> bool:
    """Whether a row begins at or after ``at``, and its parts sum to its length."""
    parts = row.core
    for _, _, ns in row.at:
        parts += ns
    return at <= row.begin <= end and parts == end - row.begin


def text_at(ledger: ProcessLedger, index: Any) -> str:
    """A text by its number; empty for one that was lost."""
    return ledger.texts[index] if 0 <= index < len(ledger.texts) else ""
