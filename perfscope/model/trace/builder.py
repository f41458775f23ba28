"""A trace under construction: what every reader fills, and the one way to a trace that differs from another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.model.trace.columns import MISSING, Array, Rows
from perfscope.model.trace.tables import TABLES, CallKind, SliceKind
from perfscope.model.trace.trace import Source, Trace

_OWN_FIELDS = frozenset({"source", "strings", "rows", "recorded", "_facts"})


class TraceBuilder:
    """Collects strings, tables, notes and counts; ``build`` makes the trace, which is immutable."""

    def __init__(self, path: str = "", format_name: str = "") -> None:
        self.path, self.format = path, format_name
        self.rank: int | None = None
        self.rank_source: str | None = None
        self.world_size: int | None = None
        self.backend: str | None = None
        self.strings: list[str] = []
        self.rows: dict[str, Rows] = {}
        self.threads: dict[tuple[str, str], int] = {}
        """(Process, thread) -> its id in the source, in the order of the table ``threads``."""
        self.events = 0
        """Events of the file that were read."""
        self.unplaced: Counter[str] = Counter()
        """Events with no place in the model, by reason."""
        self.marks: Counter[str] = Counter()
        """Name -> number of events that were read as marks, or left out, because they are not spans."""
        self.repairs: Counter[str] = Counter()
        self.notes: list[str] = []
        self.recorded: set[str] = set()
        self.events_only = False
        self.programs: int | None = None
        self.attached: dict[str, Any] = {}
        """Other fields of ``Trace``."""
        self._codes: dict[str, int] = {}
        self._events_unplaced: int | None = None

    @classmethod
    def of(cls, trace: Trace) -> TraceBuilder:
        """A builder with the content of ``trace``, which stays unchanged."""
        source = trace.source
        builder = cls(source.path, source.format)
        builder.rank, builder.rank_source = source.rank, source.rank_source
        builder.world_size, builder.backend = source.world_size, source.backend
        builder.strings, builder.rows = list(trace.strings), dict(trace.rows)
        builder.events, builder._events_unplaced = source.events_read, source.events_unplaced
        builder.unplaced, builder.repairs = Counter(source.unplaced), Counter(source.repairs)
        builder.notes, builder.recorded = list(source.notes), set(trace.recorded)
        builder.events_only, builder.programs = source.events_only, source.programs
        builder.attached = {name: getattr(trace, name) for name in trace.__struct_fields__ if name not in _OWN_FIELDS}
        return builder

    def code(self, text: str) -> int:
        """Code of a string, the same each time."""
        if not self._codes and self.strings:
            self._codes = {known: code for code, known in enumerate(self.strings)}
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self.strings)
            self.strings.append(text)
        return code

    def codes(self, texts: Iterable[str | None]) -> npt.NDArray[np.int32]:
        """Codes of strings, shape (n,); ``MISSING`` for ``None`` and ``''``."""
        return np.array([self.code(text) if text else MISSING for text in texts], np.int32)

    def add_strings(self, texts: Sequence[str]) -> int:
        """Append a pool of strings; the code of its first one. Equal texts may then have two codes."""
        first = len(self.strings)
        self.strings.extend(texts)
        self._codes = {}
        return first

    def thread(self, process: str, name: str, number: int) -> int:
        """Row of a thread. Threads of one name are one only if their ``number``, the id in the source, is the same."""
        known = self.threads.get((process, name))
        if known is None or known == number:
            self.threads[process, name] = number
            return list(self.threads).index((process, name))
        return self.thread(process, f"{name}/{number & 0xFFFFFFFFFFFFFFFF}", number)

    def threads_table(self) -> None:
        """Make the table ``threads`` of the rows from ``thread``."""
        self.table(
            "threads",
            {
                "process": np.array([self.code(process) for process, _ in self.threads], np.int32),
                "thread": np.array([self.code(name) for _, name in self.threads], np.int32),
            },
        )

    def table(self, name: str, columns: Mapping[str, Any]) -> Rows:
        """Set a table; ``ValueError`` as of ``Rows``."""
        self.rows[name] = Rows(TABLES[name], columns)
        return self.rows[name]

    def record(self, *keys: str) -> None:
        """Mark these keys of ``RECORDED`` as recorded."""
        self.recorded.update(keys)

    def record_tables(self, *, without: Iterable[str] = ()) -> None:
        """Mark the keys as recorded whose rows are here, except those in ``without``, which the source may lack.

        ``waiting_calls`` counts as recorded with any call: a profiler that records all calls shows those that wait.
        """
        self.recorded |= _keys_with_rows(self.rows) - set(without)

    def note(self, *notes: str) -> None:
        """Add sentences that a reader of the report must know."""
        self.notes.extend(notes)

    def orphans(self, explanation: str) -> list[str]:
        """A note on device work without a launch call where calls were recorded; ``explanation`` ends the sentence."""
        missing = {table: int((self.rows[table]["call"] == MISSING).sum()) for table in ("kernels", "copies")}
        return [
            f"{count:,} of {len(self.rows[table]):,} {table} have no launch call in the trace{explanation}"
            for table, count in missing.items()
            if count and len(self.rows["calls"])
        ]

    def merge_tables(self, trace: Trace, names: Iterable[str], blank: Iterable[str] = ()) -> dict[str, Rows]:
        """Tables of another trace with their texts as codes of this one; columns in ``blank`` become ``MISSING``."""
        offset = self.add_strings(trace.strings)
        merged = {}
        for name in names:
            rows = trace.rows[name].with_text_offset(offset)
            merged[name] = rows.with_columns({column: MISSING for column in blank if column in rows})
        return merged

    def relocate(self, copy: str, shown: str) -> None:
        """Set the path of the trace, in place of that of its temporary copy."""
        self.path = self.path.replace(copy, shown)
        self.notes = [note.replace(copy, shown) for note in self.notes]
        if "hlo" in self.attached:
            self.attached["hlo"] = tuple(
                msgspec.structs.replace(module, source=module.source.replace(copy, shown))
                for module in self.attached["hlo"]
            )
        log = self.attached.get("compile_log")
        if log is not None:
            self.attached["compile_log"] = msgspec.structs.replace(log, path=log.path.replace(copy, shown))

    def build(self, **attached: Any) -> Trace:
        """The trace. ``attached``: other fields of ``Trace``, such as ``hlo`` or ``compile_log``."""
        unplaced = {reason: count for reason, count in self.unplaced.items() if count}
        total = sum(unplaced.values()) if self._events_unplaced is None else self._events_unplaced
        source = Source(
            path=self.path,
            format=self.format,
            rank=self.rank,
            rank_source=None if self.rank is None else self.rank_source,
            events_read=self.events,
            events_unplaced=total,
            unplaced=unplaced,
            repairs={kind: count for kind, count in self.repairs.items() if count},
            notes=tuple(self.notes),
            world_size=self.world_size,
            backend=self.backend,
            events_only=self.events_only,
            programs=self.programs,
        )
        return Trace(
            source=source,
            strings=tuple(self.strings),
            rows=self.rows,
            recorded=frozenset(self.recorded),
            **{**self.attached, **attached},
        )


def _keys_with_rows(built: Mapping[str, Rows]) -> set[str]:
    rows = {name: built[name] if name in built else Rows(table, {}) for name, table in TABLES.items()}
    kernels, copies, slices, calls = rows["kernels"], rows["copies"], rows["slices"], rows["calls"]
    checks = {
        "device_work": len(kernels) or len(copies),
        "host_ops": _any(slices["kind"] == SliceKind.OP),
        "launch_links": _any(kernels["call"] >= 0) or _any(copies["call"] >= 0),
        "op_links": _any(kernels["op"] >= 0) or _any(copies["op"] >= 0),
        "runtime_calls": len(calls),
        "waiting_calls": len(calls),
        "python_stack": _any(slices["kind"] == SliceKind.PYTHON),
        "shapes": _any(slices["shapes"] >= 0),
        "autograd": _any(slices["sequence"] >= 0),
        "memory": len(rows["memory"]),
        "collectives": _any(rows["collectives"]["elements_in"] >= 0),
        "sync_records": len(rows["sync_records"]),
        "steps": len(rows["steps"]),
    }
    return {key for key, present in checks.items() if present}


def calls_that_wait(rows: Mapping[str, Rows]) -> bool:
    """Whether a call waits for the device."""
    return _any(rows["calls"]["kind"] == CallKind.SYNC)


def _any(flags: Array) -> bool:
    return bool(flags.any())
