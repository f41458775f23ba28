"""Candidates for a comparison on the first page: a run of the same program, a file of its kind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perfscope.dashboards.web.server.shelf import Item, Kind
from perfscope.model.documents.run_folders import tag
from tests.kept_runs import put_run

overview = pytest.importorskip("perfscope.dashboards.web.pages.overview")
alike = pytest.importorskip("perfscope.dashboards.web.pages._alike").alike


def _item(path: Path, kind: Kind = "run", inside: str = "") -> Item:
    path.mkdir()
    if inside:
        (path / inside).mkdir()
    return Item(key=path.name, title=path.name, path=path, kind=kind)


class _Shelf:
    def __init__(self, *items: Item) -> None:
        self._items = items

    def items(self) -> tuple[Item, ...]:
        return self._items


def _offered(item: Item, *others: Item) -> str | None:
    from perfscope.dashboards.web.pages import PageRequest

    held = PageRequest(
        page="overview",
        parameters={},
        base_path="/",
        shelf=_Shelf(item, *others),
        workshop=None,
        item=item,  # type: ignore[arg-type]
    )
    return next(iter(re.findall(r"base=([^&']+)&", str(overview._compare(held)))), None)


def test_a_run_of_the_same_name_comes_first(tmp_path: Path) -> None:
    mine = _item(tmp_path / "20260103-000000-train-0003")
    other, alike = _item(tmp_path / "20260102-000000-serve-0002"), _item(tmp_path / "20260101-000000-train-0001")
    assert _offered(mine, other, alike) == alike.key
    assert _offered(mine, other) is None


def test_runs_of_the_same_script_are_offered_tagged_ones_first_and_empty_ones_not(tmp_path: Path) -> None:
    scripts = ("train.py", "train.py", "train.py", "serve.py", "train.py")
    runs = [
        put_run(tmp_path, number, script=script, **({"processes": []} if number == 1 else {}))
        for number, script in enumerate(scripts)
    ]
    for file in runs[1].glob("rank*/process.json"):
        file.unlink()  # it recorded nothing
    tag(tmp_path, runs[0].name, "main")
    items = [Item(key=run.name, title=run.name, path=run, kind="run") for run in reversed(runs)]
    assert [each.key for each in alike(items, items[0])] == [runs[0].name, runs[2].name]
    assert [each.key for each in alike(items, items[2])] == [runs[0].name, runs[4].name]


def test_a_run_that_failed_says_how_and_one_that_goes_on_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfscope.dashboards.web.pages import _live

    def words(number: int, **manifest: Any) -> str:
        run = put_run(tmp_path, number, step_ns=2_000_000, **manifest)
        item = Item(key=run.name, title=run.name, path=run, kind="run")
        return str(_live.running(item))

    assert words(0) == "[]"
    failed = words(1, exit_code=1, error="RuntimeError: mat1 and mat2")
    assert re.search(r"The program failed .*exit code 1 after \d+ steps: RuntimeError: mat1 and mat2", failed)
    monkeypatch.setattr(Item, "running", lambda _: True)
    now = words(2)
    for text in ("2.00 ms", "per step, median of the last 4", "steps", "since the start"):
        assert text in now
    assert "resident" not in now, "an older recording has no memory"


def test_what_is_of_another_kind_is_not_offered(tmp_path: Path) -> None:
    run = _item(tmp_path / "20260103-000000-train-0003")
    program = _item(tmp_path / "20260102-000000-train-0002", inside="programs")
    plan = _item(tmp_path / "20260102-000000-train-0004", inside="plans")
    assert _offered(run, program, plan) is None
    assert _offered(plan, program, run) is None


@pytest.mark.parametrize(("other", "offered"), [("b.json", True), ("b.pickle.gz", False)])
def test_a_trace_is_not_compared_with_a_snapshot(other: str, offered: bool) -> None:
    files = [Item(key=name, title=name, path=Path(name), kind="file") for name in ("a.json.gz", other)]
    assert (_offered(*files) is not None) is offered


_parts = pytest.importorskip("perfscope.dashboards.web.pages._parts")
ranks = pytest.importorskip("perfscope.dashboards.web.pages.ranks")

PLANNED = {"planned": "Compiled for H100 SXM and never run."}


def _asked(folder: Path, **views: dict[str, Any]) -> Any:
    from perfscope.dashboards.web.pages import PageRequest

    for name, view in views.items():
        (folder / f"{name}.json").write_text(json.dumps({"view": view}))
    item = Item(key="one", title="one", path=folder, kind="run")
    return PageRequest(page="flame", parameters={}, base_path="/", shelf=None, workshop=None, item=item, folder=folder)  # type: ignore[arg-type]


def _links(parts: Any) -> list[str]:
    if isinstance(parts, list | tuple):
        return [link for part in parts for link in _links(part)]
    mine = [str(parts.href).partition("?")[0]] if hasattr(parts, "href") else []
    return mine + (_links(parts.children) if hasattr(parts, "children") else [])


def test_it_names_the_pages_that_have_something(tmp_path: Path) -> None:
    asked = _asked(tmp_path, overview={}, compile={"html": ""}, memory={"memories": [{}], "html": ""}, graph={})
    told = _parts.nothing(asked, "No stacks were recorded.")
    assert told[0].children == "No stacks were recorded."
    assert _links(told) == ["/memory"]


def test_of_what_never_ran_nothing_is_to_be_recorded(tmp_path: Path) -> None:
    asked = _asked(
        tmp_path, overview=PLANNED, compile={"html": "<p>"}, memory={"planned": "<p>"}, graph={"subjects": []}
    )
    told = _parts.nothing(asked, "No stacks were recorded.")
    assert "This was never run" in told[0].children
    assert _links(told) == ["/compile", "/memory"]


def test_a_page_that_is_still_being_made_is_offered(tmp_path: Path) -> None:
    assert _links(_parts.nothing(_asked(tmp_path, overview={}), "Nothing.")) == ["/compile", "/memory", "/graph"]


def test_nothing_at_all_offers_nothing(tmp_path: Path) -> None:
    asked = _asked(tmp_path, overview={}, compile={}, memory={}, graph={})
    assert len(_parts.nothing(asked, "Nothing.")) == 1


@pytest.mark.parametrize(
    ("overview", "jax", "word"), [({}, False, "torchrun"), ({}, True, "jax.distributed"), (PLANNED, True, "modelled")]
)
def test_one_process_is_told_what_its_framework_does(
    tmp_path: Path, overview: dict[str, Any], jax: bool, word: str
) -> None:
    empty = {"jobs": [], "busy": None, "html": "", "tables": {}, "jax": jax}
    said = ranks.layout(_asked(tmp_path, overview=overview), empty)[1].children
    words = said if isinstance(said, str) else said[0]
    assert word in words
    assert ("torchrun" in words) == (word == "torchrun")


def test_a_trace_has_a_row_of_its_own() -> None:
    """Step time, findings and device of a trace under the keys of a run; without steps or devices they are absent."""
    from perfscope.analyzers.engine import analyze
    from perfscope.dashboards.report import json_report
    from perfscope.dashboards.web.views.listed import listed_row
    from tests.build import TraceBuilder
    from tests.web.test_views import rank

    analysis = analyze([rank(0), rank(1)])
    row = listed_row(analysis, json_report.document(analysis))
    assert row["step_ns"] is not None
    assert row["devices"] == ["NVIDIA H100 80GB HBM3"] * 2
    assert (row["ranks"], row["steps"]) == (2, 2)
    assert row["findings"] == sum(len(outcome.findings) for outcome in analysis.outcomes)
    assert row["worst_finding"] is None or row["worst_finding"]["rule"]
    empty = analyze([TraceBuilder(rank=None).build()])
    row = listed_row(empty, json_report.document(empty))
    assert (row["step_ns"], row["devices"], row["steps"], row["ranks"]) == (None, [], None, None)
