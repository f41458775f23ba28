"""Two trainings: where losses part beyond the noise of seeds, and that they do not where nothing differs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from perfscope.model.errors import DataError
from perfscope.plugins.numerics.document import StepValues
from perfscope.plugins.parity import training
from perfscope.plugins.parity.command import parity
from perfscope.plugins.parity.training import Metric, compare_trainings
from tests import warm

STEPS = 160


def runs(generator: np.random.Generator, count: int, *, shift: float = 0.0, start: int = 0) -> list[training.Run]:
    """Losses that fall, with noise that stays for a while, as that of a training does; ``shift`` from ``start`` on."""
    result = []
    for _ in range(count):
        noise = np.convolve(generator.normal(0, 0.02, STEPS + 9), np.ones(10) / 10, "valid") + generator.normal(0, 0.01)
        losses = 2.0 * 0.98 ** np.arange(STEPS) + 1.0 + noise + shift * (np.arange(STEPS) >= start)
        result.append({step: StepValues(step=step, loss=float(loss)) for step, loss in enumerate(losses)})
    return result


def compared(monkeypatch: pytest.MonkeyPatch, a: list[training.Run], b: list[training.Run]) -> Metric:
    sides = iter((a, b))
    monkeypatch.setattr(training, "_runs", lambda folder: next(sides))
    (metric,) = compare_trainings(Path("a"), Path("b")).metrics
    return metric


def test_a_difference_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    metric = compared(monkeypatch, runs(generator, 4), runs(generator, 4, shift=0.2, start=80))
    assert metric.verdict == "parts"
    assert metric.parts_at is not None
    assert 80 <= metric.parts_at.first < metric.parts_at.end <= 100
    assert metric.parts_at.b - metric.parts_at.a == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("one", "other"), [(4, 4), (6, 1)])
def test_seeds_alone_part_in_no_more_than_the_level(monkeypatch: pytest.MonkeyPatch, one: int, other: int) -> None:
    generator = np.random.default_rng(1)
    parts = [compared(monkeypatch, runs(generator, one), runs(generator, other)).verdict == "parts" for _ in range(200)]
    assert sum(parts) <= 0.05 * 200


def test_one_run_a_side_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    a, b = runs(generator, 1), runs(generator, 1, shift=5.0, start=80)
    assert compared(monkeypatch, a, b).verdict == "cannot tell"
    b = [{**a[0], 90: StepValues(step=90, loss=0.5)}]
    metric = compared(monkeypatch, a, b)
    assert (metric.verdict, metric.first_different) == ("cannot tell", 90)
    assert compared(monkeypatch, a, a).verdict == "same"


def test_steps_without_a_finite_loss_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    a, b = runs(generator, 3), runs(generator, 3)
    b[0] = {step: StepValues(step=step, loss=values.loss if step < 50 else None) for step, values in b[0].items()}
    assert compared(monkeypatch, a, b).steps == 50
    empty = [{0: StepValues(step=0)}]
    with pytest.raises(DataError, match="no step has a finite loss"):
        compared(monkeypatch, empty, empty)


def test_runs_without_values_are_told_how_to_record_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"perfscope run --fingerprint .* --numerics"):
        compare_trainings(tmp_path, tmp_path)


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, torch\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(8):\n"
        "    scale = 2.0 if step >= int(sys.argv[1]) else 1.0\n"
        "    (model(torch.randn(4, 4)).square().mean() * scale).backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
    )
    command = [sys.executable, "-m", "perfscope", "run", "--numerics", "--no-report", "-q", "-o"]
    for side, start in (("a", "99"), ("b", "5")):
        warm.run([*command, side, "train.py", start], cwd=tmp_path, check=True, timeout=300, capture_output=True)
    asked = [str(tmp_path / "a"), str(tmp_path / "b")]
    answer = CliRunner().invoke(parity, [*asked, "--strict"], standalone_mode=False)
    assert "A and B differ from step 5 on; whether by more than noise is unknown" in answer.output
    assert answer.return_value == 3
    assert CliRunner().invoke(parity, [asked[0], asked[0]], standalone_mode=False).return_value == 0
