"""Imports, functions and classes of source files. Each file is parsed once for all tests of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec


class Import(msgspec.Struct, frozen=True):
    """An import statement, at the top or inside a function."""

    line: int
    module: str
    """The module of ``from module import names``; empty for ``import names``."""
    names: tuple[str, ...]
    for_types: bool
    """Whether it is under ``if TYPE_CHECKING``."""


class Class(msgspec.Struct, frozen=True):
    """A class, at the top or inside a function."""

    name: str
    fields: frozenset[str]
    """Annotated names that are not ``ClassVar``."""
    decorators: tuple[str, ...]
    """Without arguments and modules: ``dataclass`` of ``@dataclasses.dataclass(frozen=True)``."""


class Outline(msgspec.Struct, frozen=True):
    """What a file has, in order of lines."""

    imports: tuple[Import, ...]
    functions: tuple[tuple[str, int], ...]
    """Name and number of lines."""
    classes: tuple[Class, ...]


@cache
def outline(path: Path) -> Outline:
    """The outline of a file; a file of a test's folder must not change after the first call."""
    imports, functions, classes = [], [], []
    for node, for_types in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=aliases):
                imports.append(Import(node.lineno, "", tuple(each.name for each in aliases), for_types))
            case ast.ImportFrom(module=str(module), names=aliases):
                imports.append(Import(node.lineno, module, tuple(each.name for each in aliases), for_types))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                functions.append((name, (node.end_lineno or node.lineno) - node.lineno + 1))
            case ast.ClassDef(name=name, body=body, decorator_list=decorators):
                classes.append(Class(name, frozenset(_fields(body)), tuple(map(_last_name, decorators))))
            case _:
                pass
    return Outline(tuple(sorted(imports, key=lambda each: each.line)), tuple(functions), tuple(classes))


def _statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, also inside functions, and whether it is for types. Expressions are not walked."""
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, for_types = left.pop()
        if isinstance(node, ast.stmt):
            yield node, for_types
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            left += [(each, True) for each in node.body]
            left += [(each, for_types) for each in node.orelse]
            continue
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, ())
            left += [(each, for_types) for each in inner] if isinstance(inner, list) else ()


def _fields(body: list[ast.stmt]) -> Iterator[str]:
    for part in body:
        match part:
            case ast.AnnAssign(target=ast.Name(id=name)) if "ClassVar" not in ast.unparse(part.annotation):
                yield name
            case _:
                pass


def _last_name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).rpartition(".")[2]
