"""Mutated files of every reader; and that the fuzzer itself finds what it is there for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perfscope.analyzers.readers.load import load_all
from tests.fuzz.rounds import fuzz
from tests.fuzz.seeds import FORMATS, seeds
from tests.fuzz.worker import examine, make


@pytest.mark.parametrize("reader", FORMATS)
def test_some_inputs(reader: str, tmp_path: Path) -> None:
    """The built seed as it is, and a few mutations, in this process."""
    path = tmp_path / f"input.{FORMATS[reader].suffix}"
    path.write_bytes(seeds(reader)[0])
    assert load_all(path)
    for number in range(len(seeds(reader)), len(seeds(reader)) + 8):
        path.write_bytes(make(reader, number))
        examine(path, number)


@pytest.mark.slow
@pytest.mark.parametrize("reader", FORMATS)
def test_two_thousand_inputs(reader: str, tmp_path: Path) -> None:
    (*_, results) = fuzz([reader], 2_000, tmp_path)
    assert results[reader].inputs == 2_000
    assert not results[reader].failures, [
        path.with_name(f"{path.name}.reason").read_text()[-2_000:] for path in results[reader].failures
    ]


def crashes(path: Path, number: int) -> str:
    """As a reader with a defect."""
    if number == 1:
        raise LookupError("planted")
    return "analysed"


def hangs(path: Path, number: int) -> str:
    """As a reader that does not end."""
    while number == 1:
        time.process_time()
    return "analysed"


def eats(path: Path, number: int) -> str:
    """As a reader that takes all memory."""
    return "analysed" if number != 1 else str(len(bytearray(3 << 30)))


@pytest.mark.parametrize(
    ("examination", "how"),
    [("crashes", "crash"), ("eats", "memory"), pytest.param("hangs", "hang", marks=pytest.mark.slow)],
)
def test_what_breaks_a_limit_is_kept(examination: str, how: str, tmp_path: Path) -> None:
    (results,) = fuzz(["kineto"], 3, tmp_path, examination=f"tests.fuzz.test_fuzz:{examination}")
    assert results["kineto"].ended == {"analysed": 2, how: 1}
    assert [path.read_bytes() for path in results["kineto"].failures] == [make("kineto", 1)]
