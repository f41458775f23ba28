"""Graph breaks and recompilations in torch.compile's log, in the forms of each version."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.compile_log import Place
from perfscope.analyzers.readers.torch_log.recompiles import guard
from tests.analyzers.readers.torch_logs import LogText, log_of

NEW_BREAK = """Graph break in user code at /u/a.py:11
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print`
      in two lines.
  Hint: Avoid calling builtin `print`.
  Hint: Report it.

  Developer debug context: builtin print [ConstantVariable(str: 'password')] True

 For more details about this graph break, please visit: https://meta-pytorch.github.io/x/gb/gb0059.html

User code traceback:
  File "/u/main.py", line 29, in <module>
    m(x).backward()
    ^^^^
  File "/u/a.py", line 11, in forward
    print("hello")

Traceback (most recent call last):
  File "/torch/_dynamo/symbolic_convert.py", line 1076, in wrapper
    return inner_fn(self, inst)
torch._dynamo.exc.Unsupported: Failed to trace builtin operator
"""
OLD_BREAK = """Graph break in user code at /u/a.py:7
Reason: Unsupported: call_method TensorVariable() item () {}
User code traceback:
  File "/u/a.py", line 7, in f
    return x.item()
"""
SKIP = """Graph break in user code at /u/a.py:21
Graph Break Reason: Failed to handle graph break gracefully. Skipping the function and falling back to eager. \
Graph break encountered:

Failed to trace builtin operator
  Hint: Avoid it.

*** While handling this graph break, another graph break occurred: ***

graph break in loop
  Explanation: in a loop.
  Hint: Move it out.

User code traceback:
  File "/u/a.py", line 21, in g
    print(i)
"""
FRAME_SKIP = """Graph break: skip: from user code at:
  File "/u/a.py", line 3, in h
    torch._dynamo.graph_break()

Traceback (most recent call last):
  File "/torch/_dynamo/convert_frame.py", line 9, in _compile
    raise
torch._dynamo.exc.Unsupported: Call to `torch._dynamo.graph_break()`
  Explanation: asked for.
"""
WONT = """WON'T CONVERT f /u/a.py line 4
========== TorchDynamo Stack Trace ==========
Traceback (most recent call last):
  File "/torch/_dynamo/x.py", line 1, in y
    raise
RuntimeError: fake tensors cannot do this

========== The above exception occurred while processing the following code ==========

  File "/u/a.py", line 6, in f
    return op(x)

==========
"""


def break_of(payload: str) -> Any:
    (found,) = log_of(LogText().at(0).event("dynamo", "B", 1000).artifact("dynamo_graph_break_reason", payload)).breaks
    return found


def test_a_break_with_explanation_hints_and_id() -> None:
    found = break_of(NEW_BREAK)
    assert found.reason == "Failed to trace builtin operator"
    assert found.explanation == "Dynamo does not know how to trace builtin operator `print`\nin two lines."
    assert found.hints == ("Avoid calling builtin `print`.", "Report it.")
    assert found.doc_id == "gb0059"
    assert found.place == Place(file="/u/a.py", line=11, function="forward", code='print("hello")')
    assert [(one.line, one.code) for one in found.stack] == [(29, "m(x).backward()"), (11, 'print("hello")')]
    assert not found.skipped_frame
    assert "password" not in repr(found)


@pytest.mark.parametrize(
    ("payload", "reason", "line", "skipped", "hints"),
    [
        (OLD_BREAK, "Unsupported: call_method TensorVariable() item () {}", 7, False, ()),
        (SKIP, "Failed to trace builtin operator", 21, True, ("Avoid it.", "Move it out.")),
        (FRAME_SKIP, "Call to `torch._dynamo.graph_break()`", 3, True, ()),
        (WONT, "fake tensors cannot do this", 6, True, ()),
        ("something new", "something new", None, False, ()),
    ],
)
def test_breaks_of_each_age(payload: str, reason: str, line: int | None, skipped: bool, hints: tuple[str, ...]) -> None:
    found = break_of(payload)
    assert (found.reason, found.place and found.place.line) == (reason, line)
    assert (found.skipped_frame, found.hints) == (skipped, hints)


def test_breaks_before_there_was_a_record_of_them() -> None:
    text = LogText().at(0, 0, 1).metrics(co_name="f", restart_reasons=["'skip function graph_break'"])
    text.at(1, 0, 1).metrics(co_name="torch_dynamo_resume_in_f_at_9", restart_reasons=["other"])
    text.at(2).metrics(co_name="torch_dynamo_resume_in_f_at_12").at(3).metrics(
        co_name="g", restart_reasons=["no resume"]
    )
    log = log_of(text)
    assert [(one.compile_id, one.reason, one.place.line, one.place.function) for one in log.breaks if one.place] == [
        ("0/0", "skip function graph_break", 9, "f"),
        ("1/0", "other", 12, "f"),
    ]
    assert len(log.breaks) == 2
    assert [one.attempts for one in log.compiles] == [2, 2, 1, 1]


def test_a_break_in_a_frame_without_code_skipped_it() -> None:
    text = LogText().at(0).start(("/u/a.py", 4, "f")).artifact("dynamo_graph_break_reason", OLD_BREAK)
    (found,) = log_of(text.metrics(has_guarded_code=False)).breaks
    assert found.skipped_frame


def test_torch_2_8_calls_a_skipped_frame_guarded_code() -> None:
    text = (
        LogText()
        .at(0)
        .artifact("dynamo_graph_break_reason", OLD_BREAK)
        .metrics(has_guarded_code=True, guard_count=None)
    )
    text.at(1).artifact("dynamo_graph_break_reason", OLD_BREAK).metrics(has_guarded_code=True, guard_count=5)
    log = log_of(text)
    assert [one.has_code for one in log.compiles] == [False, True]
    assert [one.skipped_frame for one in log.breaks] == [True, False]


def test_torch_2_6_gives_a_frame_up_without_a_word() -> None:
    text = LogText().at(0).start(("/u/a.py", 4, "f")).metrics()
    text.at(0, 1).artifact("recompile_reasons", ["0/0: k == 0"]).add("bwd_compilation_metrics", {"duration_us": 483})
    log = log_of(text)
    (found,) = log.breaks
    assert (found.compile_id, found.reason, found.skipped_frame) == ("0/1", "cache_size_limit reached", True)
    assert found.place == log.compiles[0].place
    assert (log.compiles[1].complete, log.compiles[1].has_code, log.compiles[1].backward_ns) == (True, False, None)


def test_strings_of_the_program_are_not_shown() -> None:
    said = "Graph break in user code at /u/a.py:7\nReason: Unsupported: call ConstantVariable(str: 'pass\\'word') {}\n"
    assert break_of(said).reason == "Unsupported: call ConstantVariable(str: '...') {}"


def test_a_recompile_limit_is_a_frame_that_stays_eager() -> None:
    text = LogText().at(0).start(("/u/a.py", 4, "f")).metrics()
    text.at(0, 1).artifact("recompile_reasons", "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12")
    said = "Dynamo recompile limit exceeded\n  Explanation: too many\n  Hint: mark it dynamic\n\n x/gb/gb0039.html"
    text.metrics(co_name=None, co_filename=None, co_firstlineno=None, fail_type="Unsupported", fail_reason=said)
    log = log_of(text)
    (found,) = log.breaks
    assert (found.reason, found.explanation, found.hints) == (
        "Dynamo recompile limit exceeded",
        "too many",
        ("mark it dynamic",),
    )
    assert (found.doc_id, found.skipped_frame, found.place) == ("gb0039", True, log.compiles[0].place)
    assert [(one.function, one.has_code) for one in log.compiles] == [("f", None), ("f", False)]
    (again,) = log.recompiles
    assert again.reasons == ("tensor 'x' size mismatch at index 0. expected 8, actual 12",)
    assert (again.function, again.place) == ("f", log.compiles[0].place)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 8", None),
        ("3/1: s == 0      # return x * s  # a.py:33 in k\nUser stack trace:\n  File", "s == 0"),
        ("0/0: L['mode'] == 'password'  # if mode", "L['mode'] == '...'"),
        ("0/0: L['mode'] in {'a', 'password'}", "L['mode'] in {'...', '...'}"),
        ("0/0: list(d.keys()) == ['password', \"it's\"]", "list(d.keys()) == ['...', '...']"),
        ("!2/0/0: k == 0", "k == 0"),
        (
            "0/0: ___check_type_id(s, 14), type=<class 'float'>  # x (HINT: type float)",
            "___check_type_id(s, 14), type=<class 'float'> (HINT: type float)",
        ),
    ],
)
def test_guards_are_shown_without_the_strings_in_them(said: str, shown: str | None) -> None:
    assert guard(said) == (shown or said.split(": ", 1)[1])


def test_older_logs_tell_recompilations_by_their_number() -> None:
    text = LogText().at(0).metrics().at(0, 1).metrics()
    assert [(one.compile_id, one.reasons) for one in log_of(text).recompiles] == [("0/1", ())]
