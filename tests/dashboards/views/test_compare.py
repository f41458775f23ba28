"""The data of the page of a comparison: its parts sum to the change, its names are those of the traces."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from perfscope.dashboards.reports.compare_document import Document, of
from perfscope.dashboards.views.compare import view_of
from tests.dashboards.compared import hostile, in_turns, same, single


def _view(document: Document) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(json.dumps(view_of(document), allow_nan=False))
    return held


def _column(view: dict[str, Any], table: str, key: str) -> list[Any]:
    held = view["tables"][table]
    at = [column["key"] for column in held["columns"]].index(key)
    return [row[at] for row in held["rows"]]


def test_parts_sum_to_the_change_of_the_step() -> None:
    document = of(single())
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


def test_a_place_names_what_to_look_for_on_its_side() -> None:
    view = _view(of(single()))
    first = view["causes"][0]
    assert "train.py:11" in first["html"]
    assert first["head"] == ["aten::item"]
    assert first["base"] == []


def test_kernels_keep_their_significance() -> None:
    view = _view(of(in_turns()))
    assert _column(view, "kernels", "q") == [0.002, 0.7, None]
    assert _column(view, "kernels", "verdict") == ["slower", "no change", "new"]
    assert "ps-launches" in view["after"]


def test_where_nothing_changed() -> None:
    view = _view(of(same()))
    assert view["causes"] == []
    assert view["tables"]["kernels"]["rows"] == []
    assert set(_column(view, "parts", "change_ns")) == {0}


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "</script><script>x</script>", "\x1b[31m\x00"])
def test_strangers_texts_are_escaped(name: str) -> None:
    view = _view(hostile(name))
    drawn = "".join(view[key] for key in ("before", "metrics", "findings", "step", "after"))
    drawn += "".join(one["html"] for one in view["causes"])
    assert not re.search(r"<(img|script)", drawn)
    assert "\x1b" not in json.dumps(view, ensure_ascii=False)
