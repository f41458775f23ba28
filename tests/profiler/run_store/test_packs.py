"""Packs: the same run is the same pack, it comes out as it went in, and strangers' packs lead nowhere."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from perfscope.model.errors import DataError
from perfscope.profiler.store import packs
from perfscope.profiler.store.packs import pack, unpack


def a_run(folder: Path) -> Path:
    run = folder / "20260101-000000-train-0001"
    (run / "rank00000" / "hlo").mkdir(parents=True)
    for name, content in {
        "run.json": b"{}",
        "report.html": b"made from the rest",
        ".alive": b"",
        "rank00000/timing.json.gz": b"trace",
        "rank00000/hlo/step.pb": bytes(range(256)),
        "rank00000/.hidden": b"x",
    }.items():
        (run / name).write_bytes(content)
    (run / "rank00000" / "link").symlink_to("/etc/passwd")
    return run


def test_it_comes_out_as_it_went_in(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    one = pack(run, tmp_path / "one")
    assert (one.files, one.unpacked, one.bytes) == (3, 263, (tmp_path / "one").stat().st_size)
    out = unpack(one.file, tmp_path / "out", "it")
    assert out == tmp_path / "out" / run.name
    found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert found == {
        "run.json": b"{}",
        "rank00000/timing.json.gz": b"trace",
        "rank00000/hlo/step.pb": bytes(range(256)),
    }
    assert unpack(one.file, tmp_path / "out", "it") == out, "once more changes nothing"
    assert {path.name for path in tmp_path.iterdir()} == {run.name, "one", "out"}, "nothing is left lying about"


def test_the_same_run_is_the_same_pack(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    one = pack(run, tmp_path / "one")
    (run / "run.json").touch()
    assert pack(run, tmp_path / "two").digest == one.digest
    (run / "run.json").write_bytes(b"{ }")
    assert pack(run, tmp_path / "three").digest != one.digest


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(b"trace")
    one = pack(tmp_path / "trace.json", tmp_path / "one")
    assert unpack(one.file, tmp_path / "out", "it").read_bytes() == b"trace"


def test_too_much_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    import random

    run = a_run(tmp_path)
    (run / "large").write_bytes(random.Random(1).randbytes(300_000))
    with pytest.raises(DataError, match="--most-mib"):
        pack(run, tmp_path / "one", most=100_000)
    assert not (tmp_path / "one").exists()
    assert pack(run, tmp_path / "one", most=400_000).unpacked == 300_263


def test_nothing_to_pack(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nothing to keep"):
        pack(tmp_path / "empty", tmp_path / "one")


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with gzip.open(path, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made, b"" if kind != tarfile.REGTYPE else b"x"


@pytest.mark.parametrize(
    "hostile",
    [
        member("../out"),
        member("run/../../out"),
        member("/etc/cron.d/x"),
        member("run/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("run/link", tarfile.LNKTYPE, "run/a"),
        member("run/pipe", tarfile.FIFOTYPE),
        member("run/device", tarfile.CHRTYPE),
        member("run", tarfile.DIRTYPE),
        member("run/.ssh/keys"),
        member(".bashrc"),
        member("run\\..\\x"),
        member("run/" + "x" * 5_000),
    ],
    ids=lambda one: one[0].name[:20] + one[0].type.decode(),
)
def test_hostile_members_are_refused(tmp_path: Path, hostile: tuple[tarfile.TarInfo, bytes]) -> None:
    file = tarred(tmp_path / "pack", member("run/a"), hostile)
    with pytest.raises(DataError, match=r"^it: .*refused"):
        unpack(file, tmp_path / "folder" / "out", "it")
    assert list((tmp_path / "folder").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"pack", "folder"}


def test_two_things_at_the_top(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 things at its top"):
        unpack(tarred(tmp_path / "pack", member("a/x"), member("b/x")), tmp_path / "out", "it")


def test_the_same_name_twice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it: "):
        unpack(tarred(tmp_path / "pack", member("a/x"), member("a/x")), tmp_path / "out", "it")


def test_a_pack_that_grows_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MOST_UNPACKED", 100_000)
    bomb = tarfile.TarInfo("run/zeros")
    file = tarred(tmp_path / "pack", (bomb, bytes(2_000_000)))
    assert file.stat().st_size < 5_000
    with pytest.raises(DataError, match="more than a run does"):
        unpack(file, tmp_path / "out", "it")


def test_a_header_that_claims_to_be_huge(tmp_path: Path) -> None:
    """tarfile reads an extended header in one go: of a packed one that is memory without bound."""
    header = tarfile.TarInfo("PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    with gzip.open(tmp_path / "pack", "wb") as raw:
        raw.write(header.tobuf() + bytes(4_000_000))
    with pytest.raises(DataError, match="a header larger than any of ours"):
        unpack(tmp_path / "pack", tmp_path / "out", "it")


@pytest.mark.parametrize(
    "content", [b"", b"no gzip at all", gzip.compress(b"no tar " * 200)], ids=["empty", "text", "gzip"]
)
def test_what_is_no_pack(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pack").write_bytes(content)
    with pytest.raises(DataError, match=r"^it: "):
        unpack(tmp_path / "pack", tmp_path / "out", "it")
    assert not (tmp_path / "out").exists()


def test_a_pack_cut_off_anywhere(tmp_path: Path) -> None:
    whole = pack(a_run(tmp_path), tmp_path / "one").file.read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"^it: "):
            unpack(tmp_path / "cut", tmp_path / "out", "it")
