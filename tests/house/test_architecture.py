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
from tests.house.outline import outline

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = REPOSITORY / "perfscope"
LINKS = ("analyzers", "dashboards", "profiler", "workloads")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_MODULES = 25
"""Modules in one folder, ``__init__`` among them."""
_TABLE = "a table, or the wiring of one object: its rows are read one by one"
_OPTIONS = "the options of one command, taken one by one"
_OLD = "not divided yet"
LONG_FUNCTIONS: dict[str, str] = {
    "perfscope/plugins/ahead/command.py:compile_": _OPTIONS,
    "perfscope/commands/serve.py:serve": _OPTIONS,
    "perfscope/dashboards/web/app.py:_route": _TABLE,
    "perfscope/dashboards/web/pages/_grid.py:grid": _TABLE,
}
"""``path:function`` -> the reason why it is one piece."""
CROWDED_FOLDERS: dict[str, str] = {}
"""Folder -> the reason."""
MAX_CYCLE = 2
"""Modules in one import cycle, imports inside functions included."""
CYCLES: dict[frozenset[str], str] = {}
"""Larger cycles, with the reason."""

REGISTRIES = {
    "perfscope.analyzers.readers": ("READERS", {"sniff", "read"}, "analyzers/readers"),
    "perfscope.analyzers.registry": ("RULES", {"check"}, "analyzers/*/rules"),
    "perfscope.commands": ("COMMANDS", set[str](), "commands"),
    "perfscope.dashboards.report": ("REPORTS", set[str](), "dashboards/report"),
    "perfscope.profiler.session.pass_runner": ("CAPTURES", {"available"}, "profiler/*"),
}
"""Module -> name of its registry, names that every registered module has, and the folders where such modules lie."""


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of ``root``'s pyproject.toml on ``root``'s package."""
    program = "from importlinter.cli import lint_imports_command as main; main(['--no-cache', '--no-logo'])"
    return subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)


PLANTED = [
    ("perfscope/model", "import perfscope.profiler"),
    ("perfscope/model", "def late():\n    import perfscope.analyzers.hlo"),
    ("perfscope/profiler", "import perfscope.commands"),
    ("perfscope/profiler", "import perfscope.analyzers.devices"),
    ("perfscope/analyzers", "import perfscope.dashboards"),
    ("perfscope/analyzers/compare", "import perfscope.profiler"),
    ("perfscope/analyzers/devices", "import perfscope.analyzers.hlo"),
    ("perfscope/analyzers/memory", "import perfscope.analyzers.engine"),
    ("perfscope/analyzers/time", "import perfscope.analyzers.memory"),
    ("perfscope/analyzers/time/rules", "import perfscope.analyzers.readers.load"),
    ("perfscope/analyzers/readers", "import perfscope.analyzers.time.rules.host_sync"),
    ("perfscope/analyzers/memory", "def late():\n    import torch"),
    ("perfscope/commands/compare", "def late():\n    import perfscope.plugins.history.baselines"),
    ("perfscope/dashboards/web/server", "import perfscope.plugins.history.works"),
    ("perfscope/commands", "import perfscope.plugins.code_hosts.github"),
    ("perfscope/plugins/replay", "from perfscope.plugins.numerics import summary"),
    ("perfscope/plugins/memory_advice", "from perfscope.plugins.ahead.sweep import pool"),
    (
        "perfscope/plugins/ahead/sweep",
        "def late():\n    from perfscope.plugins.ahead.jax import export",
    ),
    ("perfscope/plugins/history/store", "import perfscope.plugins.trials.document"),
    ("perfscope/profiler/session", "def late():\n    from perfscope.plugins.trials import process"),
    ("perfscope/profiler/ab", "import perfscope.plugins.trials.interventions"),
    ("perfscope/dashboards/report", "import dash"),
    ("perfscope/dashboards", "import jax"),
    ("perfscope/analyzers", "import perfscope.plugins.numerics"),
    ("perfscope/profiler", "def late():\n    from perfscope.plugins.numerics import capture"),
    ("perfscope/profiler/launch", "def late():\n    from perfscope.plugins.ahead.targets import plugins"),
    ("perfscope/workloads", "import perfscope.plugins.numerics"),
    ("perfscope/plugins/numerics/rules", "def late():\n    import torch"),
]
"""Folder and an import that no module in it may have."""


def test_planted_imports_against_the_direction_are_caught(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "perfscope", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for number, (folder, line) in enumerate(PLANTED):
        (tmp_path / folder / f"planted_{number}.py").write_text(line + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = re.sub(r"\s+", "", done.stdout.partition("Broken contracts")[2])
    missed = [
        (folder, line)
        for number, (folder, line) in enumerate(PLANTED)
        if f"{folder.replace('/', '.')}.planted_{number}->" not in broken
    ]
    assert missed == []


def written(module: str, name: str) -> dict[str, str]:
    """A registry: what a user names -> the module it lives in (``module:attribute`` for a command)."""
    found: dict[str, str] = getattr(importlib.import_module(module), name)
    return found


def homes(registry: dict[str, str]) -> set[str]:
    """Dotted names of the modules that a registry points at."""
    return {home.partition(":")[0] for home in registry.values()}


def file_of(module: str, root: Path = REPOSITORY) -> Path:
    """The file of a module, or of a package."""
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


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


def forgotten(root: Path, package: str, folders: str, listed: set[str], kind: set[str]) -> set[str]:
    """Modules in the folders of a registry that have all names of its kind and are not listed."""
    unlisted = set()
    for folder in (root / package).glob(folders):
        for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            if name not in listed and kind and kind <= defined(path):
                unlisted.add(name)
    return unlisted


@pytest.mark.parametrize("module", sorted(REGISTRIES))
def test_every_module_of_a_kind_is_written_in_its_registry(module: str) -> None:
    name, kind, folders = REGISTRIES[module]
    registry = written(module, name)
    assert forgotten(REPOSITORY, "perfscope", folders, homes(registry), kind) == set()
    assert list(registry) == sorted(registry)


@pytest.mark.parametrize("module", sorted(REGISTRIES))
def test_what_is_registered_is_there_and_of_its_kind(module: str) -> None:
    name, kind, _ = REGISTRIES[module]
    lacking = {home: kind - defined(file_of(home)) for home in homes(written(module, name))}
    assert {home: names for home, names in lacking.items() if names} == {}


def test_a_module_that_is_not_listed_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "package" / "time" / "rules"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "listed.py").write_text("from package.time.rules import helper\nNEEDS = ()\ndef check(trace): ...\n")
    (folder / "helper.py").write_text("def shared(): ...\n")
    (folder / "twin").mkdir()
    (folder / "twin" / "__init__.py").write_text("NEEDS = ()\ndef check(trace): ...\n")
    listed = {"package.time.rules.listed"}
    assert forgotten(tmp_path, "package", "*/rules", listed, {"NEEDS", "check"}) == {"package.time.rules.twin"}


def test_a_rule_is_called_what_its_file_is_called() -> None:
    rules = written("perfscope.analyzers.registry", "RULES")
    assert {rule: home.rpartition(".")[2] for rule, home in rules.items()} == {rule: rule for rule in rules}


def test_what_constructs_a_finding_is_a_rule() -> None:
    outside = []
    for path in (*(PACKAGE / "analyzers").rglob("*.py"), *(PACKAGE / "plugins").rglob("*.py")):
        source = path.read_text()
        if "Finding(" not in source:
            continue
        calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        makes = any(isinstance(call, ast.Name) and call.id == "Finding" for call in calls)
        if makes and "rules" not in path.parts:
            outside.append(path.relative_to(PACKAGE).as_posix())
    assert outside == []


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
        for folder in ("perfscope", "tests", "tools", "benchmarks", "docs")
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
    return {name: lines for name, lines in outline(path).functions if lines > MAX_FUNCTION_LINES}


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
    """Groups of modules that import each other, directly or not: at the top or in functions."""
    names = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        targets = graph.setdefault(name, set())
        for each in outline(path).imports:
            if each.for_types:  # not imported when the program runs
                continue
            for imported in each.names:
                full = f"{each.module}.{imported}" if each.module else imported
                targets |= {full if full in names else each.module} & set(names)
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
    large = {frozenset(cycle) for cycle in import_cycles(REPOSITORY, "perfscope") if len(cycle) > MAX_CYCLE}
    assert large == set(CYCLES)


def test_a_circle_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, other in {"a": "b", "b": "c", "c": "a", "d": "a"}.items():
        (folder / f"{name}.py").write_text(f"def late():\n    from package import {other}\n")
    assert import_cycles(tmp_path, "package") == [["package.a", "package.b", "package.c"]]


def missing_imports(path: Path) -> list[str]:
    """Names that a file imports from the repository's packages and that are not there."""
    lacking = []
    for each in outline(path).imports:
        for name in each.names if each.module.partition(".")[0] in ("perfscope", "tests") else ():
            try:
                if not hasattr(importlib.import_module(each.module), name):
                    importlib.import_module(f"{each.module}.{name}")
            except ModuleNotFoundError:
                lacking.append(f"{path.name}:{each.line}: {each.module}.{name}")
    return lacking


def test_programs_that_no_test_runs_import_names_that_exist() -> None:
    files = [path for folder in ("benchmarks", "tools") for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    assert len(files) > 20
    assert [line for path in files for line in missing_imports(path)] == []


def test_an_import_of_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        "from perfscope.model import errors\ndef late():\n    from perfscope.model.errors import DataError, OldError\n"
        "from perfscope.old import module\n"
    )
    assert missing_imports(tmp_path / "old.py") == [
        "old.py:3: perfscope.model.errors.OldError",
        "old.py:4: perfscope.old.module",
    ]


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
    found, paths = {}, machine_paths()
    for name in listing.stdout.decode().split("\0"):
        path = REPOSITORY / name
        if not name or path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if any(each.encode() in content for each in paths) and (
            lines := leaks(content.decode("utf-8", "replace"), paths)
        ):
            found[name] = lines[0][:160]
    assert found == {}


def test_a_leak_is_seen() -> None:
    assert leaks("open('/somewhere/a.json')\nopen('/else/somewhere/a.json')", ["/somewhere/"]) == [
        "open('/somewhere/a.json')"
    ]
