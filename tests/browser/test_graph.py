"""The layout of the graph page: boxes and labels are apart, texts are inside their boxes, the frame cuts nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.conftest import Server, Tab, serving
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

FIXTURES = REPOSITORY / "fixtures"
THINGS = {
    "naive": FIXTURES / "cpu-attention-naive",
    "scan": FIXTURES / "cpu-ssm-scan",
    "program": FIXTURES / "h100-programs" / "attention-naive-scan-vocabulary-full.hlo.pb.xz",
}
PICTURES = 6
"""Pictures of each thing that are looked at, those of findings first."""
SLACK = 0.5
"""Pixels by which a text may be wider than measured: fonts are hinted."""

LAYOUT = """(() => {
  const rect = ({x, y, width, height}, text) => ({x, y, width, height, text});
  const text = (node) => {  // letters alone: the line of a text is higher
    const {x, y, width, height} = node.getBBox();
    const words = node.firstChild ? node.firstChild.textContent : '';
    return rect({x, y: y + 0.15 * height, width, height: 0.7 * height}, words);
  };
  const picture = document.querySelector('.ps-graph-picture svg');
  const all = (selector, within = picture) =>
    [...within.querySelectorAll(selector)].map(text).filter((one) => one.text);
  const [x, y, width, height] = picture.getAttribute('viewBox').split(' ').map(Number);
  return {
    frame: {x, y, width, height},
    nodes: [...picture.querySelectorAll('.ps-node')].map((node) => ({
      frame: rect(node.querySelector('rect').getBBox()), texts: all(':scope > text', node)
    })),
    titles: all('.ps-box-name'), said: all('.ps-box-said'), labels: all('.ps-edge-said'),
  };
})()"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home = tmp_path_factory.mktemp("graphs")
    with serving(home, *THINGS.values()) as server:
        keys = {name: item.key for name, item in zip(THINGS, Shelf(list(THINGS.values())).items(), strict=True)}
        yield server, keys
    shutil.rmtree(home, ignore_errors=True)


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    across = one["x"] + one["width"] <= other["x"] + SLACK or other["x"] + other["width"] <= one["x"] + SLACK
    return across or one["y"] + one["height"] <= other["y"] + SLACK or other["y"] + other["height"] <= one["y"] + SLACK


def _inside(one: dict[str, Any], frame: dict[str, Any]) -> bool:
    beyond = one["x"] + one["width"] - frame["x"] - frame["width"]
    below = one["y"] + one["height"] - frame["y"] - frame["height"]
    return max(frame["x"] - one["x"], frame["y"] - one["y"], beyond, below) <= SLACK


def _problems(found: dict[str, Any]) -> list[str]:
    nodes = [node["frame"] | {"text": node["texts"][0]["text"]} for node in found["nodes"]]
    problems = [
        f"{one['text']} and {other['text']} overlap"
        for one, other in combinations([*nodes, *found["labels"], *found["titles"], *found["said"]], 2)
        if not _apart(one, other)
    ]
    for node in found["nodes"]:
        cut = [text["text"] for text in node["texts"] if not _inside(text, node["frame"])]
        problems += [f"{text} is wider than its node" for text in cut]
        problems += [
            f"{one['text']} and {other['text']} overlap in a node"
            for one, other in combinations([text for text in node["texts"] if text["text"]], 2)
            if not _apart(one, other)
        ]
    everything = [*nodes, *found["labels"], *found["titles"], *found["said"]]
    problems += [f"{one['text']} is cut by the frame" for one in everything if not _inside(one, found["frame"])]
    return problems


@pytest.mark.parametrize("name", THINGS)
def test_boxes_are_apart_and_no_label_is_cut(tab: Tab, served: tuple[Server, dict[str, str]], name: str) -> None:
    server, keys = served
    tab.open(f"{server.base}graph?run={keys[name]}&token={server.token}", ".ps-graph-picture svg")
    pictures = min(PICTURES, int(tab.page.evaluate("document.querySelectorAll('.ps-subjects li').length")))
    assert pictures > 1
    problems = {}
    for number in range(1, pictures + 1):
        tab.open(f"{server.base}graph?run={keys[name]}&picture={number}", ".ps-graph-picture svg")
        found = tab.page.evaluate(LAYOUT)
        assert found["nodes"]
        if wrong := _problems(found):
            problems[number] = wrong
    assert problems == {}
    assert tab.wrong == []


def test_a_problem_would_be_found() -> None:
    text = {"x": 4, "y": 4, "width": 40, "height": 10, "text": "mm"}
    node = {"frame": {"x": 0, "y": 0, "width": 50, "height": 20}, "texts": [text]}
    layout = {"frame": {"x": 0, "y": 0, "width": 100, "height": 60}, "titles": [], "said": [], "labels": []}
    assert _problems(layout | {"nodes": [node]}) == []
    moved = {"frame": {"x": 30, "y": 5, "width": 50, "height": 20}, "texts": [text | {"x": 70, "text": "softmax"}]}
    assert _problems(layout | {"nodes": [node, moved]}) == ["mm and softmax overlap", "softmax is wider than its node"]
    assert _problems(layout | {"nodes": [node], "labels": [text | {"x": 80, "y": 30}]}) == ["mm is cut by the frame"]
    two = {"frame": node["frame"], "texts": [text, text | {"x": 30, "width": 15, "text": "1.2 us"}]}
    assert _problems(layout | {"nodes": [two]}) == ["mm and 1.2 us overlap in a node"]
