"""Sets behind fsspec: listed, fetched one by one, judged like the same local files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.judge import judge_paths
from perfscope.analyzers.readers.load import is_remote
from perfscope.dashboards.report import render
from perfscope.model.errors import DataError, UsageError
from perfscope.model.version import install_command
from perfscope.plugins.scale_out import remote as scale_out
from perfscope.plugins.scale_out.remote import fetched, remote_files, shown_url, without_secrets

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def report(paths: list[str], **more: Any) -> dict[str, Any]:
    """The report without where its sources lie."""
    held: dict[str, Any] = json.loads(render(judge_paths(paths, **more).analysis, "json"))
    for source in held["sources"]:
        source["path"] = source["path"].rpartition("/")[2]
    return held


def megatron(corpus: Path) -> list[Path]:
    return sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_[0-3]*"))


@pytest.mark.corpus
def test_a_folder_in_memory_is_judged_as_here(corpus: Path, memory: Any) -> None:
    files = megatron(corpus)
    for file in files:
        memory.pipe(f"/job/ranks/{file.name}", file.read_bytes())
    memory.pipe("/job/.hidden/x.json", b"{}")
    assert report(["memory://job"], jobs=1) == report([str(file) for file in files], jobs=1)
    judged = judge_paths([f"memory://job/ranks/{files[2].name}"], jobs=1)
    (source,) = judged.analysis.sources
    assert (source.path, source.rank) == (f"memory://job/ranks/{files[2].name}", 2)
    assert judged.loaded.skipped == ()


@pytest.mark.slow
@pytest.mark.corpus
def test_a_folder_of_files_in_processes_and_on_a_cluster(corpus: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    for file in megatron(corpus):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    url = tmp_path.as_uri()
    here = report([str(tmp_path)], jobs=1)
    assert report([url], jobs=2) == here
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        assert report([url], scheduler=cluster.scheduler_address) == here


@pytest.mark.corpus
def test_damaged_files_are_said(corpus: Path, memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    whole, broken = megatron(corpus)[:2]
    memory.pipe(f"/job/{whole.name}", whole.read_bytes())
    memory.pipe(f"/job/{broken.name}", broken.read_bytes()[:100_000])
    memory.pipe("/job/notes.txt", b"two ranks")
    assert run(["analyze", "memory://job", "--jobs", "1"]) == 0
    err = capsys.readouterr().err
    assert f"memory:///job/{broken.name}: not read: " in err
    assert "skipped, not a trace: memory:///job/notes.txt" in err
    assert run(["analyze", "memory://job/notes.txt"]) == 4
    assert capsys.readouterr().err == "perfscope: memory://job/notes.txt: text\n"


@pytest.mark.parametrize(
    ("path", "whether"),
    [("s3://bucket/job", True), ("gs://b/j", True), ("memory://x", True), ("job/s3:/x", False), ("C:/x", False)],
)
def test_what_is_remote(path: str, whether: bool) -> None:
    assert is_remote(path) is whether


def test_files_are_listed_and_fetched(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/job/b/2.json", b"{2}")
    memory.pipe("/job/a/1.json", b"{1}")
    assert remote_files("memory://job") == (("memory:///job/a/1.json", "memory:///job/b/2.json"), True)
    assert remote_files("memory://job/a/1.json") == (("memory://job/a/1.json",), False)
    with fetched("memory://job/a/1.json") as copy:
        assert (copy.name, copy.read_bytes()) == ("1.json", b"{1}")
    assert not copy.exists()
    with pytest.raises(DataError, match="memory://gone: "):
        remote_files("memory://gone")
    with pytest.raises(DataError, match="memory://gone: "), fetched("memory://gone"):
        pass
    monkeypatch.setattr(scale_out, "MOST_FILES", 1)
    with pytest.raises(DataError, match="more than 1 files"):
        remote_files("memory://job")
    monkeypatch.setattr(scale_out, "MOST_BYTES", 2)
    with pytest.raises(DataError, match="3 bytes, of which 2 are fetched at most"), fetched("memory://job/a/1.json"):
        pass


def test_what_is_not_installed_or_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="nonsense://x: Protocol not known: nonsense"):
        remote_files("nonsense://x")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"gs://bucket/x: .*gcsfs"):
        remote_files("gs://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=re.escape(install_command("cluster"))):
        remote_files("memory://job")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/job/rank 0.json", "s3://bucket/job/rank 0.json"),
        ("s3://bucket/a@b/x?versionId=3", "s3://bucket/a@b/x?versionId=3"),
        ("s3://AKIA:se/cr@et@bucket/job", "s3://***@bucket/job"),
        ("s3://AKIA:sec/ret@bucket/job", "s3://***@bucket/job"),
        ("https://host:8443/a@b", "https://host:8443/a@b"),
        ("ftp://me@host/x", "ftp://***@host/x"),
        (
            "https://b.host/k.gz?X-Amz-Credential=A%2Fb&X-Amz-Signature=12ab&file=k",
            "https://b.host/k.gz?X-Amz-Credential=***&X-Amz-Signature=***&file=k",
        ),
        ("https://host/x?sv=1&sig=abcd%3D", "https://host/x?sv=***&sig=***"),
        ("https://host/x?abcdef", "https://host/x?***"),
        ("traces/x?y@z", "traces/x?***"),
    ],
)
def test_what_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_texts_about_a_url() -> None:
    url = "https://me:pass-word@host/x?sig=abcd%3Defg&rank=3"
    for line in (f"cannot open {url}", "GET /x?sig=abcd=efg", "user me:pass-word", "pass-word of me", "abcd%3Defg"):
        said = without_secrets(line, url)
        assert "abcd" not in said
        assert "pass-word" not in said
    assert without_secrets("no such key", url) == "no such key"
    assert without_secrets("key AKIAIOSFODNN7EXAMPLE of http://u:p@h/ and ?X-Amz-Signature=00ff&x=1", "s3://b/k") == (
        "key *** of http://***@h/ and ?X-Amz-Signature=***&x=1"
    )
