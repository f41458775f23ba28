"""Work of the host in a training loop besides training, each with a twin that keeps it out of the way.

    python -m perfscope.workloads.loop --defect tokenize
    python -m perfscope.workloads.jax.loop --twin tokenize

None of it needs a framework: saving takes the function that writes the weights. A twin does as much of it as a loop
can hide: it tokenises before the first step, logs a short line, saves once, and lets its thread wait.
"""

from __future__ import annotations

import gc
import json
import re
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

HOST_DEFECTS = {
    "tokenize": "tokenise a document in Python in every step",
    "sleep": "sleep in every step, as a client of a rate-limited service does",
    "log": "write a long record as JSON in every step",
    "save": "save the weights in every step",
    "thread": "a thread next to the loop that computes in Python and holds the interpreter's lock",
    "collect": "collect garbage in every step, with a large heap",
    "evaluate": "tokenise a document of the validation set in every eighth step",
}

WORDS = 30_000
"""Words of a document: about 20 ms of a tokeniser in Python."""
NAP_S = 0.02
METRICS = 6_000
"""Numbers in a record: about 10 ms of JSON."""
OBJECTS = 150_000
"""Live containers that a collection looks at: about 10 ms."""
SAVES_KEPT = 2
EVALUATE_EVERY = 8
_WORD = re.compile(r"\w+")


def encoded(document: str) -> list[int]:
    """Token numbers of a document's words."""
    return [zlib.crc32(word.lower().encode()) % 50_000 for word in _WORD.findall(document)]  # defect: host_bound


def checksum(stop: threading.Event) -> int:
    """Checksum of endless data, until ``stop`` is set."""
    value = 1
    while not stop.is_set():
        value = value * 31 % 65_521 + 1  # defect: host_bound: every op of the loop waits for the interpreter's lock
    return value


class HostWork:
    """The work of one defect or of its twin, as a context around the loop and a call in each step."""

    def __init__(self, defect: str | None, twin: str | None) -> None:
        self.defect, self.name = defect, defect or twin
        self.save: Callable[[Path], None] = lambda path: None
        """Writes the weights; the loop sets it."""
        self.stop = threading.Event()
        self.target = (lambda: checksum(self.stop)) if defect == "thread" else self.stop.wait
        self.heap: Sequence[object] = []
        self.document = " ".join(f"word{number % 977}" for number in range(WORDS))
        self.record = [number / 7 for number in range(METRICS)]

    def __enter__(self) -> Self:
        self.folder = tempfile.TemporaryDirectory(prefix="loop-")
        self.log = (Path(self.folder.name) / "log.jsonl").open("w")
        if self.name in ("tokenize", "evaluate"):
            self.tokens = encoded(self.document)
        if self.name == "thread":
            threading.Thread(target=self.target, daemon=True).start()
        if self.name == "collect":
            self.heap = [{"number": number} for number in range(OBJECTS)]
        return self

    def __call__(self, step: int) -> None:
        """Do the work of one step."""
        if self.defect == "tokenize":
            self.tokens = encoded(self.document)
        elif self.defect == "sleep":
            time.sleep(NAP_S)  # defect: host_bound: nothing is prepared meanwhile
        elif self.defect == "log":
            json.dump({"step": step, "metrics": self.record}, self.log, indent=1)  # defect: host_bound
        elif self.defect == "save":
            self.save(Path(self.folder.name) / f"{step % SAVES_KEPT}")
        elif self.defect == "evaluate":
            if step % EVALUATE_EVERY == 0:
                self.tokens = encoded(self.document)
        elif self.defect == "collect":
            gc.collect()  # defect: host_bound: looks at every object that lives
        elif self.name == "log":
            self.log.write(json.dumps({"step": step}) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        if self.name == "save":
            self.save(Path(self.folder.name) / "last")
        self.log.close()
        self.folder.cleanup()
