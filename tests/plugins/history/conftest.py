"""A PostgreSQL server of the test run's own: no port, a socket in a temporary folder, gone afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.conftest import browser as browser
from tests.browser.conftest import tab as tab

PASSWORD = "pl@nted/s3cret"
NUMBERS = itertools.count()


def binaries() -> Path | None:
    """Where Debian (or the PATH) has the server; the newest one."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return places[-1].parent if places else None


def as_nobody() -> list[str]:
    """PostgreSQL refuses to be root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


class Server:
    """A server in a separate folder, which also contains its socket; it can be killed and restarted."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder, self.binaries = folder, binaries
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if os.getuid() == 0:
            for path in (folder, secret):
                os.chown(path, 65534, 65534)
        subprocess.run(
            [*as_nobody(), binaries / "initdb", "-D", folder / "data", "-U", "tester", "--auth=scram-sha-256",
             f"--pwfile={secret}", "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True, capture_output=True, cwd=folder,
        )  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        import psycopg

        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*as_nobody(), self.binaries / "postgres", "-D", self.folder / "data", "-k", self.folder, "-p", "54329",
                 "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"],
                stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        for _ in range(300):
            try:
                psycopg.connect(url(self.folder, "postgres")).close()
                break
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        else:
            raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        """All its processes at once, as where the machine fails."""
        assert self.process is not None
        children = subprocess.run(
            ["pgrep", "--parent", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        self.process.kill()
        for child in map(int, children.stdout.split()):  # each has its own session
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait(30)
        self.process = None

    def stop(self) -> None:
        """Connections end, and it too."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)
            self.process = None


@contextlib.contextmanager
def new_server() -> Iterator[Server]:
    """A server that runs; it and its folder are gone afterwards."""
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy")
    pytest.importorskip("psycopg", reason="no psycopg")
    where = binaries()
    if where is None:
        pytest.skip("no PostgreSQL server here (Debian: apt install postgresql)")
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv")
    folder = Path(tempfile.mkdtemp(prefix="pscope-pg-", dir="/tmp"))  # short: a socket's path has 107 bytes
    try:
        server = Server(folder, where)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server() -> Iterator[Path]:
    """The folder of a running server: its socket is in it."""
    with new_server() as running:
        yield running.folder


def url(folder: Path, database: str) -> str:
    return f"postgresql://tester:{quote(PASSWORD, safe='')}@/{database}?host={folder}&port=54329"


@pytest.fixture
def postgres(server: Path) -> str:
    """The URL of a new empty database."""
    import psycopg

    name = f"t{os.getpid()}_{next(NUMBERS)}"
    with psycopg.connect(url(server, "postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return url(server, name)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """An address where no store is yet, of either kind."""
    if request.param == "sqlite":
        return tmp_path / "folder" / "store.sqlite"
    address: str = request.getfixturevalue("postgres")
    return address
