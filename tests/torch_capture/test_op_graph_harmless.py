"""The structure capture leaves the program alone: its results, memory, modes, hooks and threads."""

from __future__ import annotations

import importlib
import weakref
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.errors import PerfscopeError
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from tests.torch_capture.op_graphs import Net, named, train_step

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch


def test_nothing_is_kept_alive() -> None:
    capture = OpGraphCapture()
    capture.start(0)
    big = torch.ones(1 << 20)
    doubled = big * 2
    watched = [weakref.ref(big.untyped_storage()), weakref.ref(doubled), weakref.ref(big)]
    del big, doubled
    assert [gone() for gone in watched] == [None, None, None]
    capture.stop()


def test_memory_does_not_grow_with_what_the_step_allocates() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    capture = OpGraphCapture()
    capture.start(0)
    torch.ones(1)  # torch imports its compiler with the first dispatch of any mode
    before = resident()
    for _ in range(64):
        torch.ones(4 << 20).add_(1)  # 16 MB each, 1 GB in all
    after = resident()
    capture.stop()
    assert after - before < 256 << 20


@pytest.mark.parametrize("name", ["attention", "moe", "ssm"])
def test_results_are_bit_identical(name: str) -> None:

    from perfscope.workloads.options import Options
    from perfscope.workloads.training import build, loss_of

    workload = importlib.import_module(f"perfscope.workloads.{name}")
    for variant in workload.VARIANTS[:2]:
        results = []
        for captured in (False, True):
            options = Options(variant=variant, size=workload.SIZES["tiny"])
            model = build(workload.Block, options)
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            tokens = torch.arange(options.size.batch * (options.size.seq + 1)).reshape(options.size.batch, -1) % 64
            capture = OpGraphCapture()
            if captured:
                capture.start(0)
            loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            capture.stop()
            gradients = [parameter.grad for parameter in model.parameters()]
            results.append([loss.detach(), *gradients, *(weight.detach() for weight in model.parameters())])
        assert all(torch.equal(plain, seen) for plain, seen in zip(*results, strict=True)), variant


def _user_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Pass(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Pass()


def _modes() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(index) for index in range(torch._C._len_torch_dispatch_stack())]


def test_modes_of_the_program_may_end_while_we_record(tmp_path: Path) -> None:
    capture = OpGraphCapture()
    with _user_mode():
        capture.start(0)
        torch.ones(1)
    torch.zeros(1)
    assert len(_modes()) == 1
    capture.stop()
    assert _modes() == []
    capture.save(tmp_path / "graph.json")
    assert len(read_op_graph(tmp_path / "graph.json").ops) == 2


def test_modes_of_the_program_may_outlive_us() -> None:
    capture = OpGraphCapture()
    capture.start(0)
    with (mode := _user_mode()):
        capture.stop()
        assert _modes() == [mode]
        torch.ones(1)
    assert _modes() == []


def test_it_starts_and_stops_within_an_optimizer_hook() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    net, x, capture, steps = Net(), torch.randn(2, 8), OpGraphCapture(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def boundary(*_: Any) -> None:
        steps.append(len(_modes()))
        if len(steps) == 1:
            capture.start(1)
        elif len(steps) == 2:
            capture.stop()

    hook = register_optimizer_step_post_hook(boundary)
    for _ in range(3):
        train_step(net, optimizer, x)
    hook.remove()
    assert steps == [0, 1, 0]


def test_a_forward_that_raises_leaves_its_module(record: Any) -> None:
    class Raises(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            raise ValueError("as a program may")

    def program() -> None:
        with pytest.raises(ValueError, match="as a program may"):
            nn.Sequential(Raises())(torch.ones(1))
        torch.zeros(1)

    assert named(record(program), "zeros")[0].module == ""


def test_hooks_are_gone_afterwards(record: Any) -> None:
    from torch.nn.modules import module

    record(lambda: Net()(torch.ones(1, 8)))
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks


def test_threads_of_the_program_are_left_alone(record: Any) -> None:
    from threading import Thread

    def program() -> None:
        thread = Thread(target=lambda: torch.ones(1))
        thread.start()
        thread.join()
        torch.zeros(1)

    assert [op.name for op in record(program).ops] == ["aten.zeros.default"]


@pytest.mark.skipif(not hasattr(torch.Tag, "reduction"), reason="this torch compiles again; `run` leaves the pass out")
def test_compiled_regions_are_not_compiled_again(record: Any) -> None:
    compiled = torch.compile(lambda x: (x @ x).sin().sum(), backend="aot_eager")
    x = torch.ones(4, 4, requires_grad=True)
    compiled(x).backward()
    from torch._dynamo.utils import counters

    before = dict(counters["frames"])
    record(lambda: compiled(x).backward())
    assert dict(counters["frames"]) == before


def test_an_op_that_cannot_be_recorded_does_not_stop_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> Any:
        raise TypeError("never seen before")

    capture = OpGraphCapture()
    capture.start(0)
    monkeypatch.setattr("perfscope.profiler.torch.op_graph.recorder.facts_of", breaks)
    assert torch.ones(2).sum() == 2
    capture.stop()
    assert _modes() == []
    with pytest.raises(PerfscopeError, match=r"no op graph: aten.ones.default .* TypeError: never seen before"):
        capture.save(tmp_path / "graph.json")
    assert not list(tmp_path.iterdir())


def test_compiling_for_the_first_time_while_we_record(record: Any) -> None:
    compiled = torch.compile(lambda x: (x @ x).sin().sum(), backend="aot_eager")
    x = torch.ones(4, 4, requires_grad=True)
    record(lambda: compiled(x).backward())
    assert torch.allclose(x.grad, torch.autograd.grad((x @ x).sin().sum(), x)[0])
