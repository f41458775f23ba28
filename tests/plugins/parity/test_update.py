"""One step of the optimizers of two models: settings are identified, and the cause of a difference is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfscope
from perfscope.__main__ import main
from perfscope.model.errors import DataError
from perfscope.plugins.parity.update.rules import PROBES, Rule, identify, settings, simulated
from tests.plugins.parity.optimizers import Adam, torch_adamw

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.jax]
HERE = Path(__file__).parent


def responses(make: Any) -> dict[str, list[float]]:
    found = {}
    for name, probe in PROBES.items():
        weight = torch.nn.Parameter(torch.full((1,), probe.start, dtype=torch.float64))
        optimizer = make([weight])
        found[name] = []
        for gradient in probe.gradients:
            weight.grad = torch.full((1,), gradient, dtype=torch.float64)
            optimizer.step()
            found[name].append(weight.detach().item())
    return found


O = torch.optim  # noqa: E741


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda p: O.SGD(p, lr=0.1), Rule(kind="sgd", learning_rate=0.1)),
        (lambda p: O.SGD(p, lr=0.1, momentum=0.9), Rule(kind="sgd", learning_rate=0.1, momentum=0.9)),
        (lambda p: O.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
         Rule(kind="sgd", learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        (lambda p: O.Adam(p, betas=(0.5, 0.9), eps=1e-3),
         Rule(kind="adam", learning_rate=1e-3, beta1=0.5, beta2=0.9, epsilon=1e-3)),
        (lambda p: O.Adam(p, weight_decay=0.01),
         Rule(kind="adam", learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01)),
        (lambda p: O.AdamW(p, eps=1e-12), Rule(kind="adam", learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-12,
                                               weight_decay=0.01, decoupled=True)),
        (lambda p: O.Adam(p, amsgrad=True), Rule(kind="unknown")),
        (lambda p: O.Adagrad(p), Rule(kind="unknown")),
    ],
)  # fmt: skip
def test_settings_of_an_optimizer_follow_from_its_responses(make: Any, rule: Rule) -> None:
    assert [each for each in settings(identify(responses(make)), rule) if not each.same] == []


@pytest.mark.parametrize("place", ["after the root", "inside the root", "before the bias correction"])
@pytest.mark.parametrize("corrected", [True, False])
def test_a_rule_is_identified_from_its_own_formulas(place: Any, corrected: bool) -> None:
    if place == "before the bias correction" and not corrected:
        place = "after the root"  # which it then is
    rule = Rule(kind="adam", learning_rate=0.02, beta1=0.8, beta2=0.95, epsilon=1e-5, epsilon_place=place,
                bias_correction=corrected, weight_decay=0.1, decoupled=True)  # fmt: skip
    found = identify({name: simulated(rule, probe) for name, probe in PROBES.items()})
    assert [each for each in settings(found, rule) if not each.same] == []
    still = {name: [probe.start] * len(probe.gradients) for name, probe in PROBES.items()}
    assert identify(still).kind == "frozen"


class Tied(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        return self.head(torch.tanh(self.embedding(ids)))


def in_jax(weights: Any, ids: Any) -> Any:
    import jax.numpy as jnp

    head = weights["head"].T if "head" in weights else weights["embedding"]
    return jnp.tanh(weights["embedding"][ids]) @ head.T + weights["bias"]


IDS = np.random.default_rng(0).integers(0, 7, (2, 5))
WEIGHTS = {"embedding": np.ones((7, 4), np.float32), "bias": np.ones(7, np.float32)}
MAPS = {"embedding.weight": "embedding", "head.bias": "bias"}


def step(module: Any, weights: Any, optimizer: Adam, maps: dict[str, str] = MAPS) -> Any:
    return perfscope.assert_parity(module, (in_jax, weights), inputs=IDS.astype(np.int32), maps=maps,
                                   optimizers=(torch_adamw, lambda: optimizer))  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (Adam(epsilon=1e-6), r"epsilon: 1e-08 in A, 1e-06 in B"),
        pytest.param(
            Adam("inside"), r"place of epsilon: after the root in A, inside the root in B", marks=pytest.mark.slow
        ),
        (Adam("coupled"), r"weight decay: 0.01, decoupled in A, 0.01, added to the gradient in B"),
        pytest.param(Adam("correction"), r"bias correction: yes in A, no in B", marks=pytest.mark.slow),
        pytest.param(
            Adam("twice"),
            r"embedding.weight: its update: learning rate: 0.001 in A, 0.002 in B",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_planted_difference_is_named(wrong: Adam, cause: str) -> None:
    with pytest.raises(AssertionError, match=cause):
        step(Tied(), WEIGHTS, wrong)


def test_the_same_step_is_the_same_and_its_settings_are_told() -> None:
    document = step(Tied(), WEIGHTS, Adam())
    assert [row.name for row in document.rows if row.kind == "update"] == ["embedding.weight", "head.bias"]
    (group,) = document.optimizers
    assert {each.name: each.b for each in group.settings}["epsilon"] == "1e-08"


@pytest.mark.slow
def test_a_frozen_weight_and_one_that_is_tied_on_one_side_are_named() -> None:
    frozen = Tied()
    frozen.head.bias.requires_grad_(requires_grad=False)
    with pytest.raises(AssertionError, match=r"head.bias: its update: rule: not updated in A, Adam in B"):
        step(frozen, WEIGHTS, Adam())
    two = {**WEIGHTS, "head": np.ones((4, 7), np.float32)}
    with pytest.raises(AssertionError, match=r"embedding.weight: its update: one weight in A, and several in B"):
        step(Tied(), two, Adam(), {**MAPS, "head.weight": "head"})


def test_what_is_no_optimizer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(DataError, match="pip install optax"):
        perfscope.assert_parity(Tied(), (in_jax, WEIGHTS), inputs=IDS.astype(np.int32), maps=MAPS,
                                optimizers=("adam", "adam"))  # fmt: skip
    with pytest.raises(DataError, match="is not an optimizer with init and update"):
        perfscope.assert_parity(Tied(), (in_jax, WEIGHTS), inputs=IDS.astype(np.int32), maps=MAPS,
                                optimizers=("sgd", lambda: 0.1))  # fmt: skip


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, optimizers = HERE / "models.py", HERE / "optimizers.py"

    def run(*arguments: str) -> int:
        sides = [f"{models}:in_torch", f"{models}:in_jax"]
        with pytest.raises(SystemExit) as ended:
            main(["parity", *sides, *arguments, "-q", "-o", str(tmp_path), "--json", str(tmp_path / "p.json")])
        return int(ended.value.code or 0)

    assert run("--optimizer", f"{optimizers}:torch_adamw", "--optimizer", f"{optimizers}:jax_adamw") == 0
    assert json.loads((tmp_path / "p.json").read_text())["verdict"] == "same"
    assert run("--optimizer", f"{optimizers}:torch_adamw", "--optimizer", f"{optimizers}:jax_coupled") == 0
    first = json.loads((tmp_path / "p.json").read_text())["first"]["row"]
    assert (first["name"], first["kind"]) == ("fc1.weight", "update")
    assert "added to the gradient" in capsys.readouterr().out
    assert run("--optimizer", "adamax") == 2
    assert run("--optimizer", f"{optimizers}:nothing") == 4
