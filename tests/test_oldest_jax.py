"""What ``make test-oldest-jax`` runs can be collected in its environment, which holds little but that jax."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from tests.conftest import REPOSITORY

NAME = re.compile(r"[A-Za-z0-9._-]+")
BLOCKED = """
import sys

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
import pytest
sys.exit(pytest.main())
"""


def recipe(command: str) -> str:
    """The line of the oldest jax's recipe in the Makefile that starts so."""
    found = [line.strip() for line in (REPOSITORY / "Makefile").read_text().splitlines() if line.startswith(command)]
    assert len(found) == 1, found
    return found[0]


def absent() -> set[str]:
    """Modules with the names of packages that only the whole environment of the tests has."""
    there = recipe("\t$(OLDEST)/bin/python -m pip install")
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {match.group().lower() for asked in extras["test"] if (match := NAME.match(asked))} | {"torch"}
    missing = {name.replace("-", "_") for name in packages - {"setuptools"} if f"'{name}>" not in there}
    assert "pytest" not in missing
    assert "playwright" in missing
    return missing


def collected(paths: list[str], without: set[str]) -> subprocess.CompletedProcess[str]:
    """Pytest's look at the tests of jax in ``paths``, in a fresh interpreter where some modules are not to be found."""
    program = f"MISSING = {sorted(without)!r}\n{BLOCKED}"
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "jax"]
    return subprocess.run(
        [sys.executable, "-c", program, *options, *paths], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def test_no_test_file_of_jax_needs_what_is_not_installed_there() -> None:
    paths = recipe("\t$(OLDEST)/bin/python -m pytest").split("-rs")[1].split()
    assert "tests/profiler" in paths
    done = collected(paths, absent())
    assert done.returncode == 0, done.stdout[-2000:]
    assert "test_jax_session.py" in done.stdout


def test_this_check_can_fail() -> None:
    done = collected(["tests/profiler/aot/test_torch_memory_peak.py"], {"msgspec"})
    assert done.returncode != 0, done.stdout[-2000:]
    assert "No module named 'msgspec'" in done.stdout + done.stderr
