"""Runs a composite action's steps like GitHub's runner, as far as possible without GitHub.

`run:` steps are executed by bash with the runner's options, in order, with `if:` and expressions evaluated and the
files GITHUB_OUTPUT, GITHUB_ENV and GITHUB_STEP_SUMMARY read back. A `uses:` step is only recorded, and a test sets its
outputs. An expression inside of `run:` is an error here, because its value would be code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import REPOSITORY
from tests.session.programs import environment

OF_THE_JOB = ("GITHUB_", "GITLAB_", "RUNNER_", "CI_", "GH_", "IN_")
SECONDS = 400

STUB = """#!/bin/bash
# The job's Python. What pip and venv would do needs an index: they are noted, and the new environment is this again.
asked=("$@")
[ "$1" != -P ] || asked=("${@:2}")
case "${asked[0]} ${asked[1]}" in
  "-m pip") printf '%s\\n' "${asked[@]:2}" >>"$PIP_LOG"; exit ;;
  "-m venv") mkdir -p "${asked[2]}/bin" && ln -sf "$0" "${asked[2]}/bin/python"; exit ;;
esac
exec "$REAL_PYTHON" "$@"
"""


@dataclass(slots=True)
class StepResult:
    """A step that was reached: its exit code and what it printed; ``skipped`` by its ``if``."""

    name: str
    code: int = 0
    out: str = ""
    skipped: bool = False


@dataclass(slots=True)
class Job:
    """A job: its folders, the context from GitHub, and its events."""

    folder: Path
    checkout: Path
    github: dict[str, Any]
    variables: dict[str, str]
    used: list[dict[str, Any]] = field(default_factory=list)
    uses: Callable[[dict[str, Any]], dict[str, str]] = lambda step: {}
    summary: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    ran: list[StepResult] = field(default_factory=list)

    @property
    def temp(self) -> Path:
        """RUNNER_TEMP."""
        return self.folder / "temp"

    def installed(self) -> list[str]:
        """Arguments of pip, word by word."""
        log = self.folder / "pip.log"
        return log.read_text().splitlines() if log.exists() else []

    def run(self, action: Path, inputs: Mapping[str, str]) -> int:
        """All steps of the action in that folder; 0, or the code of the step that failed."""
        described = yaml.safe_load((action / "action.yml").read_text())
        unknown = set(inputs) - set(described["inputs"])
        assert not unknown, f"inputs that the action does not have: {unknown}"
        context = {"github": self.github, "steps": {}, "inputs": {}}
        for name, one in described["inputs"].items():
            context["inputs"][name] = inputs.get(name, substituted(str(one.get("default", "")), context))
        self.temp.mkdir(parents=True, exist_ok=True)
        failed = 0
        for step in described["runs"]["steps"]:
            wanted = not failed and truth(evaluated(unwrapped(str(step.get("if", "true"))), context))
            if not wanted:
                self.ran.append(StepResult(name=step["name"], skipped=True))
                continue
            if "uses" in step:
                held = {**step, "with": {name: substituted(str(one), context) for name, one in step["with"].items()}}
                self.used.append(held)
                outputs = self.uses(held)
            else:
                assert "${{" not in step["run"], step["run"]
                outputs, failed = self._bash(step, action, context)
            if "id" in step:
                context["steps"][step["id"]] = {"outputs": outputs}
        self.outputs = context["steps"]
        return failed

    def _bash(self, step: Mapping[str, Any], action: Path, context: Mapping[str, Any]) -> tuple[dict[str, str], int]:
        files = {
            name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")
        }
        for path in files.values():
            path.write_text("")
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        folder = self.checkout / substituted(str(step.get("working-directory", ".")), context)
        variables = {
            **self.machine(),
            **self.variables,
            **{name: substituted(str(value), context) for name, value in step.get("env", {}).items()},
            **{name: str(path) for name, path in files.items()},
            "GITHUB_ACTION_PATH": str(action),
            "GITHUB_WORKSPACE": str(self.checkout),
            "RUNNER_TEMP": str(self.temp),
        }
        assert step["shell"] == "bash"
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)]
        done = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        self.ran.append(StepResult(name=step["name"], code=done.returncode, out=done.stdout))
        assert files["GITHUB_ENV"].read_text() == "", "no step of ours changes those behind it"
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        return dict(line.split("=", 1) for line in lines), done.returncode

    def machine(self) -> dict[str, str]:
        """A machine whose `python` has perfscope, without variables of another job."""
        programs = self.folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            (programs / name).write_text(STUB)
            (programs / name).chmod(0o755)
        held = {name: value for name, value in environment().items() if not name.startswith(OF_THE_JOB)}
        return {
            **held,
            "PATH": f"{programs}{os.pathsep}{held['PATH']}",
            "REAL_PYTHON": sys.executable,
            "PIP_LOG": str(self.folder / "pip.log"),
        }

    def step(self, name: str) -> StepResult:
        """The outcome of the step with that name."""
        return next(one for one in self.ran if one.name == name)


def job(folder: Path, checkout: Path, event: str, payload: dict[str, Any], **variables: str) -> Job:
    """A job of that event: GitHub's variables, and the payload in its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "event.json"
    path.write_text(json.dumps(payload))
    return Job(
        folder=folder,
        checkout=checkout,
        github={"event": payload, "event_name": event, "token": variables.pop("token", ""), "repository": "octo/model"},
        variables={"GITHUB_EVENT_NAME": event, "GITHUB_EVENT_PATH": str(path), **variables},
    )


def unwrapped(text: str) -> str:
    """An `if` may leave out the ``${{ }}``."""
    return text.strip().removeprefix("${{").removesuffix("}}").strip()


def substituted(text: str, context: Mapping[str, Any]) -> str:
    """The text with its expressions evaluated."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: _text(evaluated(found[1].strip(), context)), text)


def evaluated(expression: str, context: Mapping[str, Any]) -> Any:
    """``a || b``, ``a && b``, ``a == b``, ``a != b``, a name, a text in quotes, true; all that our actions use."""
    for operator in ("||", "&&"):
        left, found, right = expression.partition(operator)
        if found:
            held = evaluated(left.strip(), context)
            return held if truth(held) == (operator == "||") else evaluated(right.strip(), context)
    for operator in ("!=", "=="):
        left, found, right = expression.partition(operator)
        if found:
            same = _text(evaluated(left.strip(), context)) == _text(evaluated(right.strip(), context))
            return same == (operator == "==")
    if re.fullmatch(r"'[^']*'", expression):
        return expression[1:-1]
    if expression == "true":
        return True
    assert re.fullmatch(r"[a-z][\w-]*(\.[\w-]+)*", expression), f"not known here: {expression}"
    held: Any = context
    for name in expression.split("."):
        held = held.get(name) if isinstance(held, Mapping) else None
    return held


def truth(value: Any) -> bool:
    """As GitHub counts it: the empty text, 0, false and null are false."""
    return value not in (None, "", 0, False)


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


ACTION = REPOSITORY
COMMENT = REPOSITORY / "ci" / "comment"
