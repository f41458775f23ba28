"""Optional: files in other storage (``s3://``, ``gs://``, anything that fsspec opens), and work on a Dask cluster.

A remote file is listed, and fetched when its task runs. Readers map their file, so the bytes go into a temporary file
while the trace is judged, at most one per process. Only the beginning of a file that is not a trace is fetched.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote

from msgspec.structs import replace

from perfscope.analyzers.readers import (
    HEAD_BYTES,
    MOST_FILES,
    DividedRun,
    Input,
    LostTask,
    ReadTrace,
    RunPart,
    Skipped,
    Task,
    TaskResult,
    Unit,
    divide_run,
    read_task,
    reader_of,
)
from perfscope.model.documents.run_folders import LATEST
from perfscope.model.errors import DataError, NotStartedError, UsageError
from perfscope.model.trace import TraceBuilder
from perfscope.model.version import install_command

HIDDEN = "***"

SHOWN = frozenset({"alt", "file", "filename", "generation", "name", "path", "rank", "version", "versionId"})
"""Parameters whose values are shown, because they identify files. Storages sign with various others, so those are
hidden.
"""

LEAST_SECRET = 4
"""Minimum length of a value that is searched in other texts; shorter ones would match everywhere."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")
_PORT = re.compile(r"[^:]*:\d*$")
_KEYS = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_SIGNED = re.compile(
    r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|awsaccesskeyid|googleaccessid|sig|"
    r"(?:access_?|api_?)?token|secret|password)=)[^&\s'\"<>]+"
)
_LOGIN = re.compile(r"(://)[^/\s@'\"]+@")

T = TypeVar("T")

Done = TypeVar("Done")

MOST_BYTES = 16 << 30
"""Maximum bytes of one file: more than any profiler's own limit, less than the disk of a machine that reads traces."""

_S3 = frozenset({"s3", "s3a"})

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (FileNotFoundError, "no such file, folder or bucket"),
    (PermissionError, "access denied"),
)

_MANIFEST = re.compile(r"run(-task\d+)?\.json$")

_OF_PROCESS = re.compile(r"rank[^/]*/process\.json$")

CONNECT_S = 10
"""Seconds to wait for the scheduler: it runs already, and a wrong address should fail soon."""

RETRIES = 1
"""Further tries of a task that raised (a file system that was busy). Dask itself moves tasks of dead workers, three
times by default.
"""


# Which parts of a user's URL may be shown. Keys in it (logins, signatures) must not reach a report or an error.


def shown_url(url: str) -> str:
    """Return the URL without its login and without the values of parameters other than ``SHOWN``."""
    scheme, rest, login = _parts(url)
    address, mark, query = rest.partition("?")
    given = "&".join(_shown_parameter(parameter) for parameter in query.split("&"))
    return f"{scheme}{HIDDEN + '@' if login else ''}{address}{mark}{given if query else ''}"


def without_secrets(text: str, url: str) -> str:
    """Return a text about ``url`` (an error of its storage) without hidden parts of the URL and other keys."""
    text = text.replace(url, shown_url(url))
    _, rest, login = _parts(url)
    parameters = rest.partition("?")[2].split("&")
    values = [given.partition("=")[2] for given in parameters if _shown_parameter(given) != given]
    for secret in sorted({login, *login.split(":"), *values}, key=len, reverse=True):
        for spelled in (secret, unquote(secret)):
            if len(spelled) >= LEAST_SECRET:
                text = text.replace(spelled, HIDDEN)
    return _KEYS.sub(HIDDEN, _SIGNED.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", text)))


def _parts(url: str) -> tuple[str, str, str]:
    """Return scheme, rest after the login, and login (``''`` without one). A secret may contain slashes."""
    match = _SCHEME.match(url)
    if match is None:
        return "", url, ""
    scheme, rest = match[0], url[match.end() :]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        login = host.rpartition("@")[0]
    elif ":" in host and not _PORT.match(host) and "@" in rest:
        login = rest.rpartition("@")[0]
    else:
        return scheme, rest, ""
    return scheme, rest[len(login) + 1 :], login


def _shown_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    if not equals:  # A value without a name may be a token.
        return HIDDEN if parameter else ""
    return parameter if name in SHOWN or not value else f"{name}={HIDDEN}"


def remote_files(url: str) -> tuple[tuple[str, ...], bool]:
    """Return (files at or below ``url``, sorted; whether it is a folder). ``DataError`` for none, or too many."""
    system, path = _opened(url)
    with _one_line(url):
        if system.isfile(path):
            return (url,), False
        # A bucket may hold millions of files: s3fs stops listing at this number.
        bounded = {"max_items": MOST_FILES + 1} if _S3 & set(_protocols(system)) else {}
        found = sorted(system.find(path, **bounded))
    files = [
        file for file in found if not any(part.startswith(".") for part in PurePosixPath(_below(file, path)).parts)
    ]
    if not files:
        raise DataError(f"{shown_url(url)}: no such file or folder, or nothing in it")
    if len(found) > MOST_FILES:
        raise DataError(f"{shown_url(url)}: more than {MOST_FILES:,} files below it; name a narrower folder")
    return tuple(system.unstrip_protocol(file) for file in files), True


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """Yield a temporary copy of a file under its own name: the whole trace, or the beginning of another file.

    ``DataError`` if it cannot be fetched, or is too large.
    """
    system, path = _opened(url)
    name = PurePosixPath(path.partition("?")[0] if set(_protocols(system)) & {"http", "https"} else path).name
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        copy = Path(folder, name or "file")
        size = _size(system, path, url)
        with _one_line(url), system.open(path, "rb", block_size=HEAD_BYTES) as stream:
            copy.write_bytes(stream.read(HEAD_BYTES))
        if (size is None or size > HEAD_BYTES) and reader_of(copy) is not None:
            with _one_line(url):
                system.get_file(path, str(copy))
        yield copy


def files_below(url: str, folders: Sequence[str]) -> list[str]:
    """Return the paths, relative to ``url``, of all files in its ``folders``, sorted.

    ``DataError`` if listing fails.
    """
    system, root = _opened(url)
    result: list[str] = []
    for folder in folders:
        _check_inside(url, folder)
        with _one_line(url):
            result += (_below(file, root) for file in system.find(f"{root.rstrip('/')}/{folder}"))
    return sorted(result)


def fetch_all(url: str, names: Sequence[str], folder: Path) -> None:
    """Copy the files ``names`` (paths relative to ``url``) to the same places in ``folder``.

    ``DataError`` if one cannot be fetched, leaves the folder, or is too large.
    """
    system, root = _opened(url)
    for name in names:
        _check_inside(url, name)
        _size(system, f"{root.rstrip('/')}/{name}", url)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if names:
        with _one_line(url):  # In one call, because s3fs fetches small files at the same time.
            system.get([f"{root.rstrip('/')}/{name}" for name in names], [str(folder / name) for name in names])


def _check_inside(url: str, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise DataError(f"{shown_url(url)}: {name} lies outside of it")


def _size(system: Any, path: str, url: str) -> int | None:
    """Return the size; ``DataError`` if it exceeds the limit."""
    with _one_line(url):
        size: int | None = system.size(path)
    if size is not None and size > MOST_BYTES:
        raise DataError(f"{shown_url(url)}: {size:,} bytes, of which {MOST_BYTES:,} are fetched at most")
    return size


def _opened(url: str) -> tuple[Any, str]:
    shown = shown_url(url)
    try:
        import fsspec
    except ImportError as missing:
        raise UsageError(f"{shown}: fsspec is not installed; {install_command('cluster')}") from missing
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # An import error has the name of that storage's package.
        raise UsageError(f"{shown}: {without_secrets(str(error), url)}") from error
    return system, str(path)


@contextmanager
def _one_line(url: str) -> Iterator[None]:
    try:
        yield
    # Each storage has its own errors (credentials, network); all mean that the file is unavailable.
    except Exception as error:
        raise DataError(f"{shown_url(url)}: {_error_text(error, url)}") from error


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _below(file: str, folder: str) -> str:
    return file.removeprefix(folder).lstrip("/")


def _error_text(error: Exception, url: str) -> str:
    """Return the kind of failure and the first line of the storage's message."""
    lines = without_secrets(str(error), url).splitlines()
    kind = next((text for one, text in _REASONS if isinstance(error, one)), type(error).__name__)
    return f"{kind} ({lines[0]})" if lines and kind != type(error).__name__ else ": ".join([kind, *lines[:1]])


# Remote run directories: their manifests are fetched to divide them, then the files of each part to read it.


def remote_units(url: str) -> tuple[tuple[Unit, ...], bool]:
    """Return the units at or below ``url``, and whether it is a folder of several things (a single run is not).

    ``DataError`` for nothing, too much, or several runs.
    """
    files, folder = remote_files(url)
    if not folder:
        return files, False
    roots = sorted({file.rpartition("/")[0] for file in files if _MANIFEST.match(file.rpartition("/")[2])})
    # A link that was copied as a folder.
    copies = [root for root in roots if len(roots) > 1 and root.rpartition("/")[2] == LATEST]
    runs = [root for root in roots if root not in copies]
    if len(runs) > 1:
        named = ", ".join(root.rpartition("/")[2] for root in runs[:2])
        raise DataError(f"{shown_url(url)}: holds several runs ({named} ...); name one")
    others: list[Unit] = [file for file in files if not any(file.startswith(f"{root}/") for root in roots)]
    if not runs:
        return tuple(others), True
    (root,) = runs
    divided = _divided(root, [file.removeprefix(f"{root}/") for file in files if file.startswith(f"{root}/")])
    if isinstance(divided, DividedRun) and not others and root.rstrip("/").endswith(url.partition("://")[2].strip("/")):
        return (divided,), False
    return (*others, divided), True


def _divided(root: str, names: Sequence[str]) -> DividedRun | Skipped:
    shown = shown_url(root)
    manifests = [name for name in names if _MANIFEST.match(name) or _OF_PROCESS.match(name)]
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        try:
            fetch_all(root, manifests, Path(folder))
            run = divide_run(Path(folder))
        except DataError as error:
            reason = str(error).removeprefix(f"{shown}: ").removeprefix(f"{folder}/")
            return Skipped(path=shown, reason=reason, broken=True)
    return replace(run, path=shown, parts=tuple(replace(part, path=root) for part in run.parts))


# One remote task at a time: fetched, read and processed while the copy exists.


def discover_remote(url: str) -> Input:
    """Return the content at or below ``url``; errors as in ``remote_units``."""
    units, folder = remote_units(url)
    return Input(path=shown_url(url), units=units, folder=folder)


def shown_task(task: Task) -> str:
    """Return the path of a task as it is shown."""
    return f"{shown_url(task.path)}/{task.name()}" if isinstance(task, RunPart) else shown_url(task)


def work_on_copy(task: Task, work: Callable[[TaskResult], TaskResult]) -> TaskResult:
    """Apply ``work`` to a remote task through a temporary copy; the result has the remote source."""
    url, shown = (task.path if isinstance(task, RunPart) else task), shown_task(task)
    try:
        with _fetched_part(task) if isinstance(task, RunPart) else _fetched_file(task) as (local, copy):
            return work(_relocated(read_task(local), copy, shown_url(url), shown))
    except DataError as error:
        reason = str(error).removeprefix(f"{shown_url(url)}: ")
        return TaskResult(skipped=Skipped(path=shown, reason=reason, broken=True))


def _relocated(result: TaskResult, copy: str, url: str, shown: str) -> TaskResult:
    traces = []
    for trace in result.traces:
        builder = TraceBuilder.of(trace.trace)
        builder.relocate(copy, url)
        traces.append(ReadTrace(trace=builder.build()))
    lost = result.skipped
    if lost is not None:
        lost = replace(lost, path=shown, reason=lost.reason.replace(copy, url))
    return TaskResult(traces=tuple(traces), skipped=lost)


@contextmanager
def _fetched_file(url: str) -> Iterator[tuple[Task, str]]:
    with fetched(url) as copy:
        yield str(copy), str(copy)


@contextmanager
def _fetched_part(part: RunPart) -> Iterator[tuple[Task, str]]:
    """Yield the part with its files in a temporary folder, and that folder; ``DataError`` if fetching fails."""
    artifacts = part.artifacts()
    tops = sorted({artifact.partition("/")[0] for artifact in artifacts})
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        names = [
            name
            for name in files_below(part.path, tops)
            if any(name == artifact or name.startswith(f"{artifact}/") for artifact in artifacts)
        ]
        fetch_all(part.path, names, Path(folder))
        yield replace(part, path=folder), folder


# The same work on a Dask cluster: its workers read shared storage, and only digests travel back.


def work_on_cluster(
    work: Callable[[T], Done], tasks: Sequence[T], *, address: str
) -> Iterator[tuple[int, Done | LostTask]]:
    """Do the work like ``work_through``, on the scheduler at ``address`` (``tcp://host:8786`` or a file).

    Another worker repeats the tasks of a dead worker; a task that killed its worker each time is lost. ``UsageError``
    without the extra ``cluster`` or with an invalid address, ``NotStartedError`` without an answer or a worker.
    """
    try:
        import distributed
    except ImportError as missing:
        raise UsageError(f"--scheduler: Dask is not installed; {install_command('cluster')}") from missing
    with _connected(distributed, address) as client:
        _check_workers(client, address)
        futures = client.map(work, tasks, pure=False, retries=RETRIES)
        place_of = {future.key: index for index, future in enumerate(futures)}
        ended = distributed.as_completed(futures, loop=client.loop)
        del futures  # Otherwise the cluster would hold every digest to the end.
        killed = []
        for future in ended:
            index = place_of[future.key]
            done = _done(distributed, future)
            future.release()
            if isinstance(done, LostTask):
                killed.append(index)
            else:
                yield index, done
        for index in killed:  # One at a time, because Dask also blames tasks that only waited on a killed worker.
            yield index, _done(distributed, client.submit(work, tasks[index], pure=False))


def _connected(distributed: Any, address: str) -> Any:
    given = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        return distributed.Client(**given, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise NotStartedError(f"--scheduler {address}: no Dask scheduler answers: {error}") from error
    except ValueError as error:
        raise UsageError(f"--scheduler {address}: {error}") from error


def _check_workers(client: Any, address: str) -> None:
    """Raise ``NotStartedError`` if there are no workers, or they lack perfscope, or have another version."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError as error:
        raise NotStartedError(f"--scheduler {address}: the scheduler has no workers") from error
    try:
        versions = client.run(perfscope_version)
    except Exception as error:  # An error of a worker is raised unchanged.
        raise NotStartedError(f"--scheduler {address}: its workers cannot run perfscope: {error}") from error
    mine = perfscope_version()
    for worker, theirs in versions.items():
        if theirs != mine:
            raise NotStartedError(f"--scheduler {address}: {worker} has perfscope {theirs}, here is {mine}")


def perfscope_version() -> str:
    """Return the installed version; for a checkout without installation, a text that it is one."""
    try:
        return version("perfscope")
    except PackageNotFoundError:
        return "of a checkout"


def _done(distributed: Any, future: Any) -> Any:
    """Return a task's result, or the lost task if it killed its workers; raise the errors of the work."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, distributed.scheduler.KilledWorker):
        return LostTask(why="was killed with its worker several times")
    if isinstance(error, MemoryError):
        return LostTask(why="had no memory left")
    raise error
