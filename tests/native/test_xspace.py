"""XSpaces through the native library equal the reader in Python, to the last stat."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from perfscope.analyzers.readers.xspace import reader
from tests.conftest import REPOSITORY, corpus_files
from tests.fuzz.mutate import mutated, protobuf
from tests.native.test_kineto import SEEDS
from tests.native.twins import assert_equal, both, needs_library
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


RECORDED = sorted((REPOSITORY / "fixtures").rglob("*.xplane.pb"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parts[-3])
def test_recordings_of_this_project_give_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(*both(reader.read, path, monkeypatch))


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus_files("xplane", "*.xplane.pb.gz"), ids=lambda path: path.name)
def test_the_corpus_gives_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(*both(reader.read, path, monkeypatch))
