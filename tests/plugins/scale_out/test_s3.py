"""Sets in object storage, through a real S3 client against a local S3 server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run as command
from perfscope.analyzers.judge import judge_paths
from perfscope.analyzers.readers.file_bytes import HEAD_BYTES
from perfscope.dashboards.report import render
from perfscope.plugins.scale_out import remote as scale_out
from tests.sets.test_judge import make, timing

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 's3fs')")
server = pytest.importorskip("moto.server", reason="no local S3 server (pip install 'moto[s3]' flask flask-cors)")

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
"""Keys from the S3 documentation."""


class Calls:
    """The client's requests to the storage."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def of(self, name: str) -> list[str]:
        return [key for asked, key in self.all if asked == name]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    served = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    served.start()
    host, port = served.get_host_and_port()
    yield f"http://{host}:{port}"
    served.stop()


@pytest.fixture
def storage(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket ``traces``."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    ask(endpoint, "reset")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("traces")
    yield system
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Requests of this process."""
    told = Calls()
    whole = s3fs.S3FileSystem._call_s3

    async def watched(self: Any, method: str, *given: Any, **more: Any) -> Any:
        told.all.append((method, f"{more.get('Key', '')} {more.get('Range', '')}".strip()))
        return await whole(self, method, *given, **more)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", watched)
    return told


def ask(endpoint: str, what: str, body: bytes = b"") -> None:
    urllib.request.urlopen(
        urllib.request.Request(
            f"{endpoint}/moto-api/{what}", data=body, headers={"Content-Type": "text/plain"}, method="POST"
        )
    ).close()


def megatron(corpus: Path) -> list[Path]:
    return sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_[0-3]*"))


def report(path: str | Path, **more: Any) -> dict[str, Any]:
    """Without where its sources lie."""
    held: dict[str, Any] = json.loads(render(judge_paths([path], **more).analysis, "json"))
    for source in held["sources"]:
        source["path"] = source["path"].rpartition("/")[2]
    return held


def put_run(corpus: Path, folder: Path, storage: Any) -> Path:
    """A run of four ranks here, and a copy of it in the bucket."""
    processes = [timing(rank, f"rank{rank:05d}/timing.pt.trace.json.gz") for rank in range(4)]
    made = make(folder / "train-7f3a", processes)
    for file, process in zip(megatron(corpus), processes, strict=True):
        (made / process.directory / "timing.pt.trace.json.gz").write_bytes(file.read_bytes())
        (made / process.directory / "other.bin").write_bytes(b"not an artifact")
    for file in made.rglob("*"):
        if file.is_file():
            storage.pipe(f"traces/runs/{made.name}/{file.relative_to(made)}", file.read_bytes())
    return made


@pytest.mark.corpus
def test_what_is_no_trace_is_not_fetched(corpus: Path, storage: Any, calls: Calls) -> None:
    (file, *_) = megatron(corpus)
    storage.pipe(f"traces/job/{file.name}", file.read_bytes())
    storage.pipe("traces/job/checkpoint.bin", bytes(range(256)) * 20_000)
    storage.pipe("traces/other/x.json", file.read_bytes())
    calls.all.clear()
    judged = judge_paths(["s3://traces/job"], jobs=1)
    assert [Path(one.path).name for one in judged.loaded.skipped] == ["checkpoint.bin"]
    got = calls.of("get_object")
    assert [key for key in got if "checkpoint" in key]
    for key in got:
        assert "other" not in key
        if "checkpoint" in key:
            first, last = map(int, key.rpartition("bytes=")[2].split("-"))
            assert last - first <= 2 * HEAD_BYTES
    assert len(calls.of("list_objects_v2")) <= 3


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("path", ["s3://traces/runs/train-7f3a", "s3://traces/runs", "s3://traces"])
def test_a_run(corpus: Path, storage: Any, tmp_path: Path, calls: Calls, path: str) -> None:
    made = put_run(corpus, tmp_path, storage)
    calls.all.clear()
    there = report(path, jobs=1)
    assert there == report(made, jobs=1)
    assert there["run"]["id"] == "train-7f3a"
    assert not [key for key in calls.of("get_object") if "other.bin" in key]
    assert report(path, jobs=2) == there


@pytest.mark.corpus
def test_a_run_that_lacks_a_file(corpus: Path, storage: Any, tmp_path: Path) -> None:
    put_run(corpus, tmp_path, storage)
    storage.rm("traces/runs/train-7f3a/rank00002/timing.pt.trace.json.gz")
    judged = judge_paths(["s3://traces/runs/train-7f3a"], jobs=1)
    assert [trace.source.rank for trace in judged.loaded.traces] == [0, 1, 3]
    text = render(judged.analysis, "json")
    assert "perfscope-" not in text
    assert "ranks 2, 4, 5, 6, 7 of 8 left nothing here" in text


@pytest.mark.corpus
def test_an_object_that_goes_after_it_was_listed(
    corpus: Path, storage: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in megatron(corpus):
        storage.pipe(f"traces/job/{file.name}", file.read_bytes())
    gone = megatron(corpus)[1].name
    whole = scale_out.remote_files

    def then_removed(url: str) -> Any:
        found = whole(url)
        storage.rm(f"traces/job/{gone}")
        return found

    monkeypatch.setattr("perfscope.plugins.scale_out.remote.remote_files", then_removed)
    assert command(["analyze", "s3://traces/job", "--jobs", "1"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"perfscope: s3://traces/job/{gone}: not read: no such file, folder or bucket")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3://traces/gone/rank0.json", "no such file or folder, or nothing in it"),
        ("s3://no-such-bucket/job", "no such file"),
        ("s3://traces", "no such file or folder, or nothing in it"),
    ],
)
def test_what_is_not_there(storage: Any, path: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["analyze", path]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"perfscope: {path}: {said}")


def test_access_is_denied(storage: Any, endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    storage.pipe("traces/job/rank0.json", b"{}")
    storage.invalidate_cache()
    ask(endpoint, "reset-auth", b"0")
    try:
        for path in ("s3://traces/job", "s3://traces/job/rank0.json"):
            assert command(["analyze", path]) == 4
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"perfscope: {path}: access denied")
            assert KEY not in line
    finally:
        ask(endpoint, "reset-auth", b"inf")


def test_nobody_answers(storage: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    assert command(["analyze", "s3://traces/job"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("perfscope: s3://traces/job: ")


def test_no_credentials(
    storage: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    assert command(["analyze", "s3://traces/job"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "credentials" in line


@pytest.mark.corpus
def test_a_signed_url_is_read_and_not_shown(
    corpus: Path, storage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = megatron(corpus)[:2]
    storage.pipe(f"traces/job/{first.name}", first.read_bytes())
    storage.pipe(f"traces/job/{second.name}", second.read_bytes()[:50_000])
    whole, broken = (storage.url(f"traces/job/{file.name}") for file in (first, second))
    signature = whole.partition("Signature=")[2].partition("&")[0]
    assert len(signature) > 10
    for form in ("text", "json", "markdown", "html"):
        assert command(["analyze", whole, "--format", form, "-o", str(tmp_path / f"report.{form}")]) == 0
    assert f"/traces/job/{first.name}?" in (tmp_path / "report.json").read_text()
    assert command(["analyze", broken]) == 4
    assert command(["analyze", whole.replace(first.name, "gone.json.gz")]) == 4
    out, err = capsys.readouterr()
    said = out + err + "".join(file.read_text() for file in tmp_path.iterdir())
    for secret in (signature, KEY, SECRET, broken.partition("Signature=")[2].partition("&")[0]):
        assert secret not in said
    assert "Signature=[hidden]" in said
