"""Programs with attention written out, as XLA compiles them for a GPU, for the tests of facts and rules."""

from __future__ import annotations

from perfscope.analyzers.hlo.module import HloModule
from tests.hlo_build import GPU, hlo_module

PLACE = 'metadata={op_name="jit(step)/attend/dot_general" source_file="/home/me/model.py" source_line=7}'

MAXIMUM = "%top = f32[ROWS] reduce(%s, %low), dimensions={2}, to_apply=%max"
EXPONENTIAL = "%e = f32[SCORES] exponential(%diff)"
SUM = "%sum = f32[ROWS] reduce(%e, %zero), dimensions={2}, to_apply=%add"
RESULT = "ROOT %p = f32[SCORES] divide(%e, %sums)"

OPERATORS = """
    %max (a: f32[], b: f32[]) -> f32[] {
      %a = f32[] parameter(0)
      %b = f32[] parameter(1)
      ROOT %m = f32[] maximum(%a, %b)
    }
    %add (a: f32[], b: f32[]) -> f32[] {
      %a = f32[] parameter(0)
      %b = f32[] parameter(1)
      ROOT %m = f32[] add(%a, %b)
    }
"""
SOFTMAX = f"""
    %softmax (s: f32[SCORES], old: f32[ROWS]) -> f32[SCORES] {{
      %s = f32[SCORES] parameter(0)
      %old = f32[ROWS] parameter(1)
      %low = f32[] constant(-inf)
      %zero = f32[] constant(0)
      {MAXIMUM}
      %tops = f32[SCORES] broadcast(%top), dimensions={{0,1}}
      %diff = f32[SCORES] subtract(%s, %tops)
      {EXPONENTIAL}
      {SUM}
      %sums = f32[SCORES] broadcast(%sum), dimensions={{0,1}}
      {RESULT}
    }}
"""
SCORE_PRODUCT = (
    f"%s = f32[SCORES] dot(%q, %k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, "
    f"rhs_contracting_dims={{2}}, {PLACE}, {GPU}"
)
VALUE_PRODUCT = (
    "%o = f32[QUERIES] dot(%p, %v), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
    "rhs_contracting_dims={1}"
)
SOFTMAX_CALL = "%p = f32[SCORES] fusion(%s, %old), kind=kInput, calls=%softmax"
INPUTS = """
      %q = f32[QUERIES] parameter(0)
      %k = f32[QUERIES] parameter(1)
      %v = f32[QUERIES] parameter(2)
      %old = f32[ROWS] parameter(3)
"""
ENTRY = f"""
    ENTRY %main (q: f32[QUERIES], k: f32[QUERIES], v: f32[QUERIES], old: f32[ROWS]) -> f32[QUERIES] {{
      {INPUTS.strip()}
      {SCORE_PRODUCT}
      {SOFTMAX_CALL}
      {VALUE_PRODUCT}
      ROOT %out = f32[QUERIES] copy(%o)
    }}
"""
STATE = "(s32[], f32[QUERIES], f32[QUERIES], f32[QUERIES], f32[ROWS])"
LOOP = f"""
    %body (c: STATE) -> STATE {{
      %c = STATE parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %q = f32[QUERIES] get-tuple-element(%c), index=1
      %k = f32[QUERIES] get-tuple-element(%c), index=2
      %v = f32[QUERIES] get-tuple-element(%c), index=3
      %old = f32[ROWS] get-tuple-element(%c), index=4
      {SCORE_PRODUCT}
      {SOFTMAX_CALL}
      {VALUE_PRODUCT}
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      %new = f32[ROWS] negate(%old)
      ROOT %t = STATE tuple(%next, %o, %k, %v, %new)
    }}
    %cond (c: STATE) -> pred[] {{
      %c = STATE parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %n = s32[] constant(6)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
    }}
    ENTRY %main (init: STATE) -> STATE {{
      %init = STATE parameter(0)
      ROOT %w = STATE while(%init), condition=%cond, body=%body, backend_config={{"known_trip_count":{{"n":"6"}}}}
    }}
"""


def attention_program(
    *changes: tuple[str, str], entry: str = ENTRY, heads: int = 8, length: int = 256, width: int = 64,
    scheduled: bool = True,
) -> HloModule:  # fmt: skip
    """Scores, softmax and product in three kernels; ``changes``: text and its replacement.

    ``entry``: ``ENTRY``, or ``LOOP`` for the same in a loop of six iterations.
    """
    text = OPERATORS + SOFTMAX + entry
    for old, new in changes:
        assert text.count(old), old
        text = text.replace(old, new)
    sizes = {
        "STATE": STATE, "[QUERIES]": f"[{heads},{length},{width}]", "[SCORES]": f"[{heads},{length},{length}]",
        "[ROWS]": f"[{heads},{length}]",
    }  # fmt: skip
    for name, size in sizes.items():
        text = text.replace(name, size)
    return hlo_module(text, scheduled=scheduled)
