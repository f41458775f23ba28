"""The files for Slurm and Kubernetes: the epilog with a stand-in of sacctmgr, and the commands of the Job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfscope.__main__ import run as command_line
from perfscope.plugins.job.account import job_account
from perfscope.plugins.job.document import with_requeued
from perfscope.plugins.job.outlets.json_document import JobDocument
from tests.conftest import REPOSITORY
from tests.plugins.job.written import killed_and_resumed

MONITORING = REPOSITORY / "ci" / "monitoring"


def epilog(folder: Path, job: str) -> str:
    """Run the epilog of a job; what sacctmgr got."""
    tools, said = folder / "tools", folder / "said"
    tools.mkdir(exist_ok=True)
    (tools / "sacctmgr").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{said}\n')
    (tools / "perfscope").write_text(f'#!/bin/sh\nexec {sys.executable} -m perfscope "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {**os.environ, "PERFSCOPE_PATH": str(tools), "SLURM_JOB_ID": job, "SLURM_JOB_WORK_DIR": str(folder)}
    subprocess.run([MONITORING / "slurm-epilog.sh"], env=environment, check=True, timeout=120)
    return said.read_text() if said.exists() else ""


def test_the_epilog_attaches_the_report(tmp_path: Path) -> None:
    (tmp_path / "perfscope-runs").mkdir()
    killed_and_resumed(tmp_path / "perfscope-runs" / "slurm-7.0")
    assert epilog(tmp_path, "8") == ""  # a job without a ledger
    line = epilog(tmp_path, "7").strip()
    headline = "perfscope: 80.4% of 92.0 s of 2 ranks trained what was kept"
    assert line == f"--immediate modify job where jobid=7 set AdminComment={headline}"
    report = tmp_path / "perfscope-job-7.md"
    assert "lost work 5.00 s" in report.read_text()
    assert not report.with_name(f"{report.name}.part").exists()
    killed_and_resumed(tmp_path / "perfscope-runs" / "train-9")
    assert "jobid=9 set AdminComment=perfscope: 80.4%" in epilog(tmp_path, "9")


def test_the_commands_of_the_kubernetes_job_run(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="no PyYAML")
    pod = yaml.safe_load((MONITORING / "kubernetes-job.yaml").read_text())["spec"]["template"]["spec"]
    killed_and_resumed(tmp_path / "train-x")
    (tmp_path / "metrics").mkdir()

    def words(container: dict[str, Any]) -> list[str]:
        given = [*container["command"], *container["args"]]
        changed = [word.replace("$(PERFSCOPE_RUN_ID)", "train-x").replace("/runs", str(tmp_path)) for word in given]
        return [word.replace("/metrics", str(tmp_path / "metrics")) for word in changed[1:]]

    account = words(pod["initContainers"][0])
    webhook = account.index("--webhook")
    assert command_line([word for at, word in enumerate(account) if at not in (webhook, webhook + 1)]) == 0
    assert "perfscope_job_steps_total" in (tmp_path / "metrics" / "perfscope.prom").read_text()
    assert "trained what was kept" in (tmp_path / "train-x.md").read_text()
    train = words(pod["containers"][0])
    assert train[: train.index("--")] == ["run", "--ledger", "-o", str(tmp_path)]
    mounted = {volume["name"] for volume in pod["volumes"]}
    used = {mount["name"] for held in (*pod["containers"], *pod["initContainers"]) for mount in held["volumeMounts"]}
    assert used == mounted


def test_runs_of_a_requeued_job_are_read_together(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run-r2", "run-r10", "run-r1", "run-rest", "run-r1-r2", "run-2"):
        shutil.copytree(job, job.parent / name)
    (job.parent / "run-r3").mkdir()
    names = ["run", "run-r1", "run-r2", "run-r10"]
    assert (
        [run.name for run in with_requeued(job)] == [run.name for run in with_requeued(job.parent / "run-r2")] == names
    )
    assert [run.name for run in with_requeued(job.parent / "run-rest")] == ["run-rest"]
    assert command_line(["job", str(job), "--json", "-"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=JobDocument)
    assert len(document.account.attempts) == 4 * len(job_account([job]).attempts)
