"""Sparse gradients of tables, planned eagerly and compiled, beside the same program on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.model.errors import PerfscopeError
from tests.ahead.test_torch_plan import only, planned

pytestmark = [pytest.mark.aot, pytest.mark.slow]

SCALARS = 64
"""Bytes: numbers that the run makes tensors of by itself and the plan does not see."""
INSIDE = 256 * 64 * 4
"""Bytes: the values of rows, which the CPU's ``sparse_mask`` has twice before it returns, and no plan sees."""

TABLES = """
import os
import torch
from torch import nn
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRUTH = os.environ.get("TRUTH")
profile = torch.profiler.profile(profile_memory=True)
if TRUTH:
    profile.start()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(10000, 64, sparse=True, mode="sum")
        self.table = nn.Embedding(5000, 64, sparse=True, padding_idx=0)
        self.top = nn.Linear(64, 16)

    def forward(self, x):
        return self.top(self.bag(x) + self.table(x).sum(1)).square().mean()

model = Model().to(DEVICE)
sparse = torch.optim.SparseAdam([model.bag.weight, model.table.weight])
dense = torch.optim.AdamW(model.top.parameters(), foreach=True)
for step in range(8):
    with torch.profiler.record_function("look" if step >= 3 else "skip"):
        model(torch.arange(1, 257, device=DEVICE).view(32, 8)).backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()
if TRUTH:
    profile.stop()
    profile.export_chrome_trace(TRUTH)
"""
"""All rows that are looked up differ, as a plan takes them to."""

NESTED = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.nested.nested_tensor([torch.randn(n, 8) for n in (2, 5)], layout=torch.jagged, device="cuda")
    model(rows).to_padded_tensor(0.0).sum().backward()
    optimizer.step()
"""


def measured_peak(folder: Path) -> int:
    """Bytes of the CPU's allocator in steps that are alike."""
    script, truth = folder / "real.py", folder / "truth.json"
    script.write_text(TABLES)
    environment = {**os.environ, "TRUTH": str(truth), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(script)], env=environment, check=True, capture_output=True, timeout=300)
    events = json.loads(truth.read_text())["traceEvents"]
    looks = [(one["ts"], one["ts"] + one["dur"]) for one in events if one.get("name") == "look"]
    found = {
        max(int(one["args"]["Total Allocated"]) for one in events if _is_memory(one) and start <= one["ts"] <= end)
        for start, end in looks
    }
    (peak,) = found
    return peak


def _is_memory(event: dict[str, object]) -> bool:
    return event.get("name") == "[memory]"


def test_the_peak_is_that_of_the_rows_that_are_looked_up(tmp_path: Path) -> None:
    plan = only(planned(tmp_path, TABLES)).plan
    assert plan.failure is None
    (said,) = plan.not_covered
    assert said.startswith("sparse gradients: ops on some rows")
    assert {one.what: one.answer for one in plan.made_up} == {
        "coalesce": "256 rows, all different",
        "nonzero": "256 of 256 elements",
    }
    assert plan.memory is not None
    assert plan.memory.eager is not None
    assert plan.memory.planned is not None
    assert not plan.memory.uncounted
    peak = measured_peak(tmp_path)
    for found in (plan.memory.eager, plan.memory.planned):  # in the optimizer's step, which both have
        assert 0 <= peak - found.requested_bytes <= INSIDE + SCALARS


def test_nested_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(PerfscopeError, match="nested tensors are not covered by a plan"):
        planned(tmp_path, NESTED)
