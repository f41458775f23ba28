"""Packed files that are damaged: what is wrong with them, and how far they were whole."""

from __future__ import annotations

import gzip
import lzma
import random
from pathlib import Path

import pytest

from perfscope.analyzers.readers import _bytes
from perfscope.analyzers.readers._bytes import open_bytes
from perfscope.profiler.errors import DataError

CONTENT = random.Random(1).randbytes(200_000)
"""It does not compress: a file cut in half holds half of it."""


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught, open_bytes(path):
        raise AssertionError("it was read")
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(CONTENT)[:10], "gzip is cut off within the first 4 MiB of its content"),
        (gzip.compress(CONTENT)[:100_000], "gzip is cut off within the first 4 MiB of its content"),
        (lzma.compress(CONTENT)[:6], "xz is cut off within the first 4 MiB of its content"),
        (lzma.compress(CONTENT)[:100_000], "xz is cut off after "),
        (gzip.compress(CONTENT)[:-8] + bytes(8), "gzip is corrupt within the first 4 MiB of its content"),
        (b"\xfd7zXZ\x00garbage, garbage", "xz is corrupt within the first 4 MiB of its content"),
    ],
)
def test_damage_in_the_first_piece(tmp_path: Path, content: bytes, said: str) -> None:
    assert refused(tmp_path / "x", content).startswith(said)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_damage_behind_it_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: type) -> None:
    monkeypatch.setattr(_bytes, "_PIECE", 4096)
    said = refused(tmp_path / "x", pack(CONTENT)[:150_000])
    kind, _, at = said.partition(" is cut off after ")
    assert kind in ("gzip", "xz")
    whole = int(at.removesuffix(" bytes of its content").replace(",", ""))
    assert 0 < whole < 150_000


def test_nothing_at_all_is_no_damage(tmp_path: Path) -> None:
    for name, content in (("plain", b""), ("gzip", gzip.compress(b"")), ("xz", lzma.compress(b""))):
        (tmp_path / name).write_bytes(content)
        with open_bytes(tmp_path / name) as data:
            assert bytes(data) == b""
