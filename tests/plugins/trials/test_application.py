"""Interventions in an unmodified program: their changes, and what they leave alone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.documents.ab import Launch
from perfscope.plugins.trials.interventions import load_intervention
from perfscope.plugins.trials.interventions.base import Application
from perfscope.plugins.trials.launches import changes_of
from perfscope.plugins.trials.process_report import Ending
from perfscope.plugins.trials.results import compare_results
from perfscope.profiler.ab.launch import ArmFolder, launch_once
from perfscope.profiler.launch.program import Target
from tests import warm
from tests.conftest import REPOSITORY
from tests.session.programs import LOOP

LOADED = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(16, 16)), batch_size=4)
assert torch.get_num_threads() == 1
torch.set_num_threads(3)
work(8)
print(loader.num_workers, torch.get_num_threads())
"""


@pytest.fixture(autouse=True)
def _finds_perfscope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    warm.use_for_launches(monkeypatch)


def launched(folder: Path, program: str, *names: str, record_steps: int = 3, ending: Ending | None = None) -> Launch:
    (folder / "train.py").write_text(program)
    return launch_once(
        Target(arguments=("train.py",)),
        ArmFolder(root=None, folder=folder),
        arm="head",
        phase="warm",
        pair=0,
        slot=0,
        log=folder / "log",
        changes=changes_of(names, {}, record_steps=record_steps, ending=ending),
    )


@pytest.mark.torch
def test_several_at_once_in_a_program_that_keeps_its_results(tmp_path: Path) -> None:
    plain = launched(tmp_path, LOOP + LOADED)
    changed = launched(tmp_path, LOOP + LOADED, "fused-optimizer", "loader-workers", "threads-one", "gc-freeze")
    assert (plain.problem, changed.problem) == (None, None)
    assert (tmp_path / "log").read_text().split()[1] == "1", "the program's own set_num_threads(3) is overruled"
    assert int((tmp_path / "log").read_text().split()[0]) >= 2
    (report,) = changed.reports
    assert report.applied["fused-optimizer"] == ("AdamW(fused=True)",)
    assert report.applied["threads-one"] == ("torch.set_num_threads(3) is 1",)
    assert "gc.freeze() after the warm-up" in report.applied["gc-freeze"][0]
    assert {value.kind for value in report.values} == {"output", "loss", "gradients", "parameters"}
    assert {value.step for value in report.values} == {0, 1, 2}
    assert compare_results(plain.reports, changed.reports).state == "same"
    assert report.peak_rss_bytes is not None
    assert report.peak_rss_bytes > 50 << 20


@pytest.mark.slow
@pytest.mark.torch
def test_a_launch_ends_after_its_steps_as_by_sys_exit(tmp_path: Path) -> None:
    program = f"""{LOOP}
import atexit
atexit.register(print, "exit handlers run")
try:
    work(40)
    print("the whole program")
finally:
    print("finally", flush=True)
"""
    ended = launched(tmp_path, program, ending=Ending(steps=9))
    assert (ended.code, ended.problem) == (0, None)
    assert (ended.steps_seen, len(ended.step_ns)) == (9, 7)
    assert ended.reports[0].ended_after == 9
    assert (tmp_path / "log").read_text().split("\n")[-3:-1] == ["finally", "exit handlers run"]
    whole = launched(tmp_path, program)
    assert whole.reports[0].ended_after is None
    assert compare_results(whole.reports, ended.reports).state == "same"


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_of_several_is_never_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    launch = launched(tmp_path, LOOP + "work(12)", ending=Ending(steps=6))
    assert (launch.problem, launch.steps_seen, launch.reports[0].ended_after) == (None, 12, None)


@pytest.mark.slow
@pytest.mark.jax
def test_a_launch_of_jax_ends_when_enough_steps_are_timed(tmp_path: Path) -> None:
    program = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.ones((64, 64))
for _ in range(1_000_000):
    x = step(x)
    x.block_until_ready()
"""
    launch = launched(tmp_path, program, ending=Ending(began_unix_s=time.time()))
    assert launch.problem is None
    assert 42 <= launch.steps_seen < 1_000_000
    assert launch.reports[0].ended_after == launch.steps_seen
    assert launch.windows_ns


@pytest.mark.jax
def test_outputs_of_a_jitted_function_and_switches_for_debugging(tmp_path: Path) -> None:
    program = """
import jax, jax.numpy as jnp
jax.config.update("jax_debug_nans", True)

@jax.jit
def train_step(state, batch):
    loss = jnp.mean((batch @ state) ** 2)
    return state - 0.1 * loss, loss

state, batch = jnp.ones((16, 16)), jnp.ones((4, 16))
for _ in range(8):
    state, loss = train_step(state, batch)
print(jax.config.jax_debug_nans, train_step.lower(state, batch) is not None)
"""
    launch = launched(tmp_path, program, "jax-debug-off", "jax-donate")
    assert launch.problem is None
    assert (tmp_path / "log").read_text() == "False True\n"
    (report,) = launch.reports
    assert report.applied == {
        "jax-debug-off": ("jax_debug_nans is off",),
        "jax-donate": ("train_step: donate_argnums=(0,)",),
    }
    assert [(value.name, value.step) for value in report.values][:2] == [("train_step [1]", 0), ("train_step [0]", 0)]
    assert report.values[0].sample[0] == pytest.approx(256.0)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Application]]:
    """Apply an intervention to this process; what it replaces in torch is put back."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    kinds = [value for value in vars(torch.optim).values() if isinstance(value, type)]
    for kind in (*kinds, DataLoader):
        if "__init__" in vars(kind):
            monkeypatch.setattr(kind, "__init__", vars(kind)["__init__"])
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        monkeypatch.setattr(kind, "zero_grad", vars(kind)["zero_grad"])

    def apply(name: str) -> Application:
        application = Application()
        intervention = load_intervention(name)
        assert intervention.apply is not None
        intervention.apply(application)
        return application

    yield apply
    gc.unfreeze()


Apply = Callable[[str], Application]


@pytest.mark.torch
def test_options_of_an_optimizer_that_the_program_gives_are_kept(restored: Apply) -> None:
    import torch

    application = restored("fused-optimizer")
    model = torch.nn.Linear(2, 2)
    made: Any = torch.optim.Adam(model.parameters(), 0.5, foreach=True)
    assert (made.defaults["lr"], made.defaults["fused"], made.defaults["foreach"]) == (0.5, True, False)
    assert application.applied == ["Adam(fused=True)"]
    assert len(made.param_groups[0]["params"]) == 2, "a generator of parameters is read once"


@pytest.mark.torch
def test_an_optimizer_that_refuses_is_made_as_the_program_asked(restored: Apply) -> None:
    import torch

    application = restored("fused-optimizer")
    made: Any = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=0.5, differentiable=True)
    assert (made.defaults["lr"], bool(made.defaults["fused"]), made.defaults["differentiable"]) == (0.5, False, True)
    assert application.applied == []
    assert application.refused[0].startswith("Adam: ")
    torch.optim.RMSprop([torch.nn.Parameter(torch.zeros(2))])
    assert application.applied == [], "RMSprop has no fused form"


@pytest.mark.torch
def test_the_programs_own_error_comes_in_its_own_words(restored: Apply) -> None:
    import torch

    restored("fused-optimizer")
    with pytest.raises(TypeError, match="momentums"):
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], momentums=0.9)  # type: ignore[call-arg]


@pytest.mark.torch
def test_workers_are_not_given_to_a_dataset_that_each_would_read_whole(restored: Apply) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    application = restored("loader-workers")
    assert DataLoader(Stream()).num_workers == 0
    assert application.applied == []
    assert "each worker would read all of it" in application.refused[0]
    assert DataLoader([1, 2, 3]).num_workers >= 2  # type: ignore[arg-type]


@pytest.mark.torch
def test_what_is_there_already_is_not_applied(restored: Apply) -> None:
    import torch
    from torch.utils.data import DataLoader

    zero = restored("zero-grad-none")
    model = torch.nn.Linear(2, 2)
    model.zero_grad()
    assert zero.applied == []
    model.zero_grad(set_to_none=False)
    assert zero.applied == ["Linear.zero_grad(set_to_none=True)"]
    prefetch = restored("prefetch")
    DataLoader([1])  # type: ignore[arg-type]
    assert (prefetch.applied, prefetch.refused) == ([], ["it has no workers"])


def test_the_collector_is_frozen_once_and_off_between_steps() -> None:
    freeze, off = Application(), Application()
    for name, application in (("gc-freeze", freeze), ("gc-off", off)):
        apply = load_intervention(name).apply
        assert apply is not None
        apply(application)
    try:
        for step in (2, 3):
            freeze.on_step[0](step)
        assert len(freeze.applied) == 1
        assert gc.get_freeze_count() > 0
        off.on_step[0](2)
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.torch
def test_models_are_modules_that_no_other_module_calls() -> None:
    import torch

    from perfscope.plugins.trials.interventions.root_modules import RootModules

    entered: list[str] = []
    left: list[str] = []
    found: list[list[str]] = []
    RootModules(
        enter=lambda module, _: entered.append(type(module).__name__),
        leave=lambda module, _: left.append(type(module).__name__),
        found=lambda modules: found.append([type(module).__name__ for module in modules]),
    )
    model, critic = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.nn.Linear(2, 1)
    for _ in range(3):
        critic(model(torch.ones(1, 2)))
    assert found == [["Sequential", "Linear"]]
    assert entered == left == ["Sequential", "Linear"] * 3
    torch.nn.ReLU()(torch.ones(1))
    assert len(entered) == 6, "the hooks of all modules are gone"
