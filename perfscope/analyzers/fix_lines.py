"""The line that a fix changes, if a recording has only the line that costs; found in the program's source.

A recording has the line of `optimizer.step()`, but the fix is an argument of the constructor; it has the line that
makes an array, but the fix is at the line that keeps it. The source has both. A line is reported only if exactly one
call in the finding's file qualifies.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from perfscope.model.finding import Finding
from perfscope.model.plugins import RuleHome, named

CALLS: dict[str, tuple[str, ...]] = {
    "debug_mode": ("use_deterministic_algorithms", "set_detect_anomaly", "detect_anomaly"),
    "donation_missed": ("jit", "pjit", "pmap", "filter_jit"),
    "dynamic_shape_churn": ("compile",),
    "full_precision_matmul": ("default_matmul_precision", "set_float32_matmul_precision"),
}
"""Rule -> last names of the calls or decorators that its fix changes."""

ARGUMENTS_OF_CALL: dict[str, str] = {"unfused_optimizer": ".step"}
"""Rule -> suffix of the op at its place; the rest of the op is the class whose constructor the fix changes."""

KEEPING = frozenset({"append", "appendleft", "add", "extend", "insert", "put", "setdefault", "update"})
"""Methods of containers that keep an argument."""
JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "vstack", "stack"})
"""Functions whose result contains copies of all arguments."""


def fix_line(rule: str, finding: Finding, source: Callable[[str], str]) -> int | None:
    """Return the line in the finding's file that its fix changes; ``None`` if unknown or equal to the finding's line.

    ``source``: returns the text of a file, ``''`` if it is unreadable or newer than the recording.
    """
    file, line = finding.where.file, finding.where.line
    ending = ARGUMENTS_OF_CALL.get(rule)
    home: RuleHome | None = named("rules").get(rule)
    calls = CALLS.get(rule) or (() if home is None else home.fix_calls)
    if file is None or line is None or not (calls or ending is not None or rule == "memory_leak"):
        return None
    try:
        tree = ast.parse(source(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if rule == "memory_leak":
        found = keeping_line(tree, line)
    elif ending is not None:
        name = (finding.where.op or "").removesuffix(ending)
        found = _only(node.lineno for node in _calls(tree) if _last(node.func) == name)
    else:
        found = wrapping_line(tree, line, calls)
    return None if found == line else found


def wrapping_line(tree: ast.Module, line: int, names: tuple[str, ...]) -> int | None:
    """Return the line of the innermost decorator or call with one of ``names`` that wraps a function around ``line``.

    If no such function is wrapped by name, the line of the only such call in the file.
    """
    for function in reversed(_functions_around(tree, line)):
        for decorator in function.decorator_list:
            if any(_last(node) in names for node in ast.walk(decorator) if isinstance(node, ast.Attribute | ast.Name)):
                return decorator.lineno
        wraps = [node for node in _calls(tree) if _last(node.func) in names and _mentions(node.args, function.name)]
        if wraps:
            return _only(node.lineno for node in wraps)
    return _only(node.lineno for node in _calls(tree) if _last(node.func) in names)


def keeping_line(tree: ast.Module, line: int) -> int | None:
    """Return the line that keeps the result of the statement at ``line`` in a container, running sum or attribute.

    A statement that keeps its own result is the answer. A function's return value is followed to the caller that keeps
    it.
    """
    functions = _functions_around(tree, line)
    scope: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef = functions[-1] if functions else tree
    statement = _statement(scope, line)
    if statement is None:
        return None
    if _keeps(statement):
        return statement.lineno
    made = _assigned(statement)
    keepers = [other for other in _statements(scope) if _keeps(other) and _uses(other, made)]
    if keepers or not functions:
        return _only(other.lineno for other in keepers)
    name = functions[-1].name
    keepers = [other for other in _statements(tree) if _keeps(other)]
    return _only(other.lineno for other in keepers if any(_last(call.func) == name for call in _calls(other)))


def _keeps(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.AugAssign):
        return True
    if isinstance(statement, ast.Expr):
        call = statement.value
        return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in KEEPING
    if isinstance(statement, ast.Assign):
        if any(isinstance(target, ast.Subscript) for target in statement.targets):
            return True
        targets = {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        joins = [call for call in _calls(statement) if _last(call.func) in JOINING]
        sums = isinstance(statement.value, ast.BinOp) and isinstance(statement.value.op, ast.Add)
        return bool(targets & _names(statement.value)) and (bool(joins) or sums)
    return False


def _uses(statement: ast.stmt, names: frozenset[str]) -> bool:
    value = statement.value if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr) else statement
    return bool(names & _names(value))


def _assigned(statement: ast.stmt) -> frozenset[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return frozenset(node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _statement(scope: ast.AST, line: int) -> ast.stmt | None:
    """Return the innermost simple statement at a line."""
    at = [node for node in _statements(scope) if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(at, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(scope) if isinstance(node, ast.stmt) and not hasattr(node, "body"))


def _functions_around(tree: ast.Module, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions whose lines include ``line``, outermost first."""
    return sorted(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ),
        key=lambda node: node.lineno,
    )


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _mentions(arguments: list[ast.expr], name: str) -> bool:
    """Whether an argument is the function ``name``: by itself, as an attribute of an object, or of its class."""
    return any(_last(argument) == name for argument in arguments)


def _last(node: ast.AST) -> str:
    """Return ``jit`` for ``jax.jit`` and for ``jit``; ``''`` for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _only(lines: Iterator[int] | list[int]) -> int | None:
    different = set(lines)
    return different.pop() if len(different) == 1 else None
