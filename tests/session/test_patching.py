"""Attributes that are replaced, and put back in any order."""

from __future__ import annotations

from types import SimpleNamespace

from perfscope.profiler.patching import replace, wrap


def test_undone_in_reverse_the_original_is_back() -> None:
    holder = SimpleNamespace(save="own")
    first, second = replace(holder, "save", "first"), replace(holder, "save", "second")
    second()
    assert holder.save == "first"
    first()
    assert holder.save == "own"


def test_a_wrapper_under_another_is_gone_once_both_are_undone() -> None:
    def own() -> list[str]:
        return ["own"]

    holder = SimpleNamespace(save=own)
    session = wrap(holder, "save", lambda original: lambda: ["session", *original()])
    ledger = wrap(holder, "save", lambda original: lambda: ["ledger", *original()])
    assert holder.save() == ["ledger", "session", "own"]
    session()
    ledger()
    assert holder.save is own


def test_a_replacement_of_the_program_stays() -> None:
    holder = SimpleNamespace()
    undo = replace(holder, "save", "ours")
    holder.save = "the program's"
    undo()
    undo()
    assert holder.save == "the program's"
