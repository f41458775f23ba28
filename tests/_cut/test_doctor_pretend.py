"""``perfscope doctor`` on the pretended device: said of the version of torch, nothing is tried."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfscope.commands.doctor import PRETENCE, Check, target_checks
from perfscope.profiler.ahead.targets import plugins


def said(monkeypatch: pytest.MonkeyPatch, version: str | None, platform: str = "linux") -> list[Check]:
    """The line with that torch on that system; none where torch or triton is absent."""
    monkeypatch.setattr(sys, "platform", platform)

    def find(kind: plugins.Kind) -> plugins.Plugin | plugins.MissingPlugin:
        if kind != "torch" or version is None:
            return plugins.MissingPlugin(kind=kind, reason="not here", install=None)
        versions = {"torch": version, "triton": "3.7.0"}
        return plugins.Plugin(kind=kind, versions=versions, folder=Path("triton"), own_folder=True)

    monkeypatch.setattr(plugins, "find", find)
    return [check for check in target_checks() if check.name == PRETENCE]


@pytest.mark.parametrize(
    ("version", "platform", "status", "text"),
    [
        ("2.13.0+cpu", "linux", "ok", "each run tries it in a process of its own first"),
        ("2.14.1+cpu", "linux", "absent", "it was tried with torch 2.13, not with 2.14.1"),
        ("2.13.0", "linux", "absent", "is built for a GPU"),
        ("2.13.0", "darwin", "absent", "not for darwin"),
    ],
)
def test_one_line_says_whether_it_may_be_tried(
    monkeypatch: pytest.MonkeyPatch, version: str, platform: str, status: str, text: str
) -> None:
    (check,) = said(monkeypatch, version, platform)
    assert check.status == status
    assert text in check.text


def test_without_a_planner_there_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, None) == []
