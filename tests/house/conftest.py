"""The source archive and the wheel, built once for the tests of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

COPIED = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "action.yml", "ci",
    "constraints.txt", "docs", "perfscope", "pyproject.toml", "tests", "tools",
)  # fmt: skip
NO_COMPILER = "no-compiler"
BUILD = "import sys; out = sys.argv[1]; from setuptools import build_meta as b; b.build_sdist(out); b.build_wheel(out)"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, as a machine without a Rust compiler makes them.

    They are built from a copy, so that build leftovers cannot affect them or remain.
    """
    out = tmp_path_factory.mktemp("dist")
    checkout = copied(tmp_path_factory.mktemp("checkout"))
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)],
        cwd=checkout, env={**os.environ, "CARGO": NO_COMPILER}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and, from it, the wheel with the native library if a compiler is installed."""
    out = tmp_path_factory.mktemp("dist")
    checkout = copied(tmp_path_factory.mktemp("checkout"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def copied(checkout: Path) -> Path:
    """Copy the files of a release into a folder."""
    for name in COPIED:
        subprocess.run(["cp", "-R", str(REPOSITORY / name), str(checkout / name)], check=True)
    for link in ("profiler", "analyzers", "dashboards", "workloads"):
        (checkout / link).symlink_to(f"perfscope/{link}")
    return checkout
