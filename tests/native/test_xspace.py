"""XSpaces through the native library equal the reader in Python, to the last stat."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from perfscope.analyzers.readers.xspace import reader
from perfscope.model.trace import Trace
from tests.conftest import REPOSITORY, corpus_files
from tests.fuzz.mutate import mutated, protobuf
from tests.native.test_kineto import SEEDS
from tests.native.twins import assert_equal, both, needs_library
from tests.readers.wire import SpaceWriter
from tests.readers.xspace.profiles import US
from tests.readers.xspace.test_damage import space

pytestmark = needs_library


def test_mutated_files_give_the_same_tables_or_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "t.xplane.pb", space().bytes()
    for seed in SEEDS:
        path.write_bytes(mutated(content, protobuf, Random(seed)))
        try:
            assert_equal(*both(reader.read, path, monkeypatch))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_lines_of_one_thread_in_two_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [("PjitFunction(f)", n * 10 * US, (n * 10 + 9) * US) for n in range(3)]
    inner = [("PjitFunction(f)", n * 10 * US, (n * 10 + 8) * US) for n in range(3)]
    functions = [("$train.py:3 train", 0, 40 * US), ("mine", 31 * US, 32 * US)]
    writer = SpaceWriter().plane("/host:CPU", {"python": calls, "other": calls})
    writer.plane("/host:python-tracer", {"python": [*functions, *inner]})
    (path := tmp_path / "t.xplane.pb").write_bytes(writer.bytes())
    plain, fast = both(reader.read, path, monkeypatch)
    assert_equal(plain, fast)
    assert isinstance(fast, Trace)
    assert len(fast.rows["slices"]) == 8


RECORDED = sorted((REPOSITORY / "fixtures").rglob("*.xplane.pb"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parts[-3])
def test_recordings_of_this_project_give_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(*both(reader.read, path, monkeypatch))


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus_files("xplane", "*.xplane.pb.gz"), ids=lambda path: path.name)
def test_the_corpus_gives_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(*both(reader.read, path, monkeypatch))
