"""Builds the source archive and, from it, the wheel; both are read, and the wheel's command is started."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib.metadata import EntryPoint
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import REPOSITORY

NOT_SHIPPED = (".gitkeep",)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, built from a copy: no build leftovers can slip in or stay behind."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "perfscope",
        "tests",
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


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def shipped_files() -> set[str]:
    """What the package folder holds, as the wheel should hold it: code and data, no caches."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "perfscope").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in NOT_SHIPPED
    }
    assert "perfscope/py.typed" in found
    return found


def test_the_wheel_holds_the_package_folder_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == shipped_files()


def test_the_wheel_ships_no_tests_recordings_or_links(wheel: zipfile.ZipFile) -> None:
    roots = {PurePosixPath(name).parts[0] for name in wheel.namelist()}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"perfscope"}
    links = [info.filename for info in wheel.infolist() if (info.external_attr >> 16) & 0o170000 == 0o120000]
    assert links == []


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (dist_info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = message_from_bytes(wheel.read(f"{dist_info}/METADATA"))
    assert metadata["Name"] == "perfscope"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or []) == {
        "torch", "jax", "ui", "cluster", "s3", "perfetto", "nsys", "parquet", "store", "tensorboard", "viewer", "all",
        "test", "aot-amd", "aot-gpu", "aot-torch", "aot-tpu",
    }  # fmt: skip
    core = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("torch", "jax", "dash", "plotly"))], core
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_wheels_command_starts(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    (dist_info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    entry_points = wheel.read(f"{dist_info}/entry_points.txt").decode()
    assert "perfscope = perfscope.__main__:main" in entry_points
    entry = EntryPoint(name="perfscope", value="perfscope.__main__:main", group="console_scripts")
    wheel.extractall(tmp_path)
    start = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['perfscope', '--help']\n"
        f"import {entry.module} as module\n"
        f"assert module.__file__.startswith({str(tmp_path)!r}), module.__file__\n"
        f"module.{entry.attr}()"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage: perfscope" in done.stdout


def test_the_source_archive_can_be_tested(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"tests/build.py", "tests/conftest.py", "tests/test_packaging.py", "pyproject.toml", "LICENSE"} <= names
    assert shipped_files() <= names
    assert not [name for name in names if "__pycache__" in name]
