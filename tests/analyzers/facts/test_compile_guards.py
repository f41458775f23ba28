"""Guards as torch 2.3 to 2.13 write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.facts.compile_guards import parse_guard

FORMS = [
    ("tensor 'x' size mismatch at index 0. expected 4, actual 5", ("size", "x", 0, "4", "5")),
    ("tensor 'L['x']' size mismatch at index 1. expected 32, actual 33", ("size", "x", 1, "32", "33")),
    ("tensor 'x' stride mismatch at index 0. expected 8, actual 1", ("tensor", "x", 0, "8", "1")),
    ("tensor 'x' requires_grad mismatch. expected requires_grad=0", ("tensor", "x", None, "requires_grad=0", None)),
    ("tensor 'x' dtype mismatch. expected Float, actual Half", ("tensor", "x", None, "Float", "Half")),
    ("L['x'].size()[0] == 8", ("size", "x", 0, "8", None)),
    ("8 == x.size()[1]", ("size", "x", 1, "8", None)),
    ("2 <= L['x'].size()[0]", ("size", "x", 0, None, None)),
    ("rate == 0.09000000000000001", ("number", "rate", None, "0.09000000000000001", None)),
    ("L['rate'] == -1e-05", ("number", "rate", None, "-1e-05", None)),
    ("G['i'] == 0", ("number", "i", None, "0", None)),
    ("L['self'].k == 3", ("number", "self.k", None, "3", None)),
    ("L['self'].training == True", ("training", "self.training", None, "True", None)),
    ("___stack2 == 4.49", ("number", "___stack2", None, "4.49", None)),
    ("GLOBAL_STATE changed: grad_mode ", ("grad_mode", "grad_mode", None, None, None)),
    ("GLOBAL_STATE changed: autocast_state ", ("global_state", "autocast_state", None, None, None)),
    ("___check_global_state()", ("global_state", None, None, None, None)),
    ("___check_obj_id(L['fn'], 140439264606080)", ("identity", "fn", None, None, None)),
    ("___check_obj_id(fn, 140439264606080)", ("identity", "fn", None, None, None)),
    ("___check_type_id(L['x'], 9443104)", ("type", "x", None, None, None)),
    ("len(L['xs']) == 3", ("container", "xs", None, None, None)),
    ("mode == '...'", ("other", "mode", None, "'...'", None)),
    ("BACKEND_MATCH failure: torch.compile detected different backend callables.", ("other", None, None, None, None)),
]


@pytest.mark.parametrize(("text", "parts"), FORMS)
def test_form(text: str, parts: tuple[object, ...]) -> None:
    guard = parse_guard(text)
    assert (guard.kind, guard.source, guard.dimension, guard.expected, guard.actual) == parts
    assert guard.text == text


def test_guards_that_differ_in_values_only_have_one_key() -> None:
    first, second = (parse_guard(f"tensor 'x' size mismatch at index 0. expected {n}, actual 9") for n in (4, 5))
    assert first.key == second.key
    assert first.key != parse_guard("tensor 'x' size mismatch at index 1. expected 4, actual 9").key


@given(st.text(max_size=500))
def test_any_text_is_some_guard(text: str) -> None:
    assert parse_guard(text).text == text
