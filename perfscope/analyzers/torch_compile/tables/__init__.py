"""Result tables of torch.compile and of jax's compilations: one module per table, named like it."""

from __future__ import annotations

from perfscope.model.compile_log import CodeLine
from perfscope.model.results import Place


def place_of(line: CodeLine | None) -> Place | None:
    """File and line of ``line``, without its text, which is the program's."""
    return None if line is None else Place(line.file, line.line)
