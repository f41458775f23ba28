"""Graph breaks: torch's text, in all its forms, as reason, explanation, hints and place.

Forms (``log_graph_break`` in ``torch._dynamo.symbolic_convert``, ``convert_frame``, ``exc``):

- torch 2.6: ``Graph break in user code at F:L``, ``Reason: ...``, ``User code traceback:``
- since 2.7: ``Graph Break Reason:``, then ``Explanation:``, ``Hint:`` and the link with the stable id
- skipped frames: ``Failed to handle graph break gracefully ... falling back to eager``, ``Graph break: skip:``,
  ``torch.compile will skip tracing the frame``, ``WON'T CONVERT``; the reason is the last line of the traceback
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfscope.analyzers.readers.torch_log.records import (
    MAX_ITEMS,
    CorruptRecordError,
    Record,
    clean,
    decode,
    headline,
    places_of,
)
from perfscope.analyzers.readers.torch_log.unit import Unit
from perfscope.model.compile_log import CodeLine, Compile, GraphBreak

_AT = re.compile(r"Graph break in user code at (.{1,4096}):(\d{1,9})\s*$", re.MULTILINE)
_REASON = re.compile(r"^(?:Graph Break )?Reason: ?", re.MULTILINE)
_END = re.compile(
    r"^(?:User code traceback:|Stack variable source attribution:|Traceback \(most recent call last\):"
    r"|NoneType: None|from user code:)",
    re.MULTILINE,
)
_RAISED = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,9}[A-Z]\w{0,99}: (\S.*)$", re.MULTILINE)
_PREAMBLE = re.compile(
    r"^(?:Encountered graph break when attempting to trace|Failed to handle graph break gracefully"
    r"|Graph break under|Call to `torch\._dynamo\.graph_break\(\)` encountered)[^\n]*\n\s*\n",
)
_MARK = re.compile(r"^  (Explanation|Hint|Developer debug context): ?", re.MULTILINE)
_OUTSIDE = re.compile(r"\n[ \t]*\n(?!  )")
_LINK = re.compile(r"/gb/(gb\d{3,6})\b|\b(gb\d{4})\b")
_STACK_END = re.compile(r"^(?:Traceback \(most recent|NoneType: None|NOTE: )", re.MULTILINE)
_SKIPS = (
    "falling back to eager",
    "fall back to eager",
    "Graph break: skip:",
    "results in a skip",
    "WON'T CONVERT",
    "will skip tracing the frame",
)
_SECOND = "*** While handling this graph break, another graph break occurred: ***"

_EARLIER = re.compile(r"^!?\d+(?:/\d+){1,2}: ")

_HINT = re.compile(r"\((?:HINT: [^()]{1,300})\)")

_STRING = r"""[bru]?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""

_VALUE = re.compile(rf"((?:[=!]=|\bis(?: not)?|\bin|\bexpected|\bactual)\s*){_STRING}")

_VALUES = re.compile(rf"([\[{{(,:]\s*){_STRING}(?=\s*[,\]}}):])")

_MADE_AT = re.compile(r"  # ([^#\n]{1,4096}?):(\d{1,9}) in ([\w<>.]{1,512})(?: \([^#\n]*\))?\s*$")

_COMPARED = re.compile(r"(?:[=!]=|\bis(?: not)?|\bin)\s*(?=[\[{(])")


def parse_break(text: str, compilation: Compile) -> GraphBreak:
    """Return the break in a ``dynamo_graph_break_reason``."""
    match = _AT.search(text)
    reported = _reason_text(text)
    first = reported.split(_SECOND, 1)[0]
    stack = _user_stack(text)
    explained = _parts(first, "Explanation", 1)
    return GraphBreak(
        compile_id=compilation.compile_id,
        reason=_headline(first),
        explanation=explained[0] if explained else None,
        hints=_parts(reported, "Hint", MAX_ITEMS),
        doc_id=doc_id(first),
        place=_place(match, stack) or compilation.place,
        stack=stack,
        skipped_frame=any(mark in text for mark in _SKIPS),
    )


def failure_break(unit: Unit) -> GraphBreak | None:
    """Return the break of a frame that failed without its own record: recompile limit, or a backend that raised."""
    compilation = unit.compilation
    reason = compilation.fail_reason or compilation.fail_type
    if unit.breaks or reason is None:
        return None
    text = unit.fail_text or ""
    explained = _parts(text, "Explanation", 1)
    return GraphBreak(
        compile_id=compilation.compile_id,
        reason=reason,
        explanation=explained[0] if explained else None,
        hints=_parts(text, "Hint", MAX_ITEMS),
        doc_id=doc_id(text),
        place=unit.fail_place or compilation.place,
        stack=compilation.stack,
        skipped_frame=True,
        time_ns=compilation.start_ns,
    )


def doc_id(text: str) -> str | None:
    """Return torch's id of the kind of break, from the link in the text."""
    match = _LINK.search(text)
    return (match[1] or match[2]) if match else None


def _reason_text(text: str) -> str:
    begun = _REASON.search(text)
    if begun is not None:
        ended = _END.search(text, begun.end())
        return text[begun.end() : ended.start() if ended else len(text)]
    every = list(_RAISED.finditer(text))
    if every:
        raised = every[-1]  # The final exception.
        ended = _END.search(text, raised.end())
        return text[raised.start(1) : ended.start() if ended else len(text)]
    return text


def _headline(text: str) -> str:
    before = None
    while before != text:  # Preambles may follow each other.
        before, text = text, _PREAMBLE.sub("", text, count=1)
    return headline(_MARK.split(text, maxsplit=1)[0] or text)


def _parts(text: str, mark: str, most: int) -> tuple[str, ...]:
    """Return the text after each ``mark``, up to the next mark or the end of its indentation."""
    pieces = _MARK.split(text)
    result = []
    for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if name == mark:
            reported = _OUTSIDE.split(piece, maxsplit=1)[0]
            result.append(clean("\n".join(line.strip() for line in reported.strip().split("\n")).strip()))
    return tuple(dict.fromkeys(result))[:most]


def _user_stack(text: str) -> tuple[CodeLine, ...]:
    """Return the program's frames: after ``User code traceback:``, up to dynamo's own traceback."""
    for mark in ("User code traceback:", "The graph break occurred in the following user code:", "from user code at:"):
        index = text.find(mark)
        if index >= 0:
            section = text[index + len(mark) :]
            ended = _STACK_END.search(section)
            return places_of(section[: ended.start()] if ended else section)
    index = text.find("while processing the following code")
    return places_of(text[index:]) if index >= 0 else ()


def _place(match: re.Match[str] | None, stack: tuple[CodeLine, ...]) -> CodeLine | None:
    """Return the line of the break, with its function and text if the stack has them."""
    if match is None:
        return stack[-1] if stack else None
    file, line = clean(match[1], 4096), int(match[2])
    same = next((code_line for code_line in reversed(stack) if code_line.file == file and code_line.line == line), None)
    return same or CodeLine(file=file, line=line)


# Recompilations: the guards that failed, one per earlier compilation, the latest first.
#
# String values in guards are not kept, because they are the program's data.


def failed_guards(record: Record) -> tuple[tuple[str, ...], CodeLine | None]:
    """Return failed guards of ``recompile_reasons``, and the line that caused the first guard, if recorded.

    The payload is a JSON list, or (torch since 2.11, with one guard) plain text.
    """
    payload = record.payload()
    try:
        texts = decode(payload, list[str])
    except CorruptRecordError:
        if payload.lstrip().startswith(b"["):
            raise
        texts = [payload.decode("utf-8", "replace")]
    texts = texts[:MAX_ITEMS]
    result = dict.fromkeys(clean_guard(text) for text in texts)
    return tuple(text for text in result if text), _made_at(texts)


def _made_at(texts: Sequence[str]) -> CodeLine | None:
    """Return the line whose tracing made the first guard: ``# code # folder/file.py:6 in f``, or a stack below it.

    The first form has the end of the file's path, possibly cut inside a folder's name. A stack has the whole path,
    possibly below another guard of the same line.
    """
    stacks = [places_of(text[:20_000].partition("\nUser stack trace:")[2]) for text in texts]
    if not stacks:
        return None
    if stacks[0]:
        return stacks[0][-1]
    first = texts[0][:20_000].split("\n", 1)[0]
    made = _MADE_AT.search(first)
    if made is None:
        return None
    file, line = clean(made[1], 4096), int(made[2])
    same = (stack[-1] for stack in stacks if stack and stack[-1].line == line and stack[-1].file.endswith(file))
    code = clean(first[: made.start()].partition("  # ")[2].strip()) or None
    return next(same, CodeLine(file=file, line=line, function=made[3], code=code))


def clean_guard(text: str) -> str:
    """Return a guard without the compile id in front, the source line at the end, and string values."""
    text = text[:20_000]
    head = text.split("\nUser stack trace:", 1)[0]
    hint = _HINT.search(head)
    reported = _EARLIER.sub("", head.split("  # ", 1)[0].split("\n", 1)[0]).strip()
    reported = _VALUE.sub(r"\1'...'", reported)
    compared = _COMPARED.search(reported)
    if compared is not None:  # A list or a set of strings.
        reported = reported[: compared.end()] + _VALUES.sub(r"\1'...'", reported[compared.end() :])
    return clean(f"{reported} {hint[0]}" if hint and hint[0] not in reported else reported, 500)
