"""Frames of a log: ids given anew after a reset, whose line a frame is, and when it was compiled."""

from __future__ import annotations

from dataclasses import replace

from perfscope.analyzers.compile_log import CompileLog, Phase, Place, Recompile
from perfscope.analyzers.facts.compile_frames import (
    compile_spans,
    compiled_frames,
    hit_limit,
    is_users,
    plain_function,
    resumed_at,
)
from tests.analyzers.broken import BEHIND, MODEL, SECOND, compilation, graph_break, log_alone

TORCH = Place(file="/src/pytorch/torch/_dynamo/external_utils.py", line=66, function="inner")


def test_an_id_that_comes_again_is_another_frame() -> None:
    compiles = (compilation("0/0", 0.0), compilation("0/1", 10.0), compilation("0/0", 20.0), compilation("0/1", 30.0))
    again = Recompile(
        compile_id="0/1", function="forward", place=MODEL, reasons=("k == 0",), time_ns=round((BEHIND + 30) * SECOND)
    )
    first, second = log_alone(CompileLog(path="log", compiles=compiles, recompiles=(again,))).fact(compiled_frames)
    assert [len(frame.compiles) for frame in (first, second)] == [2, 2]
    assert (first.recompiles, second.recompiles) == ((), (again,))


def test_phases_of_an_id_are_parted_by_time() -> None:
    early, late = compilation("0/0", 0.0), compilation("0/0", 20.0)
    phases = tuple(
        Phase(
            name="dynamo",
            start_ns=round((BEHIND + at) * SECOND),
            end_ns=round((BEHIND + at + 2) * SECOND),
            compile_id="0/0",
        )
        for at in (0.0, 20.0, 21.0)
    )
    trace = log_alone(CompileLog(path="log", compiles=(early, late), phases=phases))
    assert [compile_spans(trace, (one,)).total() for one in (early, late)] == [2 * SECOND, 3 * SECOND]
    assert compile_spans(trace, (early, late)).total() == 5 * SECOND


def test_times_are_moved_to_the_clock_of_the_trace() -> None:
    one = compilation("0/0", 0.0)
    trace = log_alone(CompileLog(path="log", compiles=(one,), clock_offset_ns=7))
    assert compile_spans(trace, (one,)).starts.tolist() == [round(BEHIND * SECOND) + 7]


def test_a_frame_of_torchs_is_placed_at_the_users_line() -> None:
    caller = Place(file="/home/user/run.py", line=164, function="main")
    log = CompileLog(path="log", compiles=(compilation("0/0", place=TORCH, function="inner", stack=(caller, TORCH)),))
    (frame,) = log_alone(log).fact(compiled_frames)
    assert (frame.place, frame.user_place) == (TORCH, caller)
    assert [is_users(file) for file in (TORCH.file, caller.file, "/v/lib/python3.12/site-packages/einops/e.py")] == [
        False,
        True,
        False,
    ]


def test_what_follows_a_break_is_named_like_its_function() -> None:
    assert plain_function("torch_dynamo_resume_in_forward_at_44") == "forward"
    assert resumed_at("torch_dynamo_resume_in_forward_at_44") == ("forward", 44)
    assert (plain_function("forward"), resumed_at("forward"), plain_function(None)) == ("forward", None, "a frame")


def test_the_limit_is_known_by_id_and_by_older_words() -> None:
    skip = graph_break(doc_id=None, reason="other", skipped_frame=True)
    assert [hit_limit(one) for one in (
        replace(skip, doc_id="gb0039"), replace(skip, reason="cache_size_limit reached"), skip,
    )] == [True, True, False]  # fmt: skip
