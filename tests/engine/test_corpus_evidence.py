"""Over the whole corpus: a rule that is clean says how many records it looked at, and of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import PerfscopeError

LARGEST = 15_000_000
"""Bytes of a file: larger ones say nothing else and take minutes."""


@pytest.mark.corpus
@pytest.mark.slow
def test_every_clean_outcome_has_its_evidence(corpus: Path) -> None:
    without, clean = [], 0
    for file in sorted(path for path in corpus.rglob("*") if path.is_file() and path.stat().st_size <= LARGEST):
        try:
            traces = load_all(file)
        except PerfscopeError:
            continue
        outcomes = [outcome for outcome in analyze(traces).outcomes if outcome.status == "clean"]
        clean += len(outcomes)
        without += [(file.name, one.rule) for one in outcomes if one.examined <= 0 or not one.examined_what]
    assert clean
    assert without == []
