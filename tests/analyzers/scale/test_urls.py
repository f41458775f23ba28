"""What of a URL is shown: where a file lies, and never what opens it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.scale.judge import judge_paths
from perfscope.analyzers.scale.urls import is_remote, shown_url, without_secrets
from perfscope.dashboards.reports import render
from perfscope.profiler.errors import AskedWronglyError


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
    for text in (f"cannot open {url}", "GET /x?sig=abcd=efg", "user me:pass-word", "pass-word of me", "abcd%3Defg"):
        said = without_secrets(text, url)
        assert "abcd" not in said
        assert "pass-word" not in said
    assert without_secrets("no such key", url) == "no such key"
    assert without_secrets("key AKIAIOSFODNN7EXAMPLE of http://u:p@h/ and ?X-Amz-Signature=00ff&x=1", "s3://b/k") == (
        "key *** of http://***@h/ and ?X-Amz-Signature=***&x=1"
    )


def test_what_is_remote() -> None:
    assert is_remote("s3://bucket")
    assert not is_remote(Path("s3:/bucket"))
    assert not is_remote(3)


def test_no_error_shows_a_login(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec")
    for url in ("nonsense://me:pass/word@host/x", "memory://me:pass/word@host/x?token=pass/word"):
        assert run(["analyze", url]) in (2, 4)
        out, err = capsys.readouterr()
        assert "pass/word" not in out + err
        assert "***" in err


@pytest.mark.corpus
def test_no_report_shows_a_login(corpus: Path) -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    (file, *_) = sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_0*"))
    system.pipe(f"/me:pass-word@host/{file.name}?token=12345678", file.read_bytes())
    try:
        judged = judge_paths([f"memory://me:pass-word@host/{file.name}?token=12345678"])
        for form in ("json", "text", "markdown", "html"):
            text = render(judged.analysis, form)
            assert "pass-word" not in text
            assert "12345678" not in text
        assert json.loads(render(judged.analysis, "json"))["sources"][0]["path"].endswith(f"{file.name}?token=***")
    finally:
        system.rm("/", recursive=True)


def test_files_that_only_secrets_tell_apart() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(AskedWronglyError, match=r"\?id=\*\*\*: named twice"):
        judge_paths(["https://127.0.0.1:9/x?id=1", "https://127.0.0.1:9/x?id=2"])
