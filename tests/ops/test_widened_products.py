from __future__ import annotations

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.hlo_build import GPU, hlo_module, hlo_trace

RULE = load_rule("full_precision_matmul")


def meta(primitive: str, line: int, scope: str = "jvp()") -> str:
    return f'metadata={{op_name="jit(step)/{scope}/{primitive}" source_file="/home/me/model.py" source_line={line}}}'


def layer(
    h: str = "%h = f32[8192,4096]{1,0} multiply(%wide, %scales), " + meta("mul", 9),
    cast: str = meta("convert_element_type", 9),
    weights: str = meta("dot_general", 10),
    dot: str = meta("dot_general", 10),
) -> Outcome:
    """``(x * s) @ w`` of bf16 ``x`` and ``w`` with a float32 ``s``."""
    text = f"""
        ENTRY %main (x: bf16[8192,4096], s: f32[4096], w: bf16[4096,16384]) -> f32[8192,16384] {{
          %x = bf16[8192,4096]{{1,0}} parameter(0)
          %s = f32[4096]{{0}} parameter(1), metadata={{op_name="ps[0]['s']"}}
          %w = bf16[4096,16384]{{1,0}} parameter(2), metadata={{op_name="ps[0]['w']"}}
          %wide = f32[8192,4096]{{1,0}} convert(%x), {cast}
          %scales = f32[8192,4096]{{1,0}} broadcast(%s), dimensions={{1}}, {meta("broadcast_in_dim", 9)}
          {h}
          %ww = f32[4096,16384]{{1,0}} convert(%w), {weights}
          ROOT %y = f32[8192,16384]{{1,0}} dot(%h, %ww), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {dot}, {GPU}
        }}
    """  # noqa: E501
    return judge(RULE, hlo_trace(hlo_module(text)))


def test_weights_of_16_bits_that_meet_float32_are_flagged_at_the_line_that_widens() -> None:
    (finding,) = layer().findings
    assert finding.title == "1 matrix product of bfloat16 weights in float32: 100% of the arithmetic"
    assert finding.where.label() == "/home/me/model.py:9"
    assert "float32 ps[0]['s']" in finding.detail
    assert finding.basis == "modelled"
    assert finding.cost_ns is not None
    assert finding.run_ns is not None
    assert 0 < finding.cost_ns < finding.run_ns


def test_a_cast_of_the_program_alone_is_the_line() -> None:
    tanh = "%h = f32[8192,4096]{1,0} tanh(%wide), " + meta("tanh", 12)
    (finding,) = layer(h=tanh, cast=meta("convert_element_type", 11)).findings
    assert finding.where.line == 11


def test_factors_that_xla_alone_widens_are_clean() -> None:
    own = "%h = f32[8192,4096]{1,0} convert(%x), " + meta("dot_general", 10)
    assert layer(h=own).status == "clean"


def test_a_backward_pass_alone_is_clean() -> None:
    assert layer(dot=meta("dot_general", 10, "transpose(jvp())")).status == "clean"


def test_float32_weights_are_clean() -> None:
    text = """
        ENTRY %main (x: f32[8192,4096], w: f32[4096,16384]) -> f32[8192,16384] {
          %x = f32[8192,4096]{1,0} parameter(0)
          %w = f32[4096,16384]{1,0} parameter(1)
          ROOT %y = f32[8192,16384]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        }
    """
    assert judge(RULE, hlo_trace(hlo_module(text.replace("={0}\n", "={0}, " + GPU + "\n")))).status == "clean"
