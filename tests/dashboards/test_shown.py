"""Text of strangers: nothing steers a terminal, no secret is shown, nothing is endless."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.model.untrusted_text import MASK, clean, sanitize, sanitize_value, scrub, shorten


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/proj/train.py:88", "~/proj/train.py:88"),
        ("/Users/alice/proj/train.py", "~/proj/train.py"),
        (r"C:\Users\alice\train.py", r"~\train.py"),
        ("/root/train.py", "~/train.py"),
        ("at /home/alice", "at ~"),
        ("/data/home/x.py", "/data/home/x.py"),
        ("/srv/root/x.py", "/srv/root/x.py"),
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
