"""Programs that stand in a capture's way: what is missing has a reason, and the program does not feel it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.profiler.programs import LOOP, captured, only, passes, plain, write

pytestmark = pytest.mark.torch


def test_a_profiler_that_never_stops_leaves_a_reason(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "from torch.profiler import ProfilerActivity, profile\n"
        "with profile(activities=[ProfilerActivity.CPU]) as prof:\n    work(10)\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = passes(only(tmp_path))
    assert found["timing"].state == "missing"
    assert "own torch.profiler was recording" in str(found["timing"].reason)
    assert "timing pass missing" in done.stderr


def test_a_profile_function_of_the_program_stays(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "calls = 0\ndef count(frame, event, argument):\n    global calls\n    calls += 1\n"
        "sys.setprofile(count)\nwork(10)\nprint(sys.getprofile() is count)\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.stdout == "True\n"
    assert "profile function of its own" in str(passes(only(tmp_path))["detail"].reason)


def test_an_error_of_our_own_never_reaches_the_program(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import torch\nclass Broken:\n    def __init__(self, *a, **k):\n        raise RuntimeError('planted')\n"
        "torch.profiler.profile = Broken\n",
        "breaks.py",
    )
    program = write(tmp_path, "import breaks\n" + LOOP + "work(10)\nprint('done')\n")
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    reason = str(passes(only(tmp_path))["timing"].reason)
    assert "planted" in reason


def test_workers_of_a_data_loader_do_not_capture(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "from torch.utils.data import DataLoader\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)\n"
        "class Rows(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 12\n"
        "    def __getitem__(self, row):\n        optimizer.step()\n        return torch.full((2,), float(row))\n"
        "if __name__ == '__main__':\n"
        "    total = 0.0\n"
        "    for epoch in range(6):\n"
        "        for batch in DataLoader(Rows(), batch_size=6, num_workers=2):\n"
        "            total += batch.sum().item()\n            work(1)\n"
        "    print(total)\n",
    )
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    assert not (tmp_path / "perfscope-runs" / "latest" / "failures.txt").exists()
    process = only(tmp_path)
    assert {one.state for one in process.captures} <= {"recorded"}


def test_a_compiled_program_has_no_structure_and_says_why(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "from torch.profiler import record_function\n"
        "@torch.compile(backend='eager', fullgraph=True)\ndef compiled(x):\n"
        "    with perfscope.region('inner'), record_function('inner'):\n        return x.sin() + 1\n"
        "work(10, after=lambda: compiled(torch.ones(3)))\nprint('whole graph')\n",
    )
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "whole graph\n"), done.stderr
    found = passes(only(tmp_path))
    assert found["structure"].state == "missing"
    assert "torch.compile" in str(found["structure"].reason)
    assert found["detail"].state == "recorded"


def test_no_capture_starts_below_a_compiled_frame(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "@torch.compile(backend='eager')\ndef compiled(x):\n"
        "    y = x.sin()\n    perfscope.step()\n    return y + 1\n"
        "work(10, after=lambda: compiled(torch.ones(3)))\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("perfscope.step", 10)
    assert {one.tool: one.state for one in process.captures} == {
        "torch_profiler": "missing",
        "op_graph": "missing",
        "torch_compile": "recorded",
    }
    assert "compiled function" in str(process.captures[0].reason)
