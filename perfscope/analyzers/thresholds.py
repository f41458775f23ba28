"""Thresholds of rules: the documented numeric constants of a rule's file, and overrides for them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Rule

Thresholds = Mapping[str, Mapping[str, float]]
"""Rule -> name of the threshold -> value."""


class Threshold(Struct, frozen=True):
    """A named constant that determines whether a rule has a finding."""

    name: str
    written: str
    """Value as written in the file: ``0.05``, ``1 << 20``, or the name of a constant that several rules use."""
    reason: str
    """Reason for this value."""
    value: float | None = None
    """Current value; ``None`` if only the file was read."""


def thresholds_of(rule: Rule) -> tuple[Threshold, ...]:
    """Return the thresholds of a rule with their values, in the order of its file."""
    module = importlib.import_module(rule.check.__module__)
    origin = getattr(module, "__file__", None)
    source = "" if origin is None else Path(origin).read_text(encoding="utf-8")
    return tuple(replace(item, value=getattr(module, item.name)) for item in thresholds_in(source))


@contextmanager
def changed(values: Thresholds) -> Iterator[None]:
    """Context manager in which rules use other thresholds; the names are not checked again."""
    modules = {rule: importlib.import_module(load_rule(rule).check.__module__) for rule in values}
    previous = [(modules[rule], name, getattr(modules[rule], name)) for rule in values for name in values[rule]]
    try:
        for rule, thresholds in values.items():
            for name, value in thresholds.items():
                setattr(modules[rule], name, value)
        yield
    finally:
        for module, name, value in previous:
            setattr(module, name, value)


def thresholds_in(source: str) -> tuple[Threshold, ...]:
    """Return the public numeric constants with a docstring, in the order of the file."""
    return tuple(
        Threshold(name, ast.get_source_segment(source, value) or ast.unparse(value), reason)
        for name, value, reason in constants(ast.parse(source))
        if reason and _is_number(value)
    )


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr, str]]:
    """Yield name, value and docstring (or ``''``) of every public constant."""
    for statement, after in zip_longest(tree.body, tree.body[1:]):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            name, value = statement.target.id, statement.value
        else:
            continue
        if name.isupper() and not name.startswith("_"):
            yield name, value, _docstring(after)


def _is_number(value: ast.expr) -> bool:
    """Whether the expression is a number, a name of one, or arithmetic with numbers; False for a table of words."""
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    return isinstance(value, ast.Name) or (isinstance(value, ast.Constant) and isinstance(value.value, int | float))


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""
