"""Records are msgspec Structs; data classes are for modules that may assume only the standard library."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.house.outline import outline

STANDARD_LIBRARY_ONLY = {
    # in the user's program, whose interpreter need not have msgspec
    "perfscope/model/capture.py",
    "perfscope/model/documents/counters.py",
    "perfscope/model/documents/run.py",
    "perfscope/model/documents/stacks.py",
    "perfscope/model/frames/__init__.py",
    "perfscope/model/jax_log.py",
    "perfscope/model/op_graph.py",
    "perfscope/plugins/fingerprint/jax/observer.py",
    "perfscope/profiler/jax/pallas_costs.py",
    "perfscope/plugins/fingerprint/jax/recorder.py",
    "perfscope/plugins/fingerprint/torch/measure.py",
    "perfscope/plugins/fingerprint/torch/step.py",
    "perfscope/plugins/numerics/document.py",
    "perfscope/plugins/numerics/history.py",
    "perfscope/plugins/numerics/jax/observer.py",
    "perfscope/plugins/numerics/jax/program.py",
    "perfscope/plugins/numerics/jax/recorder.py",
    "perfscope/plugins/numerics/products.py",
    "perfscope/plugins/numerics/torch/ops.py",
    "perfscope/plugins/numerics/torch/products.py",
    "perfscope/plugins/numerics/torch/recorder.py",
    "perfscope/plugins/trials/interventions/base.py",
    "perfscope/plugins/trials/process_report.py",
    "perfscope/profiler/jax/calls.py",
    "perfscope/profiler/jax/donation_warnings.py",
    "perfscope/profiler/jax/jaxpr_walk.py",
    "perfscope/profiler/sampling/stack_tree.py",
    "perfscope/profiler/session/passes.py",
    "perfscope/profiler/session/ranks.py",
    "perfscope/profiler/torch/compile_log.py",
    "perfscope/profiler/torch/tensors.py",
    "perfscope/profiler/trail.py",
    # programs as users write them
    "perfscope/workloads/options.py",
}
"""Modules with data classes."""


def with_data_classes(root: Path) -> set[str]:
    """The modules below ``root`` that define a data class."""
    return {
        path.relative_to(root.parent).as_posix()
        for path in root.rglob("*.py")
        if any("dataclass" in each.decorators for each in outline(path).classes)
    }


def test_no_data_class_where_a_struct_can_be() -> None:
    assert with_data_classes(REPOSITORY / "perfscope") == STANDARD_LIBRARY_ONLY


def test_a_data_class_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "bare.py").write_text("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n")
    (package / "called.py").write_text("import dataclasses\n@dataclasses.dataclass()\nclass B:\n    x: int\n")
    (package / "struct.py").write_text("import msgspec\nclass C(msgspec.Struct):\n    x: int\n")
    assert with_data_classes(package) == {"package/bare.py", "package/called.py"}


@pytest.mark.slow
def test_these_modules_work_without_msgspec() -> None:
    modules = [name.removesuffix(".py").replace("/", ".") for name in sorted(STANDARD_LIBRARY_ONLY)]
    for framework in ("torch", "jax"):
        if find_spec(framework) is None:
            modules = [name for name in modules if f".{framework}." not in name]
    modules += ["perfscope.profiler.session.session", "perfscope.plugins.trials.recorder"]
    program = f"import sys\nsys.modules['msgspec'] = None\nimport {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
