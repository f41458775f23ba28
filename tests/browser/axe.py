"""axe-core (MPL-2.0) out of the npm registry: what a page lacks for those who see little or use no mouse."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

AXE = "axe-core@4.10.3"
PATIENCE_S = 60
COUNTED_IMPACTS = ("moderate", "serious", "critical")

RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .map((one) => ({ rule: one.id, impact: one.impact,
        at: one.nodes.slice(0, 5).map((node) =>
            `${node.html.slice(0, 200)} | ${(node.failureSummary || "").slice(0, 300)}`) }))"""


def axe_source(folder: Path) -> str:
    """The script, fetched into ``folder``; the test is skipped where npm or its registry is not to be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on this machine: axe-core cannot be had")
    line = [npm, "pack", AXE, "--silent", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm pack {AXE}: no answer within {PATIENCE_S} s")
    if done.returncode != 0:
        pytest.skip(f"npm pack {AXE}: {(done.stderr.strip() or 'failed').splitlines()[-1][:200]}")
    (packed,) = folder.glob("axe-core-*.tgz")
    with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def violations_above_minor(page: Any, source: str) -> list[dict[str, Any]]:
    """Violations that axe finds on the current page, without those it rates minor."""
    page.evaluate(source)
    return [one for one in page.evaluate(RUN) if one["impact"] in COUNTED_IMPACTS]
