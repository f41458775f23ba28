"""`--log-to`: the scalars of a recording, in each tracker with its real package, offline."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import perfscope
from perfscope.__main__ import main
from perfscope.analyzers.savings import step_time
from perfscope.plugins.log_to.scalars import scalars
from tests.conftest import REPOSITORY
from tests.report.analyses import analysis

RUN = REPOSITORY / "fixtures" / "cpu-attention-sdpa-item"


def logged(place: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["analyze", "-q", str(RUN), "--log-to", place])
    return int(end.value.code or 0)


def expected() -> dict[str, float]:
    return scalars(perfscope.analyze(perfscope.load(RUN)))


def test_scalars_are_those_of_the_report() -> None:
    found = scalars(analysis())
    timed = step_time(analysis())
    assert timed is not None
    assert found["perfscope/step_time_ms"] == pytest.approx(timed.ns / 1e6)
    assert found["perfscope/findings/host_sync"] == 2
    assert found["perfscope/findings/input_stall"] == 0
    assert "perfscope/findings/nvlink_stall" not in found  # not evaluated


def test_an_unknown_tracker_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged("elsewhere:x") == 2
    assert "give tensorboard:DIR, wandb:PROJECT or mlflow:URI" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "wandb"])
def test_an_absent_package_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    assert logged(f"{name}:{tmp_path}") == 2
    assert f"--log-to {name}: the package is not installed: `pip install {name}`" in capsys.readouterr().err


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert logged(f"tensorboard:{tmp_path}") == 0
    events = EventAccumulator(str(tmp_path / RUN.name))
    events.Reload()
    values = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert values == pytest.approx(expected(), rel=1e-6)


def test_mlflow_keeps_the_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path / 'store'}"
    assert logged(f"mlflow:{uri}") == 0
    (run,) = mlflow.MlflowClient(tracking_uri=uri).search_runs(["0"])
    assert run.info.run_name == RUN.name
    assert run.data.metrics == pytest.approx(expected())


def test_wandb_keeps_the_scalars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert logged("wandb:demo") == 0
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert kept.stat().st_size > 0
    assert re.search(r"perfscope/findings/host_sync +1\b", capfd.readouterr().err)  # its summary of the run
