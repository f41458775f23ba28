"""Trackers of experiments. The package of a tracker is imported when the user names the tracker."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perfscope.model.errors import DataError, PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis


class Tracker(Protocol):
    """One run of a tracker of experiments."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log scalars at a step."""

    def close(self) -> None:
        """End the run."""


def log(tracker: str, place: str, analysis: Analysis, name: str) -> None:
    """Log the scalars of an analysis as the run ``name`` of a tracker.

    ``UsageError`` if its package is not installed, ``DataError`` if the tracker refuses.
    """
    from perfscope.plugins.log_to.scalars import scalars

    with refusals(tracker, place):
        run = tracker_at(tracker, place, name)
        run.log(scalars(analysis), 0)
        run.close()


@contextlib.contextmanager
def refusals(tracker: str, place: str) -> Iterator[None]:
    """Errors of a tracker as ``DataError`` of one line."""
    try:
        yield
    except PerfscopeError:
        raise
    except Exception as error:  # of a package that we do not know: its network, its login, its folder
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"--log-to {tracker}:{place}: {first}") from error


def tracker_at(tracker: str, place: str, name: str) -> Tracker:
    """A new run ``name`` of a tracker; ``UsageError`` if its package is not installed."""
    return _OPENERS[tracker](place, name)


def _package(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"--log-to {name}: the package is not installed: `pip install {name}`") from error


class _TensorBoard:
    """An event file in a folder of the run's name, so that several runs in one place stay apart."""

    def __init__(self, folder: str, name: str) -> None:
        writer = _package("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._event = _package("tensorboard", "tensorboard.compat.proto.event_pb2").Event
        self._events = writer.EventFileWriter(str(Path(folder, name)))

    def log(self, values: Mapping[str, float], step: int) -> None:
        event = self._event(wall_time=time.time(), step=step)
        for tag, value in values.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._events.add_event(event)
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class _Wandb:
    """A new run of a project; `WANDB_MODE` and the other variables of the package apply."""

    def __init__(self, project: str, name: str) -> None:
        wandb = _package("wandb", "wandb")
        self._run = wandb.init(project=project, name=name, job_type="perfscope", settings=wandb.Settings(console="off"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """A new run of the default experiment at a tracking URI."""

    def __init__(self, uri: str, name: str) -> None:
        self._client = _package("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
        self._run = self._client.create_run(experiment_id="0", run_name=name).info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self._client.log_metric(self._run, key, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


_OPENERS: dict[str, Callable[[str, str], Tracker]] = {
    "mlflow": _Mlflow,
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}
