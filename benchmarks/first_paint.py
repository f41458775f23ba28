"""How long `perfscope serve FILE` takes until a browser shows the page and until the analysis is on it.

    python benchmarks/first_paint.py FILE --cache FOLDER [--keep]

Wall time since the command was started; the browser (headless Chromium) is started before. *paint*: the browser's
first contentful paint, of the frame that is there before the pages; *pages*: the menu of the dashboard is there;
*analysis*: the findings are there. Writes them to ``out/marks.json`` for `bench.py`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from runner import tell

BINARIES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_MS = 600_000
WORD = "first-contentful-paint"
OBSERVED = f"""new PerformanceObserver((list) => {{ for (const one of list.getEntries()) if (one.name === "{WORD}")
  console.log("{WORD} " + (performance.timeOrigin + one.startTime)); }}).observe({{type: "paint", buffered: true}})"""
"""Logs ms since 1970 of each document's first paint."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="leave what an earlier time made")
    asked = parser.parse_args()
    if not asked.keep:
        shutil.rmtree(asked.cache, ignore_errors=True)
    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    line = [sys.executable, "-m", "perfscope", "serve", "--port", "0", "--cache", str(asked.cache), asked.file]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.add_init_script(OBSERVED)
        told: list[float] = []
        page.on("console", lambda line: told.append(float(line.text.split()[1])) if WORD in line.text else None)
        began, began_unix = time.perf_counter(), time.time()
        server = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            url = re.search(r"http://\S+", server.stderr.readline())
            assert url is not None
            asked_s = time.perf_counter() - began
            page.goto(url[0], timeout=LIMIT_MS, wait_until="commit")
            page.wait_for_selector("#menu a", timeout=LIMIT_MS)
            pages_s = time.perf_counter() - began
            page.wait_for_selector(".ps-over", timeout=LIMIT_MS)
            done_s = time.perf_counter() - began
            paint_s = told[0] / 1e3 - began_unix
            tell({"listens s": asked_s, "paint s": paint_s, "pages s": pages_s, "analysis s": done_s})
        finally:
            server.terminate()
            server.wait()
        browser.close()


if __name__ == "__main__":
    main()
