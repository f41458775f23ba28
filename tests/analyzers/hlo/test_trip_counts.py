"""Trip counts told from a loop's counter, and the loops that must stay unknown."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hlo.text import module_of

LOOP = """HloModule m
%body (state: (f32[4], s32[])) -> (f32[4], s32[]) {
  %state = (f32[4], s32[]) parameter(0)
  %x = f32[4] get-tuple-element(%state), index=0
  %i = s32[] get-tuple-element(%state), index=1
  %mine = s32[] copy(%i)
  %step = s32[] constant(STEP)
  %next = s32[] NEXT
  ROOT %result = (f32[4], s32[]) tuple(%x, %next)
}
%condition (state: (f32[4], s32[])) -> pred[] {
  %state = (f32[4], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=1
  %n = s32[] constant(END)
  ROOT %go = pred[] compare(OPERANDS), direction=DIRECTION
}
ENTRY %main (x: f32[4], n: s32[]) -> (f32[4], s32[]) {
  %x = f32[4] parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] constant(BEGIN)
  %begin = s32[] copy(%zero)
  %start = (f32[4], s32[]) tuple(%x, FROM)
  ROOT %loop = (f32[4], s32[]) while(%start), condition=%condition, body=%body
}
"""
PLAIN = {
    "STEP": "1", "NEXT": "add(%mine, %step)", "END": "10", "OPERANDS": "%i, %n", "DIRECTION": "LT", "BEGIN": "0",
    "FROM": "%begin",
}  # fmt: skip


def trips(**changed: str) -> int | None:
    text = LOOP
    for key, value in {**PLAIN, **changed}.items():
        text = text.replace(key, value)
    return module_of(text.splitlines(keepends=True), "test").entry_computation().by_name["loop"].trip_count


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 10),
        ({"DIRECTION": "LE"}, 11),
        ({"BEGIN": "-2"}, 12),
        ({"STEP": "3"}, 4),  # 0 3 6 9
        ({"STEP": "3", "DIRECTION": "LE", "END": "9"}, 4),
        ({"STEP": "3", "END": "9"}, 3),
        ({"NEXT": "add(%step, %mine)"}, 10),
        ({"END": "0"}, 0),
        ({"BEGIN": "20"}, 0),
    ],
)
def test_a_loop_that_counts_up_to_a_constant(changed: dict[str, str], expected: int):
    assert trips(**changed) == expected


def test_counted_as_python_counts():
    for begin in range(-3, 4):
        for step in range(1, 4):
            assert trips(BEGIN=str(begin), STEP=str(step), END="3") == len(range(begin, 3, step))


@pytest.mark.parametrize(
    "changed",
    [
        {"FROM": "%n"},  # begins where the caller says
        {"STEP": "0"},
        {"STEP": "-1"},
        {"NEXT": "multiply(%mine, %step)"},
        {"NEXT": "add(%mine, %mine)"},
        {"OPERANDS": "%n, %i"},
        {"OPERANDS": "%i, %i"},
        {"DIRECTION": "NE"},
        {"END": "99999999999"},  # no 32-bit number
    ],
)
def test_any_other_loop_stays_unknown(changed: dict[str, str]):
    assert trips(**changed) is None


def test_a_written_trip_count_is_kept():
    written = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
    for key, value in PLAIN.items():
        written = written.replace(key, value)
    module = module_of(written.splitlines(keepends=True), "test")
    assert module.entry_computation().by_name["loop"].trip_count == 7
