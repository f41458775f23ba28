"""Sentences are plain English: finds patterns that are hard to read."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

import msgspec
import pytest

from perfscope.model.trace.tables import TABLES
from tests.conftest import REPOSITORY

GENERATED = "<!-- Written by docs/generate.py"
"""Beginning of a page whose sentences are in the code."""
SENTENCE = r"(?:^|(?<=[.!?]\s))"
UNIT = r"(?:ns|us|ms|s|seconds|minutes|kB|MB|GB|KiB|MiB|GiB|bytes|FLOPs)"
PATTERNS = {
    "of": re.compile(SENTENCE + r"Of (?!\d|\{\})"),
    "what": re.compile(SENTENCE + r"(?:What (?!to )|Whom |Those |That which )(?![^.]*\?)"),
    "stand": re.compile(r"\b(?:stands?|stood|standing)\b(?!-)"),
    "beside": re.compile(r"\bbeside\b"),
    "none": re.compile(r"(?<!here )\b(?:is|are|was|were|be) none\b"),
    "absent": re.compile(r"\b(?:if|where|why|that) there (?:is|are|was|were) none\b"),
    "no": re.compile(r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|later\b|larger\b)"),
    "asked": re.compile(r"\b(?:is|are|was|were|be|been) asked\b|\basks\b"),
    "said": re.compile(r"\b(?:is|are|was|were|be|been) (?:said|told)\b|\b(?:says|tells|knows)\b"),
    "nobody": re.compile(r"\b(?:nobody|somebody|no one|no-one)\b", re.IGNORECASE),
    "behind": re.compile(r"(?<!fall )(?<!falls )\bbehind\b"),
    "own": re.compile(r"\bof (?:its|their|his|our) own\b"),
    "most": re.compile(r"\bat the (?:most|least)\b(?! [a-z]+ of)"),
    "per": re.compile(r"(?:\d|\}|\bin) " + UNIT + r" an? (?:step|call|op|launch|kernel|rank|iteration|token|second)\b"),
}
"""Pattern -> expression that finds it. Write instead: subject, verb, object; a noun by its name; 0, None or missing;
before, after, next to; per step. Things do not speak, ask or know."""

VALUES = frozenset({"direction", "dot", "dots", "float32", "full", "host", "names", "unknown"})
"""Values of programs and formats that docstrings name; functions elsewhere have parameters of these names."""

Text = tuple[int, str]
"""Line and text of a docstring, a comment, a message or a paragraph."""


@lru_cache(maxsize=1)
def sources() -> tuple[Path, ...]:
    """Files whose sentences are read: the package, and the pages that are written by hand."""
    code = [path for suffix in ("py", "js") for path in (REPOSITORY / "perfscope").rglob(f"*.{suffix}")]
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "docs" / "generate.py"]
    return tuple(sorted([*code, *(page for page in pages if GENERATED not in page.read_text(encoding="utf-8"))]))


Nodes = list[ast.AST]
"""All nodes of a module, the module first."""


class Module(msgspec.Struct):
    """Text and names of a module. Syntax trees are not kept: garbage collection would walk them again and again."""

    strings: list[Text]
    comments: list[list[Text]]
    arguments: set[str]
    definitions: set[str]
    explained: list[tuple[int, set[str], set[str]]]
    """Line of a function, names in its docstring, and those of them that begin an explanation."""
    used: set[str]
    """Names that the code uses; empty if no docstring explains one."""


def module(source: str) -> Module:
    """Text and names of a source text."""
    every = nodes(source)
    explained = [
        each for node in every if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for each in named(node)
    ]
    return Module(
        strings=list(strings(every)),
        comments=comments(source, every),
        arguments={node.arg for node in every if isinstance(node, ast.arg)},
        definitions={node.name for node in every if isinstance(node, ast.FunctionDef | ast.ClassDef)},
        explained=explained,
        used=identifiers(every) if explained else set(),
    )


@cache
def module_of(path: Path) -> Module:
    """Text and names of a file of the package."""
    return module(path.read_text(encoding="utf-8"))


def nodes(source: str) -> Nodes:
    """The nodes of a source text, without contexts and operators."""
    found: Nodes = [ast.parse(source)]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                found.append(value)
    return found


def texts(path: Path) -> Iterator[Text]:
    """Docstrings, comments and messages of a file, or the paragraphs of a page, without code."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from paragraphs(source)
    elif path.suffix == ".py":
        yield from module_of(path).strings
        yield from ((block[0][0], " ".join(text for _, text in block)) for block in module_of(path).comments)
    else:
        yield from (
            (number, line) for number, line in enumerate(source.splitlines(), 1) if re.search(r"//|\*|\"", line)
        )


def paragraphs(source: str) -> Iterator[Text]:
    """Paragraphs of a page, without fenced blocks."""
    plain = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE)
    for part in re.finditer(r"(?:^(?!\s*$).+\n?)+", plain, re.MULTILINE):
        yield plain.count("\n", 0, part.start()) + 1, re.sub(r"^[#>*\-|\s]+", "", " ".join(part[0].split()))


def strings(every: Nodes) -> Iterator[Text]:
    """Strings of more than one word; the values in an f-string become ``{}``."""
    inside: set[ast.AST] = set()
    for node in every:
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield node.lineno, " ".join(text.split())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            text = " ".join(node.value.split())
            if " " in text:
                yield node.lineno, text


COMMENT = re.compile(r'((?:[^#"\']|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')*)#(.*)')
"""Code without the beginning of a longer string, and the comment after it."""


def comments(source: str, every: Nodes) -> list[list[Text]]:
    """Comments that fill their line, consecutive lines together, and each comment after code."""
    lines = source.splitlines()
    for node in every:
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno:
            first = lines[node.lineno - 1].encode()[node.col_offset :]
            if re.match(rb"[a-zA-Z]*(\"\"\"|''')", first):
                lines[node.lineno : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno)
    blocks: list[list[Text]] = []
    open_until = -1
    for line, text in enumerate(lines, 1):
        if "#" in text and (comment := COMMENT.match(text)):
            said = (line, comment[2].lstrip("#! ").rstrip())
            if not comment[1].strip() and line - 1 == open_until:
                blocks[-1].append(said)
            else:
                blocks.append([said])
            open_until = -1 if comment[1].strip() else line
    return blocks


def found(text: str) -> list[str]:
    """Names of the patterns in a text; names in back-ticks are excluded."""
    words = re.sub(r"`+[^`]*`+", "it", text) if "`" in text else text
    return [name for name, pattern in PATTERNS.items() if pattern.search(words)]


def test_no_sentence_has_a_pattern() -> None:
    assert [
        f"{path.relative_to(REPOSITORY)}:{line}: {', '.join(names)}: {text}"
        for path in sources()
        for line, text in texts(path)
        if (names := found(text))
    ] == []


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Of GPUs; the default.", "of"),
        ("Shape. Of the others, evenly chosen.", "of"),
        ("What stands above every page.", "what"),
        ("The row stands first.", "stand"),
        ("A folder beside the trace", "beside"),
        ("it is none of ours", "none"),
        ("``None`` if there is none", "absent"),
        ("'x' is no name of a baseline", "no"),
        ("What is asked for?", "asked"),
        ("the header says 4 bytes", "said"),
        ("it is told by its name", "said"),
        ("Nobody reads it", "nobody"),
        ("t1 is not behind t0", "behind"),
        ("a stream of its own", "own"),
        ("five at the most", "most"),
        ("3 ms a step", "per"),
    ],
)
def test_a_pattern_is_seen(text: str, pattern: str) -> None:
    assert pattern in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the number of rows.",
        "There is no trace.",
        "What to capture, besides the trace.",
        "What is a step?",
        "It understands stand-ins.",
        "The queue is no longer full.",
        "Of 5 launches 3 wait.",
        "Returns None if the field is empty.",
        "Rank 3 falls behind.",
        "The key ``beside`` is old.",
        "3 ms per step",
    ],
)
def test_a_plain_sentence_is_clean(text: str) -> None:
    assert found(text) == []


def test_texts_are_those_of_people(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\nTwo\nthree.\n\n```text\nstands\n```\n\n- four\n")
    assert list(texts(page)) == [(1, "One"), (3, "Two three."), (10, "four")]
    module = tmp_path / "module.py"
    module.write_text('"""One two."""\n# three\n# four\nx = f"five {x}"  # six\ny = "seven"\n')
    assert [text for _, text in texts(module)] == ["One two.", "five {}", "three four", "six"]


def identifiers(every: Nodes) -> set[str]:
    """Names that the code of a module uses: variables, attributes, keywords, definitions, and words in its strings."""
    used: set[str] = set()
    docstrings = {id(node.value) for node in every if isinstance(node, ast.Expr)}
    for node in every:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                used.update(name.split("."))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                used.add(name)
            case ast.keyword(arg=str(name)):
                used.add(name)
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                used.update(re.findall(r"\w+", text))
            case _:
                pass
    return used


def named(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, set[str], set[str]]]:
    """The line of a function whose docstring has names in back-ticks, the names, and those that are explained."""
    doc = ast.get_docstring(function) or ""
    if names := set(re.findall(r"``([a-z]\w*)``", doc)):
        yield function.lineno, names, set(re.findall(r"(?:\n|[.;] )\s*``([a-z]\w*)``:", doc))


def parameters(modules: Iterable[Module]) -> frozenset[str]:
    """Names of three letters or more that are only parameters, not functions, tables or columns."""
    names, others = set[str](), {*VALUES, *TABLES, *(each.name for table in TABLES.values() for each in table.columns)}
    for each in modules:
        names |= each.arguments
        others |= each.definitions
    return frozenset(name for name in names - others if len(name) > 2)


def missing_parameters(modules: dict[str, Module]) -> list[str]:
    """``path:line: name`` of names that a docstring explains, or that are parameters elsewhere, not in the module."""
    known = parameters(modules.values())
    return [
        f"{path}:{line}: {name}"
        for path, each in modules.items()
        for line, names, explained in each.explained
        for name in sorted((names & known | explained) - each.used)
    ]


def test_docstrings_name_parameters_that_exist() -> None:
    modules = {str(path.relative_to(REPOSITORY)): module_of(path) for path in sources() if path.suffix == ".py"}
    assert missing_parameters(modules) == []


def test_a_missing_parameter_is_seen() -> None:
    modules = {
        "a.py": module(
            'def f(rows, size):\n    """``f`` of ``rows`` in ``words``, by ``length``.\n\n    ``at``: where."""\n'
        ),
        "b.py": module("def g(length): ..."),
    }
    assert missing_parameters(modules) == ["a.py:1: at", "a.py:1: length"]


def broken_comments(path: Path) -> list[int]:
    """Lines of comments with one or two words, though the sentence continues on the next line."""
    return [
        line
        for block in module_of(path).comments
        for (line, text), (_, following) in itertools.pairwise(block)
        if len(text.split()) <= 2 and re.search(r"\w$", text) and re.match(r"[a-z]", following)
    ]


def test_no_comment_is_broken_by_wrapping() -> None:
    assert [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path in sources()
        if path.suffix == ".py"
        for line in broken_comments(path)
    ] == []


def test_a_broken_comment_is_seen(tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken.py", tmp_path / "whole.py"
    broken.write_text("# one two three\n# four\n# five\n")
    whole.write_text("# one two three four\n# five\n\n# Steps:\n# six\nx = 1  # one\ny = 2  # two\n")
    assert (broken_comments(broken), broken_comments(whole)) == ([2], [])


def says_only_its_name(path: Path) -> bool:
    """Whether the docstring of a package is empty or its name."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return set(re.findall(r"[a-z]+", doc.lower())) <= {*path.parent.name.split("_"), "the", "package"}


def test_packages_have_a_docstring_that_is_more_than_their_name() -> None:
    packages = [path for path in sources() if path.name == "__init__.py"]
    assert [str(path.relative_to(REPOSITORY)) for path in packages if says_only_its_name(path)] == []


def test_a_name_for_a_docstring_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "op_graph" / "__init__.py"
    path.parent.mkdir()
    for doc, empty in {"Op graph.": True, "": True, "Graphs of recorded ops.": False}.items():
        path.write_text(f'"""{doc}"""\n')
        assert says_only_its_name(path) is empty
