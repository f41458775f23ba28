"""Export and import: from any store into any, twice is once, and strangers' files are checked before a byte is kept."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.model.errors import DataError
from perfscope.plugins.history.store import packs
from perfscope.plugins.history.store.exchange import (
    Exported,
    Imported,
    check_name,
    export,
    import_file,
    looks_like_export,
)
from perfscope.plugins.history.store.packs import fetch, pack, unpack
from perfscope.plugins.history.store.runs import RunStore
from perfscope.plugins.history.stored_run import StoredRun, encode
from tests.plugins.history.records import stored_run


def as_is(record: StoredRun) -> StoredRun:
    return record


def filled(where: str | Path, folder: Path) -> RunStore:
    run = folder / "run"
    run.mkdir()
    (run / "run.json").write_bytes(bytes(range(256)) * 10_000)
    store = RunStore(where)
    for number in range(5):
        store.put(stored_run(number))
    store.set_baseline("main", stored_run(1), pack(run, folder / "made.pack"))
    store.set_baseline("main", stored_run(2), None)
    store.set_baseline("release/1.0", stored_run(1), pack(run, folder / "made.pack"))
    return store


def test_from_one_store_into_another(where: str | Path, tmp_path: Path) -> None:
    store = filled(where, tmp_path)
    file = tmp_path / "out.tar"
    assert export(store, file, runs=store.runs()) == Exported(runs=5, baselines=3, packs=1)
    assert looks_like_export(file)
    other = RunStore(tmp_path / "other.sqlite")
    assert import_file(other, file, clean=as_is) == Imported(runs=5, runs_there=0, baselines=3, baselines_there=0)
    assert import_file(other, file, clean=as_is) == Imported(runs=0, runs_there=5, baselines=0, baselines_there=3)
    assert import_file(store, file, clean=as_is) == Imported(runs=0, runs_there=5, baselines=0, baselines_there=3)
    assert other.runs() == store.runs()
    assert other.baselines() == store.baselines()
    digest = other.baselines("release/1.0")[0].digest
    assert digest is not None
    copy = fetch(other.database, digest, tmp_path / "copy")
    assert unpack(copy.file, tmp_path / "out", "it").joinpath("run.json").stat().st_size == 2_560_000


def test_back_into_a_store_of_the_same_kind(where: str | Path, tmp_path: Path) -> None:
    store = filled(tmp_path / "first.sqlite", tmp_path)
    export(store, tmp_path / "out.tar", runs=store.runs())
    other = RunStore(where)
    import_file(other, tmp_path / "out.tar", clean=as_is)
    assert other.baselines() == store.baselines()


def test_part_of_a_store_and_numbers_alone(tmp_path: Path) -> None:
    store = filled(tmp_path / "first.sqlite", tmp_path)
    done = export(store, tmp_path / "out.tar", runs=[stored_run(1), stored_run(4)], packs=False)
    assert done == Exported(runs=2, baselines=2, packs=0)
    other = RunStore(tmp_path / "other.sqlite")
    import_file(other, tmp_path / "out.tar", clean=as_is)
    assert other.runs() == (stored_run(1), stored_run(4))
    assert [one.digest for one in other.baselines()] == [None, None]
    export(store, tmp_path / "whole.tar", runs=store.runs())
    assert import_file(other, tmp_path / "whole.tar", clean=as_is).baselines == 1
    assert [one.digest is None for one in other.baselines()] == [False, True, False], "the files came later"


def test_the_format_is_what_the_docs_say(tmp_path: Path) -> None:
    store = filled(tmp_path / "first.sqlite", tmp_path)
    export(store, tmp_path / "out.tar", runs=store.runs())
    with tarfile.open(tmp_path / "out.tar") as tar:
        names = tar.getnames()
        held = {name: tar.extractfile(name).read() for name in names[:3]}  # type: ignore[union-attr]
        assert {(one.uid, one.uname, one.mtime) for one in tar.getmembers()} == {(0, "", 0)}
    digest = store.baselines("release/1.0")[0].digest
    assert names == ["export.json", "runs.jsonl", "baselines.jsonl", f"packs/{digest}.tar.gz"]
    head = json.loads(held["export.json"])
    assert (head["schema"], head["runs"], head["baselines"], head["packs"]) == ("perfscope.store-export/1", 5, 3, 1)
    runs = [json.loads(line) for line in held["runs.jsonl"].splitlines()]
    assert [run["id"] for run in runs] == [stored_run(number).id for number in range(5)]
    assert {run["schema"] for run in runs} == {"perfscope.stored-run/1"}
    baselines = [json.loads(line) for line in held["baselines.jsonl"].splitlines()]
    assert [(one["name"], one["digest"]) for one in baselines] == [
        ("release/1.0", digest), ("main", None), ("main", digest)
    ]  # fmt: skip


HEAD = json.dumps({"schema": "perfscope.store-export/1"}).encode()
RUN = encode(stored_run(0)).encode() + b"\n"
BASELINE = json.dumps({"name": "main", "uid": stored_run(0).uid, "set_utc": "2026", "digest": None}).encode() + b"\n"
Members = list[tuple[str, bytes]]
GOOD: Members = [("export.json", HEAD), ("runs.jsonl", RUN), ("baselines.jsonl", BASELINE)]


def written(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if name.startswith("link"):
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
            tar.addfile(member, io.BytesIO(content))
    return path


def changed(place: int, name: str | None = None, content: bytes | None = None) -> Members:
    members = list(GOOD)
    old = members[place]
    members[place] = (name or old[0], old[1] if content is None else content)
    return members


def test_the_good_one_is_good(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "store.sqlite")
    assert import_file(store, written(tmp_path / "in.tar", GOOD), clean=as_is).baselines == 1


ZEROS = "0" * 64


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (GOOD[:2], "it lacks baselines.jsonl"),
        ([], "not an export|damaged|it lacks export.json"),
        (changed(0, "other.json"), "it begins with 'other.json'"),
        (changed(0, content=b"["), "export.json: not valid JSON"),
        (changed(0, content=HEAD.replace(b"/1", b"/2")), r"its schema is 'perfscope.store-export/2'"),
        (changed(1, content=b"{}\n"), "runs.jsonl: line 1: its schema is None"),
        (
            changed(1, content=RUN + RUN.replace(b'"ranks":1', b'"ranks":"x"')),
            "runs.jsonl: line 2: not a stored run: Expected `int`",
        ),
        (changed(1, content=RUN + b"\xff\n"), "runs.jsonl: line 2"),
        (changed(1, content=RUN.replace(b'"value":2.0', b'"value":1e999')), "runs.jsonl: line 1: "),
        (changed(1, content=RUN.replace(b'"value":2.0', b'"value":1e308')), "outside the range of measurable numbers"),
        (changed(1, content=RUN.replace(b'"value":2.0', b'"value":1e-320')), "outside the range of measurable numbers"),
        (changed(1, content=RUN.replace(b"host syncs per step", b"step time")), "line 1: a metric is in it twice"),
        (changed(1, content=RUN.replace(stored_run(0).uid.encode(), b"../../x")), "invalid uid"),
        (changed(2, content=b"[]\n"), "baselines.jsonl: line 1: no baseline"),
        (changed(2, content=BASELINE.replace(b"main", b"\\u001b[2J")), "invalid baseline name"),
        (changed(2, content=BASELINE.replace(b"null", b'"../x"')), "no baseline"),
        ([*GOOD, ("extra.txt", b"x")], "'extra.txt', which does not belong to an export"),
        ([*GOOD, ("../x", b"x")], "leads out"),
        ([*GOOD, ("link", b"")], "not a regular file"),
        ([*GOOD, (f"packs/{ZEROS}.tar.gz", b"x")], "damaged, its digest differs"),
        ([*GOOD, (f"packs/{ZEROS}.tar.gz/x", b"x")], "does not belong to an export"),
    ],
)
def test_hostile_and_damaged_exports_change_nothing(tmp_path: Path, members: Members, said: str) -> None:
    store = RunStore(tmp_path / "store.sqlite")
    store.put(stored_run(7))
    file = written(tmp_path / "in.tar", members)
    with pytest.raises(DataError, match=said) as caught:
        import_file(store, file, clean=as_is)
    assert str(caught.value).startswith(f"{file}: ")
    assert store.runs() == (stored_run(7),)
    assert store.baselines() == ()


def test_a_pack_of_an_export_is_unpacked_before_it_is_let_in(tmp_path: Path) -> None:
    import gzip
    import hashlib

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        link = tarfile.TarInfo("run/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    content = gzip.compress(raw.getvalue())
    name = f"packs/{hashlib.sha256(content).hexdigest()}.tar.gz"
    store = RunStore(tmp_path / "store.sqlite")
    with pytest.raises(DataError, match="not a regular file"):
        import_file(store, written(tmp_path / "in.tar", [*GOOD, (name, content)]), clean=as_is)
    assert store.is_empty()


def test_an_export_cut_off_anywhere(tmp_path: Path) -> None:
    store = filled(tmp_path / "first.sqlite", tmp_path)
    export(store, tmp_path / "out.tar", runs=store.runs())
    whole = (tmp_path / "out.tar").read_bytes()
    other = RunStore(tmp_path / "other.sqlite")
    ended = whole.rstrip(b"\0")
    for length in range(0, len(ended), len(ended) // 23):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut\.tar: "):
            import_file(other, tmp_path / "cut.tar", clean=as_is)
    assert other.is_empty()


def test_baselines_of_runs_that_are_not_in_it_are_left_out(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "store.sqlite")
    stray = BASELINE.replace(stored_run(0).uid.encode(), b"f" * 32)
    done = import_file(store, written(tmp_path / "in.tar", changed(2, content=stray)), clean=as_is)
    assert (done.runs, done.baselines) == (1, 0)


def test_texts_are_cleaned_before_they_are_kept(tmp_path: Path) -> None:
    from msgspec.structs import replace

    clean: Callable[[StoredRun], StoredRun] = lambda record: replace(record, name="clean")  # noqa: E731
    store = RunStore(tmp_path / "store.sqlite")
    import_file(store, written(tmp_path / "in.tar", GOOD), clean=clean)
    assert store.runs()[0].name == "clean"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    store = filled(tmp_path / "first.sqlite", tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        export(store, tmp_path / "no" / "out.tar", runs=store.runs())
    with pytest.raises(DataError, match="no such file"):
        import_file(store, tmp_path / "no.tar", clean=as_is)
    assert not looks_like_export(tmp_path / "no.tar")


@pytest.mark.parametrize("name", ["main", "release/1.0", "v2_x+y-z", "a" * 100])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", "a b", "a" * 101, "a\n", "é", "../x"])
def test_no_names(name: str) -> None:
    with pytest.raises(DataError, match="invalid baseline name"):
        check_name(name)


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
    with pytest.raises(DataError, match="no files to keep"):
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
    with pytest.raises(DataError, match="2 entries at its top"):
        unpack(tarred(tmp_path / "pack", member("a/x"), member("b/x")), tmp_path / "out", "it")


def test_the_same_name_twice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it: "):
        unpack(tarred(tmp_path / "pack", member("a/x"), member("a/x")), tmp_path / "out", "it")


def test_a_pack_that_grows_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MOST_UNPACKED", 100_000)
    bomb = tarfile.TarInfo("run/zeros")
    file = tarred(tmp_path / "pack", (bomb, bytes(2_000_000)))
    assert file.stat().st_size < 5_000
    with pytest.raises(DataError, match="larger than any run"):
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
