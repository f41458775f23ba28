"""The tables, and how a store of an older perfscope becomes one of this."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.model.errors import DataError
from perfscope.profiler.store.database import Database, Session

META = "perfscope_store"
"""Every table begins with ``perfscope_``: a shared database may hold ``runs`` and ``metrics`` of another tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Statements that lead from one version to the next."""

    statements: tuple[str, ...]
    breaks: bool
    """Whether a perfscope that knows only the version before can no longer use the store."""


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        breaks=True,
        statements=(
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
    ),
)
"""One a version, never changed once released. A run's record is its truth; ``perfscope_metrics`` is an index of it."""

LATEST = len(MIGRATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What a store says of itself."""

    schema: int
    """0: no tables yet."""
    needs: int
    """The lowest version that a perfscope must know to use it."""


def version_of(database: Database, session: Session) -> Version:
    """The store's version; ``DataError`` where its own table says nonsense."""
    if not database.has_table(session, META):
        return Version(schema=0, needs=0)
    values = dict(session.rows(f"SELECT key, value FROM {META}"))  # noqa: S608  (a constant)
    try:
        return Version(schema=int(values["schema"]), needs=int(values["needs"]))
    except (KeyError, ValueError) as error:
        raise DataError(f"{database.shown}: damaged: it does not say which schema it has") from error


def check(database: Database, version: Version) -> None:
    """``DataError`` where a newer perfscope is needed; the store is left as it is."""
    if version.needs > LATEST:
        raise DataError(
            f"{database.shown}: written by a newer perfscope (schema {version.schema}, this one knows {LATEST}); "
            "update perfscope, or name another store"
        )


def prepare(database: Database, *, upgrade: bool) -> Version:
    """Make the tables that are missing, whole or not at all; the version there is now.

    ``upgrade``: also of a store that others share. Without, an older shared one is refused in one line.
    """
    with database.session(write=True, alone=True) as session:
        found = version_of(database, session)
        check(database, found)
        if found.schema >= LATEST:
            return found
        if found.schema and database.shared and not upgrade:
            raise DataError(
                f"{database.shown}: of an older schema ({found.schema}, this perfscope writes {LATEST}); "
                "`perfscope store migrate` changes it for everybody who uses it"
            )
        if not found.schema:
            session.execute(f"CREATE TABLE {META} (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        needs = found.needs
        for number, migration in enumerate(MIGRATIONS[found.schema :], start=found.schema + 1):
            for statement in migration.statements:
                session.execute(statement)
            needs = number if migration.breaks else needs
        for key, value in (("schema", LATEST), ("needs", needs)):
            session.execute(
                f"INSERT INTO {META} (key, value) VALUES (:key, :value) "  # noqa: S608  (a constant)
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                key=key,
                value=str(value),
            )
        return Version(schema=LATEST, needs=needs)
