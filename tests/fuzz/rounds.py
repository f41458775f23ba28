"""Fuzzes the readers in turn, each piece of inputs in a fork of one process, and keeps what breaks a limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.seeds import FORMATS
from tests.fuzz.worker import make

EXAMINATION = "tests.fuzz.worker:examine"
_LIMITS = (-signal.SIGPROF, -signal.SIGALRM)
"""How a child ends that took more time than it may."""
KEPT_OF_A_KIND = 3
"""Inputs that are kept of those that fail in the same place."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass
class Result:
    """Results of a reader's inputs: counts by outcome."""

    inputs: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    failures: list[Path] = field(default_factory=list)


def fuzz(
    readers: Sequence[str], inputs: int, keep: Path, *, first: int = 0, examination: str = EXAMINATION
) -> Iterator[dict[str, Result]]:
    """Give ``inputs`` to each reader, a piece at a time in turn; the results so far after each piece."""
    results = {reader: Result() for reader in readers}
    kinds: Counter[str] = Counter()
    with _server() as server:
        while left := [reader for reader in readers if results[reader].inputs < inputs]:
            for reader in left:
                result = results[reader]
                with tempfile.TemporaryDirectory() as folder:
                    line = f"{reader} {first + result.inputs} {inputs - result.inputs} {folder} {examination}"
                    for number, how in _child(server, line, Path(folder)).items():
                        result.inputs += 1
                        result.ended[how] += 1
                        if how not in ("refused", "analysed"):
                            _keep(reader, number, how, Path(folder, f"{number}.txt"), keep, result, kinds)
                yield results


@contextmanager
def _server() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PERFSCOPE_CACHE": "off", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tests.fuzz.worker"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            yield server
        finally:
            server.terminate()


def _child(server: subprocess.Popen[str], line: str, folder: Path) -> dict[int, str]:
    """How each input ended, up to the one that ended the process."""
    assert server.stdin is not None
    assert server.stdout is not None
    print(line, file=server.stdin, flush=True)
    ended: dict[int, str] = {}
    begun: int | None = None
    for answer in server.stdout:
        word, number, *how = answer.split()
        if word == "done":
            break
        if word == "begin":
            begun = int(number)
        else:
            ended[int(number)], begun = how[0], None
    else:
        raise RuntimeError("the fuzzing process ended")
    if begun is None and not ended:
        raise RuntimeError(f"the fuzzing process does not start: {Path(folder, 'stderr').read_text(errors='replace')}")
    if begun is not None:
        ended[begun] = "hang" if int(number) in _LIMITS else "died"
        errors = Path(folder, "stderr").read_text(errors="replace")
        (folder / f"{begun}.txt").write_text(f"ended with {number}\n{errors[-4_000:]}")
    return ended


def _keep(reader: str, number: int, how: str, text: Path, keep: Path, result: Result, kinds: Counter[str]) -> None:
    reason = text.read_text() if text.is_file() else how
    places = _PLACE.findall(reason.split("The above exception")[0])
    kind = f"{reader} {how} {[place for place in places if 'perfscope/' in place[0]][-1:] or places[-1:]}"
    kinds[kind] += 1
    if kinds[kind] > KEPT_OF_A_KIND:
        return
    folder = keep / reader
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{how}-{number}.{FORMATS[reader].suffix}"
    path.write_bytes(make(reader, number))
    path.with_name(f"{path.name}.reason").write_text(reason)
    result.failures.append(path)
