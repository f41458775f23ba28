"""The same work on a Dask cluster: its workers read shared storage, and only digests travel back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from perfscope.analyzers.scale.pool import Lost
from perfscope.profiler.errors import AskedWronglyError, NotStartedError

Task = TypeVar("Task")
Done = TypeVar("Done")

CONNECT_S = 10
"""Seconds to wait for the scheduler: it runs already, and a wrong address should be told soon."""

RETRIES = 1
"""Tries more of what a task raised (a file system that was busy). Tasks of workers that die are moved by Dask itself,
three times as it comes."""


def work_on_cluster(
    work: Callable[[Task], Done], tasks: Sequence[Task], *, address: str
) -> Iterator[tuple[int, Done | Lost]]:
    """As ``work_through``, on the workers of the scheduler at ``address`` (``tcp://host:8786``, or a scheduler file).

    What a dead worker held is done again by another; a task that killed its worker each time is lost.
    ``AskedWronglyError`` without the extra ``cluster`` or with an address that is none, ``NotStartedError`` if nobody
    answers there or there is no worker.
    """
    try:
        import distributed
    except ImportError as missing:
        raise AskedWronglyError("--scheduler: Dask is not installed; pip install 'perfscope[cluster]'") from missing
    with _connected(distributed, address) as client:
        _check_workers(client, address)
        futures = client.map(work, tasks, pure=False, retries=RETRIES)
        place_of = {future.key: place for place, future in enumerate(futures)}
        ended = distributed.as_completed(futures, loop=client.loop)
        del futures  # or the cluster would hold every digest to the end
        killed = []
        for future in ended:
            place = place_of[future.key]
            done = _done(distributed, future)
            future.release()
            if isinstance(done, Lost):
                killed.append(place)
            else:
                yield place, done
        for place in killed:  # one at a time: Dask also blames tasks that only waited on a worker that was killed
            yield place, _done(distributed, client.submit(work, tasks[place], pure=False))


def _connected(distributed: Any, address: str) -> Any:
    given = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        return distributed.Client(**given, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise NotStartedError(f"--scheduler {address}: no Dask scheduler answers: {error}") from error
    except ValueError as error:
        raise AskedWronglyError(f"--scheduler {address}: {error}") from error


def _check_workers(client: Any, address: str) -> None:
    """``NotStartedError`` if there are none, or they have no perfscope, or another one."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError as error:
        raise NotStartedError(f"--scheduler {address}: the scheduler has no workers") from error
    try:
        versions = client.run(perfscope_version)
    except Exception as error:  # what a worker raises comes as it is
        raise NotStartedError(f"--scheduler {address}: its workers cannot run perfscope: {error}") from error
    mine = perfscope_version()
    for worker, theirs in versions.items():
        if theirs != mine:
            raise NotStartedError(f"--scheduler {address}: {worker} has perfscope {theirs}, here is {mine}")


def perfscope_version() -> str:
    """The version that is installed here; of a checkout that was never installed, that it is one."""
    try:
        return version("perfscope")
    except PackageNotFoundError:
        return "of a checkout"


def _done(distributed: Any, future: Any) -> Any:
    """What a task returned. One that killed its workers is lost; what the work raised is raised."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, distributed.scheduler.KilledWorker):
        return Lost(why="was killed with its worker several times")
    if isinstance(error, MemoryError):
        return Lost(why="had no memory left")
    raise error
