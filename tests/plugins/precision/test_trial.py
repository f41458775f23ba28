"""The plan of a precision as an intervention: in a program that is started with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.plugins.precision.document import SCHEMA, LayerRow, Precision, dump
from perfscope.plugins.precision.trial import PLAN, VARIABLE
from perfscope.plugins.trials import Facts
from tests import warm
from tests.conftest import REPOSITORY
from tests.plugins.trials.test_application import launched

PROGRAM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
    def forward(self, x):
        hidden = self.up(x)
        output = self.down(hidden)
        return hidden, output
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(4):
    hidden, output = model(torch.randn(4, 16))
    output.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("dtypes", hidden.dtype, output.dtype)
"""


def plan() -> Precision:
    rows = (
        LayerRow(layer="Model.up", line="", dtype="float32", products=1, flops=1, proposal="e4m3-row", error=0.03),
        LayerRow(layer="Model.down", line="", dtype="float32", products=1, flops=1, proposal="float32", error=None),
    )
    return Precision(
        schema=SCHEMA,
        subject="run",
        framework="torch",
        target=None,
        recipe="e4m3-row",
        steps=2,
        recipes=(),
        layers=rows,
    )


@pytest.mark.torch
def test_layers_of_the_plan_stay_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(dump(plan()))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(VARIABLE, str(file))
    warm.use_for_launches(monkeypatch)
    launch = launched(tmp_path, PROGRAM, "precision-plan")
    assert launch.problem is None
    assert "dtypes torch.bfloat16 torch.float32" in (tmp_path / "log").read_text()
    (report,) = launch.reports
    assert "Model.down stays in float32" in report.applied["precision-plan"]


def test_without_a_plan_the_reason_is_given(tmp_path: Path) -> None:
    def why(**variables: str) -> str | None:
        return PLAN.applies(Facts(packages={}, cuda=False, variables=variables))

    assert "no plan" in (why() or "")
    assert "no such file" in (why(**{VARIABLE: str(tmp_path / "absent.json")}) or "")
    (tmp_path / "plan.json").write_bytes(dump(plan()))
    assert why(**{VARIABLE: str(tmp_path / "plan.json")}) is None
