"""What ``--checkpoint POLICY[@FILE:LINE]`` asks for: which policy the layers of a program get, and which of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from perfscope.profiler.errors import AskedWronglyError

Word = Literal["none", "full", "dots", "all_dots", "names"]
WORDS: dict[Word, str] = {
    "none": "no checkpoint: everything that the backward needs stays",
    "full": "jax.checkpoint without a policy: a layer's input stays, the rest is made again",
    "dots": "dots_with_no_batch_dims_saveable: products of activations with weights stay",
    "all_dots": "dots_saveable: all products and convolutions stay",
    "names": "save_only_these_names: what the program names (checkpoint_name) stays; names:a+b for some of them",
}
"""Policies as they are written on the command line; `perfscope advise memory` says *selectively* for ``dots``."""

JAX_WORDS: dict[str, Word] = {
    "nothing_saveable": "full",
    "dots_with_no_batch_dims_saveable": "dots",
    "checkpoint_dots_with_no_batch_dims": "dots",
    "dots_saveable": "all_dots",
    "checkpoint_dots": "all_dots",
}
"""Names of ``jax.checkpoint_policies`` that are understood as well."""

LONGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A line that was named."""

    file: str
    """End of a path: ``train.py``, ``project/train.py``."""
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def is_at(self, file: str, line: int) -> bool:
        """Whether a place is this one: the file ends with ours, at a folder's boundary."""
        return line == self.line and (file == self.file or file.endswith(f"/{self.file}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAsked:
    """One value of the option."""

    word: Word
    names: tuple[str, ...] = ()
    """Of ``names:a+b``; empty for all that the program has."""
    spots: tuple[Spot, ...] = ()
    """Only what is at these lines; empty for the layers, as they are found."""

    def __str__(self) -> str:
        named = f":{'+'.join(self.names)}" if self.names else ""
        return f"{self.word}{named}" + "".join(f"@{spot}" for spot in self.spots)


def parse_checkpoint(text: str, *, option: str = "--checkpoint") -> CheckpointAsked:
    """``full``, ``dots@train.py:35``, ``names:qkv+hidden``; ``AskedWronglyError`` in one line.

    ``option``: as which it was written.
    """
    if len(text) > LONGEST or not text.isprintable():
        raise AskedWronglyError(f"{option} {text[:60]!r}: write a policy, e.g. full or dots@train.py:35")
    head, *places = text.strip().split("@")
    said, colon, rest = head.partition(":")
    word = JAX_WORDS.get(said, said)
    if word not in WORDS:
        raise AskedWronglyError(f"{option} {said[:60]}: no such policy; there are {', '.join(WORDS)}")
    names = tuple(rest.split("+")) if colon else ()
    if colon and (word != "names" or not all(names)):
        raise AskedWronglyError(f"{option} {head[:60]}: names go with the policy names: names:qkv+hidden")
    spots = []
    for place in places:
        found = re.fullmatch(r"(?:\./)?([^:@]{1,200}):(\d{1,7})", place)
        if found is None:
            raise AskedWronglyError(f"{option} {text[:60]}: {place[:40]!r} is no line; write {said}@train.py:35")
        spots.append(Spot(file=found[1], line=int(found[2])))
    return CheckpointAsked(word=word, names=names, spots=tuple(spots))
