"""Parallel records: classes of different modules with the same fields, often one thing under two names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.house.outline import outline

ALLOWED = Path(__file__).with_name("record_pairs.txt")
"""Pairs that are left, a line each (``Class ~ Class``, by name). After ``#``: why they are two things. It only
shrinks; ``python -m tests.house.test_records`` prints the pairs with their modules."""

LEAST_FIELDS = 4
ALIKE = 0.7
"""Share of the smaller record's fields that the larger one has too, by name."""

Records = dict[tuple[str, str], set[str]]
"""Fields by module and class."""


def records(root: Path) -> Records:
    """The classes below ``root`` with at least ``LEAST_FIELDS`` annotated fields of their own."""
    return {
        (str(path.relative_to(root)), each.name): set(each.fields)
        for path in sorted(root.rglob("*.py"))
        for each in outline(path).classes
        if len(each.fields) >= LEAST_FIELDS
    }


def pairs(found: Records) -> Iterator[tuple[int, int, tuple[str, str], tuple[str, str]]]:
    """Fields in common, fields of the smaller record, and both classes, for each pair of different modules."""
    for (first, fields), (second, others) in itertools.combinations(found.items(), 2):
        common, smaller = len(fields & others), min(len(fields), len(others))
        if first[0] != second[0] and common >= max(LEAST_FIELDS, ALIKE * smaller):
            yield common, smaller, first, second


def named(first: str, second: str) -> str:
    """A pair as the file of allowed ones has it."""
    return " ~ ".join(sorted((first, second)))


def allowed() -> list[str]:
    """The allowed pairs, without their reasons."""
    lines = ALLOWED.read_text(encoding="utf-8").splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def test_no_new_pair_of_parallel_records() -> None:
    found = sorted(named(first[1], second[1]) for _, _, first, second in pairs(records(REPOSITORY / "perfscope")))
    assert found == sorted(allowed())


def test_a_pair_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A:\n    w: int\n    x: int\n    y: int\n    z: int\n")
    (tmp_path / "b.py").write_text("class B:\n    v: int\n    w: int\n    x: int\n    y: int\n    z: int\n")
    (tmp_path / "c.py").write_text("class C:\n    a: int\n    b: int\n    c: int\n    w: int\n")
    assert list(pairs(records(tmp_path))) == [(4, 4, ("a.py", "A"), ("b.py", "B"))]


def show() -> None:
    """Print the pairs with their modules, most fields in common first."""
    found = sorted(pairs(records(REPOSITORY / "perfscope")), key=lambda pair: -pair[0])
    for common, smaller, first, second in found:
        print(f"{common}/{smaller} {first[0]}:{first[1]} ~ {second[0]}:{second[1]}")
    print(f"{len(found)} pairs")


if __name__ == "__main__":
    show()
