"""Where a store is, and what of a URL is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.model.errors import DataError, PerfscopeError, UsageError
from perfscope.profiler.store.address import VARIABLE, address, secrets_of, shown_address
from perfscope.profiler.store.runs import RunStore
from tests.profiler.run_store.conftest import PASSWORD
from tests.profiler.run_store.records import stored


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
    """What a traceback of the error would show."""
    import traceback

    assert error is not None
    return "".join(traceback.format_exception(error))


def test_a_wrong_password_is_one_line_without_it(postgres: str) -> None:
    wrong = postgres.replace(":pl%40nted%2Fs3cret@", ":not%40the%2Fsecret@")
    assert wrong != postgres
    with pytest.raises(DataError) as caught:
        RunStore(wrong).put(stored())
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
    store.set_baseline("main", stored(), None)
    with store.database.session(write=False) as session:
        tables = session.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE 'perfscope%'")
        assert len(tables) == 6
        for (table,) in tables:
            assert PASSWORD not in repr(session.rows(f"SELECT * FROM {table}"))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(PerfscopeError, match=r'pip install "perfscope\[store\]"'):
        RunStore("postgresql://me:secret@host/db")
