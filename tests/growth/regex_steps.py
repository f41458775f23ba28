"""Counts the steps of a backtracking match, so that a test on slow expressions needs no clock.

The steps are those of CPython's engine: positions tried, items of the pattern entered, characters taken and given back.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sre_constants as sre
    import sre_parse

Then = Callable[[int], "int | None"]
_SINGLE = {sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN}
_REPEATS = {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_NOT_DIGIT: lambda letter: not letter.isdecimal(),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda letter: not letter.isspace(),
    sre.CATEGORY_WORD: lambda letter: letter.isalnum() or letter == "_",
    sre.CATEGORY_NOT_WORD: lambda letter: not (letter.isalnum() or letter == "_"),
}


class Matcher:
    """Matches one pattern with one text; ``steps`` grows with each step."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._items = list(sre_parse.parse(pattern.pattern, pattern.flags))
        self._fold, self._dotall = bool(pattern.flags & re.IGNORECASE), bool(pattern.flags & re.DOTALL)
        self._taken: dict[tuple[int, str], bool] = {}
        self.steps = 0

    def at(self, text: str, start: int, *, whole: bool = False) -> int | None:
        """Return the end of the match that begins at ``start``; ``None`` if there is no match."""
        self._text, self._groups = text, dict[int, tuple[int, int]]()
        return self._run(self._items, 0, start, lambda end: None if whole and end < len(text) else end)

    def _run(self, items: Any, index: int, at: int, then: Then) -> int | None:
        self.steps += 1
        if index == len(items):
            return then(at)
        op, value = items[index]
        if op in _SINGLE:
            return self._run(items, index + 1, at + 1, then) if self._takes(op, value, at) else None
        rest: Then = lambda end: self._run(items, index + 1, end, then)  # noqa: E731
        if op in _REPEATS:
            return self._repeat(op, value, at, rest)
        if op is sre.SUBPATTERN:
            return self._group(value, at, rest)
        if op is sre.BRANCH:
            return next((end for one in value[1] if (end := self._run(one, 0, at, rest)) is not None), None)
        if op is sre.ATOMIC_GROUP:
            end = self._run(value, 0, at, lambda end: end)
            return None if end is None else rest(end)
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            begin = at if value[0] > 0 else at - value[1].getwidth()[0]
            holds = begin >= 0 and self._run(value[1], 0, begin, lambda end: end) is not None
            return rest(at) if holds == (op is sre.ASSERT) else None
        if op is sre.GROUPREF:
            begin, end = self._groups.get(value, (0, 0))
            return rest(at + end - begin) if self._text.startswith(self._text[begin:end], at) else None
        assert op is sre.AT, op
        return rest(at) if self._stands(value, at) else None

    def _repeat(self, op: Any, value: Any, at: int, rest: Then) -> int | None:
        low, high, body = value
        if len(body) == 1 and body[0][0] in _SINGLE:
            return self._repeat_letter(op, low, high, body[0], at, rest)
        if op is sre.POSSESSIVE_REPEAT:
            count = 0
            while count < high and (end := self._run(body, 0, at, lambda end: end)) is not None and end > at:
                at, count = end, count + 1
            return rest(at) if count >= low else None

        def again(count: int, at: int) -> int | None:
            def more() -> int | None:
                if count == high:
                    return None
                return self._run(body, 0, at, lambda end: again(count + 1, end) if end > at or count < low else None)

            if count < low:
                return more()
            ways = (more, lambda: rest(at)) if op is sre.MAX_REPEAT else (lambda: rest(at), more)
            return next((end for way in ways if (end := way()) is not None), None)

        return again(0, at)

    def _repeat_letter(self, op: Any, low: int, high: int, item: Any, at: int, rest: Then) -> int | None:
        end = at
        if op is sre.MIN_REPEAT:
            while True:
                if end - at >= low and (found := rest(end)) is not None:
                    return found
                if end - at == high or not self._takes(*item, end):
                    return None
                end += 1
        while end - at < high and self._takes(*item, end):
            end += 1
        if op is sre.POSSESSIVE_REPEAT:
            return rest(end) if end - at >= low else None
        return next((found for last in range(end, at + low - 1, -1) if (found := rest(last)) is not None), None)

    def _group(self, value: Any, at: int, rest: Then) -> int | None:
        number, _, _, inside = value

        def closed(end: int) -> int | None:
            if number is not None:
                self._groups[number] = at, end
            return rest(end)

        return self._run(inside, 0, at, closed)

    def _takes(self, op: Any, value: Any, at: int) -> bool:
        self.steps += 1
        if at >= len(self._text):
            return False
        letter = self._text[at]
        key = id(value) if op is sre.IN else hash((op, value)), letter
        if key not in self._taken:
            letters = {letter, letter.lower(), letter.upper()} if self._fold else {letter}
            self._taken[key] = any(self._is_of(op, value, one) for one in letters)
        return self._taken[key]

    def _is_of(self, op: Any, value: Any, letter: str) -> bool:
        if op is sre.ANY:
            return self._dotall or letter != "\n"
        if op is not sre.IN:
            return (ord(letter) == value) == (op is sre.LITERAL)
        negated = value[0][0] is sre.NEGATE
        return negated != any(
            _CATEGORIES[one](letter)
            if kind is sre.CATEGORY
            else one[0] <= ord(letter) <= one[1]
            if kind is sre.RANGE
            else ord(letter) == one
            for kind, one in value[negated:]
        )

    def _stands(self, value: Any, at: int) -> bool:
        text = self._text
        if value in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return at == 0
        if value in (sre.AT_END, sre.AT_END_STRING):
            return at == len(text) or (value is sre.AT_END and at == len(text) - 1 and text[at] == "\n")
        word = _CATEGORIES[sre.CATEGORY_WORD]
        edge = (at > 0 and word(text[at - 1])) != (at < len(text) and word(text[at]))
        return edge == (value is sre.AT_BOUNDARY)


class Counted:
    """A pattern whose calls add their steps to ``steps``; each match is checked against the real engine's."""

    def __init__(self, pattern: re.Pattern[str], steps: Counter[str]) -> None:
        self._pattern, self._steps = pattern, steps

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(self._pattern)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._pattern, name)
        if not callable(real):
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            text = named["string"] if "string" in named else arguments[1 if name in ("sub", "subn") else 0]
            before = self._matcher.steps
            if name in ("match", "fullmatch"):
                found = getattr(self._pattern, name)(text)
                end = self._matcher.at(text, 0, whole=name == "fullmatch")
                assert end == (None if found is None else found.end()), (self._pattern.pattern, text)
            else:
                self._scan(text, once=name == "search")
            self._steps[self._pattern.pattern] += self._matcher.steps - before
            return real(*arguments, **named)

        return call

    def _scan(self, text: str, *, once: bool) -> None:
        at = 0
        for match in self._pattern.finditer(text):
            ends = [self._matcher.at(text, start) for start in range(at, match.start() + 1)]
            assert ends == [None] * (len(ends) - 1) + [match.end()], (self._pattern.pattern, text)
            if once:
                return
            at = max(match.end(), match.start() + 1)
        assert not any(self._matcher.at(text, start) for start in range(at, len(text) + 1)), (
            self._pattern.pattern,
            text,
        )


def _counted(value: Any, steps: Counter[str]) -> Any:
    """The value with counted patterns in place of its patterns; the value itself if it holds none."""
    if isinstance(value, re.Pattern):
        return Counted(value, steps) if isinstance(value.pattern, str) else value
    if type(value) in (tuple, list):
        made = [_counted(one, steps) for one in value]
        return type(value)(made) if any(one is not old for one, old in zip(made, value, strict=True)) else value
    if type(value) is dict:
        changed = {key: _counted(one, steps) for key, one in value.items()}
        return changed if any(changed[key] is not one for key, one in value.items()) else value
    return value


@contextmanager
def regex_steps(*modules: ModuleType) -> Iterator[Counter[str]]:
    """Count the steps of all patterns that the modules hold, by pattern."""
    steps: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, value in list(vars(module).items()):
                if (made := _counted(value, steps)) is not value:
                    patch.setattr(module, name, made)
        yield steps
