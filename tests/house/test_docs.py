"""The documentation compared with the code: generated pages, links, commands, and the tutorial for a rule."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from perfscope.analyzers import registry
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.rule_page import example_of, sections_of
from perfscope.analyzers.time import rules as time_rules
from perfscope.commands import COMMANDS
from perfscope.model.finding import AbstainError
from perfscope.model.plugins import named
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY

VERBS = sorted({*COMMANDS, *(name for name in named("commands") if " " not in name)})
"""Commands of the core and of plug-ins."""
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of that language, in the order of the page."""
    return [text for found, text in FENCED.findall(page.read_text()) if found == language]


def anchors(text: str) -> set[str]:
    """The anchors a Markdown page's headings get: lower case, punctuation gone, spaces to dashes."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere, to a missing heading, or out of the repository."""
    wrong = []
    for match in LINK.finditer(FENCED.sub("", page.read_text())):
        link = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        found = target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target.read_text()))
        if not found:
            wrong.append(link)
    return wrong


def test_generated_pages_are_what_the_code_says(generator: ModuleType) -> None:
    assert generator.stale() == [], "run `make docs`"


def test_a_changed_or_forgotten_page_is_seen(generator: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    for name, text in generator.pages().items():
        (tmp_path / name).write_text(text)
    assert generator.stale(tmp_path) == []
    (tmp_path / "rules" / "no_such_rule.md").touch()
    (tmp_path / "model.md").write_text("something else")
    assert generator.stale(tmp_path) == ["model.md", "rules/no_such_rule.md"]


def test_every_rule_explains_itself(generator: ModuleType) -> None:
    pages = generator.pages()
    headings = ("Example", "Why it costs", "How it is found", "Fix")
    missing = [
        (rule, name)
        for rule in registry.rule_ids()
        for name in headings
        if f"\n## {name}\n" not in pages[f"rules/{rule}.md"]
    ]
    assert missing == []


@pytest.mark.parametrize("rule", registry.rule_ids())
def test_every_rule_begins_with_code_before_and_after_its_fix(rule: str) -> None:
    doc = registry.load_rule(rule).doc
    before, after = example_of(doc)
    assert before != after
    assert ast.parse(before).body
    assert ast.parse(after).body
    assert list(sections_of(inspect.cleandoc(doc)))[:2] == ["", "Example"]


def test_every_link_leads_somewhere() -> None:
    assert {str(page.relative_to(REPOSITORY)): broken for page in PAGES if (broken := broken_links(page))} == {}


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing\n[a](page.md#one-thing) [b](gone.md) [c](#two) ![d](gone.png) [e](https://example.org)\n"
    )
    assert broken_links(page) == ["gone.md", "#two", "gone.png"]


def test_every_command_is_in_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert [command for command in VERBS if not re.search(rf"perfscope {command}\b", readme)] == []


def test_commands_in_the_documents_exist() -> None:
    named = {
        (page.name, verb)
        for page in PAGES
        for block in blocks(page, "console")
        for verb in re.findall(r"^\$ perfscope ([a-z]+)", block, re.MULTILINE)
    }
    assert named
    assert {(page, verb) for page, verb in named if verb not in VERBS} == set()


def titled(page: Path) -> dict[str, str]:
    """The Python blocks of a page that begin with a comment naming their file: file -> text."""
    named = [(block.split("\n", 1)[0].removeprefix("# "), block) for block in blocks(page, "python")]
    return {name: block for name, block in named if name.endswith(".py")}


class TestTutorial:
    """docs/adding-a-rule.md, followed to the letter in a temporary folder."""

    page = DOCS / "adding-a-rule.md"
    rule_file = "perfscope/analyzers/time/rules/exposed_memsets.py"
    test_file = "tests/time/test_exposed_memsets.py"

    @pytest.fixture
    def rule_path(self, tmp_path: Path) -> Path:
        path = tmp_path / "exposed_memsets.py"
        path.write_text(titled(self.page)[self.rule_file])
        return path

    def test_its_rule_passes_its_four_tests(self, rule_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (line,) = blocks(self.page, "text")
        name, module = re.findall(r'"([^"]+)"', line)
        monkeypatch.setattr(time_rules, "__path__", [*time_rules.__path__, str(rule_path.parent)])
        monkeypatch.setitem(registry.RULES, name, module)
        monkeypatch.delitem(sys.modules, module, raising=False)
        space: dict[str, object] = {"__name__": "tutorial_tests"}
        exec(compile(titled(self.page)[self.test_file], self.test_file, "exec"), space)  # the page's own code
        tests = [value for key, value in space.items() if key.startswith("test_") and callable(value)]
        assert len(tests) == 4
        for test in tests:
            test()
        sys.modules.pop(module, None)

    def test_its_rule_becomes_a_page(self, rule_path: Path, generator: ModuleType) -> None:
        page = generator.rule_page(generator.rule_source("exposed_memsets", rule_path))
        assert "# exposed_memsets" in page
        assert "## Fix" in page
        assert "`MINIMUM_SHARE` | `0.005`" in page

    @pytest.mark.parametrize("name", [rule_file, test_file])
    @pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
    def test_its_code_passes_the_house_style(self, name: str, command: list[str]) -> None:
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", name, "-"]
        done = subprocess.run(ruff, input=titled(self.page)[name], capture_output=True, text=True, cwd=REPOSITORY)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_package_of_its_own_adds_it_too(self, rule_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (table,) = blocks(self.page, "toml")
        group, entry = table.splitlines()
        package = rule_path.parent / "your_package"
        package.mkdir()
        (package / "__init__.py").write_text(titled(self.page)["your_package/__init__.py"])
        rule_path.rename(package / rule_path.name)
        info = rule_path.parent / "your_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: your-package\nVersion: 1.0\n")
        group = group.replace("project.entry-points.", "")
        (info / "entry_points.txt").write_text(f"{group}\n{entry}\n".replace('"', ""))
        monkeypatch.syspath_prepend(rule_path.parent)
        importlib.invalidate_caches()
        assert "exposed_memsets" in registry.rule_ids()
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        builder.kernel("gemm", 0, 900)
        analysis = analyze(builder.build(), ["exposed-memsets"])
        assert [outcome.status for outcome in analysis] == ["clean"]
        sys.modules.pop("your_package.exposed_memsets", None)
        sys.modules.pop("your_package", None)


def tour() -> list[tuple[str, str]]:
    """Text that the README's tour tells the reader to type: (language, text) in order."""
    text = (REPOSITORY / "README.md").read_text()
    section = text.split("## Five-minute tour", 1)[1].split("\n## ", 1)[0]
    steps = []
    for language, block in FENCED.findall(section):
        if language == "console":
            steps += [("console", line) for line in re.findall(r"^\$ (.+)$", block, re.MULTILINE)]
        else:
            steps.append((language, block))
    return steps


def follow(language: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one step of the tour as the reader would, in ``folder``."""
    if language == "console":
        program, *arguments = shlex.split(text)
        assert program == "perfscope", text
        command = [sys.executable, "-m", "perfscope", *arguments]
    else:
        assert language == "python", language
        command = [sys.executable, "-c", text]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.torch
def test_the_tour_of_the_readme_works_as_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = {}
    for language, text in tour():
        done = follow(language, text, tmp_path)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        said[text] = done.stdout + done.stderr
    assert len(said) >= 10
    loop, grouped = (text for text in said if text.startswith("perfscope run "))
    assert re.search(r"host_sync.*moe\.py:\d+", said[loop], re.DOTALL), said[loop]
    assert not re.search(r"host_sync.*moe\.py:\d+", said[grouped].split("clean:")[0]), said[grouped]
    assert (tmp_path / "report.html").read_text().startswith("<!")
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "perfscope.report/1"


def test_the_errors_a_rule_may_raise_are_named_in_the_tutorial() -> None:
    assert AbstainError.__name__ in TestTutorial.page.read_text()


MENTIONED = re.compile(r"`([a-z_]+(?:/[a-z_]+)+\.py|[a-z]+(?:_[a-z]+)+\.py)`")
"""A file of the package as docstrings and comments name it: with its folder, or by a name of several words."""
OTHERS = ("torch/", "codegen/", "project/", "package/", "benchmarks/", "tests/", "tools/", "fixtures/", "docs/")


def test_files_that_docstrings_name_are_there() -> None:
    files = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "perfscope").rglob("*.py")}
    mentions = [
        (path.relative_to(REPOSITORY).as_posix(), match[1])
        for path in sorted((REPOSITORY / "perfscope").rglob("*.py"))
        for match in MENTIONED.finditer(path.read_text())
        if not match[1].startswith(OTHERS)
    ]
    assert mentions
    gone = [(path, name) for path, name in mentions if not any(f"/{file}".endswith(f"/{name}") for file in files)]
    assert not gone
