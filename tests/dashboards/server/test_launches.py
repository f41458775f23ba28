"""Whose timelines stand below a kept comparison: of an A/B those that it profiled, of runs and sets their own."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from perfscope.commands.compare import compare as compare_command
from perfscope.dashboards.reports import compare_document
from perfscope.dashboards.server.launches import launches_of
from perfscope.dashboards.server.shelf import Shelf
from perfscope.dashboards.server.works import Stored
from perfscope.dashboards.views.compare import view_of
from tests.commands.kept_runs import ITEM, put_run


def _titles(home: Path, document: Path, *places: Path) -> dict[str, list[str]]:
    view = view_of(compare_document.read(str(document)))
    kept = Stored(title=document.name, path=document)
    found = launches_of(kept, view["paths"], Shelf(places), sets=view["sets"])
    return {side: [one.title for one in held] for side, held in found.items()}


def test_of_a_comparison_of_two_runs_it_is_these_two(tmp_path: Path) -> None:
    runs = tmp_path / "perfscope-runs"
    runs.mkdir()
    base, head, _ = put_run(runs, 0), put_run(runs, 1, fixture=ITEM), put_run(runs, 2)
    document = tmp_path / "kept.json"
    told = CliRunner().invoke(compare_command, [str(base), str(head), "--json", str(document)])
    assert told.exit_code == 0, told.output
    assert _titles(tmp_path, document, runs, document) == {"base": [base.name], "head": [head.name]}


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
