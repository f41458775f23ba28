"""A JAX program on eight virtual devices: a planted straggler, a planted input stall, and neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path
from tests.accuracy.cases import Program
from tests.accuracy.judge import capture

pytestmark = [pytest.mark.jax, pytest.mark.slow]


def captured(folder: Path, planted: str) -> Analysis:
    defect = () if planted == "nothing" else ("--defect", planted)
    program = Program(module="perfscope.workloads.jax.devices", arguments=defect, devices=8)
    return analyze(load_path(capture(program, folder)).traces, ["straggler", "input_stall"])


def test_a_straggler_and_an_input_stall_are_found_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    found = {planted: captured(tmp_path / planted, planted) for planted in ("straggler", "input", "nothing")}
    (late,) = found["straggler"]["straggler"].findings
    assert late.subject == "one device comes late"
    assert {row["straggler"] for row in late.evidence} == {3}
    assert found["straggler"]["input_stall"].status == "clean"

    (stall,) = found["input"]["input_stall"].findings
    assert stall.subject == "input"
    assert found["input"]["straggler"].status == "clean"

    assert [found["nothing"][rule].status for rule in ("straggler", "input_stall")] == ["clean", "clean"]
