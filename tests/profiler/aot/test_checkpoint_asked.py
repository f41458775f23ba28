"""What ``--checkpoint`` may say."""

from __future__ import annotations

import pytest

from perfscope.model.documents.compile_request import parse_checkpoint
from perfscope.model.errors import UsageError


def test_words_names_and_lines() -> None:
    assert str(parse_checkpoint("full")) == "full"
    assert parse_checkpoint("dots_with_no_batch_dims_saveable").word == "dots"
    assert parse_checkpoint("nothing_saveable").word == "full"
    assert parse_checkpoint("names:qkv+hidden").names == ("qkv", "hidden")
    asked = parse_checkpoint("full@train.py:35@./model/block.py:8")
    assert str(asked) == "full@train.py:35@model/block.py:8"
    first, second = asked.spots
    assert first.is_at("project/train.py", 35)
    assert not first.is_at("project/retrain.py", 35)
    assert not first.is_at("train.py", 36)
    assert second.is_at("model/block.py", 8)
    assert not second.is_at("block.py", 8)


@pytest.mark.parametrize(
    "text",
    ["", "half", "full:a", "names:", "names:a++b", "full@train.py", "full@train.py:x", "full@", "full\n", "x" * 500],
)
def test_asked_wrongly_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint [^\n]+$"):
        parse_checkpoint(text)
