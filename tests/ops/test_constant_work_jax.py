"""Compiled programs that multiply factors of weights or convert weights in each call, and programs that look alike."""

from __future__ import annotations

import pytest

from tests.hlo_build import GPU, hlo_module, hlo_trace
from tests.rules import judged_by

outcome = judged_by("constant_work")
PRODUCT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def meta(line: int, path: str = "dot_general") -> str:
    return f'metadata={{op_name="jit(step)/{path}" source_file="/app/model.py" source_line={line}}}'


def adapter(
    *, rank: int = 8, rows: int = 64, names: tuple[str, ...] = ("['w']", "['a']", "['b']"), root: str = "params",
    returned: bool = False, differentiates: bool = False, other: bool = True,
) -> str:  # fmt: skip
    """``x @ (w + a @ b)`` and, with ``other``, a product with one more weight."""
    w, a, b = (f'metadata={{op_name="{root}{name}"}}' for name in names)
    side = "transpose(jvp())/dot_general" if differentiates else "dot_general"
    results = ["f32[{0},1024]"] + (["f32[1024,1024]", f"f32[1024,{rank}]", f"f32[{rank},1024]"] if returned else [])
    shape = f"({', '.join(results)})".format(rows)
    last = "%z" if other else "%y"
    values = ", ".join([last] + (["%w", "%a", "%b"] if returned else []))
    more = (
        f"  %v = f32[1024,1024] parameter(4), metadata={{op_name=\"{root}['v']\"}}\n"
        f"  %z = f32[{rows},1024] dot(%y, %v), {PRODUCT}, {meta(7, side)}\n"
    )
    return f"""
ENTRY %main () -> {shape} {{
  %w = f32[1024,1024] parameter(0), {w}
  %a = f32[1024,{rank}] parameter(1), {a}
  %b = f32[{rank},1024] parameter(2), {b}
  %x = f32[{rows},1024] parameter(3), metadata={{op_name="x"}}
  %ab = f32[1024,1024] dot(%a, %b), {PRODUCT}, {meta(5)}
  %merged = f32[1024,1024] add(%w, %ab), {meta(5, "add")}
  %y = f32[{rows},1024] dot(%x, %merged), {PRODUCT}, {meta(6, side)}, {GPU}
{more if other else ""}  ROOT %out = {shape} tuple({values})
}}
"""


def judged(text: str):
    return outcome(hlo_trace(hlo_module(text)))


def test_an_adapter_that_is_multiplied_out_is_flagged_at_its_line():
    (finding,) = judged(adapter()).findings
    assert (finding.where.file, finding.where.line, finding.basis) == ("/app/model.py", 5, "modelled")
    assert finding.title == "factors of a weight are multiplied out in every call: 2 kernels"
    assert "(x @ a) @ b" in finding.advice
    assert {row["instruction"] for row in finding.evidence} == {"ab", "merged"}


def test_trained_factors_count_if_they_are_thin():
    trained = {"returned": True, "differentiates": True}
    (finding,) = judged(adapter(**trained)).findings
    assert finding.where.line == 5
    assert judged(adapter(rank=1024, **trained)).status == "clean"


def test_queries_and_keys_that_are_arguments_are_clean():
    """As in a test of attention: ``grad(f)((q, k, v), bias)``, whose scores are a thin product of two arguments."""
    text = adapter(names=("[0]", "[1]", "[2]"), root="qkv", returned=True, differentiates=True, other=False)
    assert judged(text).status == "clean"


def test_adapters_that_are_added_to_a_frozen_weight_are_flagged():
    text = adapter(returned=True, differentiates=True, other=False).replace("params['w']", "frozen['w']")
    assert judged(text).status == "flagged"


def test_a_tenth_of_the_program_is_the_threshold():
    assert judged(adapter(rows=4096)).status == "flagged"
    assert judged(adapter(rows=6144)).status == "clean"


@pytest.mark.parametrize(
    "text",
    [
        adapter(names=("", "1", "2"), root="p"),  # arrays, not a tree
        adapter(other=False),  # no weight but those of the product: keys and values of an attention, for example
        adapter(returned=True),  # an update of states, without a backward pass
        adapter().replace('op_name="x"', "op_name=\"batch['x']\"").replace("params['v']", "batch['v']"),  # two trees
        adapter(rank=1024, returned=True),
    ],
)
def test_programs_that_look_alike_are_clean(text: str) -> None:
    assert judged(text).status == "clean"


def cast(*, by: str = "convert_element_type", dtype: str = "bf16") -> str:
    """Weights of a small dtype that a product reads in float32."""
    return f"""
ENTRY %main () -> f32[8,1024] {{
  %w = {dtype}[1024,1024] parameter(0), metadata={{op_name="params['w']"}}
  %v = {dtype}[1024,1024] parameter(1), metadata={{op_name="params['v']"}}
  %x = f32[8,1024] parameter(2), metadata={{op_name="x"}}
  %wide = f32[1024,1024] convert(%w), {meta(5, by)}
  %wide2 = f32[1024,1024] convert(%v), {meta(5, by)}
  %y = f32[8,1024] dot(%x, %wide), {PRODUCT}, {meta(6)}, {GPU}
  ROOT %z = f32[8,1024] dot(%y, %wide2), {PRODUCT}, {meta(7)}
}}
"""


def test_weights_that_the_program_converts_are_flagged_and_conversions_by_xla_are_not():
    (finding,) = judged(cast()).findings
    assert finding.title.startswith("weights are converted to another dtype in every call: 2 kernels")
    assert judged(cast(by="dot_general")).status == "clean"


def test_a_small_dtype_is_named():
    (finding,) = judged(cast(dtype="s8")).findings
    assert "from int8" in finding.title


def test_without_a_program_or_an_op_graph_it_abstains():
    from tests.build import EVERYTHING, TraceBuilder

    assert outcome(TraceBuilder(recorded=EVERYTHING - {"hlo", "op_graph"}).build()).status == "abstained"
