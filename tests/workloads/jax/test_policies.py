"""``--policy``: what ``jax.checkpoint`` keeps of a block, and that a report of two programs names the dominated one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.workloads.jax.options import POLICIES, Options, parse
from tests.workloads.jax.twins import options, workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax


@cache
def compiled(policy: str) -> Any:
    """A step of training as ``--variant naive --policy POLICY`` compiles it for the CPU."""
    from perfscope.workloads.jax.training import LanguageModel, start, step_of

    module = workload("attention")
    size = module.SIZES["cpu"]
    model = LanguageModel(module.Block, Options(variant="naive", size=size, policy=policy))
    batch = np.zeros((size.batch, size.seq + 1), np.int32)
    return jax.jit(step_of(model), static_argnums=2, donate_argnums=0).lower(start(model), batch).compile()


def products_again(policy: str) -> set[str]:
    """Products with weights that run again, by the end of their path."""
    paths = re.findall(r'= \S+ dot\([^\n]*op_name="([^"]*rematted_computation[^"]*)"', compiled(policy).as_text())
    return {path.rpartition("rematted_computation/")[2] for path in paths if "batch_dims" not in path}


def test_what_runs_again() -> None:
    assert products_again("none") == set()
    full, names = products_again("full"), products_again("names")
    assert {"bld,dchk->cbhlk/dot_general", "bhlk,hkd->bld/dot_general", "dot_general"} <= full
    assert "dot_general" in names  # the hidden layer: what is kept lies behind its gelu
    assert not names & {"bld,dchk->cbhlk/dot_general", "bhlk,hkd->bld/dot_general"}
    assert "bld,dchk->cbhlk/dot_general" not in products_again("dots")


def test_two_programs_side_by_side_show_the_dominated_policy(tmp_path: Path) -> None:
    for policy in POLICIES:
        (tmp_path / f"{policy}.hlo.txt").write_text(compiled(policy).as_text())
    (outcome,) = analyze(load_all(tmp_path), rules=["excess_remat"]).outcomes
    (finding,) = (one for one in outcome.findings if "dominated" in one.subject)
    better = {row["program"]: row["beaten_by"] for row in finding.evidence}
    assert better["names"] == "dots"
    assert (better["none"], better["dots"]) == (None, None)


def test_no_policy_changes_a_loss() -> None:
    from perfscope.workloads.jax.training import train

    block = workload("attention").Block
    losses = {name: train(block, options("attention", "naive", steps=2, policy=name)) for name in POLICIES}
    for policy in POLICIES:
        assert losses[policy] == pytest.approx(losses["none"], rel=1e-6)


def test_the_flag() -> None:
    module = workload("attention")
    asked = {argument: parse("", module.VARIANTS, module.SIZES, argument.split()).policy for argument in (
        "--size tiny", "--defect checkpoint", "--policy names", "--policy dots --defect checkpoint")}  # fmt: skip
    assert list(asked.values()) == ["none", "full", "names", "dots"]
