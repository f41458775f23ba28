"""Reading the op graph: what was written comes back, and nothing else gets in."""

from __future__ import annotations

import contextlib
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.errors import DataError
from perfscope.model.op_flops import CONVOLUTIONS, FORMULAS, PRODUCTS
from perfscope.model.op_graph import GraphOp, GraphStorage, GraphTensor, OpGraph, taken_over
from perfscope.profiler.torch.op_graph.capture import OpTable
from tests.graphs import GraphBuilder
from tests.readers.refusals import refused


def table() -> OpTable:
    graph = OpTable(step=7, limit=100)
    x = graph.tensor(storage=0, shape=(2, 3), place=((3, 1), 0), dtype="float32", device="cuda", size=24)
    y = graph.tensor(storage=1, shape=(), place=((), 0), dtype="int64", device="cpu", size=8)
    rest: dict[str, Any] = {"pointwise": True, "reduction": False, "view": False, "recompute": False}
    graph.append(
        name="aten.add_.Tensor",
        phase="forward",
        inputs=[x, x],
        outputs=[],
        mutated=[x],
        flops=None,
        module="Net.a",
        line=("net.py", 3, "f"),
        sequence=5,
        host_read=None,
        **rest,
    )
    for device in ("cuda", "cpu"):
        graph.append(
            name="aten._local_scalar_dense.default",
            phase="other",
            inputs=[y],
            outputs=[],
            mutated=[],
            flops=0,
            module="",
            line=(None, None, None),
            sequence=None,
            host_read=("item", device),
            **rest,
        )
    graph.add_parameter(0)
    graph.close([0, 1], {"bytes": [32, 8], "born": [None, 1], "died": [None, 3]})
    return graph


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    table().save(tmp_path / "graph.json")
    loaded: dict[str, Any] = json.loads((tmp_path / "graph.json").read_text())
    return loaded


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_what_was_written_comes_back(tmp_path: Path, name: str) -> None:
    table().save(tmp_path / name)
    graph = read_op_graph(tmp_path / name)
    assert (graph.step, graph.device, graph.truncated) == (7, "cuda", False)
    assert graph.live_out == {0, 1}
    assert graph.parameters == {0}
    assert graph.tensors[0] == GraphTensor(storage=0, shape=(2, 3), dtype="float32", device="cuda", bytes=24)
    assert graph.ops[0] == GraphOp(
        index=0,
        name="aten.add_.Tensor",
        phase="forward",
        inputs=(0, 0),
        outputs=(),
        mutated=(0,),
        pointwise=True,
        reduction=False,
        view=False,
        flops=None,
        module="Net.a",
        file="net.py",
        line=3,
        function="f",
        sequence=5,
    )
    assert (graph.ops[1].flops, graph.ops[1].file, graph.ops[1].module) == (0, None, "")
    assert graph.storages == (
        GraphStorage(bytes=32, born=None, died=None),
        GraphStorage(bytes=8, born=1, died=3),
    )


def test_an_older_recording_does_not_say_what_was_freed(tmp_path: Path, document: dict[str, Any]) -> None:
    del document["storages"]
    (tmp_path / "graph.json").write_text(json.dumps(document))
    assert read_op_graph(tmp_path / "graph.json").storages is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"born": [None]}, "different length"),
        ({"bytes": [32], "born": [None], "died": [None]}, "no such storage: 1"),
        ({"died": [None, 1]}, "storage 1: freed before op 1, made by op 1, of 3 ops"),
        ({"died": [None, 4]}, "storage 1: freed before op 4"),
        ({"born": [9, 1]}, "storage 0: "),
        ({"bytes": [-1, 8]}, ">= 0"),
    ],
)
def test_storages_that_cannot_be(tmp_path: Path, document: dict[str, Any], changed: Any, reason: str) -> None:
    document["storages"] |= changed
    assert reason in refused(read_op_graph, tmp_path / "bad.json", json.dumps(document).encode())


def test_with_an_accelerator_what_lies_on_the_host_is_free_to_read(tmp_path: Path) -> None:
    table().save(tmp_path / "graph.json")
    assert [op.host_read for op in read_op_graph(tmp_path / "graph.json").ops] == [None, "item", None]


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        table().save(tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_the_call_of_a_checkpoint_comes_back_and_older_recordings_have_none(tmp_path: Path) -> None:
    graph = OpTable(step=0, limit=10)
    rest: dict[str, Any] = {"pointwise": True, "reduction": False, "view": False, "recompute": True}
    for checkpoint in (("train.py", 41), None):
        graph.append(
            name="aten.add.Tensor", phase="backward", inputs=[], outputs=[], mutated=[], flops=0, module="",
            line=("net.py", 3, "f"), sequence=5, host_read=None, checkpoint=checkpoint, **rest,
        )  # fmt: skip
    graph.close([], {"bytes": [], "born": [], "died": []})
    graph.save(tmp_path / "graph.json")
    assert [op.checkpoint for op in read_op_graph(tmp_path / "graph.json").ops] == [("train.py", 41), None]
    older = json.loads((tmp_path / "graph.json").read_text())
    del (
        older["ops"]["checkpoint_file"],
        older["ops"]["checkpoint_line"],
        older["ops"]["loop_file"],
        older["ops"]["loop_line"],
    )
    (tmp_path / "graph.json").write_text(json.dumps(older))
    assert [op.checkpoint for op in read_op_graph(tmp_path / "graph.json").ops] == [None, None]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere(tmp_path: Path, data: Any) -> None:
    for name in ("graph.json", "graph.json.gz"):
        table().save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        refused(read_op_graph, tmp_path / f"cut.{name}", whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_flipped_byte_is_read_or_refused_never_raised(tmp_path: Path, data: Any) -> None:
    table().save(tmp_path / "graph.json.gz")
    whole = bytearray((tmp_path / "graph.json.gz").read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "graph.json.gz").write_bytes(whole)
    with contextlib.suppress(DataError):  # any other exception fails the test
        read_op_graph(tmp_path / "graph.json.gz")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"[" * 100_000, b"{}", b'{"schema": "perfscope.op_graph/2"}', b"not json", b"\x1f\x8b\x08"],
)
def test_other_files(tmp_path: Path, content: bytes) -> None:
    refused(read_op_graph, tmp_path / "graph.json", content)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d["ops"]["inputs"].__setitem__(0, [2]), "no such tensor: 2"),
        (lambda d: d["ops"]["inputs"].__setitem__(0, [-1]), "int"),
        (lambda d: d["ops"]["name"].__setitem__(0, 99), "no such string: 99"),
        (lambda d: d["ops"]["file"].__setitem__(0, 99), "no such string: 99"),
        (lambda d: d["ops"]["phase"].__setitem__(0, d["ops"]["name"][0]), "phase"),
        (lambda d: d["ops"]["line"].pop(), "different length"),
        (lambda d: d["tensors"]["bytes"].pop(), "different length"),
        (lambda d: d["ops"].pop("view"), "view"),
        (lambda d: d.__setitem__("step", -1), "step"),
    ],
)
def test_what_does_not_hold_together(tmp_path: Path, document: dict[str, Any], change: Any, why: str) -> None:
    change(document)
    assert why in refused(read_op_graph, tmp_path / "changed.json", json.dumps(document).encode())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json: no such file"):
        read_op_graph(tmp_path / "absent.json")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.analyzers.readers.op_graph.MAX_BYTES", 1 << 20)
    message = refused(read_op_graph, tmp_path / "graph.json.gz", gzip.compress(b" " * (2 << 20)))
    assert "larger than 1 MiB" in message


def with_storages(graph: OpGraph, *rows: tuple[int, int | None, int | None]) -> OpGraph:
    """``rows``: (bytes, born, died); the builder numbers storages from 1."""
    storages = [GraphStorage(bytes=size, born=born, died=died) for size, born, died in ((0, None, None), *rows)]
    return replace(graph, storages=tuple(storages))


def accumulation(*, maker_sequence: int, died: int) -> OpGraph:
    """Two gradients of one value, made by nodes 5 and ``maker_sequence``; added up under node 5."""
    builder = GraphBuilder()
    x = builder.input((4,))
    first = builder.op("neg", [x], phase="backward", sequence=maker_sequence)
    second = builder.op("exp", [x], phase="backward", sequence=5)
    builder.op("add", [first, second], phase="backward", sequence=5)
    builder.op("neg", [x], phase="backward", sequence=4)
    graph = builder.graph()
    ops = tuple(replace(op, name="aten.add.Tensor") if "add" in op.name else op for op in graph.ops)
    return with_storages(
        replace(graph, ops=ops), (16, None, None), (16, 0, died), (16, 1, 3), (16, 2, 4), (16, 3, None)
    )


def test_gradients_are_added_up_in_place_without_the_recording() -> None:
    graph = accumulation(maker_sequence=6, died=3)
    assert graph.storages is not None
    assert taken_over(graph, graph.storages) == {4}
    for held_longer_or_of_one_formula in (
        accumulation(maker_sequence=6, died=4),
        accumulation(maker_sequence=5, died=3),
    ):
        assert held_longer_or_of_one_formula.storages is not None
        assert not taken_over(held_longer_or_of_one_formula, held_longer_or_of_one_formula.storages)


def test_every_product_has_a_formula() -> None:
    missing = {name for name in PRODUCTS | CONVOLUTIONS if f"aten.{name}" not in FORMULAS}
    assert missing == {"einsum"}  # the dispatcher divides it into others
