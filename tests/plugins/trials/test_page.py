"""The page of tries: documents that lie in what is open, the picture of the rungs, the code to write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.plugins.trials import page as tries
from perfscope.plugins.trials.document import Try, dump
from tests.plugins.trials.launches import attempt, document, left, rejected

pytest.importorskip("dash")


def asked(*places: Path, **parameters: str) -> PageRequest:
    workshop = cast(Workshop, None)  # items are requested, but there are none
    return PageRequest(page="tries", parameters=parameters, base_path="/", shelf=Shelf(places), workshop=workshop)


def shown(request: PageRequest) -> str:
    return json.dumps(tries.layout(request, None), default=lambda part: part.to_plotly_json())


def write(folder: Path, made: Try) -> Path:
    folder.mkdir()
    (folder / "try.json").write_bytes(dump(made))
    return folder / "try.json"


def test_rungs_are_bars_and_the_code_stands_below(tmp_path: Path) -> None:
    climbed = attempt("workers", 0.5), attempt("fused", 0.9)
    made = document(*climbed, together=attempt("together", 0.4), ladder=True)
    write(tmp_path / "try-1", made)
    bars = tries._bars(made)
    assert [bar.name for bar in bars] == ["the unchanged program", "+ workers", "+ fused", "together, measured"]
    assert [bar.remaining for bar in bars] == pytest.approx([1, 0.5, 0.45, 0.4], abs=0.01)
    page = shown(asked(tmp_path))
    assert "workers = True" in page
    assert "\\u2588" not in page, "the bars of the terminal"


def test_without_a_ladder_each_has_its_interval() -> None:
    bars = tries._bars(document(attempt("fused", 0.8), attempt("gc-off", 1.0), rejected("bf16")))
    assert [(bar.name, round(bar.remaining, 2)) for bar in bars] == [("fused", 0.8), ("gc-off", 1.0)]
    assert all(0 < bar.less < 0.05 for bar in bars)
    assert len({bar.tone for bar in bars}) == 2
    assert "pairs of launches" in bars[0].said[1]
    assert tries._bars(document(left("pin-memory", "no GPU"))) == []


def test_the_newest_is_shown_unless_another_is_asked_for(tmp_path: Path) -> None:
    older = write(tmp_path / "try-1", document(attempt("older", 0.5)))
    write(tmp_path / "try-2", document(attempt("newer", 0.5)))
    os.utime(older, (1, 1))
    assert "newer = True" in shown(asked(tmp_path))
    key = tries._key(older)
    assert "older = True" in shown(asked(tmp_path, **{"try": key}))
    assert "newer = True" in shown(asked(tmp_path, **{"try": "../../etc"}))
    assert tries.mark(asked(tmp_path)).count("try-") == 2
    alone = asked(older)
    assert "older = True" in shown(alone)
    assert alone.shelf.items() == (), "it is no trace to be read"


def test_what_is_not_there_or_damaged_is_a_sentence(tmp_path: Path) -> None:
    assert "perfscope try train.py" in shown(asked(tmp_path))
    file = write(tmp_path / "try-1", document(attempt("fused", 0.5)))
    file.write_bytes(file.read_bytes().replace(b'"gain"', b'"won"'))
    assert "try.json" in shown(asked(tmp_path))
    assert "fused = True" not in shown(asked(tmp_path))


def test_texts_of_a_document_are_no_markup(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    made = document(attempt(hostile, 0.5))
    write(tmp_path / "try-1", made)
    assert [bar.name for bar in tries._bars(made)] == [hostile]  # dash shows it as text
    assert f'"html": "{hostile}' not in shown(asked(tmp_path))
    assert "<td><img" not in shown(asked(tmp_path))
