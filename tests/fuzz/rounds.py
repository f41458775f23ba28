"""Fuzzes the readers in turn, each piece of inputs in a process of its own, and keeps what breaks a limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.seeds import FORMATS
from tests.fuzz.worker import make

EXAMINATION = "tests.fuzz.worker:examine"
PIECE = 250
"""Inputs of a reader before the next has its turn."""
WALL_S = 1_800.0
"""For a piece, waiting included: a process that does nothing is ended too."""
KEPT_OF_A_KIND = 3
"""Inputs that are kept of those that fail in the same place."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass
class Result:
    """What came of the inputs of a reader: numbers by how they ended."""

    inputs: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    failures: list[Path] = field(default_factory=list)


def fuzz(
    readers: Sequence[str], inputs: int, keep: Path, *, first: int = 0, examination: str = EXAMINATION
) -> Iterator[dict[str, Result]]:
    """Give ``inputs`` to each reader, a piece at a time in turn; the results so far after each piece."""
    results = {reader: Result() for reader in readers}
    kinds: Counter[str] = Counter()
    for begin in range(first, first + inputs, PIECE):
        for reader in readers:
            _piece(reader, begin, min(PIECE, first + inputs - begin), keep, results[reader], kinds, examination)
            yield results


def _piece(
    reader: str, begin: int, count: int, keep: Path, result: Result, kinds: Counter[str], examination: str
) -> None:
    number, end = begin, begin + count
    while number < end:
        with tempfile.TemporaryDirectory() as folder:
            ended = _process(reader, number, end - number, Path(folder), examination)
            for at, how in ended.items():
                result.inputs += 1
                result.ended[how] += 1
                if how not in ("refused", "analysed"):
                    _keep(reader, at, how, Path(folder, f"{at}.txt"), keep, result, kinds)
        if not ended:
            raise RuntimeError(f"the fuzzing process of {reader} does not start")
        number = max(ended) + 1


def _process(reader: str, first: int, count: int, folder: Path, examination: str) -> dict[int, str]:
    """How each input ended, up to the one that ended the process."""
    words = [sys.executable, "-m", "tests.fuzz.worker", reader, str(first), str(count), str(folder), examination]
    environment = {**os.environ, "PERFSCOPE_CACHE": "off", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WALL_S, check=False, env=environment)
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = -signal.SIGPROF, (error.stdout or b"").decode(), ""
    ended: dict[int, str] = {}
    begun: int | None = None
    for line in out.splitlines():
        word, number, *how = line.split()
        if word == "begin":
            begun = int(number)
        else:
            ended[int(number)], begun = how[0], None
    if begun is not None:
        ended[begun] = "hang" if code == -signal.SIGPROF else "died"
        (folder / f"{begun}.txt").write_text(f"ended with {code}\n{err[-4_000:]}")
    return ended


def _keep(reader: str, number: int, how: str, text: Path, keep: Path, result: Result, kinds: Counter[str]) -> None:
    reason = text.read_text() if text.is_file() else how
    places = _PLACE.findall(reason)
    kind = f"{reader} {how} {places[-1] if places else ''}"
    kinds[kind] += 1
    if kinds[kind] > KEPT_OF_A_KIND:
        return
    folder = keep / reader
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{how}-{number}.{FORMATS[reader].suffix}"
    path.write_bytes(make(reader, number))
    path.with_name(f"{path.name}.reason").write_text(reason)
    result.failures.append(path)
