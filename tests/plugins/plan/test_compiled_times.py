"""Compiled programs in the scenarios of a plan: the ends of their ranges, an order that they do not show, memory."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfscope.analyzers.devices import parse_target
from perfscope.analyzers.hlo import assigned_memory
from perfscope.analyzers.predict import estimate
from perfscope.analyzers.readers import load_one
from perfscope.plugins.plan.assumptions import scenarios
from perfscope.plugins.plan.compiled import step_modules
from perfscope.plugins.plan.compiled_times import MOVED, step_times
from tests.conftest import REPOSITORY

PROGRAMS = REPOSITORY / "fixtures" / "programs-h100"


def test_shared_scenarios_order_two_programs_whose_ranges_overlap() -> None:
    target, shared = parse_target("h100x8", None), scenarios()
    ranges, times = [], []
    for name in ("transformer", "transformer-sharding"):
        trace = load_one(PROGRAMS / name)
        (module,) = step_modules(trace, [trace.hlo[0].name])
        ranges.append(estimate(module, target).step_ns)
        times.append(step_times([module], target, shared))
        assert (times[-1].min(), times[-1].max()) == (ranges[-1].low, ranges[-1].high)
    assert ranges[1].low < ranges[0].high  # they overlap
    assert np.all(times[0] < times[1])  # resharding costs more whatever the links and kernels do
    slower = {name for name in MOVED if np.all(times[0][shared.at(name) == 1] >= times[0][shared.at(name) == 0])
              and np.any(times[0][shared.at(name) == 1] > times[0][shared.at(name) == 0])}  # fmt: skip
    assert slower == {"products", "kernels", "link"}  # no attention of a library, and one node


@pytest.mark.parametrize("name", ["transformer", "ssm-associative", "attention-policy-full"])
def test_allocated_bytes_are_those_that_the_compiler_reports(name: str) -> None:
    (module,) = load_one(PROGRAMS / name).hlo
    (program,) = json.loads((PROGRAMS / name / "compile.json").read_text())["programs"]
    memory = assigned_memory(module)
    assert memory is not None
    own = program["argument_bytes"] + program["output_bytes"] - program["alias_bytes"] + program["temporary_bytes"]
    constants = memory.allocated_bytes - own
    assert 0 <= constants < 1024  # numbers, which the report leaves out
    assert memory.peak_bytes < memory.allocated_bytes  # gaps between buffers
