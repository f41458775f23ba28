"""The threads of a trace, and the names of its counters, from tracks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.readers.kineto_json.grown import Columns
from perfscope.analyzers.readers.perfetto_trace import vocabulary as words
from perfscope.analyzers.readers.perfetto_trace.sequences import Strings
from perfscope.analyzers.readers.perfetto_trace.tracks import Track, Tracks
from perfscope.analyzers.readers.perfetto_trace.walk import Int
from perfscope.analyzers.trace.columns import Array


class Threads:
    """Rows of ``threads``, made as they are asked for."""

    def __init__(self, tracks: Mapping[int, Track], strings: Strings, *, own: bool) -> None:
        """``own``: lanes of an export of ours belong to the thread that they were spread from."""
        self._tracks, self._strings, self._own = Tracks(tracks), strings, own
        self._rows: dict[int, int] = {}
        self._names: list[tuple[str, str]] = []
        self._taken: set[tuple[str, str]] = set()

    def of(self, tracks: Int) -> Int:
        """Row of the thread of each track."""
        used, inverse = np.unique(tracks, return_inverse=True)
        rows = np.array([self._row(one) for one in used.tolist()], np.int64)
        return rows[inverse] if len(used) else np.empty(0, np.int64)

    def _row(self, uuid: int) -> int:
        track = self._tracks.thread_of(uuid) if self._own else self._tracks.get(uuid)
        found = self._rows.get(track.uuid)
        if found is None:
            found = self._rows[track.uuid] = len(self._names)
            process, thread = self._named(track)
            known = thread
            count = 1
            while (process, known) in self._taken:  # two tracks of one name are two threads
                count += 1
                known = f"{thread} ({count})"
            self._taken.add((process, known))
            self._names.append((process, known))
        return found

    def _named(self, track: Track) -> tuple[str, str]:
        process = self._tracks.process_of(track.uuid)
        if self._own:
            host, thread = words.HOST_PROCESS.match(process.process_name), words.HOST_THREAD.match(track.thread_name)
            return host[1] if host else process.process_name, thread[1] if thread else track.thread_name
        of = str(process.pid) if process.pid is not None else process.name or "trace"
        if track.tid is not None:
            return of, track.thread_name or str(track.tid)
        return of, track.name or f"track {track.uuid & 0xFFFFFFFFFFFFFFFF}"

    def counters(self, tracks: Int) -> tuple[Int, Array]:
        """Code of each sample's counter, and what its values are multiplied with."""
        used, inverse = np.unique(tracks, return_inverse=True)
        names, scales = [], []
        for one in used.tolist():
            track = self._tracks.get(one)
            name = track.name or f"counter {one & 0xFFFFFFFFFFFFFFFF}"
            names.append(self._strings.code(name))
            scales.append(float(track.unit_multiplier))
        if not names:
            return np.empty(0, np.int64), np.empty(0, np.float64)
        return np.array(names, np.int64)[inverse], np.array(scales, np.float64)[inverse]

    def columns(self) -> Columns:
        """The table, as far as it was asked for."""
        return {
            "process": np.array([self._strings.code(process) for process, _ in self._names], np.int64),
            "thread": np.array([self._strings.code(thread) for _, thread in self._names], np.int64),
        }
