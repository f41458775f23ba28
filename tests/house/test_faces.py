"""A capability of the analyzers is used through its ``__init__``, which shows the names that others need."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.house.outline import outline

ANALYZERS = "perfscope.analyzers"
CAPABILITIES = sorted(path.parent.name for path in (REPOSITORY / "perfscope" / "analyzers").glob("*/__init__.py"))
MOST_NAMES = {"hlo": 124}
"""Capability -> maximum number of names in its face. It only falls."""
USUAL_NAMES = 76
"""Maximum number of names in any other face."""

Taken = tuple[str, int, str, str]
"""File, line, module and name of an import."""


def taken(root: Path) -> Iterator[Taken]:
    """Yield the names that modules of the package import from a capability, from outside of it."""
    for path in sorted((root / "perfscope").rglob("*.py")):
        inside = ".".join(path.relative_to(root).parts[:3])
        for each in outline(path).imports:
            capability = ".".join(each.module.split(".")[:3])
            if capability != inside and capability in [f"{ANALYZERS}.{name}" for name in CAPABILITIES]:
                for name in each.names:
                    yield str(path.relative_to(root)), each.line, each.module, name


def shown(root: Path, capability: str) -> dict[str, str]:
    """Names that a capability's ``__init__`` imports or defines, with their modules."""
    face = root / "perfscope" / "analyzers" / capability / "__init__.py"
    names: dict[str, str] = {}
    for node in ast.walk(ast.parse(face.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith(f"{ANALYZERS}.{capability}"):
                names.update({alias.name: module for alias in aliases})
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = f"{ANALYZERS}.{capability}"
            case ast.Assign(targets=[ast.Name(id=name)]):
                names[name] = f"{ANALYZERS}.{capability}"
            case _:
                pass
    return {name: module for name, module in names.items() if not name.startswith("__")}


def past_faces(root: Path) -> dict[str, list[str]]:
    """Capability -> places that take a name from one of its modules, or one that its face does not show."""
    faces = {capability: shown(root, capability) for capability in CAPABILITIES}
    found: dict[str, list[str]] = {}
    for path, line, module, name in taken(root):
        capability, inner = module.split(".")[2], module.split(".")[3:]
        if inner or name not in faces[capability]:
            found.setdefault(capability, []).append(f"{path}:{line}: {module} {name}")
    return found


def test_names_are_taken_through_faces() -> None:
    assert past_faces(REPOSITORY) == {}


def test_faces_are_small() -> None:
    sizes = {name: len(shown(REPOSITORY, name)) for name in CAPABILITIES}
    assert {name: size for name, size in sizes.items() if size > MOST_NAMES.get(name, USUAL_NAMES)} == {}
    assert {name: sizes[name] for name in MOST_NAMES} == MOST_NAMES, "lower the number in MOST_NAMES"


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_names_of_a_face_load_from_the_modules_that_a_type_checker_reads(capability: str) -> None:
    face = importlib.import_module(f"{ANALYZERS}.{capability}")
    for name, module in shown(REPOSITORY, capability).items():
        if module.count(".") > 2:
            assert getattr(face, name) is getattr(importlib.import_module(module), name), name
    with pytest.raises(AttributeError, match="no attribute 'missing_name'"):
        _ = face.missing_name


def test_a_name_past_a_face_is_seen(tmp_path: Path) -> None:
    for capability in CAPABILITIES:
        folder = tmp_path / "perfscope" / "analyzers" / capability
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    hlo = tmp_path / "perfscope" / "analyzers" / "hlo"
    (hlo / "__init__.py").write_text("from perfscope.analyzers.hlo.module import Shape\n")
    (hlo / "inside.py").write_text("from perfscope.analyzers.hlo.module import Computation\n")
    (tmp_path / "perfscope" / "outside.py").write_text(
        "from perfscope.analyzers.hlo import Shape, module\nfrom perfscope.analyzers.hlo.module import Shape\n"
    )
    assert past_faces(tmp_path) == {
        "hlo": [
            "perfscope/outside.py:1: perfscope.analyzers.hlo module",
            "perfscope/outside.py:2: perfscope.analyzers.hlo.module Shape",
        ]
    }
