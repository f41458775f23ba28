"""The ledger of a model in PyTorch and JAX, both really run: sums, pairs, and differences that are planted."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfscope.model.errors import DataError
from perfscope.plugins.port.differences import differences
from perfscope.plugins.port.document import AMOUNTS, Difference, Ledger, checked, load
from perfscope.plugins.port.document import dump as dumped
from perfscope.plugins.port.jax_step import jax_step
from perfscope.plugins.port.ledger import _part, ledger_of, place
from perfscope.plugins.port.pieces import Program
from perfscope.plugins.port.sections import folded, render_markdown, render_text
from perfscope.plugins.port.torch_step import torch_step
from tests.plugins.port.traces import jax_trace, torch_trace

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

HERE = Path(__file__).parent
MANY = 10
"""Layers of a program that is long if it is unrolled."""


@functools.cache
def of_torch(change: str, layers: int, narrow: bool) -> Program:
    from tests.plugins.port.torch_model import step_of

    step = step_of(change, layers=layers, dtype=torch.bfloat16 if narrow else torch.float32)
    made = torch_step(torch_trace(step))
    assert made is not None
    return made


@functools.cache
def of_jax(change: str, layers: int, narrow: bool) -> Program:
    from tests.plugins.port.jax_model import step_of

    made = jax_step(
        jax_trace(*step_of(change, layers=layers, dtype=jax.numpy.bfloat16 if narrow else jax.numpy.float32))
    )
    assert made is not None
    return made


def compared(
    in_torch: str = "", in_jax: str = "", *, layers: int = 2, narrow: bool = False
) -> tuple[Ledger, tuple[Difference, ...]]:
    """The ledger of the model with a change on a side."""
    both = place(of_torch(in_torch, layers, narrow), of_jax(in_jax, layers, narrow))
    return ledger_of(both), differences(both)


def line_of(file: str, mark: str) -> int:
    """The line of a model that is marked as a change."""
    lines = (HERE / file).read_text().splitlines()
    (number,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"# planted: {mark}")]
    return number


def test_equal_models_have_no_difference_and_equal_products() -> None:
    ledger, found = compared()
    assert found == ()
    assert ledger.unpaired == ()
    assert ledger.a.layers == ledger.b.layers == 21
    for row in ledger.rows:
        assert (row.a.flops if row.a else 0) == (row.b.flops if row.b else 0), row
    layers = dict.fromkeys(row.layer for row in folded(ledger.rows))
    assert list(layers)[:4] == [
        "embed_tokens", "layers.*.input_layernorm", "layers.*.self_attn.q_proj", "layers.*.self_attn.k_proj",
    ]  # fmt: skip
    attention = [row for row in folded(ledger.rows) if row.layer == "layers.*.self_attn (activations)"]
    assert [(row.phase, row.a.flops if row.a else 0) for row in attention] == [
        ("forward", 8388608),
        ("backward", 16777216),
    ]


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("amount", [name for name in AMOUNTS if name != "time_ns"])
def test_rows_add_up_to_the_step(side: str, amount: str) -> None:
    ledger, _ = compared("checkpoint", "")
    whole = getattr(getattr(ledger, side).total, amount)
    assert whole == sum(getattr(part, amount) for row in ledger.rows if (part := getattr(row, side)) is not None)
    assert whole > 0 or (side, amount) == ("b", "recompute_flops")


def test_a_ledger_whose_rows_do_not_add_up_is_refused(tmp_path: Path) -> None:
    ledger, _ = compared()
    wrong = msgspec.structs.replace(ledger, rows=ledger.rows[1:])
    with pytest.raises(DataError, match="do not add up"):
        checked(wrong)
    file = tmp_path / "port.json"
    file.write_bytes(dumped(wrong))
    with pytest.raises(DataError, match="do not add up"):
        load(file)
    file.write_bytes(dumped(ledger))
    assert load(file) == ledger


PLANTED = {
    "copy": ("a", "copy", "copy", "", False),
    "heads repeated": ("a", "heads repeated", "repeat", "", False),
    "wider products": ("a", "wider products", "wide", "", True),
    "second forward": ("a", "second forward", "checkpoint", "", False),
    "second forward in JAX": ("b", "second forward", "", "checkpoint", False),
    "host sync": ("a", "host sync", "item", "", False),
    "host dispatch": ("a", "host dispatch", "loop", "", False),
    "constant": ("b", "constant baked in", "", "constant", False),
    "donation": ("b", "buffer not donated", "", "keep", False),
}
WHERE = {"donation": "traces.py"}
"""File with the marked line, if it is not the model's: the call of the compiled step."""


COSTLY = {"wider products", "second forward in JAX", "donation"}
"""Seconds each: both sides are compiled, or a program of several steps."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name for name in PLANTED]
)
def test_a_planted_difference_is_the_first_row(name: str) -> None:
    side, kind, in_torch, in_jax, narrow = PLANTED[name]
    _, found = compared(in_torch, in_jax, narrow=narrow)
    first = found[0]
    assert (first.side, first.kind) == (side, kind)
    files = ("torch_model.py", "jax_model.py") if side == "a" else ("jax_model.py", "torch_model.py")
    assert first.file is not None
    assert first.other_file is not None
    own = WHERE.get(name, files[0])
    assert (Path(first.file).name, Path(first.other_file).name) == (own, files[1])
    assert first.other_line is not None
    assert first.line == line_of(own, in_torch or in_jax)
    assert not [one for one in found if one.kind == kind and one.side != side]


def test_attention_written_out_on_one_side() -> None:
    _, found = compared("fused", "")
    assert [(one.side, one.kind) for one in found] == [("b", "attention written out")]
    assert found[0].layers == ("layers.0.self_attn (activations)", "layers.1.self_attn (activations)")
    assert Path(found[0].other_file or "").name == "torch_model.py"


@pytest.mark.slow
def test_an_unrolled_loop_is_the_only_difference() -> None:
    _, found = compared("", "unroll", layers=MANY)
    assert [(one.side, one.kind) for one in found] == [("b", "loop unrolled")]
    assert found[0].line == line_of("jax_model.py", "unroll")
    assert found[0].other_line is not None
    assert compared("", "", layers=MANY)[1] == ()


@pytest.mark.slow
def test_layers_of_another_size_are_named_with_the_reason() -> None:
    ledger, _ = compared()
    both = place(of_torch("", 2, False), of_jax("", MANY, False))
    more = ledger_of(both)
    assert {one.side for one in more.unpaired} == {"b"}
    assert len(more.unpaired) == (MANY - 2) * 9
    assert all("elements" in one.reason for one in more.unpaired)
    assert len(more.rows) > len(ledger.rows)


def test_a_side_without_weights_is_refused() -> None:
    program = of_torch("", 2, False)
    bare = msgspec.structs.replace(program, weights=(), pieces=tuple(
        msgspec.structs.replace(piece, weights=()) for piece in program.pieces
    ))  # fmt: skip
    with pytest.raises(DataError, match="no layers"):
        place(bare, of_jax("", 2, False))


def test_text_and_markdown() -> None:
    ledger, found = compared("fused", "keep")
    shown = msgspec.structs.replace(ledger, differences=found)
    text = render_text(shown, width=150)
    assert "attention written out" in text
    assert "buffer not donated" in text
    assert "layers.*.self_attn (activations)" in text
    comment = render_markdown(shown)
    assert comment.startswith("### perfscope: ")
    assert "attention written out" in comment.partition("<details>")[0]


@pytest.mark.parametrize(
    ("name", "in_torch", "in_jax"),
    [
        ("attention", "naive", "naive"),
        pytest.param("transformer", "sdpa", "blocked", marks=pytest.mark.slow),
        pytest.param("moe", "index_add", "scatter", marks=pytest.mark.slow),
        pytest.param("ssm", "parallel", "associative", marks=pytest.mark.slow),
    ],
)
def test_twins_pair_layer_by_layer(name: str, in_torch: str, in_jax: str) -> None:
    from tests.plugins.port.twins import jax_twin, torch_twin

    programs = torch_step(torch_trace(torch_twin(name, in_torch))), jax_step(jax_trace(*jax_twin(name, in_jax)))
    assert programs[0] is not None
    assert programs[1] is not None
    both = place(*programs)
    ledger = ledger_of(both)  # raises if a sum is not exact
    assert ledger.unpaired == ()
    left = [row for row in ledger.rows if row.layer == "outside of layers"]
    assert sum(side.flops for row in left for side in (row.a, row.b) if side is not None) == 0
    linear = [row for row in ledger.rows if "activations" not in row.layer and row.phase == "forward"]
    if name != "moe":
        assert all(row.a and row.b and row.a.flops == row.b.flops for row in linear if row.layer != "outside of layers")
    if name == "attention":
        assert differences(both) == ()


def test_a_weight_that_is_gathered_again() -> None:
    program = of_jax("", 2, False)
    number = next(one for one, piece in enumerate(program.pieces) if piece.phase == "forward" and piece.weights)
    piece = program.pieces[number]
    gather = msgspec.structs.replace(
        piece, kind="collective", op="all_gather", carries=True, flops=0, line=7, file="a.py"
    )
    twice = msgspec.structs.replace(program, pieces=(*program.pieces, gather, gather))
    once = msgspec.structs.replace(program, pieces=(*program.pieces, gather))
    found = differences(place(once, twice))
    assert [(one.side, one.kind, one.count, one.line) for one in found] == [("b", "weight gathered again", 1, 7)]
    assert differences(place(once, once)) == ()


def test_time_outside_of_ops_is_the_first_row_where_it_explains_the_difference() -> None:
    def timed(program: Program, step_ns: int) -> Program:
        pieces = tuple(msgspec.structs.replace(piece, time_ns=100) for piece in program.pieces)
        return msgspec.structs.replace(program, pieces=pieces, step_ns=step_ns, basis="measured")

    ops = 100 * len(of_torch("copy", 2, False).pieces), 100 * len(of_jax("", 2, False).pieces)
    slow = place(timed(of_torch("copy", 2, False), ops[0] + 10**7), timed(of_jax("", 2, False), ops[1] + 10**6))
    first, *others = differences(slow)
    assert (first.side, first.kind, first.explains, first.time_ns) == ("a", "host dispatch", True, 9 * 10**6)
    assert first.line is not None
    assert first.other_line is not None
    assert not any(one.explains for one in others)
    rows = ledger_of(slow).rows  # the sums hold with times, too
    assert [(row.a and row.a.time_ns, row.b and row.b.time_ns) for row in rows[-1:]] == [(10**7, 10**6)]
    even = place(timed(of_torch("", 2, False), 10**8), timed(of_jax("", 2, False), 10**8))
    assert not any(one.explains for one in differences(even))


def test_a_slower_layer_is_the_first_row_where_no_work_of_one_side_explains_the_difference() -> None:
    both = place(of_torch("", 2, False), of_jax("", 2, False))
    ledger = ledger_of(both)
    layer = "layers.0.mlp.up_proj"
    (number,) = {key.pair for shares in both.a.shares for share in shares if both.name(key := share.key) == layer}

    def timed(program: Program, shares: Any, slow_ns: int) -> Program:
        pieces = tuple(
            msgspec.structs.replace(
                piece, time_ns=slow_ns if piece.flops and any(one.key.pair == number for one in own) else 1_000
            )
            for piece, own in zip(program.pieces, shares, strict=True)
        )
        return msgspec.structs.replace(
            program, pieces=pieces, step_ns=sum(piece.time_ns or 0 for piece in pieces), basis="measured"
        )

    slow = place(timed(both.a.program, both.a.shares, 10**8), timed(both.b.program, both.b.shares, 1_000))
    first, *others = differences(slow)
    assert (first.side, first.kind, first.explains) == ("a", "slower layer", True)
    assert first.layers == ("layers.*.mlp.up_proj",)
    assert first.line is not None
    assert first.other_line is not None
    assert not any(one.explains for one in others)
    assert ledger.differences == ()


@pytest.mark.slow
def test_runs_of_both_frameworks(tmp_path: Path) -> None:
    """Times are measured; the loader checks that they add up to the step."""
    for name in ("attention", "jax.attention"):
        words = ["-m", "perfscope", "run", "-q", "--no-report", "-o", str(tmp_path), "--run-id", name]
        program = ["-m", f"perfscope.workloads.{name}", "--size", "tiny", "--steps", "10"]
        subprocess.run([sys.executable, *words, *program], check=True, capture_output=True)
    file = tmp_path / "port.json"
    sides = [str(tmp_path / name) for name in ("attention", "jax.attention")]
    subprocess.run([sys.executable, "-m", "perfscope", "compare", *sides, "--json", str(file)], check=True)
    ledger = load(file)
    assert [side.basis for side in (ledger.a, ledger.b)] == ["measured", "measured"]
    assert [side.total.time_ns == side.step_ns for side in (ledger.a, ledger.b)] == [True, True]
    assert ledger.unpaired == ()
    assert ledger.a.total.flops == ledger.b.total.flops


def test_layers_without_names_are_paired_in_order() -> None:
    """Flax's `nnx.jit` passes arrays by number."""
    program = of_jax("", 2, False)
    numbered = [
        msgspec.structs.replace(weight, name=f"m.states[0][{number}]") for number, weight in enumerate(program.weights)
    ]
    named = place(of_torch("", 2, False), program)
    both = place(of_torch("", 2, False), msgspec.structs.replace(program, weights=tuple(numbered)))
    assert [pair.name for pair in both.pairs] == [pair.name for pair in named.pairs]
    alike = {"mlp.gate_proj", "mlp.up_proj", "self_attn.k_proj", "self_attn.v_proj"}  # equal in size and place
    for pair, wanted in zip(both.pairs, named.pairs, strict=True):
        if pair.name.partition(".")[2].partition(".")[2] not in alike:
            assert [one.layer for one in pair.b] == [one.layer for one in wanted.b], pair.name
    assert differences(both) == ()


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        ("layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn"),
        ("layers.0.self_attn.q_proj.lora_A, lora_B", "layers.0.self_attn"),
        ("blocks.1.qkv_DCHK", "blocks.1"),
        ("transformer.h.0.attn.c_attn", "transformer.h.0.attn"),
        ("model.head", "model"),
        ("head", "head"),
        ("0", "0"),
    ],
)
def test_the_part_of_a_model_that_a_layer_is_in(layer: str, part: str) -> None:
    assert _part(layer) == part
