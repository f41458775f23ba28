"""Recompilations: the line that made the guard that failed, in both forms torch 2.13 writes."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.compile_log import Recompile
from perfscope.analyzers.readers.torch_trace import read_log
from tests.analyzers.readers.torch_logs import LogText

COMMENT = "rate == 0.1  # return F.dropout(y, p=rate)  # defect: burnt in  # jobs/stages.py:80 in dropping"
INSIDE = f"0/1: {COMMENT} (nn/functional.py:1491 in dropout)"
STACK = (
    "0/0: rate == 0.2      # return F.dropout(y, p=rate)  # jobs/stages.py:80 in dropping\n"
    'User stack trace:\n  File "/home/u/train.py", line 42, in forward\n    x = self.each(x, rate)\n'
    '  File "/home/u/jobs/stages.py", line 80, in dropping\n    return F.dropout(y, p=rate)'
)


def recompile(folder: Path, payload: list[str] | str) -> Recompile:
    text = LogText().at(0, 1).artifact("recompile_reasons", payload).metrics()
    (found,) = read_log(text.write(folder)).recompiles
    return found


def test_the_line_stands_behind_the_guard(tmp_path: Path) -> None:
    found = recompile(tmp_path, [INSIDE])
    assert found.reasons == ("rate == 0.1",)
    assert found.guard_place is not None
    place = found.guard_place
    assert (place.file, place.line, place.function) == ("jobs/stages.py", 80, "dropping")
    assert place.code == "return F.dropout(y, p=rate)  # defect: burnt in"


def test_a_stack_has_the_whole_path(tmp_path: Path) -> None:
    alone, behind = recompile(tmp_path, STACK), recompile(tmp_path, [INSIDE, STACK])
    assert alone.guard_place is not None
    assert (alone.guard_place.file, alone.guard_place.line) == ("/home/u/jobs/stages.py", 80)
    assert behind.guard_place == alone.guard_place
    assert behind.reasons == ("rate == 0.1", "rate == 0.2")


def test_the_line_of_another_guard_is_not_the_first_ones(tmp_path: Path) -> None:
    found = recompile(tmp_path, ["0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5", STACK])
    assert found.guard_place is None
