"""Trackers of experiments. The package of a tracker is imported when the user names the tracker."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.errors import DataError, PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis


def log(tracker: str, place: str, analysis: Analysis, name: str) -> None:
    """Log the scalars of an analysis as the run ``name`` of a tracker.

    ``UsageError`` if its package is not installed, ``DataError`` if the tracker refuses.
    """
    from perfscope.plugins.log_to.scalars import scalars

    try:
        WRITERS[tracker](place, name, scalars(analysis))
    except PerfscopeError:
        raise
    except Exception as error:  # of a package that we do not know: its network, its login, its folder
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"--log-to {tracker}:{place}: {first}") from error


def _package(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"--log-to {name}: the package is not installed: `pip install {name}`") from error


def _tensorboard(folder: str, name: str, values: Mapping[str, float]) -> None:
    """Write an event file in a folder of the run's name, so that several runs in one place stay apart."""
    writer = _package("tensorboard", "tensorboard.summary.writer.event_file_writer")
    event_pb2 = _package("tensorboard", "tensorboard.compat.proto.event_pb2")
    event = event_pb2.Event(wall_time=time.time(), step=0)
    for tag, value in values.items():
        event.summary.value.add(tag=tag, simple_value=value)
    events = writer.EventFileWriter(str(Path(folder, name)))
    events.add_event(event)
    events.close()


def _wandb(project: str, name: str, values: Mapping[str, float]) -> None:
    """Log to a new run of a project; `WANDB_MODE` and the other variables of the package apply."""
    wandb = _package("wandb", "wandb")
    run = wandb.init(project=project, name=name, job_type="perfscope", settings=wandb.Settings(console="off"))
    run.log(dict(values))
    run.finish()


def _mlflow(uri: str, name: str, values: Mapping[str, float]) -> None:
    """Log to a new run of the default experiment at a tracking URI."""
    client = _package("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
    run = client.create_run(experiment_id="0", run_name=name).info.run_id
    for key, value in values.items():
        client.log_metric(run, key, value)
    client.set_terminated(run)


WRITERS: dict[str, Callable[[str, str, Mapping[str, float]], None]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
