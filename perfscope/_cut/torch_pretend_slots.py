"""Where a virtual function lies in the table of a C++ class, read from the header that came with the library.

Itanium C++ ABI, section 2.5: the functions of the base come first, in the order they are declared, a virtual destructor
twice; then what the class declares itself, in its order. A function that overrides one of the base keeps its place.
Single inheritance only, which is all that is needed here.
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_OTHER_BUILD = re.compile(r"^\s*#\s*ifdef\s+USE_ROCM\b.*?^\s*#\s*endif\b[^\n]*$", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^\s*#[^\n]*(?:\\\n[^\n]*)*$", re.MULTILINE)
_NAMED = re.compile(r"(~?\w+)\s*\(")


def slots_of(header: str, name: str, base: dict[str, int] | None = None) -> dict[str, int]:
    """Function of a class or struct -> its place in the table, that of the ``base`` included.

    ``header``: C++ as text, read for a build without ROCm. A destructor is the one named ``~``, with two places.
    ``ValueError`` where the class is not there, or overrides what the base does not have.
    """
    found = dict(base or {})
    count = max(found.values(), default=-1) + 1
    for declared in _declarations(_body(_plain(header), name)):
        if not re.search(r"\b(virtual|override)\b", declared):
            continue
        named = _NAMED.search(declared)
        if named is None:
            raise ValueError(f"{name}: a virtual function without a name")
        what = "~" if named[1].startswith("~") else named[1]
        if what in found:
            continue
        if re.search(r"\boverride\b", declared) and "virtual" not in declared:
            raise ValueError(f"{name} overrides {what}, which its base does not have")
        found[what] = count
        count += 2 if what == "~" else 1
    return found


def _plain(header: str) -> str:
    """Without comments, texts, directives, and what is for another build."""
    return _DIRECTIVE.sub("", _OTHER_BUILD.sub("", _TEXT.sub('""', _COMMENT.sub("", header))))


def _body(text: str, name: str) -> str:
    """What stands between the braces of a class."""
    begins = re.search(rf"\b(?:struct|class)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    if begins is None:
        raise ValueError(f"there is no {name}")
    depth, at = 1, begins.end()
    while depth and at < len(text):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    if depth:
        raise ValueError(f"{name} has no end")
    return text[begins.end() : at - 1]


def _declarations(body: str) -> list[str]:
    """Each member without its body."""
    found, depth, said = [], 0, ""
    for letter in body:
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
        elif depth == 0:
            said += letter
        if depth == 0 and letter in "};":
            found.append(said.strip(" \n\t;"))
            said = ""
    return [one for one in found if one]
