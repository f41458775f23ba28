"""An open store: save and query runs and baselines. All SQL statements are here and in ``packs``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.history.store.database import (
    Database,
    Session,
    Version,
    check_version,
    database_at,
    prepare_tables,
    version_of,
)
from perfscope.plugins.history.store.packs import Packed, add_pack, drop_loose_packs
from perfscope.plugins.history.stored_run import Baseline, StoredRun, decode, encode

LATEST = "latest"

KEPT_BASELINES = 20
"""Newest baselines kept per name: a branch that started from an older one should be updated first."""


class RunStore:
    """Runs, metrics and baselines at one address."""

    def __init__(self, where: str | Path) -> None:
        """``where``: an ``address()``. Nothing is created or queried before the first use."""
        self.database: Database = database_at(where)
        self._ready = False

    @property
    def shown(self) -> str:
        """The address for display, without a password."""
        return self.database.shown

    def is_empty(self) -> bool:
        """Whether there is no store yet; ``DataError`` if it cannot be used (damaged, newer, unreachable)."""
        if self._ready:
            return False
        if not self.database.exists():
            return True
        version = self.version()
        if version.is_older:
            version = prepare_tables(self.database, upgrade=False)
        self._ready = bool(version.schema)
        return not self._ready

    def version(self) -> Version:
        """Version of its schema, 0 without tables; ``DataError`` if a newer perfscope is needed. Changes nothing."""
        with self.database.session(write=False) as session:
            version = version_of(self.database, session)
        check_version(self.database, version)
        return version

    def prepare(self, *, upgrade: bool = False) -> Version:
        """Create or migrate its tables; see `prepare_tables`."""
        version = prepare_tables(self.database, upgrade=upgrade)
        self._ready = True
        return version

    def put(self, record: StoredRun, *, again: bool = False) -> bool:
        """Save a run; return whether it was new. An existing one is unchanged, unless ``again``."""
        if not self._ready:
            self.prepare()
        with self.database.session(write=True) as session:
            return _put(session, record, again=again)

    def set_baseline(
        self, name: str, record: StoredRun, packed: Packed | None, *, kept: int = KEPT_BASELINES
    ) -> tuple[str, ...]:
        """Give a run the name and its files; return ids of runs that lost the name for it, the oldest ones."""
        if not self._ready:
            self.prepare()
        with self.database.session(write=True, alone=True) as session:
            _put(session, record, again=False)
            if packed is not None:
                add_pack(session, packed)
            _add_baseline(session, name, record.uid, None if packed is None else packed.digest, _now())
            over = session.rows(
                "SELECT b.uid, r.id FROM perfscope_baselines b JOIN perfscope_runs r ON r.uid = b.uid "
                "WHERE b.name = :name ORDER BY b.set_utc DESC, r.created_utc DESC, b.uid",
                name=name,
            )[kept:]
            for uid, _ in over:
                session.execute("DELETE FROM perfscope_baselines WHERE name = :name AND uid = :uid", name=name, uid=uid)
            drop_loose_packs(session)
        return tuple(run_id for _, run_id in over)

    def import_baseline(self, name: str, uid: str, digest: str | None, set_utc: str, packed: Packed | None) -> bool:
        """Add a baseline of an export; return whether it was new. Its run must be stored already."""
        with self.database.session(write=True, alone=True) as session:
            there = session.rows(
                "SELECT digest FROM perfscope_baselines WHERE name = :name AND uid = :uid", name=name, uid=uid
            )
            if there and (there[0][0] is not None or packed is None):
                return False
            if packed is not None:
                add_pack(session, packed)
            _add_baseline(session, name, uid, digest if packed is not None else None, set_utc)
        return not there

    def remove_baseline(self, name: str, uid: str | None = None) -> int:
        """Remove the name from all its runs, or from one; return their number. Unused packs are deleted too."""
        if self.is_empty():
            return 0
        with self.database.session(write=True, alone=True) as session:
            removed = session.execute(
                "DELETE FROM perfscope_baselines WHERE name = :name AND (CAST(:uid AS TEXT) IS NULL OR uid = :uid)",
                name=name,
                uid=uid,
            )
            drop_loose_packs(session)
        return removed

    def baselines(self, name: str | None = None) -> tuple[Baseline, ...]:
        """Baselines of that name, or all, newest first."""
        if self.is_empty():
            return ()
        with self.database.session(write=False) as session:
            rows = session.rows(
                "SELECT b.name, r.record, b.set_utc, b.digest, COALESCE(p.bytes, 0) FROM perfscope_baselines b "
                "JOIN perfscope_runs r ON r.uid = b.uid LEFT JOIN perfscope_packs p ON p.digest = b.digest "
                "WHERE CAST(:name AS TEXT) IS NULL OR b.name = :name "
                "ORDER BY b.set_utc DESC, b.name, r.created_utc DESC",
                name=name,
            )
        return tuple(
            Baseline(name=row[0], run=decode(row[1], self.shown), set_utc=row[2], digest=row[3], bytes=int(row[4]))
            for row in rows
        )

    def runs(
        self, *, branch: str | None = None, name: str | None = None, last: int | None = None
    ) -> tuple[StoredRun, ...]:
        """The newest ``last`` runs of a branch and a name, oldest first."""
        if self.is_empty():
            return ()
        with self.database.session(write=False) as session:
            rows = session.rows(
                "SELECT record FROM perfscope_runs WHERE (CAST(:branch AS TEXT) IS NULL OR branch = :branch) "
                "AND (CAST(:name AS TEXT) IS NULL OR name = :name) ORDER BY created_utc DESC, id DESC, uid LIMIT :last",
                branch=branch,
                name=name,
                last=(1 << 62) if last is None else last,
            )
        return tuple(decode(row[0], self.shown) for row in reversed(rows))

    def counts(self) -> tuple[int, str | None]:
        """Number of runs, and time of the newest."""
        if self.is_empty():
            return 0, None
        with self.database.session(write=False) as session:
            count, newest = session.rows("SELECT COUNT(*), MAX(created_utc) FROM perfscope_runs")[0]
        return int(count), newest

    def holds(self, uids: Iterable[str]) -> set[str]:
        """The given runs that the store has."""
        if self.is_empty():
            return set()
        with self.database.session(write=False) as session:
            return {uid for uid in uids if session.rows("SELECT 1 FROM perfscope_runs WHERE uid = :uid", uid=uid)}

    def find(self, which: str) -> StoredRun:
        """The run with that id or uid, a prefix of one, or ``latest``.

        ``DataError`` without one, ``UsageError`` if several match.
        """
        rows = []
        if not self.is_empty():
            with self.database.session(write=False) as session:
                rows = session.rows(
                    "SELECT record, id, uid FROM perfscope_runs WHERE substr(id, 1, length(:which)) = :which "
                    "OR substr(uid, 1, length(:which)) = :which OR :which = :latest "
                    "ORDER BY CASE WHEN id = :which OR uid = :which THEN 0 ELSE 1 END, created_utc DESC, uid LIMIT 3",
                    which=which,
                    latest=LATEST,
                )
        if not rows or not which:
            raise DataError(f"{which}: no such run in {self.shown}")
        exact = [row for row in rows if which in row[1:]]
        if which != LATEST and len(exact or rows) > 1:
            raise UsageError(
                f"{which}: several runs match ({rows[0][1]} {rows[0][2][:12]}, {rows[1][1]} {rows[1][2][:12]} ...)"
            )
        return decode(rows[0][0], self.shown)


def _put(session: Session, record: StoredRun, *, again: bool) -> bool:
    values: dict[str, str | None] = {
        "uid": record.uid,
        "id": record.id,
        "name": record.name,
        "created_utc": record.created_utc,
        "branch": record.branch,
        "commit_hash": record.commit,
        "machine": record.machine,
        "record": encode(record),
    }
    new = session.execute(
        "INSERT INTO perfscope_runs (uid, id, name, created_utc, branch, commit_hash, machine, record, stored_utc) "
        "VALUES (:uid, :id, :name, :created_utc, :branch, :commit_hash, :machine, :record, :stored_utc) "
        "ON CONFLICT (uid) DO NOTHING",
        stored_utc=_now(),
        **values,
    )
    if not new:
        if not again:
            return False
        session.execute(
            "UPDATE perfscope_runs SET id = :id, name = :name, created_utc = :created_utc, branch = :branch, "
            "commit_hash = :commit_hash, machine = :machine, record = :record WHERE uid = :uid",
            **values,
        )
        session.execute("DELETE FROM perfscope_metrics WHERE uid = :uid", uid=record.uid)
    for metric in record.metrics:
        if metric.value is not None:
            session.execute(
                "INSERT INTO perfscope_metrics (uid, name, unit, value) VALUES (:uid, :name, :unit, :value)",
                uid=record.uid,
                name=metric.name,
                unit=metric.unit,
                value=metric.value,
            )
    return bool(new)


def _add_baseline(session: Session, name: str, uid: str, digest: str | None, set_utc: str) -> None:
    session.execute(
        "INSERT INTO perfscope_baselines (name, uid, digest, set_utc) VALUES (:name, :uid, :digest, :set_utc) "
        "ON CONFLICT (name, uid) DO UPDATE SET digest = COALESCE(excluded.digest, perfscope_baselines.digest), "
        "set_utc = excluded.set_utc",
        name=name,
        uid=uid,
        digest=digest,
        set_utc=set_utc,
    )


def _now() -> str:
    """Current time to the microsecond: several are set within a second, and the order matters."""
    return datetime.now(UTC).isoformat()
