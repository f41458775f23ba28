"""Four processes that train with gloo, by DDP and FSDP2: a planted straggler, a planted input stall, and neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path
from tests.accuracy.cases import Program
from tests.accuracy.judge import capture

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def captured(folder: Path, planted: str, parallel: str) -> Analysis:
    defect = () if planted == "nothing" else ("--defect", planted)
    program = Program(
        module="perfscope.workloads.ranks", arguments=("--parallel", parallel, *defect), processes=4, level="light"
    )
    return analyze(load_path(capture(program, folder)).traces, ["straggler", "input_stall"])


@pytest.mark.parametrize(("parallel", "operation"), [("ddp", "all_reduce"), ("fsdp2", "all_gather")])
def test_a_straggler_and_an_input_stall_are_found_and_nothing_where_nothing_is(
    tmp_path: Path, parallel: str, operation: str
) -> None:
    found = {}
    for planted in ("straggler", "input", "nothing"):
        found[planted] = captured(tmp_path / planted, planted, parallel)

    (late,) = found["straggler"]["straggler"].findings
    assert (late.subject, late.ranks) == ("one rank comes late", (1,))
    assert {row["before"] for row in late.evidence} == {"host gap"}
    assert found["straggler"]["input_stall"].status == "clean"

    (late,) = found["input"]["straggler"].findings
    assert (late.subject, late.ranks) == ("one rank comes late", (2,))
    assert {row["before"] for row in late.evidence} == {"data loader"}
    (stall,) = found["input"]["input_stall"].findings
    assert stall.ranks == (2,)

    (job,) = found["nothing"].collectives.jobs
    assert (job.recorded, job.missing, job.unmatched) == ((0, 1, 2, 3), (), 0)
    assert operation in {kind.operation for kind in job.kinds}
    assert [found["nothing"][rule].status for rule in ("straggler", "input_stall")] == ["clean", "clean"]
