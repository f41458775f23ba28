from __future__ import annotations

import pytest

from perfscope.model.frames import Owner, is_profilers, owner_of, parse_frame, parse_module


def test_a_frame_has_file_line_and_function():
    frame = parse_frame("model/moe.py(41): forward")
    assert frame is not None
    assert (frame.file, frame.line, frame.function, frame.owner) == ("model/moe.py", 41, "forward", Owner.USER)


def test_a_function_goes_on_behind_a_graph_break_under_its_own_name():
    frame = parse_frame("train.py(44): torch_dynamo_resume_in_forward_at_44")
    assert frame is not None
    assert (frame.function, frame.line) == ("forward", 44)


@pytest.mark.parametrize(
    "name", ["<built-in method item of Tensor object at 0x7f>", "nn.Module: Linear_0", "aten::add", ""]
)
def test_names_that_are_no_frame(name):
    assert parse_frame(name) is None


def test_modules_are_told_from_frames():
    assert parse_module("nn.Module: Linear_0") == "Linear_0"
    assert parse_module("train.py(1): <module>") is None


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("train.py", Owner.USER),
        ("test.py", Owner.USER),
        ("profile.py", Owner.USER),
        ("/home/u/code/torch_tricks/loop.py", Owner.USER),
        ("/home/u/enum.py", Owner.USER),
        ("transformers/pipelines/base.py", Owner.USER),
        ("/venv/lib/python3.11/site-packages/transformers/pipelines/base.py", Owner.LIBRARY),
        ("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", Owner.FRAMEWORK),
        ("torch/nn/modules/module.py", Owner.FRAMEWORK),
        ("/usr/lib/python3.11/threading.py", Owner.FRAMEWORK),
        ("contextlib.py", Owner.FRAMEWORK),
        ("importlib/__init__.py", Owner.FRAMEWORK),
        ("<frozen importlib._bootstrap>", Owner.FRAMEWORK),
        ("<string>", Owner.FRAMEWORK),
        ("/tmp/torchinductor_u/5n/c5ncrwiv2h7rxf4gapcnwh7htl3o2mrvvqp7iatennkrozz5s44p.py", Owner.FRAMEWORK),
        ("6n/c5ncrwiv2h7rxf4gapcnwh7htl3o2mrvvqp7iatennkrozz5s44p.py", Owner.USER),
        ("perfscope/profiler/launch/program.py", Owner.FRAMEWORK),
        ("/home/u/src/perfscope/profiler/torch/hooks.py", Owner.FRAMEWORK),
        ("/home/u/src/perfscope/__main__.py", Owner.FRAMEWORK),
        ("/home/u/perfscope/train.py", Owner.USER),
        ("perfscope/workloads/moe.py", Owner.USER),
        ("/v/lib/python3.11/site-packages/perfscope/workloads/moe.py", Owner.USER),
        ("C:\\venv\\Lib\\site-packages\\torch\\nn\\functional.py", Owner.FRAMEWORK),
    ],
)
def test_whose_file_it_is(file, owner):
    assert owner_of(file) is owner


def test_torchs_hooks_are_torchs_wherever_they_are_written():
    frame = parse_frame("vllm/model_executor/parameter.py(122): __torch_function__")
    assert frame is not None
    assert frame.owner is Owner.FRAMEWORK


@pytest.mark.parametrize(
    ("frame", "ours"),
    [
        ("/src/perfscope/profiler/session/steps.py(260): _mine", True),
        ("perfscope/profiler/session/steps.py", True),
        ("/src/perfscope/__main__.py(4): main", True),
        ("perfscope/workloads/moe.py(12): step", False),
        ("/home/me/train.py(12): perfscope/profiler/", False),
        ("_mine", False),
    ],
)
def test_frames_of_the_profiler_are_known(frame: str, ours: bool) -> None:
    assert is_profilers(frame) is ours
