"""The JSON Schema of the report, made from the types of its records and the docstrings of their fields.

`docs/generate.py` writes it to ``docs/report-schema.json``. It reads source files, which a report does not.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct

from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.results import result_homes
from perfscope.dashboards.report.json_report import SCHEMA, SHAPES
from perfscope.dashboards.report.renderers.records import AS_IT_IS, Shapes
from perfscope.model.plugins import load
from perfscope.model.results import ResultTable

_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_UNITS = {"ns": "ns", "bytes": "B"}

_NAME = "Name and version of this schema."
_ABOUT = (
    "Output of `perfscope analyze --format json`. Times are integer nanoseconds, modelled ones may be fractions. "
    "Within a schema version keys are only added, so a reader ignores keys it does not know; a key that is renamed, "
    "removed or given another meaning raises the number."
)

_START = {"type": ["integer", "null"], "description": "When its first event begins, ns on its own clock."}
_OVER = {"enum": ["trace", "run"], "description": "Period of `cost_ns`: the trace, or one run of a program alone."}


def report_schema(tables: Mapping[str, ResultTable[Any]]) -> dict[str, Any]:
    """The schema of `json_report.document`, with the rows of these result tables."""
    schemas = Schemas(SHAPES)
    whole = schemas.record(Analysis)
    definitions = schemas.definitions
    whole["required"].insert(0, "schema")
    properties = whole["properties"] = {"schema": {"const": SCHEMA, "description": _NAME}, **whole["properties"]}
    for name, home in result_homes().items():
        properties[name] = schemas.result_of(load(home))
        whole["required"].append(name)
    properties["tables"] |= {"properties": {name: schemas.table(table) for name, table in tables.items()}}
    properties["left_out"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Parts that the copy inside an HTML report leaves out to stay small.",
    }
    definitions["Outcome"]["allOf"] = _STATES
    _add(definitions["Source"], "start_ns", _START)
    _add(definitions["Finding"], "cost_over", _OVER)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "perfscope report",
        "description": _ABOUT,
    }
    return {**whole, **head, "$defs": dict(sorted(definitions.items()))}


_STATES: list[dict[str, Any]] = [
    {
        "if": {"properties": {"status": {"const": "flagged"}}},
        "then": {"properties": {"findings": {"minItems": 1}}},
        "else": {"properties": {"findings": {"maxItems": 0}}},
    },
    {
        "if": {"properties": {"status": {"const": "abstained"}}},
        "then": {"properties": {"reason": {"type": "string"}}},
    },
]
"""Conditions on an outcome by its status."""


def _add(definition: dict[str, Any], key: str, schema: dict[str, Any]) -> None:
    """A key that the document adds to the records of a class."""
    definition["properties"][key] = schema
    definition["required"].append(key)


class Schemas:
    """JSON schemas of types; those of records are collected in ``definitions`` by class name."""

    def __init__(self, shapes: Shapes) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._shapes = shapes
        self._names: dict[type, str] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type. ``TypeError`` for a type that no record of a report has."""
        if kind in _SIMPLE:
            return {"type": _SIMPLE[kind]}
        if kind in (Any, object):
            return {}
        if isinstance(kind, TypeVar):
            return self.of(kind.__bound__ or Any)
        if isinstance(kind, type) and get_origin(kind) is None:
            return self._of_class(kind)
        return self._of_generic(get_origin(kind), get_args(kind))

    def _of_class(self, kind: type) -> dict[str, Any]:
        if issubclass(kind, Enum):
            return {"enum": [item.name.lower() for item in kind]}
        if issubclass(kind, np.generic | np.ndarray):
            return {"type": "array"}
        if issubclass(kind, Mapping):
            return {"type": "object"}
        if issubclass(kind, Struct) or dataclasses.is_dataclass(kind):
            return {"$ref": f"#/$defs/{self._defined(kind)}"}
        raise TypeError(f"no JSON schema of {kind}")

    def _of_generic(self, origin: Any, arguments: Sequence[Any]) -> dict[str, Any]:
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is Annotated:
            return self.of(arguments[0])
        if origin in (Union, types.UnionType):
            return _either([self.of(argument) for argument in arguments])
        if origin is np.ndarray:
            return {"type": "array", "items": {"type": "number"}}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            values = self.of(arguments[1])
            return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
        if origin is tuple and Ellipsis not in arguments:
            return {"type": "array", "prefixItems": [self.of(argument) for argument in arguments]}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if isinstance(origin, type):
            return self._of_class(origin)
        raise TypeError(f"no JSON schema of {origin}")

    def _defined(self, kind: type) -> str:
        """The name of a record's definition, which is made when it is first asked for."""
        if kind not in self._names:
            name = kind.__name__
            if name in self.definitions:
                name = f"{kind.__module__.rsplit('.', 1)[-1]}_{name}"
            self._names[kind] = name
            self.definitions[name] = {}
            self.definitions[name] = self.record(kind)
        return self._names[kind]

    def record(self, kind: type) -> dict[str, Any]:
        """The object that `plain` makes of a record of this class."""
        properties = self._properties(kind)
        described = {"description": _sentence(kind.__doc__)} if kind.__doc__ else {}
        return {
            **described,
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def _properties(self, kind: type) -> dict[str, Any]:
        shape = self._shapes.get(kind, AS_IT_IS)
        hints, docs = hints_of(kind), docs_of(kind)
        result: dict[str, Any] = {}
        for name in field_names(kind):
            if name in shape.merged:
                result |= self._properties(_not_none(hints[name]))
            elif name not in shape.left_out and name not in shape.added:
                result[shape.renamed.get(name, name)] = _described(self.of(hints[name]), docs.get(name))
        return result | {key: self._added(kind, value) for key, value in shape.added.items()}

    def _added(self, kind: type, value: str | Callable[[Any], Any]) -> dict[str, Any]:
        """A key whose value is computed: by the path of an attribute, or by a function with a docstring."""
        if not isinstance(value, str):
            return _described(self.of(hints_of(value)["return"]), value.__doc__)
        *path, name = value.split(".")
        for step in path:
            kind = hints_of(kind)[step] if step in field_names(kind) else hints_of(getattr(kind, step).fget)["return"]
            kind = _not_none(kind)
        if name in field_names(kind):
            return _described(self.of(hints_of(kind)[name]), docs_of(kind).get(name))
        computed = inspect.getattr_static(kind, name)
        function = getattr(computed, "fget", None) or computed
        return _described(self.of(hints_of(function)["return"]), function.__doc__)

    def result_of(self, function: Callable[[Any], Any]) -> dict[str, Any]:
        """The list of what a plug-in's function returns for each recording that has a result."""
        return _described(
            {"type": "array", "items": self.of(_not_none(hints_of(function)["return"]))}, function.__doc__
        )

    def table(self, table: ResultTable[Any]) -> dict[str, Any]:
        """The object that holds the rows of a result table."""
        properties = {
            "source": {"type": "integer", "description": "Number of the trace in `sources`."},
            "rank": {"type": ["integer", "null"], "description": "Its rank, where known."},
        }
        for column in table.columns:
            unit = f", {_UNITS[column.unit]}" if column.unit in _UNITS else ""
            properties[column.name] = _described(self.of(column.type), f"{column.doc}{unit}")
        row = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        return {
            "type": "object",
            "description": table.doc,
            "properties": {
                "rows": {"type": "array", "items": row},
                "left": {"type": "integer", "description": "Rows that are not listed."},
            },
            "required": ["rows", "left"],
            "additionalProperties": False,
        }


def _either(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Any of these; simple types in one list."""
    simple = [schema["type"] for schema in schemas if set(schema) == {"type"} and isinstance(schema["type"], str)]
    others = [schema for schema in schemas if schema.get("type") not in simple or set(schema) != {"type"}]
    if {"integer", "number"} <= set(simple):
        simple.remove("integer")
    merged = [{"type": simple[0] if len(simple) == 1 else simple}] if simple else []
    parts = [*others, *merged]
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _not_none(kind: Any) -> Any:
    """``X`` of ``X | None``."""
    return next(part for part in get_args(kind) or (kind,) if part is not type(None))


def _described(schema: dict[str, Any], doc: str | None) -> dict[str, Any]:
    return {**schema, "description": _sentence(doc)} if doc else schema


def _sentence(doc: str) -> str:
    """A docstring as one line, with single backticks."""
    return " ".join(inspect.cleandoc(doc).replace("``", "`").split())


def field_names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a record, in order."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]


@cache
def hints_of(subject: Any) -> Mapping[str, Any]:
    """Types of a record's fields, or of a function, also those that its module imports for type checking only."""
    known: dict[str, Any] = {}
    for part in inspect.getmro(subject) if isinstance(subject, type) else (subject,):
        if part.__module__.startswith("perfscope."):
            known |= _type_imports(part.__module__)
    return get_type_hints(subject, localns=known)


@cache
def _type_imports(module: str) -> Mapping[str, Any]:
    """Names that a module imports below ``if TYPE_CHECKING``."""
    imported: dict[str, Any] = {}
    for node in _source(module).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    origin = importlib.import_module(line.module)
                    imported |= {alias.asname or alias.name: getattr(origin, alias.name) for alias in line.names}
    return imported


@cache
def docs_of(kind: type) -> Mapping[str, str]:
    """The docstrings below the fields of a record, also of those that it inherits."""
    docs: dict[str, str] = {}
    for part in reversed(inspect.getmro(kind)):
        if part.__module__.startswith("perfscope."):
            docs |= _docs_in(part.__module__).get(part.__qualname__, {})
    return docs


@cache
def _docs_in(module: str) -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(_source(module)):
        if isinstance(node, ast.ClassDef):
            for line, below in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                    and isinstance(below.value.value, str)
                ):
                    found.setdefault(node.name, {})[line.target.id] = below.value.value
    return found


@cache
def _source(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))
