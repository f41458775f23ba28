"""Which page "Open in Perfetto" opens: the user's, the one that is installed, the one of the net, or none."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from perfscope.commands import serve
from perfscope.dashboards.server import viewer
from perfscope.model.errors import UsageError

HOSTS = frozenset({"127.0.0.1"})


def _page(asked: str | None, *, offline: bool, own: bool = True) -> Any:
    def no_server(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is to be served")

    return serve._perfetto_page(no_server, "127.0.0.1", HOSTS, asked, offline=offline, own=own)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "PACKAGE", "no_such_package_of_a_viewer")


@pytest.mark.usefixtures("absent")
def test_without_the_files_it_is_the_page_of_the_net_and_offline_none() -> None:
    assert viewer.find_viewer() is None
    assert _page(None, offline=False) == ({"word": "ui.perfetto.dev", "url": "https://ui.perfetto.dev"}, None)
    assert _page(None, offline=True) == (None, None)


@pytest.mark.parametrize("offline", [False, True])
def test_the_address_of_the_user_comes_first(offline: bool) -> None:
    held = _page("https://perfetto.example/ui/", offline=offline)
    assert held == ({"word": "perfetto.example", "url": "https://perfetto.example/ui/"}, None)


def test_behind_a_proxy_there_is_no_second_port() -> None:
    assert _page(None, offline=True, own=False) == (None, None)


@pytest.mark.parametrize(
    "url", ["", "perfetto.example", "javascript:alert(1)", "file:///etc/passwd", "https://", "http://[x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--perfetto-ui"):
        serve._address(url)


def _found(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    spec = importlib.machinery.ModuleSpec("viewer", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)


def test_its_files_are_found_and_no_others_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _found(monkeypatch, tmp_path)
    assert viewer.find_viewer() is None
    folder = tmp_path / viewer.FOLDER
    (folder / "deep").mkdir(parents=True)
    for name in (viewer.INDEX, "service_worker.js", "deep/a.wasm"):
        (folder / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert viewer.find_viewer() == folder
    application = viewer.viewer(folder, HOSTS)
    told: list[str] = []

    def ask(path: str, method: str = "GET", host: str = "127.0.0.1:80") -> tuple[str, bytes]:
        given = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host}
        body = application(given, lambda status, headers: told.append(f"{status} {dict(headers)['Content-Type']}"))
        return told[-1], b"".join(body)

    assert ask("/") == ("200 OK text/html", b"index.html")
    assert ask("/deep/a.wasm") == ("200 OK application/wasm", b"deep/a.wasm")
    assert ask("/deep/a.wasm", "HEAD") == ("200 OK application/wasm", b"")
    for path in ("/service_worker.js", "/link", "/../secret", "/deep", "", "/deep/../index.html"):
        assert ask(path)[0].startswith("404"), path
    assert ask("/", "POST")[0].startswith("405")
    assert ask("/", host="evil.example")[0].startswith("421")
