"""Compiled programs that join a cache, repeat heads or rearrange arrays, and those that compute."""

from __future__ import annotations

import pytest

from perfscope.analyzers.programs import program_movements
from tests.hlo_build import GPU, hlo_module, hlo_trace
from tests.rules import judged_by

outcome = judged_by("data_movement")

SOFTMAX = f"  %e = f32[8,16,2048] exponential(%s), {GPU}\n"


def program(body: str, *, arguments: str, result: str, root: str, fused: str = "") -> str:
    """A scheduled program for a GPU: ``fused`` are computations, ``body`` its instructions."""
    return f"""{fused}
ENTRY %main ({arguments}) -> {result} {{
{body}  ROOT %out = {root}
}}
"""


def cache(*, grown: bool) -> str:
    """Keys that were there before and a new part, joined or written in place, then scores and their exponentials."""
    joined = (
        "  %k = f32[8,2048,16,64] concatenate(%old, %new), dimensions={1}, "
        'metadata={op_name="jit(step)/concatenate" source_file="/app/model.py" source_line=9}\n'
        if grown
        else "  %k = f32[8,2048,16,64] dynamic-update-slice(%old, %new, %zero, %zero, %zero, %zero)\n"
    )
    old = "2047" if grown else "2048"
    body = (
        f"  %old = f32[8,{old},16,64] parameter(0)\n  %new = f32[8,1,16,64] parameter(1)\n"
        "  %q = f32[8,16,64] parameter(2)\n  %zero = s32[] constant(0)\n"
        + joined
        + "  %s = f32[8,16,2048] dot(%q, %k), lhs_batch_dims={0,1}, rhs_batch_dims={0,2}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={3}\n" + SOFTMAX
    )
    return program(
        body,
        arguments=f"old: f32[8,{old},16,64], new: f32[8,1,16,64], q: f32[8,16,64]",
        result="(f32[8,16,2048], f32[8,2048,16,64])",
        root="(f32[8,16,2048], f32[8,2048,16,64]) tuple(%e, %k)",
    )


def heads(*, repeated: bool) -> str:
    """Scores of queries with keys of two heads, which are written eight times or not."""
    fused = """%repeat (p: f32[8,2048,2,64]) -> f32[8,2048,2,8,64] {
  %p = f32[8,2048,2,64] parameter(0)
  ROOT %b = f32[8,2048,2,8,64] broadcast(%p), dimensions={0,1,2,4}
}
"""
    body = (
        "  %k = f32[8,2048,2,64] parameter(0)\n  %q = f32[8,2,8,64] parameter(1)\n"
        + (
            "  %r = f32[8,2048,2,8,64] fusion(%k), kind=kLoop, calls=%repeat, "
            'metadata={op_name="jit(step)/broadcast_in_dim" source_file="/app/model.py" source_line=6}\n'
            "  %s = f32[8,2,8,2048] dot(%q, %r), lhs_batch_dims={0,1,2}, rhs_batch_dims={0,2,3}, "
            "lhs_contracting_dims={3}, rhs_contracting_dims={4}\n"
            if repeated
            else "  %s = f32[8,2,8,2048] dot(%q, %k), lhs_batch_dims={0,1}, rhs_batch_dims={0,2}, "
            "lhs_contracting_dims={3}, rhs_contracting_dims={3}\n"
        )
        + f"  %e = f32[8,2,8,2048] exponential(%s), {GPU}\n"
    )
    return program(
        body, arguments="k: f32[8,2048,2,64], q: f32[8,2,8,64]", result="f32[8,2,8,2048]",
        root="f32[8,2,8,2048] copy(%e)", fused=fused if repeated else "",
    )  # fmt: skip


def test_a_cache_that_is_grown_by_concatenation_is_flagged_at_its_line() -> None:
    (finding,) = outcome(hlo_trace(hlo_module(cache(grown=True)))).findings
    assert finding.subject == "cache join"
    assert (finding.where.file, finding.where.line) == ("/app/model.py", 9)
    assert "dynamic_update_slice" in finding.advice
    assert finding.cost_ns


def test_a_cache_that_is_written_in_place_is_clean() -> None:
    assert outcome(hlo_trace(hlo_module(cache(grown=False)))).status == "clean"


CACHE, LAYER, NEW = "f32[8,16,1024,64]", "f32[1,16,1024,64]", "f32[1,16,1,64]"


def layers(*, carried: bool) -> str:
    """A loop over layers that writes one position of each layer's cache: in place, or from one array to another."""
    at = "%turn, %zero, %zero, %zero"
    lines = [
        f"%state = (s32[], {CACHE}, {CACHE}, {NEW}) parameter(0)",
        "%turn = s32[] get-tuple-element(%state), index=0",
        f"%written = {CACHE} get-tuple-element(%state), index=1",
        f"%read = {CACHE} get-tuple-element(%state), index=2",
        f"%new = {NEW} get-tuple-element(%state), index=3",
        "%zero = s32[] constant(0)",
        "%one = s32[] constant(1)",
        "%next = s32[] add(%turn, %one)",
    ]
    if carried:
        lines.append(f"%done = {CACHE} dynamic-update-slice(%written, %new, {at})")
    else:
        lines += [
            f"%layer = {LAYER} dynamic-slice(%read, {at}), dynamic_slice_sizes={{1,16,1024,64}}",
            f"%own = {LAYER} copy(%layer)",
            f"%grown = {LAYER} dynamic-update-slice(%own, %new, %zero, %zero, %zero, %zero)",
            f"%done = {CACHE} dynamic-update-slice(%written, %grown, {at})",
        ]
    body = "\n".join(f"  {line}" for line in lines)
    loop = 'metadata={op_name="jit(step)/while" source_file="/app/model.py" source_line=17}'
    return f"""%body (state: (s32[], {CACHE}, {CACHE}, {NEW})) -> (s32[], {CACHE}, {CACHE}, {NEW}) {{
{body}
  ROOT %result = (s32[], {CACHE}, {CACHE}, {NEW}) tuple(%next, %done, %read, %new)
}}

%more (state: (s32[], {CACHE}, {CACHE}, {NEW})) -> pred[] {{
  %state = (s32[], {CACHE}, {CACHE}, {NEW}) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %last = s32[] constant(8)
  ROOT %less = pred[] compare(%turn, %last), direction=LT
}}

ENTRY %main (cache: {CACHE}, new: {NEW}) -> {CACHE} {{
  %cache = {CACHE} parameter(0)
  %new = {NEW} parameter(1)
  %zero = s32[] constant(0)
  %nothing = f32[] constant(0)
  %empty = {CACHE} broadcast(%nothing), dimensions={{}}, {GPU}
  %start = (s32[], {CACHE}, {CACHE}, {NEW}) tuple(%zero, %empty, %cache, %new)
  %loop = (s32[], {CACHE}, {CACHE}, {NEW}) while(%start), condition=%more, body=%body, {loop}
  %out = {CACHE} get-tuple-element(%loop), index=1
  ROOT %kept = {CACHE} copy(%out)
}}
"""


def test_a_cache_that_a_loop_hands_from_array_to_array_is_flagged_at_the_loop() -> None:
    (finding,) = outcome(hlo_trace(hlo_module(layers(carried=False)))).findings
    assert finding.subject == "loop copy"
    assert (finding.where.file, finding.where.line) == ("/app/model.py", 17)
    named = {row["instruction"] for row in finding.evidence}
    assert named == {"layer", "own", "done", "empty", "kept"}, "not the write of the new part"
    assert outcome(hlo_trace(hlo_module(layers(carried=True)))).status == "clean"


def test_heads_that_are_repeated_are_flagged_and_grouped_queries_are_clean() -> None:
    (finding,) = outcome(hlo_trace(hlo_module(heads(repeated=True)))).findings
    assert finding.subject == "head repeat"
    assert "dot_product_attention" in finding.advice
    assert outcome(hlo_trace(hlo_module(heads(repeated=False)))).status == "clean"


@pytest.mark.parametrize(("rows", "status"), [(1 << 18, "flagged"), (1 << 14, "clean")])
def test_a_transposed_copy_counts_by_its_share_of_the_run(rows: int, status: str) -> None:
    fused = f"""%turn (p: f32[{rows},64]) -> f32[64,{rows}] {{
  %p = f32[{rows},64] parameter(0)
  %t = f32[64,{rows}] transpose(%p), dimensions={{1,0}}
  ROOT %c = f32[64,{rows}] copy(%t)
}}
"""
    body = (
        f"  %x = f32[{rows},64] parameter(0)\n  %y = f32[{1 << 17},64] parameter(1)\n"
        f"  %turned = f32[64,{rows}] fusion(%x), kind=kLoop, calls=%turn\n  %e = f32[{1 << 17},64] negate(%y), {GPU}\n"
    )
    text = program(
        body, arguments=f"x: f32[{rows},64], y: f32[{1 << 17},64]", result=f"(f32[64,{rows}], f32[{1 << 17},64])",
        root=f"(f32[64,{rows}], f32[{1 << 17},64]) tuple(%turned, %e)", fused=fused,
    )  # fmt: skip
    assert outcome(hlo_trace(hlo_module(text))).status == status


def test_a_fusion_that_computes_is_no_movement() -> None:
    fused = """%scale (p: f32[4096,1024]) -> f32[1024,4096] {
  %p = f32[4096,1024] parameter(0)
  %m = f32[4096,1024] multiply(%p, %p)
  ROOT %t = f32[1024,4096] transpose(%m), dimensions={1,0}
}
"""
    body = f"  %x = f32[4096,1024] parameter(0)\n  %y = f32[1024,4096] fusion(%x), kind=kLoop, calls=%scale, {GPU}\n"
    text = program(body, arguments="x: f32[4096,1024]", result="f32[1024,4096]", root="f32[1024,4096] negate(%y)",
                   fused=fused)  # fmt: skip
    assert program_movements(hlo_trace(hlo_module(text))) == ()
