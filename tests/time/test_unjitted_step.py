from __future__ import annotations

from dataclasses import replace

import msgspec

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.documents.run import ProgramFact
from perfscope.model.finding import Outcome
from tests.build import EVERYTHING, TraceBuilder

RULE = load_rule("unjitted_step")
FACT = ProgramFact(name="unjitted_step", value="step", file="train.py", line=3, count=2400)


def _judge(*facts: ProgramFact, busy_us: float = 400) -> Outcome:
    """A step of 1,000 us on the host, in which ops run for ``busy_us``."""
    builder = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls"})
    builder.step(1, 0, 1000)
    builder.op("dot", 0, busy_us)
    return judge(RULE, msgspec.structs.replace(builder.build(), program_facts=facts))


def test_a_program_that_jits_nothing_is_told_which_function_to_jit() -> None:
    (finding,) = _judge(FACT).findings
    assert finding.title == "nothing is jitted: single operations in step"
    assert (finding.cost_ns, finding.where.label()) == (600_000, "train.py:3")
    assert "decorate step with @jax.jit" in finding.advice


def test_a_loop_without_a_function_is_told_to_make_one() -> None:
    (finding,) = _judge(replace(FACT, value="")).findings
    assert "move the body of this loop into a function" in finding.advice


def test_a_tenth_of_the_step_is_the_threshold() -> None:
    assert _judge(FACT, busy_us=900).status == "flagged"
    assert _judge(FACT, busy_us=901).status == "clean"


def test_a_program_that_jits_is_clean() -> None:
    assert _judge().status == "clean"


def test_without_ops_of_the_host_it_is_not_evaluated() -> None:
    builder = TraceBuilder(recorded=frozenset())
    assert judge(RULE, builder.build()).status == "abstained"


BESIDE = ProgramFact(name="single_operations", value="adam", file="train.py", line=7, count=29)


def test_operations_beside_a_jitted_step_name_the_function_that_calls_them() -> None:
    (finding,) = _judge(BESIDE).findings
    assert finding.title == "29 single operations per step outside of jax.jit, most in adam"
    assert (finding.cost_ns, finding.where.label()) == (580_000, "train.py:7")
    assert "operations of adam in one function with @jax.jit" in finding.advice


def test_fewer_than_ten_operations_beside_a_jitted_step_are_clean() -> None:
    assert _judge(replace(BESIDE, count=10)).status == "flagged"
    assert _judge(replace(BESIDE, count=9)).status == "clean"


def test_operations_that_no_function_calls_name_their_line() -> None:
    (finding,) = _judge(replace(BESIDE, value="")).findings
    assert finding.title == "29 single operations per step outside of jax.jit"
    assert "the operations of this line" in finding.advice
