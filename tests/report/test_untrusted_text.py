"""Text of strangers: nothing steers a terminal, no secret is shown, nothing is endless."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from perfscope.dashboards.report import html_report, json_report, markdown, text
from perfscope.model.untrusted_text import MASK, clean, sanitize, sanitize_value, scrub, scrub_command, shorten
from tests.report.analyses import hostile
from tests.report.test_html import Parsed
from tests.report.test_markdown import OUR_TAGS


@given(st.text())
def test_nothing_invisible_is_left(text: str) -> None:
    assert not {unicodedata.category(character) for character in sanitize(text)} & {
        "Cc",
        "Cf",
        "Cs",
        "Co",
        "Cn",
        "Zl",
        "Zp",
    }
    sanitize(text).encode()


@given(st.text(), st.integers(min_value=3, max_value=50))
def test_never_longer_than_asked(text: str, limit: int) -> None:
    assert len(sanitize(text, limit)) <= limit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("one\ntwo\r\n\tthree", "one two three"),
        ("right\u202eto left", "rightto left"),
        ("lone \ud800 half", "lone \N{REPLACEMENT CHARACTER} half"),
        ("[bold]kept[/] as it is :smile:", "[bold]kept[/] as it is :smile:"),
    ],
)
def test_terminal_sequences_and_controls(text: str, expected: str) -> None:
    assert sanitize(text) == expected


def test_a_megabyte_of_name_keeps_both_ends() -> None:
    name = "begin" + "k" * 1_000_000 + "end"
    assert len(sanitize(name)) == 160
    assert sanitize(name).startswith("begin")
    assert sanitize(name).endswith("end")
    assert len(clean(name)) < 30_000


def test_shorten_leaves_what_fits() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdef", 4) == "ab…f"


HOME_OF_ROOT = "/root"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/proj/train.py:88", "~/proj/train.py:88"),
        ("/Users/alice/proj/train.py", "~/proj/train.py"),
        (r"C:\Users\alice\train.py", r"~\train.py"),
        (f"{HOME_OF_ROOT}/train.py", "~/train.py"),
        ("at /home/alice", "at ~"),
        ("/data/home/x.py", "/data/home/x.py"),
        (f"/srv{HOME_OF_ROOT}/x.py", f"/srv{HOME_OF_ROOT}/x.py"),
        ("/nfs/home/alice/x.py", "/nfs/home/…/x.py"),
    ],
)
def test_home_directories(text: str, expected: str) -> None:
    assert scrub(text) == expected


def test_own_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/lustre/people/me")
    assert scrub(f"{Path.home()}/run.py /lustre/people/meg/x") == "~/run.py /lustre/people/meg/x"


SECRETS = (
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "hf_" + "aB3d" * 9,
    "AKIA" + "ABCDEFGH12345678",
    "sk-proj-" + "a1B2" * 9,
    "xoxb-123456789012-abcdef",
    "glpat-" + "a1B2" * 5,
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_tokens_known_by_their_prefix(secret: str) -> None:
    assert scrub(f"before {secret} after") == f"before {MASK} after"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "WANDB_API_KEY="),
        ("--hf-token abcdefgh1234", "--hf-token "),
        ("--password=hunter2!", "--password="),
        ('{"secret": "correct horse"}', '{"secret": "'),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer "),
        ("ssh_key: " + "QUJD" * 12, "ssh_key: "),
        ("https://user:pa55word@host/x", "https://"),
    ],
)
def test_values_of_telling_names(text: str, kept: str) -> None:
    scrubbed = scrub(text)
    assert scrubbed.startswith(f"{kept}{MASK}")
    for word in ("0123456789abcdef", "abcdefgh1234", "hunter2", "correct", "abcdef123456", "QUJD", "pa55word"):
        assert word not in scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, Array<char*, 3> >",
        "ampere_sscrub_128x64_relu_f32f32_tf32f32_f32_nhwc_tn_v1",
        "nccl:all_reduce_perf tokens=4096 max_tokens: 8192",
        "key_value_cache keys=16 heads=8",
        "ProfilerStep#12",
    ],
)
def test_names_of_kernels_are_no_secrets(text: str) -> None:
    assert scrub(text) == text


def test_values_are_cleaned_at_every_depth() -> None:
    value = {"a\x1b[1m": ["/home/me/x", {"api_key": "abc", "n": 3, "none": None}], "t": ("\x07b",)}
    assert sanitize_value(value) == {"a": ["~/x", {"api_key": MASK, "n": 3, "none": None}], "t": ["b"]}


@pytest.mark.parametrize(
    "text", ["token=hf_" + "a" * 30, "API_KEY=abcdef123456", "Authorization: Bearer abcdefgh12", "x://u:p@host/"]
)
def test_masking_twice_is_masking_once(text: str) -> None:
    once = sanitize(text)
    assert sanitize(once) == once


PIECES = st.sampled_from(
    ["<", ">", "</script>", "<!--", "-->", "]]>", "&", "&lt;", '"', "'", "`", "```", "|", "\\", "\n", "\r", "\t", "@a",
     "#1", "http://x", "www.x.y", "\x1b[2J", "\x9b", "\x00", "\u202e", "\u2028", "\ud800", "[b]", "![", "](", "{{",
     "${", "$$", "**", "__", "~~", "<!DOCTYPE", "javascript:", "onload=", "k", "日", "é", " ", "0", "=", "- ",
     "1. ", "+"]
)  # fmt: skip
NAMES = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join))


@given(NAMES)
@example("000\u093a")  # a mark that takes no room on a terminal
@settings(max_examples=40, deadline=None)
def test_every_report_holds(name: str) -> None:
    held = hostile(name)
    # a name may look like code, and is then shown as code: safe, and nothing else than the page has for code
    plain = Parsed(html_report.render(hostile("plain\n```\ncode\n```\n")))

    shown = text.render(held, verbose=True)
    assert all(cell_len(line) <= text.WIDTH for line in shown.splitlines())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)

    comment = markdown.render(held)
    outside_code = re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?^\1$", "", comment)
    assert set(re.findall(r"</?[a-zA-Z!][^>]*>", outside_code)) <= OUR_TAGS
    assert not re.search(r"@\w|(?<!/)https?://", comment)

    page = Parsed(html_report.render(held))
    assert page.open == []
    assert set(page.tags) <= set(plain.tags) | {"code", "wbr"}
    assert {(tag, key) for tag, key, _ in page.attributes} <= {(tag, key) for tag, key, _ in plain.attributes}
    assert json.loads(page.scripts[0][1])["schema"] == "perfscope.report/1"

    json.loads(json_report.render(held))
    for report in (shown, comment, page.text):
        report.encode()


@given(st.sampled_from(SECRETS), st.sampled_from(["", " ", "=", "/", "token="]))
@settings(max_examples=15, deadline=None)
def test_no_secret_is_in_any_report(secret: str, before: str) -> None:
    held = hostile(f"x{before} {secret} y")
    reports = (
        text.render(held, verbose=True),
        markdown.render(held),
        html_report.render(held),
        json_report.render(held),
    )
    for report in reports:
        assert secret not in report.replace("\n", "")
        assert "hidden" in report
    assert MASK in reports[0]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["train.py", "--lr", "3e-4"], ["train.py", "--lr", "3e-4"]),
        (["train.py", "--hf-token", "abc", "--lr", "1"], ["train.py", "--hf-token", MASK, "--lr", "1"]),
        (["--wandb_api_key=abc", "x"], [f"--wandb_api_key={MASK}", "x"]),
        (["--wandb_key=abc"], [f"--wandb_key={MASK}"]),
        (["env", "HF_TOKEN=abc", "python"], ["env", f"HF_TOKEN={MASK}", "python"]),
        (["--use-auth", "--lr", "1"], ["--use-auth", "--lr", "1"]),
        (["--data", "https://me:pw@host/x"], ["--data", f"https://{MASK}@host/x"]),
        (["https://me@host/x"], [f"https://{MASK}@host/x"]),
        (["https://h/x?a=1&token=abc&b=2"], [f"https://h/x?a=1&token={MASK}&b=2"]),
        (["s3://b/k?X-Amz-Signature=0123abcd&x=1"], [f"s3://b/k?X-Amz-Signature={MASK}&x=1"]),
        (["--url=https://h/x?sv=1&sig=ab%3D"], [f"--url=https://h/x?sv=1&sig={MASK}"]),
        (["--data", "/home/someone/data"], ["--data", "~/data"]),
        (["--password="], [f"--password={MASK}"]),
        (["model=token_mixer"], ["model=token_mixer"]),
        (["--tokenizer", "gpt2", "--max-tokens=512", "--author", "me"],
         ["--tokenizer", "gpt2", "--max-tokens=512", "--author", "me"]),
        (["bash", "-c", "train --hf-token abcdef"], ["bash", "-c", f"train --hf-token {MASK}"]),
    ],
)  # fmt: skip
def test_secrets_of_a_command(command: list[str], shown: list[str]) -> None:
    assert scrub_command(command) == tuple(shown)
    assert scrub_command(shown) == tuple(shown)


@given(st.lists(st.text(min_size=1)), st.sampled_from(["--api-key", "--TOKEN", "--db-password", "--client_secret"]))
def test_a_secret_is_hidden_wherever_it_stands(before: list[str], flag: str) -> None:
    secret = "planted-secret-value"
    assert not any(secret in word for word in scrub_command([*before, flag, secret]) if before[-1:] != [flag])
    assert not any(secret in word for word in scrub_command([*before, "x", f"{flag}={secret}"]))
