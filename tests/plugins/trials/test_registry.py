"""The list of interventions, ours and those of installed packages."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from perfscope.analyzers.registry import rule_ids
from perfscope.model.errors import UsageError
from perfscope.plugins.trials import interventions
from perfscope.plugins.trials.interventions import INTERVENTIONS, intervention_names, load_intervention
from perfscope.plugins.trials.interventions.base import Facts, Intervention
from perfscope.plugins.trials.judge import GARBAGE_COLLECTION

SHARED = {"__init__", "base", "root_modules"}
CPU = Facts(packages={"torch": "2.13.0", "jax": "0.10.2"}, cuda=False, ranks=1, cores=2, variables={})
GPUS = Facts(packages={"torch": "2.13.0", "jax": "0.10.2"}, cuda=True, ranks=2, cores=8, variables={})


def test_the_list_is_sorted_and_names_are_those_of_the_interventions() -> None:
    assert list(INTERVENTIONS) == sorted(INTERVENTIONS)
    assert {name: load_intervention(name).name for name in INTERVENTIONS} == {name: name for name in INTERVENTIONS}


def test_every_intervention_of_every_module_is_listed() -> None:
    folder = Path(interventions.__file__).parent
    made = set()
    for file in folder.glob("*.py"):
        if file.stem not in SHARED:
            module = importlib.import_module(f"{interventions.__name__}.{file.stem}")
            made |= {
                f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, Intervention)
            }
    assert made == set(INTERVENTIONS.values())


@pytest.mark.parametrize("name", sorted(INTERVENTIONS))
def test_each_says_what_it_answers_changes_and_how_it_is_written(name: str) -> None:
    intervention = load_intervention(name)
    assert set(intervention.answers) <= set(rule_ids())
    assert intervention.title
    assert intervention.may_change.endswith(".")
    assert 1 <= len(intervention.code.splitlines()) <= 3
    assert intervention.apply is not None
    assert intervention.applies(GPUS) is None
    assert all(isinstance(text, str) for text in intervention.environment(GPUS).values())


def test_signs_are_those_that_the_launches_show() -> None:
    signs = {sign for name in INTERVENTIONS for sign in load_intervention(name).signs}
    assert signs == {GARBAGE_COLLECTION}


def test_what_needs_a_gpu_or_ranks_says_so() -> None:
    unfit = {name: reason for name in INTERVENTIONS if (reason := load_intervention(name).applies(CPU))}
    assert unfit["pin-memory"] == "the program uses no GPU"
    assert unfit["ddp-static-graph"] == "the program has one rank"
    assert not {"fused-optimizer", "loader-workers", "gc-freeze", "jax-debug-off"} & set(unfit)


def test_flags_of_the_user_are_kept() -> None:
    facts = Facts(packages={}, cuda=True, variables={"XLA_FLAGS": "--xla_dump_to=x"})
    assert load_intervention("jax-triton-gemm").environment(facts)["XLA_FLAGS"] == (
        "--xla_dump_to=x --xla_gpu_triton_gemm_any=true"
    )


def test_underscores_and_typos() -> None:
    assert load_intervention("fused_optimizer").name == "fused-optimizer"
    with pytest.raises(UsageError, match=r"fused-optimiser: no such intervention.*fused-optimizer"):
        load_intervention("fused-optimiser")


def test_a_package_of_its_own_adds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package.py").write_text(
        "from perfscope.plugins.trials import Intervention\n"
        "NICE = Intervention(name='nice', title='be nice', family='nice', framework='any', answers=(),\n"
        "                    may_change='Nothing.', code='os.nice(-1)')\n"
        "WRONG = 1\n"
        "from perfscope.model.plugins import Plugin\n"
        "PLUGIN = Plugin(name='theirs', interventions={'nice': 'their_package:NICE', 'wrong': 'their_package:WRONG'})\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perfscope.plugins]\ntheirs = their_package:PLUGIN\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert "nice" in intervention_names()
    assert load_intervention("nice").title == "be nice"
    with pytest.raises(UsageError, match="is not an Intervention"):
        load_intervention("wrong")
