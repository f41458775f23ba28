"""A store returns what was saved, on both databases; other files are refused and left alone."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.model.errors import DataError, PerfscopeError, UsageError
from perfscope.model.version import install_command
from perfscope.plugins.history.store import database
from perfscope.plugins.history.store.database import VARIABLE, address, secrets_of, shown_address
from perfscope.plugins.history.store.packs import Packed, fetch, pack, unpack
from perfscope.plugins.history.store.runs import RunStore
from tests.plugins.history.conftest import PASSWORD
from tests.plugins.history.records import stored_run


def packed(folder: Path, content: bytes = b"trace") -> Packed:
    place = folder / f"run-{len(content)}"
    place.mkdir(exist_ok=True)
    (place / "run.json").write_bytes(content)
    return pack(place, folder / f"{place.name}.pack")


def test_what_is_put_comes_out(where: str | Path) -> None:
    store = RunStore(where)
    assert store.is_empty()
    assert store.runs() == ()
    assert store.baselines() == ()
    records = [stored_run(number) for number in range(5)]
    assert [store.put(record) for record in reversed(records)] == [True] * 5
    again = RunStore(where)
    assert not again.is_empty()
    assert again.runs() == tuple(records)
    assert again.runs(last=2) == tuple(records[3:])
    assert again.counts() == (5, records[4].created_utc)
    assert again.holds([records[0].uid, "another"]) == {records[0].uid}


def test_a_run_is_there_once(where: str | Path) -> None:
    store = RunStore(where)
    record = stored_run()
    assert store.put(record)
    assert not store.put(record)
    changed = replace(record, metrics=record.metrics[:1], notes=("counted anew",))
    assert not store.put(changed)
    assert store.runs() == (record,)
    assert not store.put(changed, again=True)
    assert store.runs() == (changed,)
    with store.database.session(write=False) as session:
        rows = session.rows("SELECT name, unit, value FROM perfscope_metrics WHERE uid = :uid", uid=record.uid)
    assert rows == [("step time", "ns", 1e7)]


def test_by_branch_and_name(where: str | Path) -> None:
    store = RunStore(where)
    records = [stored_run(0), stored_run(1, branch="topic"), stored_run(2, branch=None), stored_run(3, name="other")]
    for record in records:
        store.put(record)
    assert store.runs(branch="main") == (records[0], records[3])
    assert store.runs(name="train") == tuple(records[:3])
    assert store.runs(branch="topic", name="other") == ()


def test_a_run_is_found_by_how_its_id_begins(where: str | Path) -> None:
    store = RunStore(where)
    records = [stored_run(0), stored_run(1)]
    for record in records:
        store.put(record)
    assert store.find(records[0].id[:15]) == records[0]
    assert store.find(records[1].uid[:8]) == records[1]
    assert store.find("latest") == records[1]
    with pytest.raises(UsageError, match="several runs match"):
        store.find("2026")
    for nothing in ("2027", "", "%", "_"):
        with pytest.raises(DataError, match="no such run"):
            store.find(nothing)
    twin = replace(records[0], uid="f" * 32)
    store.put(twin)
    with pytest.raises(UsageError, match="several"):
        store.find(twin.id)


@pytest.mark.parametrize("text", ["naïve 日本 😀", "'; DROP TABLE perfscope_runs; --", ":name %s %(x)s ? \\", "a\nb"])
def test_texts_are_kept_as_they_are(where: str | Path, text: str) -> None:
    store = RunStore(where)
    record = stored_run(0, name=text, branch=text, notes=(text,), command=(text,))
    store.put(record)
    assert store.runs(branch=text, name=text) == (record,)


def test_baselines(where: str | Path, tmp_path: Path) -> None:
    store = RunStore(where)
    first, second = stored_run(0), stored_run(1)
    one = packed(tmp_path)
    assert store.set_baseline("main", first, one) == ()
    assert store.set_baseline("main", second, None) == ()
    assert store.set_baseline("release", first, one) == ()
    held = store.baselines("main")
    assert [(found.run, found.digest, found.bytes) for found in held] == [
        (second, None, 0),
        (first, one.digest, one.bytes),
    ]
    assert [found.name for found in store.baselines()] == ["release", "main", "main"]
    assert store.set_baseline("main", first, None) == (), "set again it is the newest, and keeps its files"
    assert [(found.run, found.digest) for found in store.baselines("main")] == [(first, one.digest), (second, None)]
    assert store.runs() == (first, second), "its numbers are in the history too"
    assert store.remove_baseline("main", second.uid) == 1
    assert store.remove_baseline("main") == 1
    assert store.remove_baseline("main") == 0
    assert [found.name for found in store.baselines()] == ["release"]


def test_files_go_with_the_last_baseline_that_has_them(where: str | Path, tmp_path: Path) -> None:
    store = RunStore(where)
    one = packed(tmp_path, b"x" * 3_000_000)
    store.set_baseline("main", stored_run(0), one)
    store.set_baseline("other", stored_run(0), one)
    store.remove_baseline("main")
    copy = fetch(store.database, one.digest, tmp_path / "copy")
    assert (copy.bytes, copy.unpacked, copy.files) == (one.bytes, 3_000_000, 1)
    assert unpack(copy.file, tmp_path / "out", "it").joinpath("run.json").read_bytes() == b"x" * 3_000_000
    store.remove_baseline("other")
    with pytest.raises(DataError, match="are not in it"):
        fetch(store.database, one.digest, tmp_path / "copy")
    with store.database.session(write=False) as session:
        assert session.rows("SELECT COUNT(*) FROM perfscope_chunks") == [(0,)]


def test_only_the_newest_baselines_of_a_name_stay(where: str | Path, tmp_path: Path) -> None:
    store = RunStore(where)
    let_go = [store.set_baseline("main", stored_run(number), None, kept=3) for number in range(5)]
    assert let_go == [(), (), (), (stored_run(0).id,), (stored_run(1).id,)]
    assert [one.run.id for one in store.baselines()] == [stored_run(number).id for number in (4, 3, 2)]
    assert store.counts()[0] == 5


def test_damaged_files_of_a_baseline_are_told(where: str | Path, tmp_path: Path) -> None:
    store = RunStore(where)
    one = packed(tmp_path, bytes(range(256)) * 9_000)
    store.set_baseline("main", stored_run(), one)
    with store.database.session(write=True) as session:
        session.execute("UPDATE perfscope_chunks SET content = :content WHERE number = 0", content=b"other")
    with pytest.raises(DataError, match="damaged"):
        fetch(store.database, one.digest, tmp_path / "copy")


def test_a_broken_transaction_leaves_nothing(where: str | Path) -> None:
    store = RunStore(where)
    store.put(stored_run(0))
    with pytest.raises(DataError, match="no_such_table"), store.database.session(write=True) as session:
        session.execute("DELETE FROM perfscope_runs") and session.execute("DELETE FROM no_such_table")
    assert store.runs() == (stored_run(0),)


def test_a_newer_store_is_refused_and_left_as_it_is(where: str | Path) -> None:
    store = RunStore(where)
    store.put(stored_run(0))
    with store.database.session(write=True) as session:
        session.execute("UPDATE perfscope_store SET value = '99'")
    for use in (
        lambda it: it.runs(),
        lambda it: it.put(stored_run(1)),
        lambda it: it.set_baseline("main", stored_run(1), None),
    ):
        with pytest.raises(DataError, match=r"newer perfscope \(schema 99, supported: 1\)"):
            use(RunStore(where))
    with store.database.session(write=True) as session:
        assert session.rows("SELECT COUNT(*) FROM perfscope_runs") == [(1,)]
        session.execute("UPDATE perfscope_store SET value = '1' WHERE key = 'needs'")
    assert RunStore(where).runs() == (stored_run(0),), "a newer one that says that we may"


def test_a_version_that_is_none(where: str | Path) -> None:
    store = RunStore(where)
    store.put(stored_run(0))
    with store.database.session(write=True) as session:
        session.execute("UPDATE perfscope_store SET value = 'x' WHERE key = 'schema'")
    with pytest.raises(DataError, match="damaged"):
        RunStore(where).runs()


MORE = ("ALTER TABLE perfscope_runs ADD COLUMN extra TEXT",)


def test_an_older_store_is_brought_up_to_date(where: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = RunStore(where)
    old.put(stored_run(0))
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, MORE))
    monkeypatch.setattr(database, "LATEST", 2)
    if isinstance(where, str):
        with pytest.raises(DataError, match="`perfscope store migrate` changes it for all its users"):
            RunStore(where).runs()
        version = RunStore(where).prepare(upgrade=True)
        assert (version.schema, version.needs) == (2, 2)
    new = RunStore(where)
    assert new.runs() == (stored_run(0),)
    with new.database.session(write=False) as session:
        assert session.rows("SELECT extra FROM perfscope_runs") == [(None,)]
    monkeypatch.undo()
    with pytest.raises(DataError, match="newer perfscope"):
        RunStore(where).put(stored_run(1))


def test_a_migration_that_fails_changes_nothing(where: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunStore(where).put(stored_run(0))
    broken = (*MORE, "ALTER TABLE no_such_table ADD COLUMN x TEXT")
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, broken))
    monkeypatch.setattr(database, "LATEST", 2)
    with pytest.raises(DataError, match="no_such_table"):
        RunStore(where).prepare(upgrade=True)
    monkeypatch.undo()
    store = RunStore(where)
    assert store.runs() == (stored_run(0),)
    with pytest.raises(DataError, match="extra"), store.database.session(write=False) as session:
        session.rows("SELECT extra FROM perfscope_runs")


@pytest.mark.parametrize("content", [b"no database " * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    for use in (lambda it: it.runs(), lambda it: it.put(stored_run(0)), lambda it: it.baselines()):
        with pytest.raises(DataError, match=r"store\.sqlite: "):
            use(RunStore(path))
    assert path.read_bytes() == content


def test_a_store_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = RunStore(path)
    for number in range(50):
        store.put(stored_run(number))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"store\.sqlite: damaged"):
        RunStore(path).runs()
    assert path.read_bytes() == whole[: len(whole) // 2]


def test_sqlite_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id = 42")
        connection.execute("CREATE TABLE theirs (x)")
    for use in (lambda it: it.runs(), lambda it: it.put(stored_run(0))):
        with pytest.raises(DataError, match="of another program"):
            use(RunStore(path))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"store\.sqlite: "):
        RunStore(tmp_path / "file" / "store.sqlite").put(stored_run(0))


def test_what_baselines_leave_is_given_back_to_the_disk(tmp_path: Path) -> None:
    import random

    path = tmp_path / "store.sqlite"
    store = RunStore(path)
    store.put(stored_run(0))
    before = path.stat().st_size
    store.set_baseline("main", stored_run(0), packed(tmp_path, random.Random(0).randbytes(3_000_000)))
    assert path.stat().st_size > 3_000_000
    store.remove_baseline("main")
    assert path.stat().st_size <= before + 65_536


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert address(None) == Path("perfscope-runs/store.sqlite")
    assert address(None, tmp_path) == tmp_path / "store.sqlite"
    assert address(str(tmp_path)) == tmp_path / "store.sqlite"
    assert address("not-there/") == Path("not-there/store.sqlite")
    assert address("mine.db") == Path("mine.db")
    monkeypatch.setenv(VARIABLE, "postgresql://me:pw@host/db")
    assert address(None) == "postgresql://me:pw@host/db"
    assert address("mine.db") == Path("mine.db")
    monkeypatch.setenv(VARIABLE, "")
    assert address(None) == Path("perfscope-runs/store.sqlite")


@pytest.mark.parametrize(
    "url", ["mysql://me:secret@host/db", "https://me:secret@host", "postgresql://me:secret@host:x/"]
)
def test_other_urls_are_refused_without_being_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@host:5433/db", "postgresql://host:5433/db"),
        ("postgres://me@host/db?sslmode=require&password=x", "postgresql://host/db"),
        ("postgresql+psycopg://me:p%40w@[::1]:5433/db", "postgresql://[::1]:5433/db"),
        ("postgresql:///db?host=/run", "postgresql:///db"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert shown_address(url) == shown


def test_what_must_be_in_no_message() -> None:
    assert set(secrets_of("postgresql://me:p%40w@host/db?sslpassword=a%20b&x=1")) == {"p%40w", "p@w", "a%20b", "a b"}


def all_text(error: BaseException | None) -> str:
    """Text of the error's traceback."""
    import traceback

    assert error is not None
    return "".join(traceback.format_exception(error))


def test_a_wrong_password_is_one_line_without_it(postgres: str) -> None:
    wrong = postgres.replace(":pl%40nted%2Fs3cret@", ":not%40the%2Fsecret@")
    assert wrong != postgres
    with pytest.raises(DataError) as caught:
        RunStore(wrong).put(stored_run())
    text = all_text(caught.value)
    assert str(caught.value).startswith("postgresql:///")
    assert "\n" not in str(caught.value)
    assert "password authentication failed" in text
    assert "not@the" not in text
    assert "not%40the" not in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cr%40t@127.0.0.1:1/db",
        "postgresql://me:s3cr%40t@host.invalid/db",
        "postgresql://me:s3cr%40t@127.0.0.1:1/db?no_such_option=1",
        "postgresql://me@127.0.0.1:1/db?password=s3cr%40t&sslmode=nonsense",
    ],
)
def test_a_server_that_is_not_there(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("psycopg")
    with pytest.raises(DataError) as caught:
        RunStore(url).runs()
    text = all_text(caught.value)
    assert str(caught.value).startswith(shown_address(url) + ": ")
    assert "s3cr" not in text
    assert "\n" not in str(caught.value)


def test_the_password_is_in_no_table(postgres: str) -> None:
    store = RunStore(postgres)
    store.set_baseline("main", stored_run(), None)
    with store.database.session(write=False) as session:
        tables = session.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE 'perfscope%'")
        assert len(tables) == 6
        for (table,) in tables:
            assert PASSWORD not in repr(session.rows(f"SELECT * FROM {table}"))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(PerfscopeError, match=re.escape(install_command("store"))):
        RunStore("postgresql://me:secret@host/db")
