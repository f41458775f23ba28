"""Pages that have nothing to show: why, what to record, and which pages have something of the same thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.dashboards.server.shelf import Item

_parts = pytest.importorskip("perfscope.dashboards.pages._parts")
ranks = pytest.importorskip("perfscope.dashboards.pages.ranks")

PLANNED = {"planned": "Compiled for H100 SXM and never run."}


def _asked(folder: Path, **views: dict[str, Any]) -> Any:
    from perfscope.dashboards.pages import Asked

    for name, view in views.items():
        (folder / f"{name}.json").write_text(json.dumps({"view": view}))
    item = Item(key="one", title="one", path=folder, kind="run")
    return Asked(page="flame", parameters={}, base_path="/", shelf=None, workshop=None, item=item, folder=folder)  # type: ignore[arg-type]


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
    assert "Nothing of this ran" in told[0].children
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
