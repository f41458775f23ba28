"""A capability or plug-in uses another capability only through what its package exports."""

from __future__ import annotations

import ast
import collections
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.house.test_architecture import statements

CAPABILITIES = frozenset(
    {"compare", "critical_path", "memory", "ops", "plans", "predict", "programs", "ranks", "time", "torch_compile"},
)
USERS = CAPABILITIES - {"compare"} | {"sections"}
"""Packages of ``perfscope/analyzers`` that are held to it."""

EXCEPTIONS: dict[str, frozenset[str]] = {
    "plugins/exports": frozenset({"memory.blocks"}),
    "plugins/memory_advice": frozenset(
        {
            "memory.categories",
            "memory.holders",
            "ops.graph_time",
            "ops.recompute",
            "programs.blocks",
            "programs.saving",
            "torch_compile.inductor_fusion",
        }
    ),
    "memory": frozenset({"ops.attention", "ops.recompute", "programs.blocks"}),
    "ops": frozenset(
        {
            "plans.graph_cost",
            "programs.attention_traffic",
            "programs.fusion",
            "programs.saving",
            "torch_compile.inductor_fusion",
        }
    ),
    "plans": frozenset({"ops.fusion", "ops.graph_time"}),
    "sections": frozenset({"ops.rules.unfused_ops.inductor"}),
    "torch_compile": frozenset({"ops.fusion", "ops.kernels"}),
}
"""Package or plug-in -> modules of other capabilities that it still uses past their faces: to be exported or moved."""


def reached_into(root: Path) -> dict[str, frozenset[str]]:
    """Package of ``root/perfscope/analyzers``, or plug-in -> modules of other capabilities that it imports from."""
    analyzers, plugins = root / "perfscope" / "analyzers", root / "perfscope" / "plugins"
    folders = {user: analyzers / user for user in USERS}
    folders |= {f"plugins/{path.parent.name}": path.parent for path in plugins.glob("*/__init__.py")}
    found: dict[str, set[str]] = collections.defaultdict(set)
    for user, folder in sorted(folders.items()):
        for path in folder.rglob("*.py"):
            for node in statements(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                    found[user].update(_inner(name, user, node.module, analyzers) for name in names)
    return {user: frozenset(modules - {""}) for user, modules in found.items() if modules - {""}}


def _inner(name: str, user: str, package: str, analyzers: Path) -> str:
    """The module inside another capability that an import takes ``name`` from; empty where it is exported."""
    parts = package.split(".")
    if parts[:2] != ["perfscope", "analyzers"] or len(parts) < 3 or parts[2] == user or parts[2] not in CAPABILITIES:
        return ""
    if len(parts) > 3:
        return ".".join(parts[2:])
    exported = _exports(analyzers / parts[2] / "__init__.py")
    return "" if name.rpartition(".")[2] in exported else ".".join(name.split(".")[2:])


def _exports(path: Path) -> frozenset[str]:
    for node in ast.parse(path.read_text()).body if path.is_file() else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets
        ):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def test_a_capability_uses_what_another_one_exports() -> None:
    found = reached_into(REPOSITORY)
    new = {user: modules - EXCEPTIONS.get(user, frozenset()) for user, modules in found.items()}
    assert {user: sorted(modules) for user, modules in new.items() if modules} == {}
    mended = {user: modules - found.get(user, frozenset()) for user, modules in EXCEPTIONS.items()}
    assert {user: sorted(modules) for user, modules in mended.items() if modules} == {}, "an exception is not needed"


def test_reaching_into_a_capability_is_found(tmp_path: Path) -> None:
    files: Mapping[str, str] = {
        "time/__init__.py": '__all__ = ["gaps"]\n',
        "memory/owners.py": "from perfscope.analyzers.time import gaps\nfrom perfscope.analyzers.time import steps\n",
        "memory/rules/leak.py": "def late():\n    from perfscope.analyzers.time.gaps import hidden\n",
        "memory/growth.py": "from perfscope.analyzers.memory.owners import own\nfrom perfscope.analyzers import hlo\n",
        "../plugins/advice/__init__.py": "",
        "../plugins/advice/rules/leak.py": "from perfscope.analyzers.time.gaps import hidden\n",
        "../plugins/advice/verdict.py": "from perfscope.analyzers.compare.runs.comparison import kind_of\n",
    }
    for name, text in files.items():
        path = tmp_path / "perfscope" / "analyzers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert reached_into(tmp_path) == {
        "memory": frozenset({"time.steps", "time.gaps"}),
        "plugins/advice": frozenset({"compare.runs.comparison", "time.gaps"}),
    }
