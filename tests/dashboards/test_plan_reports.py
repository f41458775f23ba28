"""Plans of PyTorch programs in reports: what layers that are alike say is said once, with how often."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.plan_section import plan_section
from perfscope.analyzers.readers.load import load
from perfscope.dashboards.reports.html_page import page
from perfscope.dashboards.reports.html_plan import plan_card
from perfscope.dashboards.reports.plan_rows import plan_views
from perfscope.model.torch_plan import Registers
from tests.conftest import REPOSITORY
from tests.dashboards.chromium import binary, browser

RECORDED = REPOSITORY / "fixtures" / "plans-h100"
TIMES = re.compile(r"(?: \((\d+) times\))?$")


@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir()))
def test_what_inductor_left_apart_is_said_once_and_counted(name: str) -> None:
    section = plan_section(load(RECORDED / name))
    (plan,), (view,) = section.plans, plan_views(section)
    said = [TIMES.sub("", sentence) for sentence in view.apart]
    assert len(set(said)) == len(said)
    assert sum(int(found.group(1) or 1) for found in map(TIMES.search, view.apart) if found) == len(plan.apart)


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_tables_of_a_plan_never_scroll_sideways(tmp_path: Path, width: int) -> None:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    kernels = tuple(
        replace(kernel, registers=Registers(capability="sm_90a", blocks="XBLOCK=1024, num_warps=4", registers=40))
        for kernel in plan_section(load(RECORDED / "moe-loop")).plans[0].kernels
    )
    section = plan_section(load(RECORDED / "moe-loop"))
    (view,) = plan_views(replace(section, plans=(replace(section.plans[0], kernels=kernels),)))
    assert dict(view.kernels[0])["registers"] == "40"
    file = tmp_path / "plan.html"
    file.write_text(page([plan_card(view)], title="plan", data_id="plan", data="{}"))
    with browser(tmp_path / "profile") as opened:
        opened.open(file, width=width)
        assert opened.value("document.querySelectorAll('.scroll').length") > 4
        wider = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
        assert opened.value(wider) == 0


def test_columns_that_nothing_fills_are_not_drawn() -> None:
    (view,) = plan_views(plan_section(load(RECORDED / "moe-loop")))
    assert dict(view.kernels[0])["registers"] == ""
    assert "registers" not in plan_card(view)
