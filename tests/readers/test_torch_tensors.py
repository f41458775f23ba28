"""Reading the list of what a program held: what was written comes back, and nothing else gets in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.run.memory import CATEGORY, TensorListings, read_tensors
from perfscope.model.trace import Trace, TraceBuilder
from perfscope.model.trace.tables import MemoryCategory
from perfscope.profiler.torch import tensors
from perfscope.profiler.torch.tensors import StorageListing, StorageRecord, _document
from tests.readers.refusals import refused


def document() -> dict[str, Any]:
    held = [
        StorageRecord("up.weight", "Net.up", "parameter", "cuda:1", 1 << 47, 4096),
        StorageRecord("mean", "Net", "buffer", "cpu", 64, 512),
        StorageRecord(
            "gradient of up.weight", "Net.up", "gradient", "cuda:1", 128, 256, freed_ns=1_795_000_000_000_000_000
        ),
        StorageRecord("momentum of alien", None, "optimizer_state", "cuda:1", 192, 128),
    ]
    listing = StorageListing(held=held, rest={("parameter", "cuda:1"): [70, 7]}, unreadable=2)
    first = StorageListing(held=held[:1])
    loaded: dict[str, Any] = json.loads(json.dumps(_document({"timing": (3, first), "detail": (6, listing)})))
    return loaded


def written(path: Path, content: dict[str, Any]) -> Path:
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def attached(listings: TensorListings, pass_name: str) -> Trace:
    builder = TraceBuilder()
    listings.attach(builder, pass_name)
    return builder.build()


def test_the_detail_pass_gets_its_own(tmp_path: Path) -> None:
    listings = read_tensors(written(tmp_path / "tensors.json.gz", document()))
    trace = attached(listings, "detail")
    rows = trace.rows["tensors"]
    assert "tensors" in trace.recorded
    assert [trace.text(code) for code in rows["name"]] == [
        "up.weight",
        "mean",
        "gradient of up.weight",
        "momentum of alien",
        "7 smaller ones",
    ]
    assert [trace.text(code) for code in rows["module"]] == ["Net.up", "Net", "Net.up", "", ""]
    assert rows["category"].tolist() == [
        MemoryCategory.PARAMETER,
        MemoryCategory.PARAMETER,
        MemoryCategory.GRADIENT,
        MemoryCategory.OPTIMIZER_STATE,
        MemoryCategory.PARAMETER,
    ]
    assert rows["on_device"].tolist() == [True, False, True, True, True]
    assert rows["ordinal"].tolist() == [1, -1, 1, 1, 1]
    assert rows["address"].tolist() == [1 << 47, 64, 128, 192, 0]
    assert rows["bytes"].tolist() == [4096, 512, 256, 128, 70]
    assert rows["count"].tolist() == [1, 1, 1, 1, 7]
    assert rows["freed_ns"].tolist() == [-1, -1, 1_795_000_000_000_000_000, -1, -1]
    assert listings.notes() == ["2 tensors of the program have no storage that could be listed"]


def test_a_pass_without_its_own_gets_the_first_and_no_times_of_another(tmp_path: Path) -> None:
    content = document()
    content["listings"] = content["listings"][1:]
    trace = attached(read_tensors(written(tmp_path / "tensors.json.gz", content)), "timing")
    assert trace.rows["tensors"]["freed_ns"].tolist() == [-1] * 5


def test_no_listing_is_nothing_recorded(tmp_path: Path) -> None:
    trace = attached(read_tensors(written(tmp_path / "x.gz", {**document(), "listings": []})), "timing")
    assert "tensors" not in trace.recorded


def test_both_sides_have_the_same_words() -> None:
    assert set(CATEGORY) == set(tensors.CATEGORIES)
    assert document()["schema"] == tensors.TENSORS_SCHEMA


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": [0]}, "different length"),
        ({"module": [99, None, None, None]}, "a missing text"),
        ({"bytes": [1 << 70, 1, 1, 1]}, ""),
        ({"bytes": [-1, 1, 1, 1]}, ">= 0"),
        ({"bytes": [1 << 61, 1 << 61, 1, 1]}, "an impossible number of bytes"),
        ({"address": [1 << 65, 1, 1, 1]}, ""),
        ({"freed_ns": [1 << 62, None, None, None]}, "an impossible number of bytes"),
    ],
)
def test_what_cannot_be(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    content = document()
    content["listings"][1] |= changed
    assert reason in refused(read_tensors, written(tmp_path / "bad.gz", content))


def test_an_unknown_category_is_unknown(tmp_path: Path) -> None:
    content = document()
    content["strings"][content["listings"][1]["category"][0]] = "cache"
    trace = attached(read_tensors(written(tmp_path / "x.gz", content)), "detail")
    assert trace.rows["tensors"]["category"][0] == MemoryCategory.UNKNOWN


def test_another_schema_is_refused(tmp_path: Path) -> None:
    assert "perfscope.tensors/2" in refused(
        read_tensors, written(tmp_path / "x.gz", {**document(), "schema": "perfscope.tensors/2"})
    )
    refused(read_tensors, tmp_path / "absent.gz")
