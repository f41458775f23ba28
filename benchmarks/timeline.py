"""The dashboard's timeline on many events: index time and memory, and how long a zoom takes in a real browser.

    python benchmarks/timeline.py [--events 10000000] [--lanes 24] [--zooms 40]

Kernels with log-normal durations and gaps on several streams of one device (real traces of that size are rare and
larger than a repository). The index is built as the server's child builds it; the page is the real one, served by
``perfscope serve`` and opened in a headless Chromium at 1600 x 900. A zoom is one turn of the wheel at a random place:
*repaint* is until the old picture was redrawn at its new scale, *sharp* until the new tile was drawn.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from perfscope.analyzers.engine import Analysis
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.workshop import MADE_BY
from perfscope.dashboards.web.views import Gathered, Job, Place, view_module
from perfscope.model.trace import Rows, Source, Trace
from perfscope.model.trace.tables import TABLES

BINARIES = ("chromium", "chromium-browser", "google-chrome")
NAMES = 2_000
SETTLE_MS = 700


def synthetic(events: int, lanes: int) -> Trace:
    """``events`` kernels on ``lanes`` streams that do not overlap within a stream."""
    random = np.random.default_rng(0)
    per = events // lanes
    columns: dict[str, list[np.ndarray]] = {"start_ns": [], "end_ns": [], "stream": [], "name": []}
    for lane in range(lanes):
        lasts = np.exp(random.normal(9, 1.5, per)).astype(np.int64) + 1
        gaps = np.exp(random.normal(7, 2, per)).astype(np.int64)
        start = np.cumsum(lasts + gaps) - lasts
        columns["start_ns"].append(start)
        columns["end_ns"].append(start + lasts)
        columns["stream"].append(np.full(per, lane))
        columns["name"].append(random.integers(1, NAMES + 1, per))
    joined = {key: np.concatenate(parts) for key, parts in columns.items()}
    size = len(joined["start_ns"])
    rows = {
        "devices": Rows(TABLES["devices"], {"ordinal": [0], "name": [0], "cores": [132]}),
        "kernels": Rows(
            TABLES["kernels"],
            {**joined, "device": np.zeros(size, np.int32), "communication": np.zeros(size, np.bool_)},
        ),
    }
    kinds = ("gemm", "elementwise", "flash_fwd", "reduce", "ncclDevKernel", "copy")
    strings = ["Synthetic GPU", *(f"{kinds[at % len(kinds)]}_kernel_{at}" for at in range(NAMES))]
    source = Source(path="synthetic.json", format="kineto", rank=0, events_read=size, events_unplaced=0)
    return Trace(source=source, strings=strings, rows=rows, recorded=frozenset({"device_work"}))


def prepared(trace: Trace, folder: Path) -> dict[str, float]:
    """Write the timeline's view as the child of the server does; seconds, bytes on disk and peak memory."""
    module = view_module("timeline")
    place = Place(folder=folder / "timeline" / "0", number=0)
    place.folder.mkdir(parents=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    held = module.gather(trace, place)
    seconds = time.perf_counter() - began
    gathered = [Gathered(source=trace.source, place=place, held=held)]
    analysis = Analysis(sources=(trace.source,), devices=(), steps=(), outcomes=())
    job = Job(analysis=analysis, traces=[trace], report={}, gathered=gathered, folder=folder / "timeline")
    (folder / "timeline.json").write_text(json.dumps({"view": module.view(job)}))
    (folder / "state.json").write_text(json.dumps({"state": "ready"}))
    disk = sum(file.stat().st_size for file in place.folder.iterdir())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"seconds": seconds, "disk_bytes": disk, "memory_bytes": grown}


def zooms(page: Page, count: int) -> list[tuple[float, float, int]]:
    """(repaint ms, sharp ms, bytes of the tile) of so many turns of the wheel, in and out."""
    random = np.random.default_rng(1)
    found = []
    for at in range(count):
        before = page.evaluate("Number(document.querySelector('.ps-timeline').dataset.tiles)")
        x, y = int(random.integers(450, 1500)), int(random.integers(220, 500))
        page.mouse.move(x, y)
        page.mouse.wheel(0, -240 if at % 8 < 6 else 480)
        end = time.monotonic() + 20
        while page.evaluate("Number(document.querySelector('.ps-timeline').dataset.tiles)") == before:
            if time.monotonic() > end:
                raise TimeoutError("no tile came")
            page.wait_for_timeout(5)
        page.wait_for_timeout(SETTLE_MS)
        data = page.evaluate("({...document.querySelector('.ps-timeline').dataset})")
        found.append((float(data["repaintMs"]), float(data["sharpMs"]), int(data["tileBytes"])))
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--lanes", type=int, default=24)
    parser.add_argument("--zooms", type=int, default=40)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        file = home / "synthetic.json"
        file.write_text("{}")
        (item,) = Shelf([file]).items()
        folder = home / "cache" / f"{item.key}-{item.fingerprint()}-{MADE_BY}"
        folder.mkdir(parents=True)
        trace = synthetic(asked.events, asked.lanes)
        index = prepared(trace, folder)
        print(f"events {len(trace.rows['kernels']):,} on {asked.lanes} lanes")
        print(f"index: {index['seconds']:.1f} s, {index['disk_bytes'] / 1e6:.0f} MB on disk, ", end="")
        print(f"{index['memory_bytes'] / 1e6:.0f} MB more in memory at most while it is built")
        del trace
        line = [sys.executable, "-m", "perfscope", "serve", "--port", "0", "--cache", str(home / "cache"), str(file)]
        server = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            url = re.search(r"http://\S+", server.stderr.readline())
            assert url is not None
            _in_browser(url[0].replace("/?", "/timeline?"), asked.zooms, server.pid)
        finally:
            server.terminate()


def _in_browser(url: str, count: int, server: int) -> None:
    import shutil

    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        began = time.perf_counter()
        page.goto(url)
        page.wait_for_selector('.ps-timeline[data-tiles="1"]', timeout=60_000)
        usable = time.perf_counter() - began
        page.wait_for_timeout(SETTLE_MS)
        found = np.array(zooms(page, count))
        print(f"page usable {usable:.2f} s after its address was asked for")
        for at, name in enumerate(("first repaint", "sharp")):
            p50, p95 = np.percentile(found[:, at], [50, 95])
            print(f"{name}: median {p50:.0f} ms, p95 {p95:.0f} ms of {count} zooms")
        print(f"a zoom sends {np.median(found[:, 2]) / 1e3:.0f} kB (median), {found[:, 2].max() / 1e3:.0f} kB at most")
        heap = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize : 0")
        status = Path(f"/proc/{server}/status").read_text()
        held = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
        print(f"memory: {heap / 1e6:.0f} MB of JavaScript, {held / 1e6:.0f} MB of the server, mapped pages included")
        browser.close()


if __name__ == "__main__":
    main()
