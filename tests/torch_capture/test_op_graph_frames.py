"""Whose line it is: the innermost frame of the user's code, named as the user would name the file."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.profiler.torch.op_graph.frames import Frames, Site, called_function, decides_branch

REPOSITORY = Path(__file__).resolve().parents[2]


def look(frames: Frames, *files: str) -> Site:
    """The site seen from a stack of one call per file, outermost first."""
    result: list[Site] = []
    call: Callable[[], Any] = lambda: result.append(frames.site(sys._getframe(1)))  # noqa: E731
    for number, file in enumerate(reversed(files)):
        namespace: dict[str, Any] = {"inner": call}
        exec(compile(f"def outer{number}():\n    return inner()", file, "exec"), namespace)
        call = namespace[f"outer{number}"]
    call()
    return result[0]


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    monkeypatch.setattr(sys, "path", ["/elsewhere/project", *sys.path])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/generated")
    return Frames("/site/torch/__init__.py", Path("/project/here"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/project/here/train.py", "train.py"),
        ("/project/here/src/net.py", "src/net.py"),
        ("/elsewhere/project/pkg/net.py", "pkg/net.py"),
        ("/nowhere/known/net.py", "/nowhere/known/net.py"),
        (str(REPOSITORY / "perfscope" / "workloads" / "moe.py"), "perfscope/workloads/moe.py"),
        ("<ipython-input-3-abc>", "<ipython-input-3-abc>"),
    ],
)
def test_files_are_named_from_the_working_folder_or_the_import_path(frames: Frames, path: str, name: str) -> None:
    site = look(frames, path)
    assert (site.file, site.line) == (name, 2)


@pytest.mark.parametrize(
    "hidden",
    [
        "/site/torch/nn/functional.py",
        str(REPOSITORY / "perfscope" / "profiler" / "session.py"),
        "/generated/ab/cab.py",
        "/tmp/torchinductor_someone/ab/cab.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        sys.modules["inspect"].__file__,
    ],
)
def test_the_user_is_further_out(frames: Frames, hidden: str) -> None:
    assert look(frames, "/project/here/train.py", hidden).file == "train.py"


def test_innermost_wins(frames: Frames) -> None:
    assert look(frames, "/project/here/train.py", "/project/here/net.py", "/site/torch/_tensor.py").file == "net.py"


def test_checks_of_a_distributions_arguments_are_told_from_the_programs_own_work(frames: Frames) -> None:
    user, constraints = "/project/here/train.py", "/site/torch/distributions/constraints.py"
    assert look(frames, user, "/site/torch/distributions/categorical.py", constraints).checks
    assert not look(frames, user, "/site/torch/distributions/categorical.py").checks
    assert not look(frames, user, constraints, "/project/here/own_constraint.py").checks


def test_what_lies_between(frames: Frames) -> None:
    user, optimizer = "/project/here/train.py", "/site/torch/optim/adamw.py"
    assert look(frames, user, optimizer)[4:6] == (True, True)
    # A closure that the optimizer calls is the user's again.
    assert look(frames, user, optimizer, "/project/here/closure.py")[4:6] == (False, True)
    assert look(frames, user, "/site/torch/optim/lr_scheduler.py")[4:6] == (False, False)
    assert look(frames, user, "/site/torch/autograd/__init__.py").engine_before_user
    assert not look(frames, user, "/site/torch/autograd/__init__.py", "/project/here/hook.py").engine_before_user
    assert look(frames, user, "/site/torch/utils/checkpoint.py", "/project/here/net.py").checkpoint
    assert look(frames, user, "/site/torch/utils/data/dataloader.py", "/project/here/data.py").data


INSTALLED = f"{sysconfig.get_paths()['purelib']}/accelerate/optimizer.py"
OPTIMIZER = "/site/torch/optim/adamw.py"
OWN = "/project/here/train.py"


@pytest.mark.parametrize(
    ("stack", "file"),
    [
        ((OWN, INSTALLED, OPTIMIZER), "train.py"),
        ((OWN, INSTALLED, OPTIMIZER, INSTALLED), "train.py"),
        ((OWN, INSTALLED), "accelerate/optimizer.py"),
        ((OWN, OPTIMIZER, "/project/here/closure.py", INSTALLED), "accelerate/optimizer.py"),
        ((OWN, OPTIMIZER, "/project/here/lion.py"), "lion.py"),
    ],
)
def test_a_step_that_a_package_calls_is_of_the_programs_line(frames: Frames, stack: tuple[str, ...], file: str) -> None:
    site = look(frames, *stack)
    assert (site.file, site.installed) == (file, file == "accelerate/optimizer.py")


class Probe:
    """Replaces a tensor and reports its caller's activity."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, str | None]] = []

    def look(self) -> bool:
        frame = sys._getframe(2)
        self.seen.append((decides_branch(frame), called_function(frame)))
        return True

    def __bool__(self) -> bool:
        return self.look()

    def one_hot(self) -> int:
        return int(self.look())


def test_a_branch_is_told_from_a_call() -> None:
    probe = Probe()
    if probe:
        pass
    while probe:
        break
    _ = not probe
    _ = probe and 1
    _ = 1 if probe else 2
    assert [truth for truth, _ in probe.seen] == [True] * 5
    probe.seen.clear()
    bool(probe)
    probe.one_hot()
    assert probe.seen == [(False, "bool"), (False, "one_hot")]


def test_the_innermost_loop_around_the_running_instruction_is_named() -> None:
    source = """
for outer in range(2):
    if outer:
        continue
    for inner in range(2):
        look()
    look()
while not seen[-1:] == [None]:
    look()
    seen.append(None)
look()
"""
    frames, seen = Frames("/site/torch/__init__.py", Path("/project/here")), list[Any]()
    exec(compile(source, "/project/here/train.py", "exec"), {
        "look": lambda: seen.append(frames.site(sys._getframe(1)).loop), "seen": seen,
    })  # fmt: skip
    assert [None if loop is None else loop[1] for loop in seen[:4]] == [5, 5, 2, 8]


def test_the_loop_of_a_calling_function_counts_if_the_inner_one_has_none() -> None:
    frames, seen = Frames("/site/torch/__init__.py", Path("/project/here")), list[Any]()
    source = "def inner():\n    look()\ndef outer():\n    return [inner() for _ in range(1)]\nouter()\n"
    look = {"look": lambda: seen.append(frames.site(sys._getframe(1)).loop)}
    exec(compile(source, "/project/here/net.py", "exec"), look)
    assert seen == [("net.py", 4)]
