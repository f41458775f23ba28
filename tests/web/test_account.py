"""The account of every step as a picture, with links; which pages have nothing, and what is advised instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analyzers.time import StepAccount
from perfscope.dashboards.figures.steps import MOST_STEP_BARS, step_account
from perfscope.dashboards.web.views.empty import empty_pages
from perfscope.model.trace import MISSING
from tests.build import TraceBuilder
from tests.web.views import view_of

pytest.importorskip("plotly")

KEYS = ("rank", "device", "ordinal", "name", "numbers", "causes_ns")


def _trace(rank: int = 0) -> TraceBuilder:
    made = TraceBuilder(rank=rank)
    for number in (1, 2):
        made.step(number, 100 * number, 100 * number + 100)
        made.op("aten::mm", 100 * number + 5, 100 * number + 20)
        made.launched("sgemm", 100 * number + 6, 100 * number + 10, 100 * number + 60, correlation=number)
    return made


def _accounts(view: dict) -> list[StepAccount]:
    return [StepAccount(**{key: item[key] for key in KEYS}) for item in view["accounts"]]


def test_bars_sum_to_each_step_and_lead_to_it(tmp_path: Path) -> None:
    view = view_of("overview", [_trace().build()], tmp_path)
    (account,) = view["accounts"]
    assert account["spans"] == ["0:100000-200000", "0:200000-300000"]
    links = [[f"/timeline?mark={span}" for span in account["spans"]]]
    figure = step_account(_accounts(view), links)
    for index in range(2):
        assert sum(bar.y[index] for bar in figure.data) == pytest.approx(0.1)  # ms
    assert all(list(bar.customdata) == links[0] for bar in figure.data)
    assert next(bar for bar in figure.data if bar.name.startswith("compute")).y[0] == pytest.approx(0.05)


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    view = view_of("overview", [_trace(rank).build() for rank in range(2)], tmp_path)
    figure = step_account(_accounts(view))
    assert [list(level) for level in figure.data[0].x] == [
        ["rank 0", "rank 0", "rank 1", "rank 1"],
        ["step 1", "step 2", "step 1", "step 2"],
    ]


def test_many_steps_of_several_devices_are_means() -> None:
    count = MOST_STEP_BARS
    accounts = [
        StepAccount(
            rank=rank, device=MISSING, ordinal=MISSING, name="host", numbers=tuple(range(count)),
            causes_ns={"compute": (10**6,) * (count - 1) + (3 * 10**6 + 10**6 * (count - 1),)},
        )
        for rank in range(2)
    ]  # fmt: skip
    figure = step_account(accounts)
    assert list(figure.data[0].x) == ["rank 0", "rank 1"]
    assert list(figure.data[0].y) == pytest.approx([(2 * (count - 1) + 3) / count] * 2)


def test_what_binds_a_step_links_to_its_events(tmp_path: Path) -> None:
    view = view_of("overview", [_trace().build()], tmp_path / "overview")
    view_of("timeline", [_trace().build()], tmp_path / "timeline")
    names = json.loads((tmp_path / "timeline" / "0" / "names.json").read_bytes())
    known = {row[4] for row in names}
    linked = [row for row in view["path"]["rows"] if row["id"]]
    assert "sgemm" in {row["name"] for row in linked}
    assert all(set(row["id"].split(",")) <= known for row in linked)


def test_pages_without_content_are_known_with_a_reason(tmp_path: Path) -> None:
    traces = [_trace().build()]
    names = ("timeline", "kernels", "flame", "roofline", "memory", "ranks", "graph", "compile")
    views = {name: view_of(name, traces, tmp_path / name) for name in names}
    empty = empty_pages(views)
    assert set(empty) == {"roofline", "memory", "graph", "compile"}
    assert all(empty.values())
