"""The source archive and the wheel, built once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, built from a copy, so that build leftovers cannot affect it or remain."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "perfscope",
        "tests",
        "tools",
        "docs",
        "ci",
        "action.yml",
    ):
        subprocess.run(["cp", "-R", str(REPOSITORY / name), str(checkout / name)], check=True)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "constraints.txt"):
        subprocess.run(["cp", str(REPOSITORY / name), str(checkout / name)], check=True)
    for link in ("profiler", "analyzers", "dashboards", "workloads"):
        (checkout / link).symlink_to(f"perfscope/{link}")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out
