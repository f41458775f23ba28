"""Recordings that were cut off, are damaged or are none, and comparisons of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.errors import DataError
from perfscope.plugins.fingerprint import compare
from perfscope.plugins.fingerprint.document import CALL, OPTIMIZER, Log, is_sampled
from perfscope.plugins.fingerprint.reading import Recording, load_fingerprint
from perfscope.plugins.fingerprint.result import FirstDifference, dump, load
from perfscope.plugins.fingerprint.sections import render_markdown, render_text
from perfscope.plugins.fingerprint.sources import Source

Lines = list[list[Any]]


def value(number: int, hashed: int, *, shape: tuple[int, ...] = (4,), sketch: Any = None) -> list[Any]:
    return ["v", number, None, "float32", shape, f"{hashed:016x}", f"{hashed:016x}", sketch]


def op(name: str, inputs: list[int], outputs: list[int], *, names: Any = (), line: str = "train.py:1") -> list[Any]:
    return ["o", name, line, "Net", "", "", inputs, outputs, list(names)]


def step_lines(start: int = 0) -> list[list[Any]]:
    """A call with a parameter and an input, a product, and an optimizer."""
    return [
        value(0, start),
        value(1, start + 1),
        op(CALL, [0, 1], [], names=("parameter w", "input 0")),
        value(2, start + 2),
        op("mm", [0, 1], [2]),
        op("relu", [2], [2]),
        op(OPTIMIZER, [2], [], names=("gradient w",)),
    ]


def written(
    path: Path, steps: dict[int, list[list[Any]]], *, sampled: bool = True, framework: str = "torch"
) -> Recording:
    log = Log(framework)
    for number, lines in steps.items():
        log.add(number, lines, sampled=sampled)
    log.write(path, int, None)
    return Recording(path)


def compared(a: Recording, b: Recording, monkeypatch: pytest.MonkeyPatch, **options: Any) -> FirstDifference:
    sides = {name: Source(path=name, recordings={0: each}, packages={}) for name, each in (("a", a), ("b", b))}
    monkeypatch.setattr(compare, "source_at", lambda path: sides[str(path)])
    return compare.compare_runs(Path("a"), Path("b"), **options)


def test_sampled_steps() -> None:
    assert [step for step in range(40) if is_sampled(step, None)] == [0, 1, 2, 4, 8, 16, 32]
    assert [step for step in range(40) if is_sampled(step, (3, 5))] == [3, 4]


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    written(path, {0: step_lines(), 1: step_lines(10), 2: step_lines(20)})
    content = path.read_bytes()
    found = set()
    for length in range(40, len(content)):
        path.write_bytes(content[:length])
        try:
            recording = Recording(path)
        except DataError:
            found.add(-1)
            continue
        steps = list(recording.steps())
        assert [step.number for step in steps] == list(range(len(steps)))
        assert all(len(step.ops) == 4 for step in steps[:-1])
        found.add(len(steps))
    assert found == {-1, 0, 1, 2, 3}
    path.write_bytes(content[:-9])
    assert "ends within a step" in load_fingerprint(path).notes[0]


@pytest.mark.parametrize(
    "line",
    [
        '["o", "mm", "", "", "", "", [99], [], []]',
        '["v", 7, null, "float32", [1], "zz", null, null]',
        '["v", -1, null, "float32", [1], null, null, null]',
        '["x", 1]',
        "{}",
        "[" * 3_000,
        "not json",
    ],
)
def test_a_damaged_line_ends_the_recording(tmp_path: Path, line: str) -> None:
    path = tmp_path / "f.jsonl.gz"
    written(path, {0: step_lines()})
    with path.open("ab") as stream:
        stream.write(gzip.compress(b'["s", 1, true]\n' + line.encode() + b"\n"))
    recording = Recording(path)
    assert [step.number for step in recording.steps()] == [0]
    assert recording.cut


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        gzip.compress(b""),
        gzip.compress(b"[]\n"),
        gzip.compress(b'{"schema": "perfscope.fingerprint/9", "framework": "torch"}\n'),
        gzip.compress(b'{"schema": "perfscope.fingerprint/1"}\n'),
        gzip.compress(b"\xff\xfe\n"),
    ],
)
def test_files_that_are_no_recordings(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        Recording(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_another_op_and_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = written(tmp_path / "a", {0: step_lines()})
    other = step_lines()
    other[5] = op("gelu", [2], [2], line="train.py:9")
    first = compared(base, written(tmp_path / "b", {0: other}), monkeypatch).first
    assert first is not None
    assert (first.cause, first.b and first.b.line) == ("control flow", "train.py:9")
    assert first.before is not None
    assert first.before.op == "mm"
    longer = [*step_lines(), op("add", [2], [2])]
    first = compared(base, written(tmp_path / "c", {0: longer}), monkeypatch).first
    assert first is not None
    assert (first.cause, first.a) == ("control flow", None)


def test_a_change_between_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = step_lines()
    changed[5:] = [value(3, 77), op("relu", [3], [3]), op(OPTIMIZER, [3], [], names=("gradient w",))]
    same = step_lines()
    same[5:] = [["v", 3, 2, *value(3, 76)[3:]], op("relu", [3], [3]), op(OPTIMIZER, [3], [], names=("gradient w",))]
    first = compared(written(tmp_path / "a", {0: same}), written(tmp_path / "b", {0: changed}), monkeypatch).first
    assert first is not None
    assert (first.cause, first.written_by and first.written_by.op) == ("unseen write", "mm")


def test_a_result_that_nothing_reads_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []
    for hashed in (50, 60):
        lines = step_lines()
        lines[4:5] = [value(9, hashed), op("mm", [0, 1], [2, 9])]
        sides.append(written(tmp_path / str(hashed), {0: lines}))
    document = compared(*sides, monkeypatch)
    assert (document.verdict, document.counts.unread) == ("same", 1)


def test_states_of_steps_without_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def light(*hashes: int) -> list[list[Any]]:
        names = ("parameter", "input")
        rows = [["v", index, None, "several", [], f"{one:016x}", None, None] for index, one in enumerate(hashes)]
        return [*rows, op(CALL, [0, 1], [], names=names)]

    base = written(tmp_path / "a", {3: light(1, 2), 5: light(3, 4)}, sampled=False)
    other = written(tmp_path / "b", {3: light(1, 2), 5: light(9, 4)}, sampled=False)
    first = compared(base, other, monkeypatch).first
    assert first is not None
    assert (first.cause, first.step_a, first.recorded, first.last_equal_step) == ("weights", 5, False, 3)
    assert "--steps 3:6" in render_text(compared(base, other, monkeypatch))


def test_steps_that_neither_side_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = written(tmp_path / "a", {0: step_lines()}), written(tmp_path / "b", {5: step_lines()})
    with pytest.raises(DataError, match="no step is in both recordings: steps 0 to 0 and steps 5 to 5"):
        compared(a, b, monkeypatch)
    assert compared(a, b, monkeypatch, shift=-5).verdict == "same"
    jax = written(tmp_path / "c", {0: step_lines()}, framework="jax")
    with pytest.raises(DataError, match="no ops in common"):
        compared(a, jax, monkeypatch)


SKETCH = [1.0, 2.0, *([3.0] * 8)]


def test_what_rounding_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def side(name: str, hashed: int, by: float) -> Recording:
        lines = step_lines()
        lines[0][7] = lines[1][7] = SKETCH
        lines[3] = value(2, hashed, sketch=[1.0, 2.0, 3.0 + by, *([3.0] * 7)])
        return written(tmp_path / name, {0: lines})

    base, near, far = side("a", 2, 0.0), side("b", 98, 1e-7), side("c", 99, 1e-2)
    assert compared(base, near, monkeypatch).verdict == "differs"
    within = compared(base, near, monkeypatch, tolerance="rounding")
    assert (within.verdict, within.counts.unequal) == ("same", 4)
    first = compared(base, far, monkeypatch, tolerance="rounding").first
    assert first is not None
    assert (first.cause, first.a and first.a.op) == ("op", "mm")
    (row,) = first.values
    assert row.error == pytest.approx(1e-2 / (3 * 8**0.5), rel=1e-6)
    assert row.explained is not None
    assert row.explained < 1e-4


def test_the_document_and_its_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = step_lines()
    lines[3] = value(2, 99, sketch=SKETCH)
    document = compared(written(tmp_path / "a", {0: step_lines()}), written(tmp_path / "b", {0: lines}), monkeypatch)
    path = tmp_path / "first.json"
    path.write_bytes(dump(document))
    assert load(path) == document
    for text in (render_text(document), render_markdown(document)):
        assert "mm" in text
        assert "equal inputs, different outputs" in text
    assert json.loads(path.read_text())["first"]["cause"] == "op"
