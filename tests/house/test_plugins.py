"""Plug-ins: registered as those of other packages are, and not needed by the core."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools.build_meta

from perfscope.model import plugins
from perfscope.model.plugins import Entry, Plugin, RuleHome
from tests.conftest import REPOSITORY
from tests.house.test_architecture import defined, file_of

FOLDER = REPOSITORY / "perfscope" / "plugins"
PAGE = REPOSITORY / "docs" / "plugins.md"


def ours() -> dict[str, str]:
    """Plug-ins in pyproject.toml: name -> home."""
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    found: dict[str, str] = project["entry-points"]["perfscope.plugins"]
    return found


def declared(name: str) -> Plugin:
    plugin = plugins.load(ours()[name])
    assert isinstance(plugin, Plugin)
    return plugin


def homes(plugin: Plugin) -> set[str]:
    """All names that a declaration holds."""
    found = {plugin.report, plugin.scale_out} - {""}
    kinds = ("commands", "results", "readers", "interventions", "exports", "names", "pages", "works", "documents")
    for kind in kinds:
        found |= set(getattr(plugin, kind).values())
    found |= {home.module for home in plugin.rules.values()}
    found |= {checks.find for checks in plugin.checks.values()}
    found |= {option for options in plugin.options.values() for option in options}
    for recording in plugin.recordings.values():
        found |= {recording.recorder, recording.available, recording.read}
    return found


def test_every_folder_is_registered_under_its_name() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert ours() == {name: f"perfscope.plugins.{name}:PLUGIN" for name in sorted(folders)}
    assert all(declared(name).name == name for name in folders)


@pytest.mark.parametrize("name", sorted(ours()))
def test_what_it_names_is_there(name: str) -> None:
    for home in homes(declared(name)):
        module, _, attribute = home.partition(":")
        assert not attribute or attribute in defined(file_of(module)), home
        assert file_of(module).is_file(), home


@pytest.mark.parametrize("name", sorted(ours()))
def test_its_rules_are_listed_and_called_what_their_files_are_called(name: str) -> None:
    listed = declared(name).rules
    found = {
        path.stem if path.name != "__init__.py" else path.parent.name
        for pattern in ("rules/*.py", "rules/*/__init__.py")
        for path in (FOLDER / name).glob(pattern)
        if "check" in defined(path)
    }
    assert set(listed) == found
    assert all(home.module.rpartition(".")[2] == rule for rule, home in listed.items())


def metadata(folder: Path, name: str, text: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(text)


def test_entry_points_are_read_as_packaging_writes_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    metadata(
        first,
        "a_b",
        "[console_scripts]\nx = y:z\n\n[perfscope.plugins]\n# ours\nnice = a.b:P\nplain=c:Q\n\n[z]\nk = v\n",
    )
    metadata(second, "A.B", "[perfscope.plugins]\nhidden = old:P\n")
    metadata(second, "other", "[perfscope.plugins.more]\nwrong = o:P\n")
    found = plugins._on_path((str(first), str(second), str(tmp_path / "absent")))
    assert tuple(entry for entry in found if entry.distribution != "perfscope") == (
        Entry("nice", "a.b:P", "a_b-1.0"),
        Entry("plain", "c:Q", "a_b-1.0"),
    )


def test_the_same_as_the_standard_library_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import entry_points

    monkeypatch.setattr(plugins, "_CHECKOUT", "")
    plugins._on_path.cache_clear()
    standard = {(entry.name, entry.value) for entry in entry_points(group=plugins.GROUP)}
    assert {(entry.name, entry.home) for entry in plugins.entries()} == standard
    plugins._on_path.cache_clear()


def test_a_checkout_has_what_its_pyproject_registers(tmp_path: Path) -> None:
    metadata(tmp_path, "perfscope", "[perfscope.plugins]\nolder = perfscope.plugins.older:PLUGIN\n")
    found = plugins._on_path((str(tmp_path),))
    assert {entry.name: entry.home for entry in found} == ours()


def test_what_cannot_be_loaded_is_named_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    wrong = Entry("wrong", "json:dumps", "wrong-1.0")
    gone = Entry("gone", "perfscope.plugins.gone:PLUGIN", "perfscope-0")
    assert plugins._loaded((wrong, gone)) == ()
    assert [record.getMessage() for record in caplog.records] == [
        "perfscope: plug-in wrong cannot be loaded: TypeError: json:dumps is not a Plugin"
    ]


def test_of_equal_names_the_first_plug_in_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Plugin(name="one", rules={"same": RuleHome(module="first")})
    two = Plugin(name="two", rules={"same": RuleHome(module="second"), "more": RuleHome(module="third")})
    monkeypatch.setattr(plugins, "plugins", lambda: (one, two))
    assert {name: home.module for name, home in plugins.named("rules").items()} == {"same": "first", "more": "third"}


# The example of the page, installed as a separate package.


def files_of_page() -> dict[str, str]:
    """Blocks of the page that begin with the name of their file: file -> text."""
    blocks = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {name: f"{text}" for name, text in blocks}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the example as an installer leaves it."""
    project, site = tmp_path_factory.mktemp("budget"), tmp_path_factory.mktemp("site")
    for name, text in files_of_page().items():
        path = project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    before = Path.cwd()
    os.chdir(project)
    try:
        wheel = setuptools.build_meta.build_wheel(str(project))
    finally:
        os.chdir(before)
    zipfile.ZipFile(project / wheel).extractall(site)
    return site


def perfscope(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(path), str(REPOSITORY)))}
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *arguments], env=environment, cwd=path, capture_output=True, text=True
    )


def test_the_example_of_the_page_is_short() -> None:
    lines = [line for name, text in files_of_page().items() if name.endswith(".py") for line in text.splitlines()]
    assert 30 < len([line for line in lines if line.strip()]) <= 60


def test_the_example_of_the_page_works_as_a_package(installed: Path) -> None:
    fixture = str(REPOSITORY / "fixtures" / "cpu-attention-naive")
    assert re.search(
        r"^  budget +Fail if a step takes longer than the budget\.", perfscope("--help", path=installed).stdout, re.M
    )
    done = perfscope("budget", fixture, path=installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 steps over the budget\n", "")
    report = perfscope("analyze", fixture, path=installed)
    assert re.search(r"0 of \d+ steps over 100 ms, the slowest ", report.stdout)
    assert '"budget": [' in perfscope("analyze", fixture, "--format", "json", path=installed).stdout
