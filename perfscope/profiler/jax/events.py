"""Compilation as it happens: traces, lowerings, compilations, the persistent cache, and why a function is traced again.

jax reports the durations through ``jax.monitoring`` (public) and the reasons through the log of
``jax_explain_cache_misses``; these lines are removed from the program's log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from time import time_ns

from perfscope.model.documents.run import Capture
from perfscope.model.jax_log import EVENTS_FILE, EVENTS_SCHEMA
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.compat import Undo
from perfscope.profiler.jax.donation_warnings import UnusableDonation, on_unusable_donation
from perfscope.profiler.jax.record_log import CallSites, RecordLog

PASS = "events"  # noqa: S105 (the name of a pass)
MOST_EVENTS = 20_000
"""Some 3 MB. A large program compiles a thousand functions; a program that retraces each step needs hours for it."""
MOST_REASON = 2_000
"""Characters of a reason: a pytree of thousands of leaves that all differ is cut."""

DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/compilation_cache/cache_retrieval_time_sec": "cache_read",
    "/jax/compilation_cache/compile_time_saved_sec": "cache_saved",
}
EVENTS = {
    "/jax/compilation_cache/cache_hits": "cache_hit",
    "/jax/compilation_cache/cache_misses": "cache_miss",
}
"""Events of ``jax.monitoring`` that are kept, with their names here."""
TIMED = frozenset({"trace", "lower", "compile"})
"""Kinds of events that are about one function."""

_CALL_SITE = re.compile(
    r"TRACING CACHE MISS at (?P<file>.+?):(?P<line>\d+)(?::\d+)? \((?P<function>.*?)\)(?: costing.*)?:?"
)
_SUBJECT = re.compile(r"^\s*(?:for )?(?P<name>\S+?)(?: id=\d+)?(?: defined at (?P<file>.+):(?P<line>\d+))?$")
_NEVER_SEEN = "never seen function"
_REDEFINED = "but seen another function"


def available() -> str | None:
    """Why compilation cannot be listened to, or ``None`` if it can."""
    return None if compat.installed() else "jax is not installed"


class EventLog:
    """Listens from ``start()`` to ``stop()``. ``step``: the number of the step that runs."""

    def __init__(
        self, sites: CallSites, step: Callable[[], int | None], traced: Callable[[], None] | None = None
    ) -> None:
        """``traced``: called when a function has been traced, before it is lowered."""
        self._traced = traced
        self._sites = sites
        self._step = step
        self._lines = RecordLog(EVENTS_SCHEMA, MOST_EVENTS)
        self._undo: list[Undo] = []
        self._explains = False
        self._hears = False
        self.compilations = 0
        """Programs that were compiled since the start, cached ones included."""

    def start(self) -> None:
        """Begin to listen."""
        self._undo.append(compat.on_events(self._event, self._duration))
        explained = compat.on_explained_miss(self._explained)
        self._explains = explained is not None
        if explained is not None:
            self._undo.append(explained)
        donation = on_unusable_donation(self._unusable)
        self._hears = donation is not None
        if donation is not None:
            self._undo.append(donation)

    def stop(self) -> None:
        """Leave jax as it was."""
        while self._undo:
            self._undo.pop()()

    def start_over(self) -> None:
        """Steps are counted by another source from here on, whose numbers begin again."""
        self._lines.forget_steps()

    def save(self, directory: Path, run: Path) -> Capture:
        """Write the events so far."""
        path = directory / EVENTS_FILE
        jax, jaxlib = compat.version()
        self._lines.save(path, jax=jax, jaxlib=jaxlib, explained=self._explains, **self._sites.spelled_out())
        reasons = []
        if not self._explains:
            reasons.append("no reasons of retraces: jax_explain_cache_misses is on already, or this jax has none")
        if not self._hears:
            reasons.append("no donated buffers that are not usable: this jax does not say it where we know")
        if self._lines.dropped:
            reasons.append(f"{self._lines.dropped} events beyond the first {MOST_EVENTS} were dropped")
        return Capture(
            pass_name=PASS,
            tool="jax_events",
            state="recorded",
            reason="; ".join(reasons) or None,
            artifact=path.relative_to(run).as_posix(),
        )

    def _event(self, name: str, **facts: object) -> None:
        kind = EVENTS.get(name)
        if kind is not None:
            self._add(kind, None, facts)

    def _duration(self, name: str, seconds: float, **facts: object) -> None:
        kind = DURATIONS.get(name)
        if kind is not None:
            self.compilations += kind == "compile"
            if kind == "trace" and self._traced is not None:
                self._traced()
            self._add(kind, round(seconds * 1e9), facts)

    def _add(self, kind: str, duration_ns: int | None, facts: dict[str, object]) -> None:
        try:
            frame = sys._getframe(2)
            name = facts.get("fun_name") or (compat.timed_name(frame) if kind in TIMED else None)
            site = self._sites.here(frame)
            self._lines.add(
                kind=kind,
                end_ns=time_ns(),
                duration_ns=duration_ns,
                step=self._step(),
                function=None if name is None else str(name),
                file=site and site.file,
                line=site and site.line,
            )
        except Exception:  # the program compiles: an error of perfscope must not stop it
            self._lines.dropped += 1

    def _unusable(self, donation: UnusableDonation) -> None:
        try:
            site = self._sites.here(donation.frame)
            self._lines.add(
                kind="donation_unusable",
                end_ns=time_ns(),
                step=self._step(),
                module=donation.module,
                shapes=donation.shapes,
                count=donation.count,
                file=site and site.file,
                line=site and site.line,
            )
        except Exception:  # as above
            self._lines.dropped += 1

    def _explained(self, text: str) -> None:
        try:
            self._lines.add(end_ns=time_ns(), step=self._step(), **explanation(text, self._sites.name))
        except Exception:
            self._lines.dropped += 1


def explanation(text: str, name: Callable[[str], str]) -> dict[str, object]:
    """Parse jax's explanation of a miss of its tracing cache. ``name``: a path as the user would write it.

    ``kind`` is ``first_trace`` for a function that jax has not seen, else ``retrace`` with a ``reason``.
    """
    head, *lines = text.splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    record: dict[str, object] = {"kind": "retrace"}
    site = _CALL_SITE.fullmatch(head.removesuffix(" because:").strip())
    if site is not None:
        record |= {"file": name(site["file"]), "line": int(site["line"])}
    never_seen = bool(lines) and lines[0].startswith(_NEVER_SEEN)
    if never_seen:
        del lines[0]
    subject = _SUBJECT.match(lines[0]) if lines else None
    if subject is not None:
        record["function"] = subject["name"]
        if subject["file"] is not None:
            record |= {"defined_file": name(subject["file"]), "defined_line": int(subject["line"])}
        del lines[0]
    if never_seen and not any(line.startswith(_REDEFINED) for line in lines):
        record["kind"] = "first_trace"
        return record
    explained = [line for line in lines if not line.startswith("all previously seen cache keys")]
    record["reason"] = " ".join(explained)[:MOST_REASON]
    return record
