"""Plans are read whole or refused in one line; what a plan says of itself is what is there."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.readers.torch_plan import read_folder, read_plans
from perfscope.analyzers.torch_plan import PlannedRefusal, refusals_by_line, totals
from perfscope.profiler.aot.torch_plan_file import PlanBreak, fingerprint_of, read_plan
from perfscope.profiler.errors import DataError
from tests.analyzers.plan_parts import PLACE, graph, kernel, plan, product, written

BREAK = """Graph break in user code at train.py:9
Graph Break Reason: Dynamic shape operator
  Explanation: Operator `aten.nonzero.default`'s output shape depends on input Tensor data.
  Hint: Enable tracing.
  Developer debug context: aten.nonzero.default

 For more details about this graph break, please visit: https://meta-pytorch.github.io/x/gb/gb0036.html

User code traceback:
  File "train.py", line 9, in forward
    rows = torch.where(mask)
"""


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    held = plan(graph(kernel(), product()), optimizers=("AdamW",))
    (again,) = read_plans(written(tmp_path, held))
    assert again == replace(held, fingerprint=fingerprint_of(held))


def test_a_packed_plan_is_read_too(tmp_path: Path) -> None:
    file = written(tmp_path, plan(graph(kernel()))) / "plans" / "00.train.json"
    file.with_name("00.train.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert len(read_plans(tmp_path)[0].graphs) == 1


def test_the_fingerprint_is_of_what_was_planned_and_of_nothing_else() -> None:
    held = plan(graph(kernel()))
    assert fingerprint_of(held) == fingerprint_of(replace(held, target="a100", versions={"torch": "9"}))
    assert fingerprint_of(held) != fingerprint_of(plan(graph(kernel(read_bytes=1))))


def test_totals_count_a_graph_as_often_as_it_runs() -> None:
    held = plan(graph(kernel(), product(), calls=3), graph(kernel(), direction="backward"))
    found = totals(held)
    assert (found.kernels, found.triton_kernels, found.extern_kernels, found.products) == (7, 4, 3, 3)
    assert found.bytes == 4 * 3_000_000 + 3 * (6 << 20)
    assert found.flops == 3 * 2 * 1024**3


def test_refusals_stand_at_the_line_that_reads() -> None:
    refusal = PlannedRefusal(first=0, second=1, reason="numel mismatch")
    held = plan(graph(kernel(places=()), kernel(), refusals=(refusal,)))
    assert {key: len(rows) for key, rows in refusals_by_line(held).items()} == {("train.py", 7): 1}


def test_breaks_are_taken_apart(tmp_path: Path) -> None:
    said = PlanBreak(compile_id="0/0", function="forward", place=PLACE, text=BREAK)
    trace = read_folder(written(tmp_path, plan(breaks=(said,))))
    ((function, found),) = trace.torch_plans[0].breaks
    assert (function, found.reason, found.doc_id) == ("forward", "Dynamic shape operator", "gb0036")
    assert found.place is not None
    assert found.place.line == 9


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1", b"\x1f\x8b\x08", b'{"schema":"perfscope.torch_plan/2"}', b"\xff\xfe"]
)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "00.train.json"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_plan(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_refusal_of_a_kernel_that_is_not_there_is_refused(tmp_path: Path) -> None:
    held = plan(graph(kernel(), refusals=(PlannedRefusal(first=0, second=9, reason="x"),)))
    with pytest.raises(DataError, match="names kernel 9"):
        read_plans(written(tmp_path, held))


def test_a_damaged_plan_beside_a_good_one_is_said(tmp_path: Path) -> None:
    folder = written(tmp_path, plan(graph(kernel())))
    (folder / "plans" / "01.other.json").write_text("{")
    trace = read_folder(folder)
    assert len(trace.torch_plans) == 1
    assert any("plans/01.other.json is not read" in note for note in trace.source.notes)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no plan is in it"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a\\b", "absent.opgraph.json.gz"])
def test_ops_are_read_from_beside_the_plan_only(tmp_path: Path, name: str) -> None:
    trace = read_folder(written(tmp_path, plan(graph(kernel()), eager_file=name)))
    assert trace.torch_plans[0].eager is None
    assert any("read" in note for note in trace.source.notes)
