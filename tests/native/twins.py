"""Both paths of a reader in one process, and their traces compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from perfscope import native
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

Reader = Callable[[Path], Trace]

needs_library = pytest.mark.skipif(native.library() is None, reason=f"the native library is {native.state()}")


@contextmanager
def without_library() -> Iterator[None]:
    """Leave the library unloaded for a while."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(native.SWITCH, "off")
        native.library.cache_clear()
        try:
            yield
        finally:
            native.library.cache_clear()


def both(read: Reader, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace | str, Trace | str]:
    """Return the trace in ``path``, or the error, without the library and with it."""
    monkeypatch.setenv("PERFSCOPE_CACHE", "off")
    with monkeypatch.context() as without:
        without.setattr(native, "library", lambda: None)
        for user in ("columns", "kineto.decode", "xspace.planes", "xspace.spans", "torch_memory.reader"):
            without.setattr(f"perfscope.analyzers.readers.{user}.native_library", lambda: None)
        plain = _read(read, path)
    return plain, _read(read, path)


def _read(read: Reader, path: Path) -> Trace | str:
    try:
        return read(path)
    except DataError as error:
        return str(error)


def assert_equal(plain: Trace | str, fast: Trace | str) -> None:
    """Compare every column of every table, texts in place of their codes, and the facts about the source."""
    if isinstance(plain, str) or isinstance(fast, str):
        # Where a chunk begins differs, and with it the place and words of a fault that has no place of its own.
        assert isinstance(plain, str), fast
        assert isinstance(fast, str), plain
        return
    texts = [np.array([*trace.strings, None], dtype=object) for trace in (plain, fast)]
    for name, rows in plain.rows.items():
        assert len(rows) == len(fast.rows[name]), name
        for column in rows.table.columns:
            one, other = rows[column.name], fast.rows[name][column.name]
            assert one.dtype == other.dtype, (name, column.name)
            if column.text:
                assert (texts[0][one] == texts[1][other]).all(), (name, column.name)
            else:
                assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), (name, column.name)
    assert plain.source == fast.source
    assert plain.recorded == fast.recorded
