"""Kernels of the workloads against plain formulas: their plain versions, and the kernels in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.kernel_cost import declared_cost
from perfscope.plugins.ahead.targets.plugins import MissingPlugin, find
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


def test_the_decoder_computes_the_same_with_any_part_written_out() -> None:
    from perfscope.workloads import decoder
    from perfscope.workloads.options import Options

    def numbers(variant: str) -> list[Any]:
        model = decoder.build(Options(variant=variant, size=decoder.SIZES["tiny"]))
        loss = model(torch.randint(512, (2, 33), generator=torch.Generator().manual_seed(1)))
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    fused = numbers("fused")
    for variant in decoder.VARIANTS[1:]:
        assert_near(numbers(variant), fused, TOLERANCE["float32"])


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["norm", "loss"])
def test_a_plan_of_the_decoder_names_the_plain_line_first(variant: str, tmp_path: Path) -> None:
    if isinstance(missing := find("torch"), MissingPlugin):
        pytest.skip(missing.reason)
    program = [
        "-m",
        "perfscope.workloads.decoder",
        "--variant",
        variant,
        "--size",
        "gpu",
        "--steps",
        "7",
        "--batch",
        "1",
    ]
    report = tmp_path / "report.json"
    options = ["--target", "h100", "--json", str(report), "-o", str(tmp_path / "run")]
    in_process("perfscope", "compile", *options, *program, "--layers", "2", interpret=False)
    outcomes = json.loads(report.read_text())["outcomes"]
    found = [(one["cost_ns"], each["rule"], one["where"]) for each in outcomes for one in each["findings"]]
    _, rule, where = max(found, key=lambda row: row[0] or 0)
    lines = (REPOSITORY / "perfscope/workloads/decoder.py").read_text().splitlines()
    assert f"# defect: {rule}" in lines[where["line"] - 1]


def test_rms_norm() -> None:
    from perfscope.workloads.kernels.norm import EPSILON, rms_norm

    torch.manual_seed(0)
    inputs = [torch.randn(24, 37).T, torch.randn(24)]
    ours = values_and_gradients(lambda x, w: rms_norm(x, w)[0], inputs)
    plain = values_and_gradients(
        lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * w, [x.double() for x in inputs]
    )
    assert_near(ours, plain, TOLERANCE["float32"])


def test_rotate() -> None:
    from perfscope.workloads.kernels.rotary import angles, rotate

    torch.manual_seed(0)
    x = torch.randn(2, 9, 3 * 4 * 8)[..., 32:56].unflatten(-1, (3, 8))  # a part of a product of queries and keys
    cosine, sine = angles(9, 8)

    def plain(x: Any) -> Any:
        turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1).contiguous())
        turned = turned * torch.complex(cosine, sine).to(turned.dtype)[:, None]
        return torch.cat((turned.real, turned.imag), -1)

    ours = values_and_gradients(lambda x: rotate(x, cosine, sine), [x])
    assert_near(ours, values_and_gradients(plain, [x.double()]), TOLERANCE["float32"])


def test_linear_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.workloads.kernels import loss

    monkeypatch.setattr(loss, "PART", 32)  # the last part is shorter
    torch.manual_seed(0)
    inputs, target = [torch.randn(19, 8), torch.randn(75, 8)], torch.randint(75, (19,))
    ours = values_and_gradients(lambda x, w: loss.linear_cross_entropy(x, w, target)[0], inputs)
    plain = values_and_gradients(
        lambda x, w: torch.nn.functional.cross_entropy(x @ w.T, target), [x.double() for x in inputs]
    )
    assert_near(ours, plain, TOLERANCE["float32"])


def test_grouped_product() -> None:
    from perfscope.workloads.kernels.grouped import grouped_product

    torch.manual_seed(0)
    inputs, group_R = [torch.randn(90, 40), torch.randn(4, 40, 24)], torch.tensor([0] * 70 + [1] * 3 + [3] * 17)
    ends = torch.tensor([70, 73, 73, 90], dtype=torch.int32)  # one group has no rows
    ours = values_and_gradients(lambda x, w: grouped_product(x, w, ends), inputs)
    plain = values_and_gradients(lambda x, w: (x[:, None] @ w[group_R])[:, 0], [x.double() for x in inputs])
    assert_near(ours, plain, TOLERANCE["float32"])


def test_selective_scan() -> None:
    from perfscope.workloads.kernels.selective import selective_scan
    from perfscope.workloads.ssm import scan

    torch.manual_seed(0)
    inputs = [torch.rand(2, 35, 33, 4), torch.randn(2, 35, 33, 4), torch.randn(2, 35, 4)]  # a stretch and 3 steps
    ours = values_and_gradients(lambda a, u, read: selective_scan(a, u, read)[0], inputs)
    plain = values_and_gradients(
        lambda a, u, read: (scan(a, u) @ read.unsqueeze(-1)).squeeze(-1), [x.double() for x in inputs]
    )
    assert_near(ours, plain, TOLERANCE["float32"])


def test_paged_attention() -> None:
    from perfscope.workloads.kernels.paged import paged_attention

    torch.manual_seed(0)
    q, k, filled = torch.randn(3, 6, 16), torch.randn(12, 4, 2, 32)[..., :16], [1, 9, 16]
    v = torch.randn(12, 4, 2, 16)
    table = torch.randperm(12).view(3, 4)
    ours = paged_attention(q, k, v, table, torch.tensor(filled, dtype=torch.int32))
    for row, length in enumerate(filled):
        keys, values = (x[table[row]].flatten(0, 1)[:length].repeat_interleave(3, 1).double() for x in (k, v))
        weights = torch.softmax(torch.einsum("hk,thk->ht", q[row].double(), keys) / 4, -1)
        assert_near([ours[row]], [torch.einsum("ht,thk->hk", weights, values)], TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_scaled_product(dtype: str) -> None:
    from perfscope.workloads.kernels import quantized

    torch.manual_seed(0)
    parts = [quantized.quantized(torch.randn(rows, 96), getattr(torch, dtype)) for rows in (40, 72)]
    (x, x_scale), (weight, scale) = parts
    exact_x, exact_weight = (whole.double() * factor[:, None] for whole, factor in parts)
    ours = quantized.scaled_product(x, x_scale, weight, scale)
    declared = declared_cost("perfscope_workloads::scaled_product", x, x_scale, weight, scale)
    assert declared == (2 * 40 * 72 * 96, (40 + 72) * 96 + (40 + 72) * 4 + 40 * 72 * 2)
    assert_near([ours], [exact_x @ exact_weight.T], 5e-3)  # the result has the 8 bits of bfloat16


def test_int4_product() -> None:
    from perfscope.workloads.kernels import quantized

    torch.manual_seed(0)
    x, weight = torch.randn(256, 40).T, torch.randn(72, 256)
    packed, scale = quantized.packed(weight)
    assert (quantized.unpacked(packed, scale) - weight).abs().max() <= scale.max() / 2 + 1e-6
    ours = quantized.int4_product(x, packed, scale)
    declared = declared_cost("perfscope_workloads::int4_product", x, packed, scale)
    assert declared == (2 * 40 * 72 * 256, 40 * 256 * 4 + 72 * (256 // 2 + 2 * 4) + 40 * 72 * 4)
    assert_near([ours], [x.double() @ quantized.unpacked(packed, scale).double().T], TOLERANCE["float32"])


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
