"""What the first page offers to compare a thing with: another of its kind, a run of its name before all."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.dashboards.server.shelf import Item, Kind

overview = pytest.importorskip("perfscope.dashboards.pages.overview")


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
    from perfscope.dashboards.pages import Asked

    held = Asked(page="overview", parameters={}, base_path="/", shelf=_Shelf(item, *others), workshop=None, item=item)  # type: ignore[arg-type]
    link = overview._compare(held)
    return str(link.href).partition("base=")[2].partition("&")[0] or None if hasattr(link, "href") else None


def test_a_run_of_the_same_name_comes_first(tmp_path: Path) -> None:
    mine = _item(tmp_path / "20260103-000000-train-0003")
    other, alike = _item(tmp_path / "20260102-000000-serve-0002"), _item(tmp_path / "20260101-000000-train-0001")
    assert _offered(mine, other, alike) == alike.key
    assert _offered(mine, other) == other.key


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
