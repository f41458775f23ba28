"""Brackets, commas and quotes of a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.text_scan import OpenBracketError, closing, pieces, unquoted


def test_pieces_between_outermost_commas() -> None:
    assert pieces('a, {b, c}, "d, \\", e", f(g, [h, i])') == ["a", "{b, c}", '"d, \\", e"', "f(g, [h, i])"]
    assert pieces("  ") == []
    assert pieces(", a") == ["", "a"]
    with pytest.raises(OpenBracketError):
        pieces("a, (b")
    with pytest.raises(OpenBracketError):
        pieces('a, "b')
    with pytest.raises(ValueError, match="not opened"):
        pieces("a), b")


def test_closing_passes_over_quotes() -> None:
    text = 'f(a, "unmatched ( and \\" quote", {b})rest'
    assert text[closing(text, 1) :] == ")rest"
    with pytest.raises(OpenBracketError):
        closing('f("(', 1)


@pytest.mark.parametrize(
    ("quoted", "meant"),
    [
        ("plain", "plain"),
        ('"plain"', "plain"),
        ('"a \\"b\\" \\\\ \\n\\\'"', 'a "b" \\ \n\''),
        ('"\\303\\244"', "ä"),
        ('"\\377"', "\N{REPLACEMENT CHARACTER}"),
        ('"\\x41"', "A"),
        ('"', '"'),
    ],
)
def test_unquoted(quoted: str, meant: str) -> None:
    assert unquoted(quoted) == meant


names = st.text(st.sampled_from("ab %=/.-"), max_size=4)
nested = st.recursive(names, lambda inner: st.builds("({})".format, st.lists(inner).map(", ".join)), max_leaves=12)


@given(st.lists(nested.map(str.strip).filter(bool), min_size=1))
def test_pieces_of_what_was_joined(parts: list[str]) -> None:
    assert pieces(", ".join(parts)) == parts
