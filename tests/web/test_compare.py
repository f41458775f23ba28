"""The data of the page of a comparison: its parts sum to the change, its names are those of the traces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.commands.compare import compare as compare_command
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.works import Stored, launches_of
from perfscope.dashboards.web.views.compare import view_of
from perfscope.model.documents import comparison as compare_document
from perfscope.model.documents.comparison import Document, of
from tests.report.comparisons import hostile, interleaved_launches, single_captures, unchanged_captures
from tests.store.kept_runs import ITEM, put_run


def _view(document: Document) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(json.dumps(view_of(document), allow_nan=False))
    return held


def _column(view: dict[str, Any], table: str, key: str) -> list[Any]:
    held = view["tables"][table]
    at = [column["key"] for column in held["columns"]].index(key)
    return [row[at] for row in held["rows"]]


def test_parts_sum_to_the_change_of_the_step() -> None:
    document = of(single_captures())
    view = _view(document)
    assert document.step is not None
    assert document.step.other_parts.count == 0
    assert sum(_column(view, "parts", "change_ns")) == document.step.delta_ns
    assert sum(_column(view, "parts", "base_ns")) == document.step.base_ns
    assert sum(_column(view, "parts", "head_ns")) == document.step.head_ns
    for change, count, each in zip(
        *(_column(view, "parts", key) for key in ("change_ns", "count_ns", "each_ns")), strict=True
    ):
        assert change == count + each


def test_kernels_keep_their_significance() -> None:
    view = _view(of(interleaved_launches()))
    assert _column(view, "kernels", "q") == [0.002, 0.7, None]
    assert _column(view, "kernels", "verdict") == ["slower", "no change", "new"]
    assert "ps-launches" in view["after"]


def test_where_nothing_changed() -> None:
    view = _view(of(unchanged_captures()))
    assert view["causes"] == []
    assert view["tables"]["kernels"]["rows"] == []
    assert set(_column(view, "parts", "change_ns")) == {0}


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "</script><script>x</script>", "\x1b[31m\x00"])
def test_strangers_texts_are_escaped(name: str) -> None:
    view = _view(hostile(name))
    drawn = "".join(view[key] for key in ("before", "findings", "step", "after"))
    drawn += "".join(one["html"] for one in view["causes"])
    assert not re.search(r"<(img|script)", drawn)
    assert "\x1b" not in json.dumps(view, ensure_ascii=False)


def _titles(home: Path, document: Path, *places: Path) -> dict[str, list[str]]:
    view = view_of(compare_document.read(str(document)))
    kept = Stored(title=document.name, path=document)
    found = launches_of(kept, view["paths"], Shelf(places), sets=view["sets"])
    return {side: [one.title for one in held] for side, held in found.items()}


@pytest.mark.slow
def test_of_sets_any_launch_of_a_side_can_be_chosen(tmp_path: Path) -> None:
    sides = {side: tmp_path / side for side in ("base", "head")}
    made: dict[str, list[str]] = {}
    for place, (side, folder) in enumerate(sides.items()):
        folder.mkdir()
        made[side] = [put_run(folder, 2 * number + place, step_ns=1_000_000 + number).name for number in range(3)]
    document = tmp_path / "kept.json"
    told = CliRunner().invoke(compare_command, [*map(str, sides.values()), "--json", str(document)])
    assert told.exit_code == 0, told.output
    assert _titles(tmp_path, document, *sides.values(), document) == made


@pytest.mark.slow
def test_runs_that_are_not_open_here_are_not_offered(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "perfscope-runs", tmp_path / "elsewhere"
    runs.mkdir()
    elsewhere.mkdir()
    base, head = put_run(runs, 0), put_run(runs, 1, fixture=ITEM)
    document = elsewhere / "kept.json"
    assert CliRunner().invoke(compare_command, [str(base), str(head), "--json", str(document)]).exit_code == 0
    assert _titles(tmp_path, document, document) == {"base": [], "head": []}


def test_a_link_out_of_what_is_served_leads_nowhere(tmp_path: Path) -> None:
    runs, outside = tmp_path / "perfscope-runs", tmp_path / "outside"
    (runs / "ab-1").mkdir(parents=True)
    (outside / "profiled").mkdir(parents=True)
    put_run(outside / "profiled", 0).rename(outside / "profiled" / "20260101-000000-base-1-0000")
    (runs / "ab-1" / "profiled").symlink_to(outside / "profiled")
    assert Shelf([runs]).profiled(runs / "ab-1") == ()
