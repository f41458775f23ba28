"""A copy of the repository whose ``perfscope/plugins`` is empty: the core starts, analyzes and passes its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

WITHOUT_CHECKOUT = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in getattr(one, "__module__", "")]
"""
"""``sitecustomize`` of the copy: the finder of an editable installation would find the plug-ins of the checkout."""

WRITE_SCHEMA = """import json, pathlib
from perfscope.analyzers.results import result_table, table_names
from perfscope.dashboards.report.json_schema import report_schema
schema = report_schema({name: result_table(name) for name in table_names()})
pathlib.Path("docs/report-schema.json").write_text(json.dumps(schema))
"""
"""The schema of the copy's reports: results of plug-ins are not in it."""


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository whose ``perfscope/plugins`` is empty, and without the tests of plug-ins."""
    copy = tmp_path_factory.mktemp("emptied")
    away = shutil.ignore_patterns("plugins")
    for name in ("perfscope", "tests", "docs"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=away)
    (copy / "perfscope" / "plugins").mkdir()
    for name in ("fixtures", "benchmarks"):
        (copy / name).symlink_to(REPOSITORY / name)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "action.yml"):
        if (REPOSITORY / name).exists():
            shutil.copy(REPOSITORY / name, copy)
    (copy / "sitecustomize.py").write_text(WITHOUT_CHECKOUT)
    written = in_emptied(copy, "-c", WRITE_SCHEMA)
    assert written.returncode == 0, written.stderr
    return copy


def in_emptied(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, where `perfscope` is that of the copy."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(copy)
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)


def assert_passes(copy: Path, *arguments: str) -> None:
    done = in_emptied(
        copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:perfscope", "-m", "not slow", *arguments
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_without_plug_ins_the_core_starts_and_analyzes(emptied: Path) -> None:
    where = in_emptied(emptied, "-c", "import perfscope; print(perfscope.__file__)")
    assert where.stdout.strip() == str(emptied / "perfscope" / "__init__.py")
    shown = in_emptied(emptied, "-m", "perfscope", "run", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--numerics" not in shown.stdout
    done = in_emptied(emptied, "-m", "perfscope", "analyze", "fixtures/cpu-attention-naive", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"outcomes"' in done.stdout


@pytest.mark.slow
def test_without_plug_ins_the_everyday_tests_of_the_core_pass(emptied: Path) -> None:
    assert_passes(emptied, "tests", "--ignore=tests/house")
