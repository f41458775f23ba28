"""The timeline's picture as PNG, and its table as CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import PATIENCE_MS, Server, Tab, serving

FORMULA = "=cmd|' /C calc'!A0, \"quoted\""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("files")
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 40, "args": {}}
        for at, name in ((0, FORMULA), (100, "aten::mm"), (200, "aten::mm"))
    ]
    (home / "one.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with serving(home, home / "one.json") as held:
        yield held


def _save(tab: Tab, server: Server, button: str) -> bytes:
    tab.open(f"{server.base}timeline?token={server.token}", '.ps-timeline[data-ready="1"]')
    with tab.page.expect_download(timeout=PATIENCE_MS) as got:
        tab.page.click(f".ps-tl-bar button:text-is('{button}')")
    assert got.value.suggested_filename == f"timeline.{button.lower()}"
    assert tab.wrong == []
    return Path(got.value.path()).read_bytes()


def test_the_table_as_csv(tab: Tab, server: Server) -> None:
    head, *rows = csv.reader(_save(tab, server, "CSV").decode("utf-8").splitlines())
    assert head[:4] == ["time_ns", "share", "events", "mean_ns"]
    found = {row[5]: (int(row[0]), int(row[2]), float(row[3])) for row in rows}
    assert found == {"aten::mm": (80_000, 2, 40_000.0), f"'{FORMULA}": (40_000, 1, 40_000.0)}


def test_the_picture_as_png(tab: Tab, server: Server) -> None:
    picture = _save(tab, server, "PNG")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert [width, height] == tab.page.evaluate(
        "(() => { const one = document.querySelector('.ps-tl-canvas'); return [one.width, one.height] })()"
    )
    # Nothing of it is transparent, whatever the viewer puts below it.
    clear = """async (bytes) => {
      const picture = await createImageBitmap(new Blob([new Uint8Array(bytes)], { type: "image/png" }));
      const canvas = new OffscreenCanvas(picture.width, picture.height), on = canvas.getContext("2d");
      on.drawImage(picture, 0, 0);
      const data = on.getImageData(0, 0, picture.width, picture.height).data, seen = new Set();
      let clear = 0;
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 255) clear += 1;
        seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
      }
      return [clear, seen.size];
    }"""
    transparent, colours = tab.page.evaluate(clear, list(picture))
    assert transparent == 0
    assert colours > 5
