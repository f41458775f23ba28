"""One compiled program under `perfscope run`: its kernels lead to its lines, and the rules find what is in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.spans.compiled_regions import call_name, compiled_kernel
from perfscope.analyzers.time.sites import call_site
from perfscope.analyzers.torch_compile.inductor_fusion import refused_pairs
from perfscope.analyzers.torch_compile.phases import compile_times
from perfscope.model.trace import Trace
from tests import warm
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")

PROGRAM = """
import torch
import perfscope

torch.manual_seed(0)
w = torch.randn(64, 128, requires_grad=True)


@torch.compile
def forward(x):
    h = x @ w                                       # product
    y = torch.nn.functional.gelu(h) * 2             # elementwise
    return y.t().contiguous().softmax(-1), y.sum(0)  # another order


for _ in range(6):
    with perfscope.step():
        a, b = forward(torch.randn(32, 64))
        (a.square().sum() + b.sum()).backward()
        w.grad = None
"""


def line_of(marker: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if f"# {marker}" in line)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("compiled")
    program = folder / "train.py"
    program.write_text(PROGRAM)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perfscope", "run", "--no-report", "-o", str(folder / "runs"), str(program)]
    # the repository's root is where perfscope lies; the tests may run from a checkout
    env = {**os.environ, **cache, "PYTHONPATH": str(REPOSITORY)}
    done = warm.run(command, env=env, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return load_all(folder / "runs")[0]


def fused(trace: Trace) -> dict[int, str]:
    """Spans of inductor's own kernels."""
    names = trace.rows["slices"]["name"]
    called = {row: call_name(trace.text(int(code))) for row, code in enumerate(names)}
    return {row: name for row, name in called.items() if name is not None and "_fused_" in name}


def test_every_fused_kernel_leads_to_a_line_of_the_program(trace: Trace) -> None:
    kernels = fused(trace)
    assert len(kernels) >= 6  # three profiled steps of a forward and a backward
    known = {line_of("elementwise"), line_of("another order")}
    for row, name in kernels.items():
        held = compiled_kernel(trace, row)
        assert held is not None
        assert held.name == name
        site = call_site(trace, row)
        assert Path(site.file or "").name == "train.py"
        assert site.line in known


def test_products_lead_to_theirs_in_forward_and_backward(trace: Trace) -> None:
    names = trace.rows["slices"]["name"]
    products = [row for row, code in enumerate(names) if trace.text(int(code)) == "aten::mm"]
    found = [compiled_kernel(trace, row) for row in products]
    assert {one.direction for one in found if one is not None} == {"forward", "backward"}
    assert {call_site(trace, row).line for row in products} == {line_of("product")}


def test_what_inductor_left_apart_is_read_in_another_order(trace: Trace) -> None:
    pairs = trace.fact(refused_pairs)
    assert {pair.platform for pair in pairs} == {"cpu"}
    assert "no shared data" in {pair.refusal.reason for pair in pairs}
    forward = [pair for pair in pairs if pair.refusal.direction == "forward"]
    assert any(pair.read_at is not None and pair.read_at.line == line_of("another order") for pair in forward)
    assert judge(load_rule("unfused_ops"), trace).status == "clean"  # 16 kB never leave a cache


def test_a_short_cold_start_is_clean_and_accounted_for(trace: Trace) -> None:
    times = trace.fact(compile_times)
    (one,) = times.compiles
    assert set(one.compile.caches.values()) == {"miss"}
    assert 0 < one.cached_ns < one.total_ns <= times.total_ns
    assert judge(load_rule("compile_time"), trace).findings == ()
