"""Errors of recordings that are made here: what diverges, what does not, and where both part first."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfscope.plugins.parity.assemble import document_of
from perfscope.plugins.parity.compare import Comparison, Side
from perfscope.plugins.parity.document import RECORDING_SCHEMA, Layer, Op, Recording, Weight, dump
from perfscope.plugins.parity.matching import one_batch
from perfscope.plugins.parity.sections import render_text
from perfscope.plugins.parity.translation import translate

NAMES = ("embed", "block", "head")
SHAPE = (64, 16)


def side(seed: int | None = None, *, dtype: str = "float32", framework: str = "torch", **changes: Any) -> Side:
    """Three layers; with ``seed`` every value has an error of the size of its dtype's rounding."""
    generator = np.random.default_rng(0)
    exact = {f"{kind}:{number}": generator.normal(size=SHAPE) for kind in ("layer", "gradient") for number in range(3)}
    noise = np.random.default_rng(seed)
    unit = {"float32": 2.0**-24, "bfloat16": 2.0**-8}.get(dtype, 0.0)
    arrays = exact if seed is None else {
        key: value * (1 + unit * noise.uniform(-1, 1, SHAPE)) for key, value in exact.items()
    }  # fmt: skip
    layers = tuple(
        Layer(name=name, op="Linear", line=f"m.py:{n}", weights=(f"{name}.weight",), dtype=dtype,
              roundings=2 * (n + 1), terms=20 * (n + 1))
        for n, name in enumerate(NAMES)
    )  # fmt: skip
    weights = tuple(Weight(name=f"{name}.weight", shape=(16, 16), dtype=dtype, kind="linear") for name in NAMES)
    recording = Recording(
        schema=RECORDING_SCHEMA,
        framework=framework,
        version="1",
        device="cpu",
        dtype=dtype,
        weights=weights,
        layers=layers,
    )
    return Side(recording=msgspec.structs.replace(recording, **changes), arrays=arrays)


def changed(given: Side, key: str, value: np.ndarray) -> Side:
    return msgspec.structs.replace(given, arrays={**given.arrays, key: value})


def compared(a: Side, b: Side, **options: Any) -> Comparison:
    return Comparison(a, b, side(dtype="float64"), **options)


def wrong(comparison: Comparison) -> list[tuple[str, str]]:
    return [(row.name, row.kind) for row in comparison.rows() if row.diverges]


def test_errors_of_rounding_are_the_same_model() -> None:
    comparison = compared(side(1), side(2))
    assert [row.name for row in comparison.rows()] == [*NAMES, *reversed(NAMES)]
    assert wrong(comparison) == []
    assert comparison.first(comparison.rows()) is None
    errors = [row.error_b for row in comparison.rows()]
    assert all(error is not None and 1e-8 < error < 6e-8 for error in errors)


@pytest.mark.parametrize(("size", "diverges"), [(0.5, False), (2.0, True)])
def test_an_error_diverges_just_above_what_is_expected(size: float, diverges: bool) -> None:
    expected = compared(side(1), side(2)).rows()[1].expected
    b = side(2)
    b = changed(b, "layer:1", b.arrays["layer:1"] * (1 + size * expected))
    assert wrong(compared(side(1), b)) == ([("block", "activation")] if diverges else [])


def test_bfloat16_may_be_off_by_what_float32_may_not() -> None:
    narrow = side(2, dtype="bfloat16")
    assert wrong(compared(side(1), narrow)) == []
    pretended = msgspec.structs.replace(narrow, recording=side(2).recording)
    assert len(wrong(compared(side(1), pretended))) == 6


def test_a_model_under_autocast_may_be_off_by_what_its_layers_round() -> None:
    b = side(2, dtype="bfloat16")
    layers = (msgspec.structs.replace(b.recording.layers[0], dtype="bfloat16"), *side(2).recording.layers[1:])
    mixed = msgspec.structs.replace(b, recording=msgspec.structs.replace(b.recording, dtype="float32", layers=layers))
    assert wrong(compared(side(1), mixed)) == []


def test_layers_that_one_side_has_alone_are_named_and_ops_that_lead_to_a_match_are_not() -> None:
    a, b = side(1), side(2, framework="jax")
    product = msgspec.structs.replace(b.recording.layers[0], name="product")
    layers = (
        *b.recording.layers,
        product,
        Layer(name="lone", op="add", weights=("lone",)),
        Layer(name="scope", op="add"),
    )
    b = msgspec.structs.replace(b, recording=msgspec.structs.replace(b.recording, layers=layers))
    translation = translate(a.recording.weights, side(2).recording.weights, a_is_torch=True, b_is_torch=True)
    assert compared(a, b, translation=translation).unmatched() == ((), ("lone",))
    only_torch = msgspec.structs.replace(b, recording=msgspec.structs.replace(b.recording, framework="torch"))
    assert compared(a, only_torch, translation=translation).unmatched() == ((), ("lone", "scope"))


def test_the_reference_may_be_of_b() -> None:
    a = side(1)
    a = changed(a, "layer:0", 2 * a.arrays["layer:0"])
    comparison = compared(a, side(2), of_b=True)
    assert wrong(comparison) == [("embed", "activation")]
    row = comparison.rows()[0]
    assert (row.error_a, row.error_b) == (pytest.approx(1.0), pytest.approx(3.5e-8, rel=0.5))


def test_a_gradient_that_differs_is_named_after_all_activations_agree() -> None:
    b = side(2)
    b = changed(b, "gradient:1", -b.arrays["gradient:1"])
    comparison = compared(side(1), b)
    first = comparison.first(comparison.rows())
    assert first is not None
    assert (first.row.name, first.row.kind, first.after) == ("block", "gradient", "head")
    assert first.row.cosine == pytest.approx(-1.0)


def test_another_size_and_what_is_not_finite_are_said() -> None:
    b = changed(side(2), "layer:1", np.ones((64, 15)))
    row = compared(side(1), b).rows()[1]
    assert (row.diverges, row.error_b, row.remark) == (True, None, "[64, 16] in A, [64, 15] in B")
    b = changed(side(2), "layer:1", np.full(SHAPE, np.nan))
    assert compared(side(1), b).rows()[1].remark == "not finite"


def test_a_difference_in_few_rows_is_remarked_on() -> None:
    b = side(2)
    flipped = b.arrays["layer:1"].copy()
    flipped[3] *= -1
    row = compared(side(1), changed(b, "layer:1", flipped)).rows()[1]
    assert row.diverges
    assert "only 1 of its 64 rows differ" in row.remark
    assert compared(side(1), changed(b, "layer:1", -flipped)).rows()[1].remark == ""


def test_arrays_of_another_layout_are_transposed_and_those_of_one_shape_are_not() -> None:
    b = side(2, framework="jax")
    for key in ("layer:1", "gradient:1"):
        b = changed(b, key, b.arrays[key].reshape(8, 8, 4, 4).transpose(2, 0, 1, 3))
    options = {"translation": translate(b.recording.weights, b.recording.weights, a_is_torch=True, b_is_torch=True)}
    assert wrong(compared(side(1), b, **options)) == []
    square = np.random.default_rng(3).normal(size=(16, 16))
    a, b = changed(side(1), "layer:1", square), changed(side(2), "layer:1", square.T)
    reference = changed(side(dtype="float64"), "layer:1", square)
    assert ("block", "activation") in wrong(Comparison(a, b, reference))


def op(name: str, norm: float, layers: int = 1, size: int = 10) -> Op:
    return Op(name=name, line=f"m.py:{name}", layers=layers, size=size, norm=norm, total=norm / 2, absolute=norm)


def test_the_last_op_in_common_and_the_next_are_named() -> None:
    a = side(1, ops=(op("lookup", 1.0, 0), op("mm", 2.0), op("div", 0.5), op("softmax", 0.7), op("mm2", 0.8)))
    b = side(2, ops=(op("gather", 1.0, 0), op("dot", 2.0), op("select", 2.1), op("exp", 9.0), op("dot2", 0.9)))
    b = changed(b, "layer:1", 2 * b.arrays["layer:1"])
    comparison = compared(a, b)
    first = comparison.first(comparison.rows())
    assert first is not None
    assert (first.row.name, first.after) == ("block", "embed")
    assert (first.common_a, first.common_b) == ("mm at m.py:mm", "dot at m.py:dot")
    assert (first.next_a, first.next_b) == ("div at m.py:div", "select at m.py:select")


def test_weights_that_b_keeps_are_compared_and_a_transposed_one_is_told() -> None:
    value = np.random.default_rng(0).normal(size=(16, 16))
    names = [f"weight:{name}.weight" for name in NAMES]
    a, b = side(1), side(2)
    for key in names:
        a, b = changed(a, key, value), changed(b, key, value.T if "head" in key else value)
    translation = translate(a.recording.weights, b.recording.weights, a_is_torch=True, b_is_torch=True)
    rows = Comparison(a, b, side(dtype="float64"), translation=translation).weights()
    assert [(row.name, row.diverges, row.remark) for row in rows] == [
        ("embed.weight", False, ""),
        ("block.weight", False, ""),
        ("head.weight", True, "it is A's transposed"),
    ]


def test_a_reference_of_another_model_is_refused() -> None:
    other = side(dtype="float64", layers=side().recording.layers[:2])
    with pytest.raises(ValueError, match="other layers"):
        Comparison(side(1), side(2), other)


def test_the_document_and_what_a_terminal_shows() -> None:
    b = side(2)
    b = changed(b, "layer:1", 2 * b.arrays["layer:1"])
    document = document_of(
        compared(side(1), b), ("a.py:f", "b.py:f"), created_utc="2026-01-01T00:00:00+00:00", kept_weights=False
    )
    assert (document.verdict, document.reference) == ("diverges", "A in float64")
    text = render_text(document, width=110)
    assert "A and B part at block: its output differs by 1.0e+00" in text
    first, *others = [line for line in text.splitlines() if line.strip().startswith(("PARTS", "same"))]
    assert "block" in first
    assert not any("PARTS" in line for line in others)
    assert b'"schema": "perfscope.parity/1"' in dump(document)
    noted = Comparison(side(1, notes=("x",)), side(2), side(dtype="float64", notes=("no gradients",)))
    same = document_of(noted, ("a", "b"), created_utc="", kept_weights=False)
    assert same.notes == ("A: x", "reference: no gradients")
    text = render_text(same)
    assert "A and B compute the same: 6 values" in text
    assert "reference: no gradients" in text


def op_of(value: np.ndarray, layers: int, line: str) -> Op:
    return Op(
        name="mul", line=line, layers=layers, size=value.size, norm=float(np.linalg.norm(value)),
        total=float(value.sum()), absolute=float(np.abs(value).sum()),
    )  # fmt: skip


def recorded_early(*, later: bool = True, dtype: str = "float32") -> tuple[Side, Side]:
    """B's ``block`` is recorded at an op before the one with A's value, which follows if ``later``."""
    a, b = side(1), side(2, dtype=dtype)
    value, early = b.arrays["layer:1"], np.random.default_rng(3).normal(size=SHAPE)
    ops_b = [
        op_of(early, 1, "m.py:9"),
        *([op_of(value, 2, "m.py:10")] if later else []),
        op_of(early * 2, 2, "m.py:11"),
    ]
    ops_a = (op_of(a.arrays["layer:1"], 1, "m.py:1"),)
    b = changed(b, "layer:1", early)
    b = msgspec.structs.replace(b, recording=msgspec.structs.replace(b.recording, ops=tuple(ops_b)))
    return msgspec.structs.replace(a, recording=msgspec.structs.replace(a.recording, ops=ops_a)), b


def test_a_layer_whose_value_comes_one_op_later_is_no_divergence() -> None:
    comparison = compared(*recorded_early())
    assert wrong(comparison) == []
    row = comparison.rows()[1]
    assert row.regrouped
    assert row.remark == "B has this value at mul at m.py:10"
    assert row.error_b is None, "it would compare different values"
    document = document_of(comparison, ("a", "b"), created_utc="2026-01-01T00:00:00Z", kept_weights=False)
    text = render_text(document)
    assert "A and B compute the same: 4 values" in text
    assert "1 more computed in another order" in " ".join(text.split())


def test_a_layer_is_recorded_early_only_if_the_value_follows_and_later_layers_agree() -> None:
    assert wrong(compared(*recorded_early(later=False))) == [("block", "activation")]
    a, b = recorded_early()
    b = changed(b, "layer:2", 2 * b.arrays["layer:2"])
    assert ("block", "activation") in wrong(compared(a, b))


def test_sums_of_16_bit_values_clear_no_op() -> None:
    a, b = recorded_early(later=False, dtype="bfloat16")
    same = op_of(a.arrays["layer:1"], 1, "m.py:8")
    a, b = (
        msgspec.structs.replace(x, recording=msgspec.structs.replace(x.recording, ops=(same, *x.recording.ops)))
        for x in (a, b)
    )
    first = compared(a, b).first(compared(a, b).rows())
    assert first is not None
    assert not first.exact
    assert first.common_a == first.common_b == ""
    assert first.lines_b == ("m.py:8",)
    a, b = recorded_early(later=False)
    a, b = (
        msgspec.structs.replace(x, recording=msgspec.structs.replace(x.recording, ops=(same, *x.recording.ops)))
        for x in (a, b)
    )
    first = compared(a, b).first(compared(a, b).rows())
    assert first is not None
    assert first.common_a == "mul at m.py:8"
    assert first.lines_b == ()


def with_values(early: tuple[Side, Side], value_b: np.ndarray, *, later_b: int = 1) -> tuple[Side, Side]:
    """The sides with the values of their ops kept; ``value_b``: of B's op ``later_b``, after the layer."""
    a, b = early
    noise = np.random.default_rng(5)
    kept = {f"op:{number}": noise.normal(size=SHAPE) for number in range(len(b.recording.ops))}
    b = msgspec.structs.replace(b, arrays={**b.arrays, **kept, f"op:{later_b}": value_b})
    return changed(a, "op:0", a.arrays["layer:1"]), b


def test_in_16_bits_a_value_that_comes_later_counts_by_its_values_alone() -> None:
    right = side(2, dtype="bfloat16").arrays["layer:1"]
    assert ("block", "activation") in wrong(compared(*recorded_early(dtype="bfloat16")))  # norms and sums alone
    assert wrong(compared(*with_values(recorded_early(dtype="bfloat16"), right))) == []
    permuted = right[:, ::-1].copy()  # with the norm and the sums of the right one
    assert ("block", "activation") in wrong(compared(*with_values(recorded_early(dtype="bfloat16"), permuted)))


def test_axes_in_another_order_are_the_same_value() -> None:
    right = side(2).arrays["layer:1"]
    assert wrong(compared(*with_values(recorded_early(), right.T.copy()))) == []


def test_an_op_with_permuted_values_is_not_cleared_by_its_norm_and_sums() -> None:
    a, b = recorded_early(later=False)
    right = a.arrays["layer:1"]
    earlier = op_of(right, 1, "m.py:8")
    a, b = (
        msgspec.structs.replace(x, recording=msgspec.structs.replace(x.recording, ops=(earlier, *x.recording.ops)))
        for x in (a, b)
    )
    kept = {f"op:{number}": right for number in range(3)}
    a = msgspec.structs.replace(a, arrays={**a.arrays, **kept})
    for value, common in ((right, "mul at m.py:8"), (right[::-1].copy(), "")):
        other = msgspec.structs.replace(b, arrays={**b.arrays, **kept, "op:0": value})
        first = compared(a, other).first(compared(a, other).rows())
        assert first is not None
        assert (first.exact, first.common_a, first.common_b) == (True, common, common)
        assert ("m.py:8" in first.lines_b) == (common == "")


def grouped_alone(dtype: str, wrong_gradient: bool = False) -> Comparison:
    """B's ``block`` has a value that no op of A has, and everything after it agrees, the weights' gradients too."""
    a, b = recorded_early(later=False, dtype=dtype)
    gradients = {f"weight_gradient:{name}.weight": np.eye(16) for name in NAMES}
    changed_gradient = {"weight_gradient:head.weight": np.ones((16, 16))} if wrong_gradient else {}
    a, b, reference = (
        msgspec.structs.replace(x, arrays={**x.arrays, **gradients}) for x in (a, b, side(dtype="float64"))
    )
    b = msgspec.structs.replace(b, arrays={**b.arrays, **changed_gradient})
    weights = a.recording.weights
    translation = translate(weights, weights, a_is_torch=True, b_is_torch=True)
    return Comparison(a, b, reference, translation=translation)


def test_a_layer_after_which_everything_agrees_is_no_divergence_where_an_error_could_not_vanish() -> None:
    comparison = grouped_alone("float32")
    assert wrong(comparison) == []
    assert comparison.rows()[1].regrouped
    assert ("block", "activation") in wrong(grouped_alone("float32", wrong_gradient=True))
    assert ("block", "activation") in wrong(grouped_alone("bfloat16"))  # 16 bits may hide what follows


def test_a_value_that_one_side_computes_once_for_all_rows() -> None:
    once, rows = np.arange(6.0).reshape(2, 3), np.broadcast_to(np.arange(6.0).reshape(2, 3), (4, 2, 3))
    assert [array.shape for array in one_batch((once, rows, once[None]), add=False)] == [(4, 2, 3)] * 3
    added = one_batch((4 * once[None], rows, 4 * once), add=True)
    assert all(np.array_equal(array, 4 * once[None]) for array in added)
    other = np.ones((2, 5))
    assert one_batch((once, other, once), add=False)[1] is other
