"""Plans of PyTorch programs in reports: what layers that are alike say is said once, with how often."""

from __future__ import annotations

import re

import pytest

from perfscope.analyzers.load import load
from perfscope.analyzers.plan_section import plan_section
from perfscope.dashboards.reports.plan_rows import plan_views
from tests.conftest import REPOSITORY

RECORDED = REPOSITORY / "fixtures" / "plans-h100"
TIMES = re.compile(r"(?: \((\d+) times\))?$")


@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir()))
def test_what_inductor_left_apart_is_said_once_and_counted(name: str) -> None:
    section = plan_section(load(RECORDED / name))
    (plan,), (view,) = section.plans, plan_views(section)
    said = [TIMES.sub("", sentence) for sentence in view.apart]
    assert len(set(said)) == len(said)
    assert sum(int(found.group(1) or 1) for found in map(TIMES.search, view.apart) if found) == len(plan.apart)
