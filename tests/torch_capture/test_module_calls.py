"""Steps of programs without an optimizer: which calls of which module, and that torch is left as it was."""

from __future__ import annotations

import copy
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.modules import module as torch_module

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session.steps import Source, StepFinder
from perfscope.profiler.torch.hooks import Hooks
from perfscope.profiler.torch.watched_calls import Call, watch_calls

pytestmark = pytest.mark.torch

WARMUP = 3


class Recorder:
    """Stores its calls."""

    def __init__(self) -> None:
        self.source: str | None = None
        self.begun: list[int] = []
        self.starts_over = 0

    def settled(self, source: str, completed: int) -> None:
        self.source = source

    def unsettled(self) -> None:
        self.starts_over += 1
        self.begun = []

    def broken(self, error: Exception) -> None:
        raise error

    def begin(self, number: int) -> None:
        self.begun.append(number)

    def end(self, now: int) -> None:
        assert now > 0


@pytest.fixture
def found() -> Iterator[tuple[Recorder, Hooks]]:
    recorder, hooks = Recorder(), Hooks()
    finder = StepFinder(CaptureOptions(warmup=WARMUP), recorder, hooks.forget)
    hooks.install(finder, ours=lambda: False, make_way=lambda: None)
    yield recorder, hooks
    hooks.remove()


def net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


def test_calls_of_the_outermost_module_are_steps(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model = net()
    with torch.no_grad():
        for _ in range(10):
            model(torch.ones(2, 4))
    assert recorder.source == "calls of Sequential"
    assert recorder.begun == list(range(WARMUP, 11))


def test_a_round_of_drafts_and_their_check_is_one_step(found: tuple[Recorder, Hooks]) -> None:
    recorder, hooks = found
    small, large = net(), torch.nn.Sequential(net())
    with torch.no_grad():
        for drafts in (1, *[4] * 7):  # both read the prompt first
            for _ in range(drafts):
                small(torch.ones(2, 4))
            large(torch.ones(2, 4))
    assert hooks._modules is not None
    assert hooks._modules.model.__repr__() == repr(large)
    assert recorder.begun == list(range(WARMUP, 9))


def test_a_loop_that_bound_the_call_before_is_seen(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model = net()
    call = model.__call__  # as generate of transformers does
    with torch.no_grad():
        for _ in range(8):
            call(torch.ones(1, 4))
    assert recorder.begun == list(range(WARMUP, 9))


def test_transforms_of_samples_are_not_the_model(found: tuple[Recorder, Hooks]) -> None:
    """A loader calls a module once per sample, the program its model once per batch."""
    recorder, _ = found
    scale, net = torch.nn.Identity(), torch.nn.Linear(4, 4)

    class Samples(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> torch.Tensor:
            return scale(torch.full((4,), float(index)))

    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(Samples(), batch_size=8):
            net(batch)
    assert recorder.source == "calls of Linear"


def test_modules_that_are_called_once_or_twice_are_no_loop(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    encoder, denoiser, decoder = torch.nn.Linear(4, 4), net(), torch.nn.Tanh()
    with torch.no_grad():
        value = encoder(torch.ones(2, 4)) + encoder(torch.zeros(2, 4))
        for _ in range(8):
            value = denoiser(value)
        decoder(value)
    assert recorder.source == "calls of Sequential"
    assert recorder.begun[-1] == 8


def test_an_optimizer_is_better_also_when_it_comes_late(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model = net()
    optimizer = torch.optim.ASGD(model.parameters())  # classes are hooked when they are first used
    with torch.no_grad():
        for _ in range(8):
            model(torch.ones(2, 4))
    for _ in range(6):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert (recorder.source, recorder.starts_over) == ("optimizer.step", 1)
    assert recorder.begun[-1] == 6


def test_batches_that_are_accumulated_are_no_steps(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model = net()
    optimizer = torch.optim.Rprop(model.parameters())  # classes are hooked when they are first used
    for _ in range(5):
        for _ in range(8):
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert (recorder.source, recorder.starts_over) == ("optimizer.step", 0)


def test_a_failing_call_is_over(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model = net()
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(RuntimeError):
                model(torch.ones(2, 5))
        for _ in range(8):
            model(torch.ones(2, 4))
    assert recorder.source == "calls of Sequential"
    assert recorder.begun[-1] == 10


def test_a_compiled_module_is_watched_from_outside_and_compiled_once(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    graphs = Graphs()
    compiled = torch.compile(net(), backend=graphs)
    with torch.no_grad():
        for _ in range(8):
            compiled(torch.ones(2, 4))
    assert (recorder.source, recorder.begun) == ("calls of Sequential", list(range(WARMUP, 9)))
    assert len(graphs.seen) == 1


class Graphs:
    """A backend of ``torch.compile`` that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        self.seen: list[object] = []

    def __call__(self, graph: torch.fx.GraphModule, _: object) -> object:
        self.seen.append(graph)
        return graph.forward


def test_calls_of_a_compiled_function_are_steps(found: tuple[Recorder, Hooks]) -> None:
    recorder, hooks = found
    graphs = Graphs()

    @torch.compile(backend=graphs)
    def turn(value: torch.Tensor) -> torch.Tensor:
        return value.sin() + 1

    for _ in range(8):
        turn(torch.ones(2, 4))
    assert (recorder.source, recorder.begun) == ("calls of turn", list(range(WARMUP, 9)))
    hooks.forget(Source.MODULE)
    turn(torch.ones(2, 4))
    assert recorder.begun[-1] == 8
    assert len(graphs.seen) == 1
    torch.compiler.disable(turn)(torch.ones(7))
    assert len(graphs.seen) == 1, "torch takes it for the compiled function"


def test_calls_of_compiled_functions_that_train_wait_for_an_optimizer(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    weight = torch.nn.Parameter(torch.ones(4))
    turn = torch.compile(lambda value: (value * weight).sum(), backend=Graphs())
    optimizer = torch.optim.SGD([weight])
    for _ in range(5):
        for _ in range(3):
            turn(torch.ones(4)).backward()
        optimizer.step()
    assert (recorder.source, recorder.starts_over) == ("optimizer.step", 0)


@pytest.mark.parametrize("how", ["helper", "forward"])
def test_a_model_around_compiled_code_makes_the_steps_and_is_compiled_once(
    found: tuple[Recorder, Hooks], how: str
) -> None:
    recorder, _ = found
    graphs = Graphs()
    helper = torch.compile(lambda value: value.sin().relu(), backend=graphs)
    activation = helper if how == "helper" else torch.relu

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return activation(self.second(activation(self.first(value))))

    model = Net()
    if how == "forward":
        model.forward = torch.compile(model.forward, backend=graphs)  # type: ignore[method-assign]
    with torch.no_grad():
        for _ in range(9):
            model(torch.ones(2, 4))
    assert recorder.source == "calls of Net"
    assert recorder.begun == list(range(WARMUP, 9)), "the first call showed that the model is around"
    assert len(graphs.seen) == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_a_watched_module_can_be_saved_copied_and_scripted(
    found: tuple[Recorder, Hooks], tmp_path: Path, compiled: bool
) -> None:
    recorder, _ = found
    plain = net()
    model = torch.compile(plain, backend="eager") if compiled else plain
    value = torch.ones(2, 4)
    with torch.no_grad():
        for _ in range(8):
            model(value)
        assert recorder.begun[-1] == 8
        other = copy.deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        again = torch.load(tmp_path / "model.pt", weights_only=False)
        for twin in (other, again, *([] if compiled else [torch.jit.script(plain)])):
            assert torch.equal(twin(value), plain(value))
    saved = zipfile.ZipFile(tmp_path / "model.pt")
    assert not any(b"perfscope" in saved.read(name) for name in saved.namelist())


def test_modules_of_one_class_share_what_wraps_their_calls() -> None:
    seen: list[tuple[str, torch.nn.Module]] = []

    def make(name: str) -> Callable[[Call], Call]:
        def wrapped(call: Call) -> Call:
            def called(module: torch.nn.Module, *arguments: object) -> object:
                seen.append((name, module))
                return call(module, *arguments)

            return called

        return wrapped

    class Block(torch.nn.Linear):
        pass

    blocks = [Block(2, 2) for _ in range(3)]
    undo = [watch_calls(block, make("first")) for block in blocks]
    shared = vars(Block)["__call__"]
    undo.append(watch_calls(blocks[0], make("again")))
    assert vars(Block)["__call__"] is not shared
    for block in blocks:
        block(torch.ones(2))
    assert [name for name, _ in seen] == ["again", "first", "first", "first"]
    assert [module for _, module in seen] == [blocks[0], *blocks]
    while undo:
        undo.pop()()
    assert not {"__call__", "_call_impl"} & set(vars(Block))


def test_torch_is_left_as_it_was() -> None:
    before = (torch.compile, dict(torch_module._global_forward_hooks), dict(torch_module._global_forward_pre_hooks))
    hooks = Hooks()
    finder = StepFinder(CaptureOptions(warmup=WARMUP), Recorder(), hooks.forget)
    hooks.install(finder, ours=lambda: False, make_way=lambda: None)
    model = net()
    with torch.no_grad():
        for _ in range(6):
            model(torch.ones(2, 4))
    assert "_call_impl" in vars(torch.nn.Sequential)
    hooks.forget(Source.MODULE)
    hooks.remove()
    assert "_call_impl" not in vars(torch.nn.Sequential)
    now = (torch.compile, dict(torch_module._global_forward_hooks), dict(torch_module._global_forward_pre_hooks))
    assert now == before


def _in_thread(target: Callable[[], object]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def test_threads_that_compute_one_request_each_are_steps(found: tuple[Recorder, Hooks]) -> None:
    recorder, hooks = found
    model, run = net(), threading.Thread.run

    def answer() -> None:
        with torch.no_grad():
            model(torch.ones(2, 4))

    for _ in range(WARMUP + 10):
        _in_thread(answer)
    assert recorder.source == "calls of Sequential"
    assert recorder.begun[-3:] == list(range(recorder.begun[-3], recorder.begun[-3] + 3))
    count = len(recorder.begun)
    _in_thread(lambda: None)
    assert len(recorder.begun) == count, "a thread of another target is no step"
    hooks.remove()
    assert threading.Thread.run is run


def test_steps_move_on_when_their_thread_has_ended(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model, run = net(), threading.Thread.run

    def answer() -> None:
        with torch.no_grad():
            for _ in range(2 * WARMUP):
                model(torch.ones(2, 4))

    _in_thread(answer)
    _in_thread(answer)
    assert recorder.starts_over == 1
    assert recorder.begun
    assert threading.Thread.run is run


def test_other_threads_do_not_take_the_steps_of_a_thread_that_lives(found: tuple[Recorder, Hooks]) -> None:
    recorder, _ = found
    model = net()

    def answer() -> None:
        with torch.no_grad():
            model(torch.ones(2, 4))

    for _ in range(2 * WARMUP):
        answer()
    count = len(recorder.begun)
    for _ in range(10):
        _in_thread(answer)
    answer()
    assert recorder.starts_over == 0
    assert len(recorder.begun) == count + 1
