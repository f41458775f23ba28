"""One way to speak to both databases: SQLite by the standard library, PostgreSQL by SQLAlchemy.

Statements are written once, in the part of SQL that both know, with ``:name`` for values; columns are TEXT, BIGINT,
DOUBLE PRECISION and BYTEA, which SQLite takes as the affinities that hold them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.errors import DataError, PerfscopeError
from perfscope.profiler.store.address import secrets_of, shown_address, split

if TYPE_CHECKING:
    import sqlalchemy

WAIT_SECONDS = 60
"""A writer waits that long for others: a dozen jobs that end at once, on a slow disk."""
CONNECT_SECONDS = 10

APPLICATION_ID = 0x70736370
"""``pscp``: tells our files from other people's SQLite (`file` shows it)."""

LOCK = 0x7065726673636F70
"""Key of the lock that one writer at a time holds where it changes what others rely on."""

EXTRA = 'a store on PostgreSQL needs SQLAlchemy and psycopg: pip install "perfscope[store]"'

Values = str | int | float | bytes | None


class Session(ABC):
    """One transaction."""

    @abstractmethod
    def execute(self, sql: str, **values: Values) -> int:
        """Run a statement; how many rows it changed."""

    @abstractmethod
    def rows(self, sql: str, **values: Values) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""


class Database(ABC):
    """Where the tables are. Every error of the database becomes one line, with ``shown`` first and no password."""

    shown: str
    shared: bool
    """Whether others use it with a perfscope of their own."""

    @abstractmethod
    def session(self, *, write: bool, alone: bool = False) -> AbstractContextManager[Session]:
        """A transaction: kept when the block ends, undone when it raises. ``alone``: no other such one meanwhile."""

    @abstractmethod
    def has_table(self, session: Session, name: str) -> bool:
        """Whether there is a table of that name."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is anything to read; a server is asked when it is read."""


class _Sqlite(Session):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, **values: Values) -> int:
        return self._connection.execute(sql, values).rowcount

    def rows(self, sql: str, **values: Values) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()


class SqliteDatabase(Database):
    """One file. Its journal is deleted, not kept beside it (WAL): folders of runs lie on network disks too."""

    shared = False

    def __init__(self, path: Path) -> None:
        """``path`` need not exist: the first write makes it."""
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
        """As `Database.session`; a writer is always alone."""
        with self._in_one_line():
            connection = self._connect(write)
            try:
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield _Sqlite(connection)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the first error is the one to tell
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
                connection.execute("PRAGMA auto_vacuum = FULL")  # what baselines leave is given back to the disk
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif connection.execute("PRAGMA application_id").fetchone()[0] not in (0, APPLICATION_ID):
                raise DataError(f"{self.shown}: an SQLite file of another program")
        except BaseException:
            connection.close()
            raise
        return connection

    def has_table(self, session: Session, name: str) -> bool:
        """By the file's own list."""
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
            raise DataError(f"{self.shown}: damaged, or no store ({error}); it was left as it is") from error
        except OSError as error:
            raise DataError(f"{self.shown}: {(error.strerror or 'cannot be used').lower()}") from error


class _Postgres(Session):
    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, **values: Values) -> int:
        return int(self._run(sql, values).rowcount)

    def rows(self, sql: str, **values: Values) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._run(sql, values)]

    def _run(self, sql: str, values: dict[str, Values]) -> sqlalchemy.CursorResult[Any]:
        import sqlalchemy

        return self._connection.execute(sqlalchemy.text(sql), values)


class PostgresDatabase(Database):
    """A server, by URL. Nothing is asked of it before the first session."""

    shared = True

    def __init__(self, url: str) -> None:
        """``PerfscopeError`` where SQLAlchemy or psycopg is not installed."""
        try:
            import psycopg  # noqa: F401  (SQLAlchemy's own message names neither the package nor the extra)
            import sqlalchemy
        except ImportError as error:
            raise PerfscopeError(f"{shown_address(url)}: {EXTRA}") from error
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
            raise DataError(f"{self.shown}: {self._said(error)}") from None

    def exists(self) -> bool:
        """A server is asked when it is read."""
        return True

    @contextlib.contextmanager
    def session(self, *, write: bool, alone: bool = False) -> Iterator[Session]:
        """As `Database.session`; readers see one moment."""
        import sqlalchemy

        level = "READ COMMITTED" if write else "REPEATABLE READ"
        try:
            with self._engine.connect() as plain:
                connection = plain.execution_options(isolation_level=level)
                with connection.begin():
                    connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'"))
                    if alone:
                        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
                    yield _Postgres(connection)
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise DataError(f"{self.shown}: {self._said(error)}") from None

    def has_table(self, session: Session, name: str) -> bool:
        """In the schemas that are searched."""
        return session.rows("SELECT to_regclass(:name) IS NOT NULL", name=name)[0][0] is True

    def _said(self, error: Exception) -> str:
        """What the server said, on one line, without secrets."""
        cause = getattr(error, "orig", None) or error
        said = " ".join(str(cause).split()) or type(cause).__name__
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return said


def database(where: str | Path) -> Database:
    """The database at an ``address()``."""
    return SqliteDatabase(where) if isinstance(where, Path) else PostgresDatabase(where)
