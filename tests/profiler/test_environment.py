"""What a manifest says of the machine, and what it keeps to itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.model import environment
from perfscope.model.environment import redact


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["train.py", "--lr", "3e-4"], ["train.py", "--lr", "3e-4"]),
        (["train.py", "--hf-token", "abc", "--lr", "1"], ["train.py", "--hf-token", "***", "--lr", "1"]),
        (["--wandb_api_key=abc", "x"], ["--wandb_api_key=***", "x"]),
        (["env", "HF_TOKEN=abc", "python"], ["env", "HF_TOKEN=***", "python"]),
        (["--use-auth", "--lr", "1"], ["--use-auth", "--lr", "1"]),
        (["--data", "https://me:pw@host/x"], ["--data", "https://***@host/x"]),
        (["--password="], ["--password=***"]),
        (["model=token_mixer"], ["model=token_mixer"]),
    ],
)
def test_secret_looking_values_are_hidden(command: list[str], shown: list[str]) -> None:
    assert redact(command) == tuple(shown)


@given(st.lists(st.text(min_size=1)), st.sampled_from(["--api-key", "--TOKEN", "--db-password", "--client_secret"]))
def test_a_secret_is_hidden_wherever_it_stands(before: list[str], flag: str) -> None:
    secret = "planted-secret-value"
    assert not any(secret in word for word in redact([*before, flag, secret]) if before[-1:] != [flag])
    assert not any(secret in word for word in redact([*before, "x", f"{flag}={secret}"]))


def test_git_says_commit_and_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.git_facts() is None
    (tmp_path / "a").write_text("1")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q", "-b", "topic"], ["add", "a"], [*identity, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", *words], check=True)
    clean = environment.git_facts()
    assert clean is not None
    assert (len(str(clean["commit"])), clean["branch"], clean["dirty"]) == (40, "topic", False)
    (tmp_path / "a").write_text("2")
    assert environment.git_facts() == {"commit": clean["commit"], "branch": "topic", "dirty": True}
    for name in environment.BRANCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "checkout", "-q", "--detach"], check=True)
    assert environment.git_facts() == {"commit": clean["commit"], "dirty": True}
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    assert environment.git_branch() == "main"
    monkeypatch.setenv("GITHUB_HEAD_REF", "pull")
    assert environment.git_branch() == "pull"


@pytest.mark.parametrize(
    ("said", "model"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC  7R13\nmodel name\t: another\n", "AMD EPYC 7R13"),
        ("processor : 0\nBogoMIPS : 50\n", None),
        (None, None),
    ],
)
def test_the_processor_by_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, model: str | None
) -> None:
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(environment, "ask", lambda *_: None)
    if said is not None:
        (tmp_path / "cpuinfo").write_text(said)
    assert environment.cpu_model() == model
    assert environment.platform_facts().get("cpu") == model


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA H200, 570.1, 1980 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700.00 W"
    tool(tmp_path, monkeypatch, "nvidia-smi", f"echo '{line}'; echo '{line}'; echo 'unexpected'")
    first, second = environment.nvidia_gpus()
    assert first == second
    assert (first.name, first.driver, first.clocks["clocks.max.sm"]) == ("NVIDIA H200", "570.1", "1980 MHz")


@pytest.mark.parametrize("script", ["exit 9", "echo broken; exit 1", ""])
def test_a_tool_that_fails_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool(tmp_path, monkeypatch, "nvidia-smi", script)
    assert environment.nvidia_gpus() == []


def test_a_tool_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, "nvidia-smi", "exec sleep 600")
    monkeypatch.setattr(environment, "SECONDS", 0.1)
    assert environment.nvidia_gpus() == []


def test_packages_are_of_the_list_alone() -> None:
    found = environment.packages()
    assert "numpy" in found
    assert set(found) <= set(environment.PACKAGES)
