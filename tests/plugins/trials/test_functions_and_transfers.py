"""Interventions that change how functions run: checkpoints, compiled gradients, passes of a step, reads, copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.plugins.trials.interventions import load_intervention, transfers
from perfscope.plugins.trials.interventions.base import Application
from perfscope.plugins.trials.results import compare_results
from tests import warm
from tests.conftest import REPOSITORY
from tests.plugins.trials.test_application import launched

BLOCKS = """
import torch
from torch.utils.checkpoint import checkpoint

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.inner(x)) + x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CHECKPOINTED else block(x)
        return x

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
print(sum(block.calls for block in model.blocks))
"""


@pytest.fixture(autouse=True)
def _finds_perfscope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    warm.use_for_launches(monkeypatch)


def calls(folder: Path) -> int:
    return int((folder / "log").read_text())


@pytest.mark.slow
@pytest.mark.torch
def test_blocks_are_computed_again_or_kept_and_the_results_stay(tmp_path: Path) -> None:
    kept, again = f"CHECKPOINTED = False\n{BLOCKS}", f"CHECKPOINTED = True\n{BLOCKS}"
    plain = launched(tmp_path, kept)
    assert calls(tmp_path) == 3 * 6
    for program, name, changed, expected in (
        (kept, "checkpoint-blocks", "3 Block of Model are checkpointed", 3 * (1 + 2 * 5)),
        (again, "checkpoint-off", "Block is not checkpointed", 3 * 6),
        (again, "checkpoint-selective", "Block keeps its matrix products", 2 * 3 * 6),
    ):
        launch = launched(tmp_path, program, name)
        assert launch.problem is None
        assert launch.reports[0].applied[name] == (changed,)
        assert calls(tmp_path) == expected, name
        assert compare_results(plain.reports, launch.reports).state == "same"


@pytest.mark.slow
@pytest.mark.torch
def test_passes_of_a_step_reduce_once(tmp_path: Path) -> None:
    program = f"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting-" + str(__import__("os").getpid()),
                        rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
reduced = []
def hook(state, bucket):
    reduced.append(1)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    for _ in range(3):
        (model(torch.randn(8, 4)).square().mean() / 3).backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(reduced))
"""
    plain = launched(tmp_path, program)
    assert calls(tmp_path) == 12
    once = launched(tmp_path, program, "ddp-no-sync")
    assert once.problem is None
    assert calls(tmp_path) == 3 + 3, "the first step is counted"
    assert once.reports[0].applied["ddp-no-sync"] == ("2 of 3 passes of a step run under no_sync()",)
    assert compare_results(plain.reports, once.reports).state == "same"


REMAT = """
import jax, jax.numpy as jnp
import perfscope

@jax.checkpoint
def block(x, w):
    return jnp.tanh(x @ w)

def loss_of(weights, x):
    for w in weights:
        x = block(x, w)
    return jnp.mean(x ** 2)

weights, x = [0.1 * jnp.ones((8, 8))] * 2, jnp.ones((4, 8))
gradient = jax.value_and_grad(loss_of)
shown = str(jax.make_jaxpr(gradient)(weights, x))
for _ in range(6):
    loss, gradients = gradient(weights, x)
    weights = [w - 0.1 * g for w, g in zip(weights, gradients)]
    perfscope.step()
print(shown.count("remat"), shown.count("dot_general"))
"""


@pytest.mark.slow
@pytest.mark.jax
def test_gradients_are_compiled_and_checkpoints_changed(tmp_path: Path) -> None:
    plain = launched(tmp_path, REMAT)
    seen = {"": (tmp_path / "log").read_text().split()}
    for name in ("jax-jit-gradients", "jax-remat-off", "jax-remat-dots"):
        launch = launched(tmp_path, REMAT, name)
        assert launch.problem is None
        assert launch.reports[0].applied, name
        results = compare_results(plain.reports, launch.reports)
        assert (results.state, results.reason) == ("same", ""), name
        seen[name] = (tmp_path / "log").read_text().split()
    assert int(seen[""][0]) > 0
    assert int(seen["jax-remat-off"][0]) == 0
    assert int(seen["jax-remat-dots"][1]) < int(seen[""][1]), "products are not computed again"


@pytest.mark.jax
def test_a_gradient_that_cannot_be_compiled_runs_as_before(tmp_path: Path) -> None:
    program = """
import jax, jax.numpy as jnp, perfscope

def loss_of(w, kind):
    return jnp.sum(w ** 2) if kind == "square" else jnp.sum(w)

for _ in range(6):
    jax.grad(loss_of)(jnp.ones(3), "square")
    perfscope.step()
"""
    launch = launched(tmp_path, program, "jax-jit-gradients")
    assert launch.problem is None
    assert not launch.reports[0].applied
    assert "loss_of: " in launch.reports[0].refused["jax-jit-gradients"][0]


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Application]:
    """Apply an intervention to this process; what it replaces in torch.Tensor is put back."""
    torch = pytest.importorskip("torch")
    for name in ("to", "cuda", "item", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))

    def applied(name: str) -> Application:
        application = Application()
        intervention = load_intervention(name)
        assert intervention.apply is not None
        intervention.apply(application)
        return application

    return applied


@pytest.mark.torch
def test_a_value_is_read_a_step_later_without_a_gpu(
    apply: Callable[[str], Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    waited: list[float] = []

    def copy_to_host(tensor: Any) -> tuple[Any, Callable[[], None]]:
        copied = tensor.detach().clone()
        return copied, lambda: waited.append(0.0)

    monkeypatch.setattr(transfers, "on_gpu", lambda tensor: tensor.ndim == 0)
    monkeypatch.setattr(transfers, "copy_to_host", copy_to_host)
    application = apply("defer-read")
    read = [torch.tensor(number).item() for number in (1.0, 2.0, 3.0)]
    assert read == [1.0, 1.0, 2.0]
    assert float(torch.tensor(7.0)) == 7.0, "another line"
    assert len(waited) == 2
    assert application.applied[0].startswith("test_functions_and_transfers.py:")


@pytest.mark.torch
def test_only_pinned_memory_that_goes_to_a_gpu_is_not_waited_for(
    apply: Callable[[str], Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    given: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.ndim == 1)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **named: given.append(named.get("non_blocking")))
    application = apply("non-blocking")
    pinned, pageable = torch.ones(2), torch.ones(2, 2)
    for tensor, arguments in (
        (pinned, ("cuda",)),
        (pinned, (torch.device("cuda", 0), torch.float16)),
        (pageable, ("cuda",)),
        (pinned, ("cpu",)),
        (pinned, (torch.float16,)),
        (pinned, ("cuda", torch.float16, False)),
    ):
        tensor.to(*arguments)
    assert given == [True, True, None, None, None, None]
    assert application.applied == ["Tensor.to(device, non_blocking=True) of pinned memory"]


@pytest.mark.torch
def test_a_model_is_recorded_into_cuda_graphs_with_the_arguments_of_its_first_call(
    apply: Callable[[str], Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    recorded: list[tuple[int, ...]] = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda module, like: recorded.append(like[0].shape))
    application = apply("cuda-graphs")
    model = torch.nn.Linear(4, 2)
    for _ in range(3):
        model(torch.ones(8, 4))
    assert recorded == [(8, 4)]
    assert application.applied == ["Linear is replayed from CUDA graphs"]
