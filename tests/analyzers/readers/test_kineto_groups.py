"""Process groups of the head fill what events of collectives do not tell, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.load import load_one
from perfscope.analyzers.ranks.local import locals_of
from perfscope.analyzers.trace import Trace

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
LARGE = list(range(0, 128, 2))


def kernel(**args: Any) -> dict[str, Any]:
    held = {"device": 0, "stream": 20, "correlation": 7, "Collective name": "allreduce", "dtype": "BFloat16",
            "In msg nelems": 64, "Out msg nelems": 64, **args}  # fmt: skip
    return {"ph": "X", "cat": "kernel", "name": KERNEL, "pid": 0, "tid": 20, "ts": 10.0, "dur": 5.0, "args": held}


def gloo(operation: str = "all_reduce") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"gloo:{operation}",
        "pid": 9,
        "tid": 3,
        "ts": 40.0,
        "dur": 2.0,
    }


def written(path: Path, events: list[dict[str, Any]], config: Any) -> Trace:
    distributed = {"backend": "nccl", "rank": 6, "world_size": 128, "pg_count": 1, "pg_config": config}
    file = path / "rank6.pt.trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": distributed, "traceEvents": events}))
    return load_one(file)


def group(name: str = "1", *, description: str = "mesh_dp", size: int | None = None, ranks: Any = LARGE,
          backends: str = "cuda:nccl") -> dict[str, Any]:  # fmt: skip
    found = {"pg_name": name, "pg_desc": description, "backend_config": backends, "ranks": ranks}
    return {**found, "pg_size": len(ranks) if size is None else size}


CUT_SHORT = {"Process Group Name": "1", "Process Group Ranks": "[0, 2, 4, ...]", "Group size": 64}


def test_a_list_that_the_event_cuts_short_is_whole_in_the_head(tmp_path: Path) -> None:
    (one,) = written(tmp_path, [kernel(**CUT_SHORT)], [group()]).fact(locals_of)
    assert (one.ranks, one.size, one.description, one.group) == (tuple(LARGE), 64, "mesh_dp", "1")


def test_what_the_event_tells_stays(tmp_path: Path) -> None:
    told = {"Process Group Name": "1", "Process Group Ranks": "[0, 6]", "Group size": 2,
            "Process Group Description": "mine"}  # fmt: skip
    (one,) = written(tmp_path, [kernel(**told)], [group()]).fact(locals_of)
    assert (one.ranks, one.size, one.description) == ((0, 6), 2, "mine")


def test_an_undefined_description_and_a_size_are_filled(tmp_path: Path) -> None:
    told = {"Process Group Name": "1", "Process Group Description": "undefined"}
    (one,) = written(tmp_path, [kernel(**told)], [group("0"), group("1", ranks=[4, 6])]).fact(locals_of)
    assert (one.ranks, one.size, one.description) == ((4, 6), 2, "mesh_dp")


def test_a_group_of_another_name_says_nothing(tmp_path: Path) -> None:
    (one,) = written(tmp_path, [kernel(**CUT_SHORT)], [group("2")]).fact(locals_of)
    assert (one.ranks, one.description) == (None, None)


def test_a_kernel_without_a_name_is_left_as_it_is(tmp_path: Path) -> None:
    """It may be of a library with communicators of its own."""
    bare = kernel()
    bare["args"] = {"device": 0, "stream": 20}
    (one,) = written(tmp_path, [bare], [group()]).fact(locals_of)
    assert (one.group, one.ranks) == (None, None)


def test_gloo_spans_are_of_the_one_group_that_runs_gloo(tmp_path: Path) -> None:
    only = [group("0", ranks=[0, 6], backends="cpu:gloo,cuda:gloo", description="default_pg"), group("1")]
    (one,) = written(tmp_path, [gloo()], only).fact(locals_of)
    assert (one.group, one.ranks, one.size, one.description) == ("0", (0, 6), 2, "default_pg")
    two = [*only, group("2", ranks=[6, 7], backends="cpu:gloo")]
    (one,) = written(tmp_path, [gloo()], two).fact(locals_of)
    assert (one.group, one.ranks) == (None, None)


@pytest.mark.parametrize(
    "config",
    [
        None, 7, "[]", {"pg_name": "1"}, [], [3], [None], [{"pg_name": "1", "ranks": "[0, 1]"}],
        [{"pg_name": "1", "ranks": [0, -1]}], [group(size=3)], [{"ranks": LARGE}], [group(), group(ranks=[1, 2])],
        [group(ranks=["a"], size=1)],
    ],
)  # fmt: skip
def test_what_is_odd_in_it_costs_neither_the_rank_nor_the_file(tmp_path: Path, config: Any) -> None:
    trace = written(tmp_path, [kernel(**CUT_SHORT), gloo()], config)
    assert (trace.source.rank, trace.source.world_size) == (6, 128)
    assert {one.ranks for one in trace.fact(locals_of)} == {None}


@pytest.mark.corpus
def test_real_heads(corpus: Path) -> None:
    """Events of these name the same members as the head; ROCm's unnamed kernels stay unnamed."""
    held = load_one(corpus / "kineto" / "HolisticTraceAnalysis__nccl_data.json.gz").fact(locals_of)
    assert {(one.ranks, one.description) for one in held} == {((0, 1), "default_pg")}
    rocm = load_one(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz").fact(locals_of)
    assert sorted({one.ranks is None for one in rocm}) == [False, True]
