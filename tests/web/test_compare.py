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
from perfscope.dashboards.web.views._flame_change import flame_of
from perfscope.dashboards.web.views.compare import view_of
from perfscope.model.documents import comparison as compare_document
from perfscope.model.documents.comparison import Document, Tree, TreeNode, TreeRow, of
from tests.kept_runs import ITEM, put_run
from tests.report.comparisons import hostile, interleaved_launches, single_captures, unchanged_captures


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
    assert "ps-plot" in view["details"]


def _tree(*nodes: TreeNode) -> Tree:
    rows = (TreeRow(change="added", path=("f", "new"), nodes=2, head_ns=30, delta_ns=30),)
    return Tree(time="host", base_ns=100, head_ns=130, rows=rows, flame=nodes)


def test_a_flame_graph_is_wide_as_the_chosen_side_in_the_colours_of_the_change() -> None:
    held = flame_of(
        _tree(
            TreeNode(name="all", parent=-1, change="slower", base_ns=100, head_ns=130),
            TreeNode(name="f", parent=0, change="slower", base_calls=1, head_calls=2, base_ns=90, head_ns=98),
            TreeNode(name="gone_*", parent=0, change="removed", base_calls=1, base_ns=10),
            TreeNode(name="new", parent=1, change="added", head_calls=1, head_ns=30),
        )
    )
    assert held is not None
    head, base = held["sides"]["head"], held["sides"]["base"]
    assert (head["name"], head["ns"], head["own_ns"]) == (["all", "f", "new"], [130, 98, 30], [32, 68, 30])
    assert (base["name"], base["ns"], base["parent"]) == (["all", "f", "gone_*"], [100, 90, 10], [-1, 0, 0])
    assert [held["categories"][number] for number in head["category"]] == [
        "10% to 50% slower", "up to 10% slower", "added"
    ]  # fmt: skip
    assert head["said"][1] == ["90 ns → 98 ns, +8 ns (+8.9%)", "1 → 2 calls"]
    assert base["said"][2] == ["removed: 10 ns", "1 call"]
    assert (base["ids"][2], bool(base["ids"][1])) == ("", True)  # a name without its numbers is in no timeline
    assert held["alone"]["added"] == {"time": "30 ns", "count": 2}
    assert all(len(colors) == len(held["categories"]) for colors in held["colors"].values())


def test_where_nothing_changed() -> None:
    view = _view(of(unchanged_captures()))
    assert view["causes"] == []
    assert view["tables"]["kernels"]["rows"] == []
    assert set(_column(view, "parts", "change_ns")) == {0}


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "</script><script>x</script>", "\x1b[31m\x00"])
def test_strangers_texts_are_escaped(name: str) -> None:
    view = _view(hostile(name))
    drawn = "".join(view[key] for key in ("verdict", "metrics", "findings", "step", "details"))
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
