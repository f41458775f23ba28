"""Private interfaces of torch and jax: each exists where its table says, and only the compat files use any."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from perfscope.plugins.ahead.jax import compat as ahead_compat
from perfscope.plugins.ahead.jax import plugin_devices
from perfscope.plugins.ahead.torch import compat as plan_compat
from perfscope.profiler.jax import compat as jax_compat
from perfscope.profiler.torch import compat as torch_compat
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "perfscope"
COMPAT_FILES = {
    "plugins/ahead/jax/compat.py",
    "plugins/ahead/jax/plugin_devices.py",
    "plugins/ahead/torch/compat.py",
    "profiler/jax/compat.py",
    "profiler/jax/donation_warnings.py",
    "profiler/jax/pallas_costs.py",
    "plugins/fingerprint/torch/watch.py",
    "plugins/numerics/torch/ops.py",
    "plugins/parity/torch_side.py",
    "profiler/torch/compat.py",
    "profiler/torch/op_graph/recorder.py",
}
EXCLUDED = {
    "_cut": "being removed",
    "analyzers": "imports neither torch nor jax, by contract; its advice names their modules",
    "plugins/memory_advice/wording.py": "imports neither; its advice names their modules",
    "workloads": "programs to profile, written as users write them",
}
"""Folder or file -> the reason why it is not checked."""
_PRIVATE = re.compile(r"(torch|jax|jaxlib)(\.\w+)*\.(_(?!_)\w+)(\.\w+)*|torch\.testing\._internal(\.\w+)*")
AHEAD = ahead_compat.RUN_INTERFACES | ahead_compat.CHECKPOINT_INTERFACES | plugin_devices.PLUGIN_INTERFACES


def _dotted(node: ast.expr) -> str:
    """``torch._C._autograd`` of an attribute expression, an empty text of any other."""
    if isinstance(node, ast.Name):
        return node.id
    outer = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{outer}.{node.attr}" if outer and isinstance(node, ast.Attribute) else ""


def private_uses(source: str) -> set[str]:
    """Private modules and attributes of torch and jax that a file imports, reads, or names in a separate string."""
    names: set[str] = set()
    if "torch" not in source and "jax" not in source:
        return names
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(_dotted(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return {name for name in names if _PRIVATE.fullmatch(name)}


def checked_files(package: Path) -> dict[str, Path]:
    """The files that must not use private interfaces."""
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    away = tuple(folder if folder.endswith(".py") else f"{folder}/" for folder in EXCLUDED)
    return {name: path for name, path in files.items() if name not in COMPAT_FILES and not name.startswith(away)}


def test_only_the_compat_files_use_private_interfaces() -> None:
    found = {name: private_uses(path.read_text()) for name, path in checked_files(PACKAGE).items()}
    assert {name: sorted(uses) for name, uses in found.items() if uses} == {}
    assert all((PACKAGE / name).is_file() for name in COMPAT_FILES), "a compat file that is not there any more"


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._C import _len_torch_dispatch_stack",
        "from torch.testing._internal import common_utils",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from jax._src import core",
        "import sys\nfound = sys.modules['jax._src.core']",
        "import torch\ndef late():\n    return torch._C._autograd._get_sequence_nr()",
        "import torch\nrecords = torch.autograd._profiler_enabled()",
        "import jaxlib._jax",
    ],
)
def test_a_private_use_is_found(line: str) -> None:
    assert private_uses(line)


@pytest.mark.parametrize(
    "line",
    [
        '"""Reads ``torch._C`` and says so."""',
        "import torch\nversion = torch.__version__",
        "import logging\nlogging.getLogger('torch.__trace')",
        "from jax.sharding import NamedSharding",
    ],
)
def test_a_public_use_passes(line: str) -> None:
    assert private_uses(line) == set()


TORCH = [
    *(("profiler/torch", name, place) for name, place in torch_compat.PRIVATE.items()),
    *(("plugins/ahead/torch", name, place) for name, place in plan_compat.PRIVATE.items()),
    *(("profiler/torch", name, place) for name, place in torch_compat.CUDA_PRIVATE.items()),
]


def test_interfaces_of_torch_are_where_they_were() -> None:
    cuda = pytest.importorskip("torch").version.cuda is not None
    present = [each for each in TORCH if cuda or each[1] not in torch_compat.CUDA_PRIVATE]
    assert [
        f"{name}: {reason}; change perfscope/{folder}/compat.py"
        for folder, name, place in present
        if (reason := torch_compat.missing(place))
    ] == []


def test_interfaces_of_jax_are_where_they_were() -> None:
    assert [
        f"{name}: {reason}; change perfscope/profiler/jax/compat.py"
        for name, place in jax_compat.PRIVATE.items()
        if (reason := jax_compat.missing(place))
    ] == []
    assert ahead_compat.missing(AHEAD) == [], "change the compat files of perfscope/plugins/ahead/jax"


def test_an_interface_that_moved_is_one_clear_sentence() -> None:
    assert str(torch_compat.missing("torch._C._gone")).endswith(" has no torch._C._gone")
    assert str(torch_compat.missing("torch._gone.name")).endswith(" has no torch._gone.name")
    reason = jax_compat.missing(("jax._src.core.gone", "jax._src.gone.name"))
    assert str(reason).endswith(" has no jax._src.core.gone and no jax._src.gone.name")
    assert ahead_compat.missing({"gone": ("jax._src.core", "EvalTrace.gone")}) == ["jax._src.core.EvalTrace.gone"]


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("plugins/parity/torch_side.py", torch_compat.PRIVATE),
        ("profiler/torch/op_graph/recorder.py", torch_compat.PRIVATE),
        ("plugins/ahead/torch/compat.py", plan_compat.PRIVATE),
    ],
)
def test_each_use_is_in_the_table(file: str, table: dict[str, str]) -> None:
    uses = private_uses((PACKAGE / file).read_text())
    assert {use for use in uses if not any(place.startswith(use) for place in table.values())} == set()
