"""A common interface to both databases: SQLite by the standard library, PostgreSQL by SQLAlchemy.

Statements are written once, in the common part of SQL, with ``:name`` for values; columns are TEXT, BIGINT, DOUBLE
PRECISION and BYTEA, for which SQLite has suitable affinities.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError, PerfscopeError, UsageError
from perfscope.model.version import install_command

# Location of a store: a file on this machine, or a database URL whose password is never shown.


STORE_FILE = "store.sqlite"
"""File of the local run store, in the folder of runs."""
VARIABLE = "PERFSCOPE_STORE"

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

WAIT_SECONDS = 60
"""Seconds that a writer waits for others: a dozen jobs may end at once, on a slow disk."""
CONNECT_SECONDS = 10

APPLICATION_ID = 0x70736370
"""``pscp``: distinguishes our files from other SQLite files (`file` shows it)."""

LOCK = 0x7065726673636F70
"""Key of the lock that lets one writer at a time change shared data."""

META = "perfscope_store"
"""Every table begins with ``perfscope_``: a shared database may hold ``runs`` and ``metrics`` of another tool."""


def address(option: str | None, folder: Path | None = None) -> str | Path:
    """A URL of PostgreSQL, or the file of a local store: ``option``, else from the environment, else next to the runs.

    ``option`` may be a folder, which means the store's usual file in it. ``UsageError``: a URL of another kind; the
    message does not contain the URL.
    """
    given = option if option is not None else os.environ.get(VARIABLE)
    if not given:
        return (Path(RUNS_FOLDER) if folder is None else folder) / STORE_FILE
    scheme = _SCHEME.match(given)
    if scheme is None:
        path = Path(given)
        return path / STORE_FILE if path.is_dir() or given.endswith("/") else path
    if scheme[1].lower() not in SCHEMES:
        raise UsageError(f"unsupported store URL scheme {scheme[1]}://; use postgresql://...")
    split(given)
    return given


def split(url: str) -> SplitResult:
    """The parts of a URL; ``UsageError``, without the URL, if it is invalid."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (it is parsed on access)
    except ValueError:
        raise UsageError(
            "the URL of the store cannot be read: is a port a number, and every special character of its password "
            "written as %XX?"
        ) from None
    return parts


def shown_address(where: str | Path) -> str:
    """The address for display, without user, password and options."""
    if isinstance(where, Path):
        return str(where)
    parts = split(where)
    port = f":{parts.port}" if parts.port is not None else ""
    host = parts.hostname or ""
    return f"postgresql://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def secrets_of(url: str) -> tuple[str, ...]:
    """Parts of a URL that messages must not contain: password, as written and decoded, and option values."""
    parts = split(url)
    secrets = {parts.password or "", unquote(parts.password or "")}
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if "pass" in name.lower():
            secrets |= {value, unquote(value)}
    return tuple(sorted((secret for secret in secrets if secret), key=len, reverse=True))


Values = str | int | float | bytes | None


class Session:
    """One transaction. ``run(sql, values)`` gives a cursor, as SQLite's and SQLAlchemy's are."""

    def __init__(self, run: Callable[[str, dict[str, Values]], Any]) -> None:
        self._run = run

    def execute(self, sql: str, **values: Values) -> int:
        """Run a statement; return the number of changed rows."""
        return int(self._run(sql, values).rowcount)

    def rows(self, sql: str, **values: Values) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in self._run(sql, values).fetchall()]


class SqliteDatabase:
    """One file. Every database error becomes one line that starts with ``shown``.

    Its journal is deleted, not kept as a second file (WAL), because folders of runs are also on network disks.
    """

    shared = False
    """Whether other users' perfscope may use it at the same time."""

    def __init__(self, path: Path) -> None:
        """``path`` need not exist: the first write creates it."""
        self.path = path
        self.shown = str(path)

    def exists(self) -> bool:
        """Whether the file is there and not empty."""
        try:
            return self.path.stat().st_size > 0
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DataError(f"{self.shown}: {(error.strerror or 'cannot be read').lower()}") from error

    @contextlib.contextmanager
    def session(self, *, write: bool, alone: bool = False) -> Iterator[Session]:
        """A transaction: committed when the block ends, rolled back when it raises. There is one writer at a time."""
        with self._in_one_line():
            connection = self._connect(write)
            try:
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield Session(connection.execute)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the first error is the relevant one
                    connection.execute("ROLLBACK")
                raise
            finally:
                connection.close()

    def _connect(self, write: bool) -> sqlite3.Connection:
        if write and not self.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}"
        connection = sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            if write and not connection.execute("PRAGMA schema_version").fetchone()[0]:
                connection.execute("PRAGMA auto_vacuum = FULL")  # space of removed baselines returns to the disk
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif connection.execute("PRAGMA application_id").fetchone()[0] not in (0, APPLICATION_ID):
                raise DataError(f"{self.shown}: an SQLite file of another program")
        except BaseException:
            connection.close()
            raise
        return connection

    def has_table(self, session: Session, name: str) -> bool:
        """Whether the file lists the table."""
        return bool(session.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name", name=name))

    @contextlib.contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            message = str(error)
            if "locked" in message:
                message = f"another process has been writing for more than {WAIT_SECONDS} s"
            raise DataError(f"{self.shown}: {message}") from error
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.shown}: damaged, or not a store ({error}); it was not changed") from error
        except OSError as error:
            raise DataError(f"{self.shown}: {(error.strerror or 'cannot be used').lower()}") from error


class PostgresDatabase:
    """A server, by URL; no error shows its password. It connects with the first session."""

    shared = True

    def __init__(self, url: str) -> None:
        """``PerfscopeError`` if SQLAlchemy or psycopg is not installed."""
        try:
            import psycopg  # noqa: F401  (SQLAlchemy's own message names neither the package nor the extra)
            import sqlalchemy
        except ImportError as error:
            needs = f"a store on PostgreSQL needs SQLAlchemy and psycopg: {install_command('store')}"
            raise PerfscopeError(f"{shown_address(url)}: {needs}") from error
        self.shown = shown_address(url)
        self._secrets = secrets_of(url)
        scheme = split(url).scheme
        try:
            self._engine = sqlalchemy.create_engine(
                f"postgresql+psycopg{url[len(scheme) :]}",
                poolclass=sqlalchemy.NullPool,
                hide_parameters=True,
                connect_args={"connect_timeout": CONNECT_SECONDS, "application_name": "perfscope"},
            )
        except (sqlalchemy.exc.SQLAlchemyError, ValueError, TypeError) as error:
            raise DataError(f"{self.shown}: {self._message(error)}") from None

    def exists(self) -> bool:
        """Return True; a missing server is noticed when it is read."""
        return True

    @contextlib.contextmanager
    def session(self, *, write: bool, alone: bool = False) -> Iterator[Session]:
        """As in `SqliteDatabase`; readers see one moment. ``alone``: no other such transaction at the same time."""
        import sqlalchemy

        level = "READ COMMITTED" if write else "REPEATABLE READ"
        try:
            with self._engine.connect() as plain:
                connection = plain.execution_options(isolation_level=level)
                with connection.begin():
                    connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'"))
                    if alone:
                        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
                    yield Session(lambda sql, values: connection.execute(sqlalchemy.text(sql), values))
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise DataError(f"{self.shown}: {self._message(error)}") from None

    def has_table(self, session: Session, name: str) -> bool:
        """Whether a searched schema has the table."""
        return session.rows("SELECT to_regclass(:name) IS NOT NULL", name=name)[0][0] is True

    def _message(self, error: Exception) -> str:
        """The server's message on one line, without secrets."""
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


Database = SqliteDatabase | PostgresDatabase


def database_at(where: str | Path) -> Database:
    """The database at an ``address()``."""
    return SqliteDatabase(where) if isinstance(where, Path) else PostgresDatabase(where)


# The tables, and the migration of an older store.


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE perfscope_runs (
                uid TEXT PRIMARY KEY, id TEXT NOT NULL, name TEXT NOT NULL, created_utc TEXT NOT NULL,
                branch TEXT, commit_hash TEXT, machine TEXT NOT NULL, record TEXT NOT NULL,
                stored_utc TEXT NOT NULL)""",
        "CREATE INDEX perfscope_runs_by_time ON perfscope_runs (created_utc)",
        """CREATE TABLE perfscope_metrics (
                uid TEXT NOT NULL, name TEXT NOT NULL, unit TEXT NOT NULL, value DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (uid, name))""",
        "CREATE INDEX perfscope_metrics_by_name ON perfscope_metrics (name)",
        """CREATE TABLE perfscope_packs (
                digest TEXT PRIMARY KEY, bytes BIGINT NOT NULL, unpacked BIGINT NOT NULL, files BIGINT NOT NULL)""",
        """CREATE TABLE perfscope_chunks (
                digest TEXT NOT NULL, number BIGINT NOT NULL, content BYTEA NOT NULL, PRIMARY KEY (digest, number))""",
        """CREATE TABLE perfscope_baselines (
                name TEXT NOT NULL, uid TEXT NOT NULL, digest TEXT, set_utc TEXT NOT NULL, PRIMARY KEY (name, uid))""",
    ),
)
"""The statements that lead to each version, never changed once released. ``perfscope_metrics`` is an index of the runs'
records, which are authoritative."""

LATEST = len(MIGRATIONS)


class Version(Struct, frozen=True, kw_only=True):
    """Version and identity that a store records."""

    schema: int
    """0: no tables yet."""
    needs: int
    """The lowest version that a perfscope must support to use it."""

    @property
    def is_older(self) -> bool:
        """Whether there are tables, of an older schema than this perfscope writes."""
        return 0 < self.schema < LATEST


def version_of(database: Database, session: Session) -> Version:
    """The store's version; ``DataError`` if its table of versions is invalid."""
    if not database.has_table(session, META):
        return Version(schema=0, needs=0)
    values = dict(session.rows(f"SELECT key, value FROM {META}"))  # noqa: S608  (a constant)
    try:
        return Version(schema=int(values["schema"]), needs=int(values["needs"]))
    except (KeyError, ValueError) as error:
        raise DataError(f"{database.shown}: damaged: its schema version is missing") from error


def check_version(database: Database, version: Version) -> None:
    """``DataError`` if a newer perfscope is needed; the store is not changed."""
    if version.needs > LATEST:
        raise DataError(
            f"{database.shown}: written by a newer perfscope (schema {version.schema}, supported: {LATEST}); "
            "update perfscope, or use another store"
        )


def prepare_tables(database: Database, *, upgrade: bool) -> Version:
    """Create missing tables, completely or not at all; return the version.

    ``upgrade``: also for a shared store. Without it an older shared store is refused in one line.
    """
    with database.session(write=True, alone=True) as session:
        version = version_of(database, session)
        check_version(database, version)
        if version.schema >= LATEST:
            return version
        if version.schema and database.shared and not upgrade:
            raise DataError(
                f"{database.shown}: of an older schema ({version.schema}, this perfscope writes {LATEST}); "
                "`perfscope store migrate` changes it for all its users"
            )
        if not version.schema:
            session.execute(f"CREATE TABLE {META} (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        for statement in itertools.chain.from_iterable(MIGRATIONS[version.schema :]):
            session.execute(statement)
        for key, value in (("schema", LATEST), ("needs", LATEST)):
            session.execute(
                f"INSERT INTO {META} (key, value) VALUES (:key, :value) "  # noqa: S608  (a constant)
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                key=key,
                value=str(value),
            )
        return Version(schema=LATEST, needs=LATEST)
