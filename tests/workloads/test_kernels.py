"""Kernels of the workloads against plain formulas: their plain versions, and the kernels in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 5e-3}
"""Relative distance in the 2-norm; float16 has 11 bits. The interpreter multiplies no bfloat16."""
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")


def in_process(*command: str, interpret: bool) -> str:
    """Output of a Python process: Triton reads whether to interpret when it is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_INTERPRET": "1"} if interpret else {}
    command = (sys.executable, "-m", *command)
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@needs_triton
def test_the_kernels_in_the_interpreter() -> None:
    file = Path(__file__).relative_to(REPOSITORY).as_posix()
    assert " failed" not in in_process("pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", file, interpret=True)


def assert_near(ours: Sequence[Any], theirs: Sequence[Any], tolerance: float) -> None:
    for got, expected in zip(ours, theirs, strict=True):
        assert got.shape == expected.shape
        assert (got - expected).double().norm() <= tolerance * expected.double().norm()


def values_and_gradients(function: Any, inputs: Sequence[Any]) -> list[Any]:
    """Result of a function, and the gradients of its inputs for one random gradient of the result."""
    held = [value.detach().requires_grad_() for value in inputs]
    result = function(*held)
    seed = torch.randn(result.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return [result.detach(), *torch.autograd.grad(result, held, seed.to(result.dtype))]


def attention(q: Any, k: Any, v: Any, *, causal: bool, window: int) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    ahead = torch.arange(q.shape[2]) - torch.arange(q.shape[2])[:, None]
    hidden = (ahead > 0) & causal | (ahead <= -window) & (window > 0)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize(("causal", "window", "groups", "dtype"), [
    (True, 0, 2, "float32"), (True, 17, 1, "float32"), (False, 9, 4, "float32"), (True, 0, 2, "float16"),
])  # fmt: skip
def test_flash_attention(causal: bool, window: int, groups: int, dtype: str) -> None:
    from perfscope.workloads.kernels.flash import flash_attention, visible_pairs

    torch.manual_seed(0)
    q = torch.randn(1, 70, 4, 16).transpose(1, 2)
    k, v = torch.randn(2, 1, groups, 70, 16)
    inputs = [x.to(getattr(torch, dtype)) for x in (q, k, v)]
    ours = values_and_gradients(lambda *qkv: flash_attention(*qkv, causal, window)[0], inputs)
    rounded = [x.double() for x in inputs]
    theirs = values_and_gradients(lambda *qkv: attention(*qkv, causal=causal, window=window), rounded)
    assert_near(ours, theirs, TOLERANCE[dtype])
    ones = torch.ones(1, 1, 70, 16)
    seen = (attention(ones * 0, ones * 0, torch.eye(70)[None, None], causal=causal, window=window) > 0).sum()
    assert visible_pairs(70, causal, window) == int(seen)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("target", ["h100", "mi300x"])
def test_every_kernel_compiles_for_an_absent_gpu(target: str) -> None:
    rows = [
        line.split() for line in in_process("perfscope.workloads.kernels.compile", target, interpret=False).splitlines()
    ]
    folder = REPOSITORY / "perfscope/workloads/kernels/triton"
    kernels = {
        name
        for file in folder.glob("*.py")
        for name in re.findall(r"^@triton\.jit\ndef ([a-z]\w*)", file.read_text(), re.MULTILINE)
    }
    assert {row[1] for row in rows} == kernels
    assert all(row[-3] != "0" for row in rows)
