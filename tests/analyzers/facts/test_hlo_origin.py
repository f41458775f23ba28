"""Lines that instructions without one serve."""

from __future__ import annotations

import pytest

from perfscope.analyzers.facts.hlo_origin import FURTHEST, served, users_of
from perfscope.analyzers.hlo.module import Computation
from tests.hlo_build import hlo_module

META = 'metadata={op_name="jit(step)/while" source_file="train.py" source_line=9}'


def entry(text: str) -> Computation:
    return hlo_module(f"ENTRY %main (a: f32[8]) -> f32[8] {{\n{text}\n}}").entry_computation()


def line_of(computation: Computation, name: str) -> int | None:
    reader = served(computation.by_name[name], users_of(computation))
    return None if reader is None else reader.line


def test_a_copy_serves_what_reads_it_through_others_without_a_line() -> None:
    found = entry(
        f"""
        %a = f32[8]{{0}} parameter(0)
        %zeros = f32[8]{{0}} copy(%a)
        %again = f32[8]{{0}} copy(%zeros)
        %made = f32[8]{{0}} negate(%again), {META}
        ROOT %out = f32[8]{{0}} copy(%made)
        """
    )
    assert [line_of(found, name) for name in ("zeros", "again", "a")] == [9, 9, 9]
    assert line_of(found, "out") is None  # nobody reads what the program returns


@pytest.mark.parametrize(("steps", "line"), [(FURTHEST - 1, 9), (FURTHEST + 1, None)])
def test_the_search_is_bounded(steps: int, line: int | None) -> None:
    copies = "\n".join(f"%c{i} = f32[8]{{0}} copy(%{'a' if i == 0 else f'c{i - 1}'})" for i in range(steps + 1))
    found = entry(f"%a = f32[8]{{0}} parameter(0)\n{copies}\nROOT %made = f32[8]{{0}} negate(%c{steps}), {META}")
    assert line_of(found, "c0") == line
