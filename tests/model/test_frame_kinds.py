from __future__ import annotations

import time
from itertools import product
from typing import get_args

import pytest

from perfscope.analyzers.time.calls import Framework
from perfscope.analyzers.time.fixes import ProgramPhase, Situation, does, move, read_fix
from perfscope.model.frames.kinds import PLACES, FrameKind, frame_kind, kind_below

K = FrameKind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("torch/autograd/graph.py(979): _engine_run_backward", K.AUTOGRAD),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f00>", K.AUTOGRAD),
        ("Variable.run_backward", K.AUTOGRAD),
        ("site-packages/torch/optim/adam.py(152): _init_group", K.OPTIMIZER),
        ("Optimizer.step#AdamW.step", K.OPTIMIZER),
        ("/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py(1176): __init__", K.LOADER),
        ("torch/distributed/checkpoint/state_dict_saver.py(60): save", K.CHECKPOINT),
        ("torch/distributed/distributed_c10d.py(2700): all_reduce", K.COLLECTIVE),
        ("torch/distributed/distributed_c10d.py(2700): init_process_group", K.COLLECTIVE_SETUP),
        ("torch/nn/modules/module.py(1750): _call_impl", K.DISPATCH),
        ("site-packages/jax/_src/pjit.py(263): cache_miss", K.COMPILED_CALL),
        ("$array.py:631 _value", K.DEVICE_WAIT),
        ("$pjit.py:263 cache_miss", K.COMPILED_CALL),
        ("site-packages/orbax/checkpoint/_src/checkpointers/checkpointer.py(20): save", K.CHECKPOINT),
        ("site-packages/optax/transforms/_adding.py(20): update_fn", K.OPTIMIZER),
        ("PjRtStreamExecutorClient::CompileAndLoad", K.COMPILER),
        ("nvFuser::Nvrtc::CompileProgram", K.COMPILER),
        ("lib/python3.11/logging/__init__.py(1489): info", K.LOGGING),
        ("lib/python3.11/logging/__init__.py(237): _releaseLock", K.UNKNOWN),
        ("lib/python3.11/multiprocessing/popen_fork.py(66): _launch", K.PROCESS_START),
        ("$threading.py:323 wait", K.LOCK),
        ("$time sleep", K.SLEEP),
        ("time.sleep", K.SLEEP),
        ("queue.py(171): get", K.QUEUE),
        ("site-packages/transformers/trainer.py(5): _inner_training_loop", K.TRAINER),
        ("site-packages/vllm/model_executor/layers/utils.py(9): default_unquantized_gemm", K.SERVING),
        ("site-packages/pandas/core/frame.py(9): merge", K.LIBRARY),
        ("train.py(12): tokenize", K.USER),
        ("/home/me/datasets/text.py(12): __getitem__", K.USER),
        ("datasets/text.py(12): __getitem__", K.USER),
        ("site-packages/datasets/arrow_dataset.py(12): __getitem__", K.LOADER),
        ("Forward 1", K.UNKNOWN),
    ],
)
def test_the_table_knows_frames_of_both_frameworks(text: str, kind: FrameKind) -> None:
    assert frame_kind(text) is kind


def shown(stack: str) -> FrameKind:
    """The shown stack, outermost frame first."""
    kind = K.UNKNOWN
    for text in stack.split(" > "):
        kind = kind_below(kind, frame_kind(text), is_python="): " in text)
    return kind


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        # forking runs the at-fork handlers of logging, which hold its lock
        (
            "train.py(9): main > multiprocessing/popen_fork.py(66): _launch > logging/__init__.py(237): _releaseLock",
            K.PROCESS_START,
        ),
        ("train.py(9): main > torch/utils/data/dataloader.py(1): __init__ > os.fork", K.WORKER_START),
        # a child that is forked has the parent's call above its own first function
        (
            "train.py(9): main > multiprocessing/process.py(120): start > multiprocessing/popen_fork.py(70): _launch > "
            "multiprocessing/process.py(314): _bootstrap > train.py(4): worker",
            K.USER,
        ),
        ("torch/multiprocessing/spawn.py(90): _wrap > train.py(4): worker > torch/_tensor.py(5): backward", K.AUTOGRAD),
        ("train.py(9): main > torch/multiprocessing/spawn.py(300): start_processes", K.PROCESS_START),
        (
            "train.py(9): main > torch/utils/data/dataloader.py(1): _next > data.py(4): __getitem__ > time.sleep",
            K.LOADER,
        ),
        ("train.py(9): main > site-packages/orbax/checkpointer.py(1): save > threading.py(1): wait", K.CHECKPOINT),
        ("train.py(9): main > torch/optim/adam.py(1): step > torch._foreach_add_", K.OPTIMIZER),
        ("train.py(9): main > torch/_tensor.py(1): backward > train.py(30): hook > sorted", K.USER),
        ("train.py(9): main > torch/nn/modules/module.py(1): _call_impl > model.py(3): forward > json.loads", K.USER),
        ("train.py(9): main > gc: garbage", K.GARBAGE_COLLECTION),
        ("train.py(9): main > threading.py(3): wait > train.py(12): callback", K.USER),
        ("train.py(9): main > logging/__init__.py(9): info > handlers.py(3): emit > time.sleep", K.LOGGING),
    ],
)
def test_a_stack_shows_what_its_innermost_relevant_frame_is(stack: str, kind: FrameKind) -> None:
    assert shown(stack) is kind


@pytest.mark.parametrize("part", ["a/", "(", ") :", "::", "Compiler", "): ", "site-packages/", "<built-in ", "$a:"])
def test_hostile_names_take_time_in_proportion_to_their_length(part: str) -> None:
    def seconds(times: int) -> float:
        frame_kind.cache_clear()
        begin = time.process_time()
        for end in ("", "x.py(1): y"):
            frame_kind(part * times + end)
        return time.process_time() - begin

    seconds(1_000)
    assert seconds(100_000) < 2, "a quadratic look-up takes minutes"


SITUATIONS = [
    Situation(framework=framework, phase=phase)
    for framework, phase in product(get_args(Framework), get_args(ProgramPhase))
]
TORCH_WORDS = ("torch", "DataLoader", "persistent_workers", "detach", "non_blocking", "fused=True")
JAX_WORDS = ("jax", "ocp.", "nnx", "block_until_ready", "XLA_")
READS = ("item", "bool", "equal", "nonzero", "masked_select", "unique", "to_host", "copy", "wait", "free", "other")


@pytest.mark.parametrize("where", SITUATIONS)
def test_no_fix_names_calls_of_another_framework(where: Situation) -> None:
    fixes = [where.frame_fix(kind, flax_nnx=True) for kind in FrameKind]
    fixes += [read_fix(kind, where) for kind in READS] + [move("`tokenize`", where)]
    foreign = {"torch": JAX_WORDS, "jax": TORCH_WORDS, "none": (*JAX_WORDS, *TORCH_WORDS)}[where.framework]
    for fix in fixes:
        fix = fix.replace("(`persistent_workers=True` of PyTorch's)", "").replace("PyTorch", "")
        assert [word for word in foreign if word in fix] == [], fix
        assert not fix or fix.endswith("."), fix


def test_the_framework_and_ranges_are_never_work_to_move() -> None:
    for where, kind in product(SITUATIONS, (K.AUTOGRAD, K.TRAINER, K.SERVING, K.RANGE, K.OP, K.UNKNOWN, K.USER)):
        assert where.frame_fix(kind) == "", "a kind without an entry gives no fix"
        assert does(kind)


def test_an_update_is_no_advice_where_nothing_is_trained() -> None:
    assert Situation(framework="torch", phase="generation").frame_fix(K.OPTIMIZER) == ""
    assert "detach" not in read_fix("item", Situation(framework="torch", phase="evaluation"))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_run_with_sampled_stacks_is_not_told_to_sample_stacks(framework: Framework) -> None:
    assert "samples Python" not in Situation(framework=framework, phase="training", sampled=True).record_stacks()
    assert "`perfscope run`" in Situation(framework=framework, phase="training").record_stacks()


def test_places_are_paths_without_a_folder_of_packages() -> None:
    assert [place for place in PLACES if place.startswith("/") or "packages" in place] == []
