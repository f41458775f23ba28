"""Holds the house to its plan: directions of imports, written registries, links, file sizes, no machine paths."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = REPOSITORY / "perfscope"
LINKS = ("analyzers", "dashboards", "profiler", "workloads")
MAXIMUM_LINES = 350
"""The aim is 300; a file above this holds a second concept."""
EXEMPT_FROM_LENGTH: dict[str, str] = {}
"""Path -> reason."""

NOT_REGISTERED = {
    "perfscope.commands": {"group", "options"},  # the click group that holds the verbs, and options they share
}

REGISTRIES = {
    "perfscope.analyzers.readers": "READERS",
    "perfscope.analyzers.rules": "RULES",
    "perfscope.commands": "COMMANDS",
    "perfscope.dashboards.reports": "REPORTS",
    "perfscope.profiler.captures": "CAPTURES",
}


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of ``root``'s pyproject.toml on ``root``'s package."""
    program = "from importlinter.cli import lint_imports_command as main; main(['--no-cache', '--no-logo'])"
    return subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)


def test_imports_go_in_the_declared_direction() -> None:
    done = lint_imports(REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("perfscope/profiler/planted.py", "import perfscope.commands"),
        ("perfscope/analyzers/planted.py", "import perfscope.dashboards"),
        ("perfscope/analyzers/rules/planted.py", "import perfscope.analyzers.readers"),
        ("perfscope/analyzers/readers/planted.py", "import perfscope.analyzers.rules"),
        ("perfscope/analyzers/planted.py", "def late():\n    import torch"),
        ("perfscope/dashboards/planted.py", "import jax"),
    ],
)
def test_a_planted_import_against_the_direction_is_caught(tmp_path: Path, where: str, line: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "perfscope", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    planted = tmp_path / where
    planted.write_text(line + "\n")
    done = lint_imports(tmp_path)
    assert "Broken contracts" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    assert where.removesuffix(".py").replace("/", ".") in done.stdout.replace("\n", "")


def written(module: str, name: str) -> dict[str, str]:
    """A registry: what a user names -> the module it lives in (``module:attribute`` for a command)."""
    found: dict[str, str] = getattr(importlib.import_module(module), name)
    return found


def homes(registry: dict[str, str]) -> set[str]:
    """File names, without suffix, that a registry points at."""
    return {home.partition(":")[0].rpartition(".")[2] for home in registry.values()}


def concepts(folder: Path) -> set[str]:
    """Files of a folder that must be registered: helpers start with an underscore or live in a sub-package."""
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}


def unlisted(folder: Path, names: Iterable[str]) -> set[str]:
    """Files of the folder that no name stands for."""
    return concepts(folder) - set(names)


@pytest.mark.parametrize(("module", "name"), sorted(REGISTRIES.items()))
def test_every_file_of_a_registered_folder_is_written_in_its_registry(module: str, name: str) -> None:
    registry = written(module, name)
    folder = REPOSITORY / Path(*module.split("."))
    assert unlisted(folder, homes(registry)) == NOT_REGISTERED.get(module, set())
    assert homes(registry) - concepts(folder) == set(), "registered, and there is no such file"
    assert list(registry) == sorted(registry)


def test_a_rule_is_called_what_its_file_is_called() -> None:
    rules = written("perfscope.analyzers.rules", "RULES")
    assert {rule: f"perfscope.analyzers.rules.{rule}" for rule in rules} == rules


def test_a_file_that_nobody_listed_is_found(tmp_path: Path) -> None:
    for name in ("listed.py", "forgotten.py", "_helper.py", "__init__.py"):
        (tmp_path / name).touch()
    assert unlisted(tmp_path, ["listed"]) == {"forgotten"}


@pytest.mark.parametrize("name", LINKS)
def test_the_top_of_the_repository_shows_the_parts(name: str) -> None:
    link = REPOSITORY / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"perfscope/{name}"
    assert (link / "__init__.py").is_file()


def sources() -> list[Path]:
    """The project's own code, without what tools wrote."""
    return sorted(
        path
        for folder in ("perfscope", "tests", "benchmarks", "docs")
        for pattern in ("*.py", "*.css", "*.js")
        for path in (REPOSITORY / folder).rglob(pattern)
        if "__pycache__" not in path.parts
    )


def test_a_file_holds_one_concept() -> None:
    lengths = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in sources()}
    assert len(lengths) > 30
    long = {name: lines for name, lines in lengths.items() if lines > MAXIMUM_LINES and name not in EXEMPT_FROM_LENGTH}
    assert long == {}


def test_the_linter_looks_at_every_file_and_at_none_twice() -> None:
    """An exclusion by name would also hide ``perfscope/<name>``; a followed link would count a file twice."""
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    seen = [Path(line).relative_to(REPOSITORY).as_posix() for line in done.stdout.splitlines()]
    ours = {path.relative_to(REPOSITORY).as_posix() for path in sources() if path.suffix == ".py"}
    assert ours <= set(seen)
    assert not [name for name in seen if name.startswith(LINKS)]


def test_every_package_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(REPOSITORY))
        for path in PACKAGE.rglob("__init__.py")
        if not path.read_text().lstrip().startswith('"""')
    ]
    assert silent == []


def machine_paths() -> list[str]:
    """Folders only this machine has; the shared temporary folder and roots are too common to be a leak."""
    common = {Path("/"), Path(tempfile.gettempdir()), Path("/home"), Path("/tmp"), Path("/src"), Path("/app")}
    return [f"{path}/" for path in {REPOSITORY, REPOSITORY.parent, Path.home()} - common]


def leaks(text: str, paths: Iterable[str]) -> list[str]:
    """The lines of a text that name one of the paths from its root (``/b/`` is not in ``/a/b/``)."""
    pattern = re.compile("|".join(rf"(?<![\w./-]){re.escape(path)}" for path in paths))
    return [line for line in text.splitlines() if pattern.search(line)]


def test_no_tracked_file_names_a_folder_of_this_machine() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    found = {}
    for name in listing.stdout.decode().split("\0"):
        path = REPOSITORY / name
        if not name or path.is_symlink() or not path.is_file():
            continue
        lines = leaks(path.read_bytes().decode("utf-8", "replace"), machine_paths())
        if lines:
            found[name] = lines[0][:160]
    assert found == {}


def test_a_leak_is_seen() -> None:
    assert leaks("open('/somewhere/a.json')\nopen('/else/somewhere/a.json')", ["/somewhere/"]) == [
        "open('/somewhere/a.json')"
    ]
