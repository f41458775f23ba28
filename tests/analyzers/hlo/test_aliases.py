"""Donation, as text and as proto say it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfscope.analyzers.hlo.module import Alias
from perfscope.analyzers.hlo.proto import module_of_proto
from perfscope.analyzers.hlo.text import module_of
from perfscope.analyzers.hlo.text_aliases import aliases_of, donors_of
from perfscope.profiler.errors import DataError

PROGRAM = """ENTRY main {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}"""


def test_entries_of_a_head() -> None:
    text = "{ {0}: (1, {}, may-alias), {1, 2}: (3, {4}, must-alias), {}: (5, {}) }"
    assert aliases_of(text) == (
        Alias(output=(0,), parameter=1),
        Alias(output=(1, 2), parameter=3, part=(4,), must=True),
        Alias(output=(), parameter=5),
    )
    assert donors_of("{ (3, {}), (4, {1}) }") == ((3, ()), (4, (1,)))
    assert aliases_of("{}") == donors_of("{ }") == ()


def test_a_module_without_donation_has_none() -> None:
    module = module_of(["HloModule m", *PROGRAM.splitlines()], "m.txt")
    assert (module.aliases, module.donors) == ((), ())


def test_what_is_no_alias_is_refused_in_one_line() -> None:
    head = "HloModule m, input_output_alias={ {0}: 5 }"
    with pytest.raises(DataError, match=r"m\.txt: line 5: donated parameters") as refused:
        module_of([head, *PROGRAM.splitlines()], "m.txt")
    assert "\n" not in str(refused.value)


@pytest.mark.jax
def test_text_and_proto_of_a_compiled_program_agree() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")

    def step(state: dict[str, object], x: object) -> object:
        return jax.tree.map(lambda one: one + x, state)

    zeros = jax.numpy.zeros((8, 8))
    lowered = jax.jit(step, donate_argnames="state").lower({"a": zeros, "b": zeros}, 1.0)
    compiled = lowered.compile()
    text = module_of(compiled.as_text().splitlines(), "step.txt")
    proto = module_of_proto(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto(), "step.pb")
    assert text.aliases == proto.aliases == (Alias(output=(0,), parameter=0), Alias(output=(1,), parameter=1))


@pytest.mark.corpus
def test_the_step_of_a_real_program_gives_its_state_away(corpus: Path) -> None:
    with gzip.open(corpus / "hlo_text" / "xla__hlo_llama3_8b_cp_bf16_1x4.hlo.gz", "rt") as lines:
        module = module_of(lines, "llama3")
    assert all(not one.part for one in module.aliases)
    outputs = len(module.entry_computation().root.shape.parts)
    assert {one.output[0] for one in module.aliases} <= set(range(outputs))
    assert len(module.aliases) > 0
