"""Checks the structure: directions of imports, registries, links, sizes, import cycles, no machine paths."""

from __future__ import annotations

import ast
import collections
import graphlib
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
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_MODULES = 25
"""Modules in one folder, ``__init__`` among them."""
LONG_FUNCTIONS: dict[str, str] = {}
"""``path:function`` -> the reason why it is one piece."""
CROWDED_FOLDERS: dict[str, str] = {}
"""Folder -> the reason."""
MAX_CYCLE = 2
"""Modules in one import cycle, lazy imports and those for type checkers included."""

REGISTRIES = {
    "perfscope.analyzers.readers": ("READERS", {"sniff", "read"}),
    "perfscope.analyzers.registry": ("RULES", {"NEEDS", "check"}),
    "perfscope.commands": ("COMMANDS", set[str]()),
    "perfscope.dashboards.report": ("REPORTS", {"SUFFIXES", "render"}),
    "perfscope.profiler.session.pass_runner": ("CAPTURES", {"available"}),
}
"""Package -> the name of its registry, and the names every module of its kind has."""


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
        ("perfscope/analyzers/readers/planted.py", "import perfscope.analyzers.registry"),
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


def defined(path: Path) -> set[str]:
    """Names a module defines at its top level."""
    names: set[str] = set()
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    return names


def imported(root: Path) -> set[str]:
    """Dotted names of everything that some file below ``root`` imports."""
    names: set[str] = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def forgotten(root: Path, package: str, listed: set[str], kind: set[str]) -> set[str]:
    """Files of a registered folder that nobody listed: those that are of its kind, and those nobody imports.

    What is left is a helper: it lacks the names of the kind, and a neighbour uses it.
    """
    folder = root.joinpath(*package.split("."))
    used = imported(root / package.split(".")[0])
    found = set()
    for path in folder.glob("*.py"):
        if path.stem != "__init__" and path.stem not in listed:
            of_the_kind = bool(kind) and kind <= defined(path)
            if of_the_kind or f"{package}.{path.stem}" not in used:
                found.add(path.stem)
    return found


@pytest.mark.parametrize("package", sorted(REGISTRIES))
def test_every_file_of_a_registered_folder_is_written_in_its_registry(package: str) -> None:
    name, kind = REGISTRIES[package]
    registry = written(package, name)
    assert forgotten(REPOSITORY, package, homes(registry), kind) == set()
    assert list(registry) == sorted(registry)


@pytest.mark.parametrize("package", sorted(REGISTRIES))
def test_what_is_registered_is_there_and_of_its_kind(package: str) -> None:
    name, kind = REGISTRIES[package]
    folder = REPOSITORY.joinpath(*package.split("."))
    lacking = {home: kind - defined(folder / f"{home}.py") for home in homes(written(package, name))}
    assert {home: names for home, names in lacking.items() if names} == {}


def test_a_file_that_nobody_listed_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "package" / "rules"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "listed.py").write_text("from package.rules import helper, twin\nNEEDS = ()\ndef check(trace): ...\n")
    (folder / "helper.py").write_text("def shared(): ...\n")
    (folder / "twin.py").write_text("NEEDS = ()\ndef check(trace): ...\n")
    (folder / "lonely.py").write_text("def other(): ...\n")
    assert forgotten(tmp_path, "package.rules", {"listed"}, {"NEEDS", "check"}) == {"twin", "lonely"}


def test_a_rule_is_called_what_its_file_is_called() -> None:
    rules = written("perfscope.analyzers.registry", "RULES")
    assert {rule: f"perfscope.analyzers.registry.{rule}" for rule in rules} == rules


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


def test_no_file_is_too_long() -> None:
    lengths = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in sources()}
    assert len(lengths) > 30
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def long_functions(path: Path) -> dict[str, int]:
    """Functions of a file above the limit, and how many lines each has."""
    return {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }


def test_no_function_is_too_long() -> None:
    found = {
        f"{path.relative_to(REPOSITORY).as_posix()}:{name}": lines
        for path in PACKAGE.rglob("*.py")
        for name, lines in long_functions(path).items()
    }
    assert {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS} == {}
    assert set(LONG_FUNCTIONS) <= set(found), "an exception that is not needed any more"


def test_a_long_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("def long():\n" + "    pass\n" * MAX_FUNCTION_LINES)
    assert long_functions(tmp_path / "long.py") == {"long": MAX_FUNCTION_LINES + 1}


def test_no_folder_is_crowded() -> None:
    counts = collections.Counter(path.parent.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*.py"))
    crowded = {folder: count for folder, count in counts.items() if count > MAX_MODULES}
    assert {folder: count for folder, count in crowded.items() if folder not in CROWDED_FOLDERS} == {}
    assert set(CROWDED_FOLDERS) <= set(crowded), "an exception that is not needed any more"


def import_cycles(root: Path, package: str) -> list[list[str]]:
    """Groups of modules that import each other, directly or not: at the top, in functions, or for type checkers."""
    names = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        targets = graph.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names if alias.name in names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    targets |= {full if full in names else node.module} & set(names)
        targets.discard(name)
    sorter = graphlib.TopologicalSorter(graph)
    cycles = []
    while True:
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            cycle = sorted(set(error.args[1]))
            cycles.append(cycle)
            for one in cycle:
                graph[one] -= set(cycle)
            sorter = graphlib.TopologicalSorter(graph)
        else:
            return cycles


def test_modules_do_not_import_each_other_in_circles() -> None:
    assert [cycle for cycle in import_cycles(REPOSITORY, "perfscope") if len(cycle) > MAX_CYCLE] == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, other in {"a": "b", "b": "c", "c": "a", "d": "a"}.items():
        (folder / f"{name}.py").write_text(f"def late():\n    from package import {other}\n")
    assert import_cycles(tmp_path, "package") == [["package.a", "package.b", "package.c"]]


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
    """Folders only this machine has; those that many machines have are too common to be a leak."""
    common = {Path(tempfile.gettempdir()), *map(Path, ("/", "/app", "/home", "/root", "/src", "/tmp"))}
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
