"""Fingerprints of one process, recorded by `perfscope run --fingerprint`: ``fingerprint.jsonl.gz``.

One gzip member per step, each of lines of JSON, so that a file that was cut off is read up to there. The first line is
an object with the schema, the framework and its settings. A line of a step is a list that begins with its kind:

- ``["s", step, sampled]``: a step begins. ``sampled``: its ops are recorded, otherwise only its states;
- ``["v", number, base, dtype, shape, hash, row, sketch]``: a value. ``base``: the number of the value that was last
  written to its memory, if another view of it; ``hash``: of its bits in the order of its elements, 16 digits,
  ``null`` for memory that nothing has written; ``row``: of its first row; ``sketch``: [sum, largest magnitude, 8 sums
  of randomly signed elements], ``null`` if not finite or not floating point;
- ``["o", name, line, module, phase, arguments, inputs, outputs, names]``: an op with the numbers of its values. Ops in
  angle brackets are moments of the program: ``<call>`` of a model, ``<optimizer>``;
- ``["n", text]``: a note.

The modules of this file are imported in the user's process: only the standard library is imported at the top.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FINGERPRINT_SCHEMA = "perfscope.fingerprint/1"
FINGERPRINT_FILE = "fingerprint.jsonl.gz"
CALL, RETURN, OPTIMIZER = "<call>", "<return>", "<optimizer>"
"""Moments: a model is called, it returns, an optimizer is about to step."""
BUCKETS = 8
"""Sums of randomly signed elements in a sketch."""
MOST_OPS = 50_000
"""Most ops of a step; later ones are not recorded."""
MOST_FILE_BYTES = 512 << 20
"""Largest size of a recording; later steps are left out, with a note."""
MOST_KEPT_BYTES = 64 << 20
"""Most bytes of steps that are kept in memory, to be written again if a better source of steps is found."""
FIRST_SAMPLED = 2
UNCOUNTED = "calls"
"""In a moment, calls of a jitted function before it was known to make the steps: it is at its second call."""

_MASK = (1 << 64) - 1


def mixed(number: int) -> int:
    """64 bits that look random, of a number (SplitMix64, G. Steele, D. Lea and C. Flood, OOPSLA 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def combined(hashes: Iterable[int | None]) -> int:
    """One hash of several, which depends on their order."""
    total = 0
    for hashed in hashes:
        total = mixed(total ^ (0 if hashed is None else hashed))
    return total


def is_sampled(step: int, steps: tuple[int, int] | None) -> bool:
    """Whether the ops of a step are recorded: in the steps of the option, else in the first two and powers of two."""
    if steps is not None:
        return steps[0] <= step < steps[1]
    return step < FIRST_SAMPLED or step & (step - 1) == 0


def hex_of(hashed: int | None) -> str | None:
    """The 16 digits of a hash; it may be negative, as an integer of 64 bits with a sign is."""
    return None if hashed is None else f"{hashed & _MASK:016x}"


class Log:
    """Steps of a recording, packed, until they are written."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.settings: dict[str, str] = {}
        self._steps: list[tuple[Any, bool, bytes]] | None = []
        """Steps in the order of their end; ``None`` if they are too many to be kept until the end."""
        self._pending: list[tuple[Any, bool, bytes]] = []
        self._bytes = 0
        self._source: Any = None
        """The source of steps whose numbers are in the file."""
        self._began = False
        self.full = False
        self._notes: list[str] = []
        self._written_notes = 0

    @property
    def is_empty(self) -> bool:
        """Whether it has no step, written or not."""
        return not self._bytes

    def note(self, text: str) -> None:
        """Keep a sentence for the reader, once."""
        if text not in self._notes:
            self._notes.append(text)

    def add(self, moment: Any, lines: Iterable[list[Any]], *, sampled: bool) -> None:
        """Add a step; ``moment`` becomes its number when it is written."""
        if self.full:
            return
        packed = _packed(lines)
        self._bytes += len(packed)
        if self._bytes > MOST_FILE_BYTES:
            self.full = True
            self.note(f"the recording reached {MOST_FILE_BYTES >> 20} MiB: later steps were left out")
            return
        self._pending.append((moment, sampled, packed))
        if self._steps is not None:
            self._steps.append((moment, sampled, packed))
            if self._bytes > MOST_KEPT_BYTES:
                self._steps = None

    def write(self, path: Path, number: Callable[[Any], int], source: Any) -> None:
        """Append the steps since the last call to the file, or all of them if another ``source`` numbers them now."""
        if self._began and source != self._source:
            if self._steps is None:
                self.note("another source of steps was found late: the first steps have the numbers of the one before")
            else:
                self._began, self._written_notes, self._pending = False, 0, self._steps
        self._source = source
        content = b""
        if not self._began:
            head = {"schema": FINGERPRINT_SCHEMA, "framework": self.framework, "settings": self.settings}
            content = gzip.compress(json.dumps(head).encode() + b"\n", 1, mtime=0)
        for moment, sampled, packed in self._pending:
            content += _packed([["s", number(moment), sampled]]) + packed
        if notes := self._notes[self._written_notes :]:
            content += _packed(["n", text] for text in notes)
        if content:
            with path.open("ab" if self._began else "wb") as stream:
                stream.write(content)
        self._began, self._written_notes, self._pending = True, len(self._notes), []


def _packed(lines: Iterable[list[Any]]) -> bytes:
    text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)
    return gzip.compress(text.encode(), 1, mtime=0)
