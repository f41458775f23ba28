"""Records of `perfscope run --numerics` for planted defects in JAX programs, and the resulting findings."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.model.trace import Source, Trace
from perfscope.plugins.numerics.document import Numerics, dump_numerics
from tests import warm
from tests.rules import judged_by

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

RULES = ("nonfinite", "low_precision_accumulation", "unstable_scale")


@pytest.fixture
def recorded() -> Any:
    """Records what a call does: ``recorded(call)`` calls it with the counter of its steps."""
    from perfscope.plugins.numerics.jax.recorder import Recorder

    def run(program: Callable[[list[int]], Any], *, every_step: bool = False) -> Numerics:
        import msgspec

        step = [0]
        recorder = Recorder(lambda: step[0], every_step=every_step)
        recorder.start()
        try:
            program(step)
        finally:
            recorder.stop()
        document = recorder.document(lambda moment: moment[0], step[0])
        return msgspec.json.decode(gzip.decompress(dump_numerics(document)), type=Numerics)

    return run


def judged(rule: str, numerics: Numerics) -> Any:
    source = Source(path="run", format="run", rank=None, events_read=0, events_unplaced=0)
    trace = Trace(
        source=source, strings=(), rows={}, recorded=frozenset({"numerics"}), documents={"numerics": numerics}
    )
    return judged_by(rule)(trace)


def normal(*shape: int, seed: int = 0, dtype: str = "float32", scale: float = 1.0) -> Any:
    return (scale * jax.random.normal(jax.random.key(seed), shape)).astype(dtype)


def tensor(numerics: Numerics, kind: str, name: str) -> Any:
    (found,) = [item for item in numerics.tensors if (item.kind, item.name) == (kind, name)]
    return found


@pytest.mark.parametrize("donate", [pytest.param(False, marks=pytest.mark.slow), True])
def test_overflow_is_named_at_its_op_line_and_step(recorded: Any, donate: bool) -> None:
    """In step 4, which is not watched by itself: the call is walked again with its arguments."""
    from tests.plugins.numerics.planted_jax import line_of, squared, train

    given = [normal(4, 8, seed=number, dtype="float16", scale=1.0 if number < 4 else 500.0) for number in range(7)]
    weights = [normal(8, 8, seed=9, dtype="float16", scale=0.5)]
    numerics = recorded(lambda step: train(squared, weights, given, step, rate=0.0, donate=donate))
    assert 4 in numerics.watched
    (finding,) = judged("nonfinite", numerics).findings
    assert (finding.where.op, f"{finding.where.file}:{finding.where.line}") == ("mul", line_of("overflow"))
    assert "from step 4 on" in finding.title
    assert "float16" in finding.advice


@pytest.mark.slow
def test_the_round_of_a_scan_that_made_it(recorded: Any) -> None:
    from tests.plugins.numerics.planted_jax import divided, line_of, train

    weights = normal(4, 8, 8).at[2, 0, 0].set(60.0)
    numerics = recorded(lambda step: train(divided, weights, [normal(4, 8)] * 2, step, scanned=True))
    (finding,) = judged("nonfinite", numerics).findings
    assert (finding.where.op, f"{finding.where.file}:{finding.where.line}") == ("div", line_of("division"))
    assert "from step 0 on" in finding.title


@pytest.mark.slow
@pytest.mark.parametrize("scanned", [False, True])
def test_a_mask_is_no_defect(recorded: Any, scanned: bool) -> None:
    from tests.plugins.numerics.planted_jax import masked, train

    numerics = recorded(lambda step: train(masked, normal(2, 8, 8), [normal(4, 8)] * 3, step, scanned=scanned))
    outcome = judged("nonfinite", numerics)
    assert (outcome.status, outcome.findings) == ("clean", ())
    assert not numerics.nonfinite


def test_what_is_recorded_of_a_training(recorded: Any) -> None:
    from tests.plugins.numerics.planted_jax import masked, train

    weights = {"first": normal(8, 8), "second": normal(8, 8, seed=1)}

    def program(step: list[int]) -> None:
        def layers(x: Any, weights: Any) -> Any:
            return masked(masked(x, weights["first"]), weights["second"])

        train(layers, [weights], [normal(4, 8, seed=number) for number in range(13)], step)

    numerics = recorded(program)
    names = {(item.kind, item.name): item for item in numerics.tensors}
    for name in ("weights/0/first", "weights/0/second"):
        assert names["parameter", name].steps == 13
        assert names["parameter gradient", name].steps == len(numerics.watched)
        assert names["output", name].line.startswith("tests/plugins/numerics/planted_jax.py:")
    assert ("gradient", "input of weights/0/second") in names
    assert names["loss", "loss"].steps == names["input", "batch"].steps == 13
    assert numerics.watched == (0, 1, 10)
    assert [step.loss is not None for step in numerics.steps] == [True] * 13
    assert [step.step for step in numerics.steps if step.gradient_norm is not None] == [0, 1, 10]


def test_gradients_that_a_function_gives(recorded: Any) -> None:
    import jax.numpy as jnp

    def program(step: list[int]) -> None:
        gradients_of = jax.jit(jax.grad(lambda weights, batch: jnp.mean((batch @ weights["w"]) ** 2)))
        gradients_of({"w": normal(8, 8)}, normal(4, 8))
        step[0] += 1

    numerics = recorded(program)
    assert tensor(numerics, "parameter gradient", "weights/w").elements == 64
    assert not [item for item in numerics.tensors if item.kind == "parameter"]


@pytest.mark.slow
def test_the_state_of_an_optimizer_is_no_parameter(recorded: Any) -> None:
    import jax.numpy as jnp

    @partial(lambda function: function)
    def update(state: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state["weights"])
        momentum = 0.9 * state["momentum"] + gradient
        return {"momentum": momentum, "weights": state["weights"] - 0.1 * momentum}

    def program(step: list[int]) -> None:
        train_step = jax.jit(update)
        state = {"momentum": jnp.zeros((8, 8)), "weights": normal(8, 8)}
        for _ in range(3):
            state = train_step(state, normal(4, 8))
            step[0] += 1

    numerics = recorded(program)
    assert [item.name for item in numerics.tensors if item.kind == "parameter"] == ["state/weights"]
    assert [item.name for item in numerics.tensors if item.kind == "parameter gradient"] == ["state/weights"]


@pytest.mark.slow
@pytest.mark.parametrize("planted", [True, False])
def test_a_variance_of_two_means_cancels(recorded: Any, planted: bool) -> None:
    from tests.plugins.numerics.planted_jax import line_of, train, varied

    layer = partial(varied, planted=planted)
    numerics = recorded(lambda step: train(layer, [normal(64, 64, scale=0.1)], [normal(4, 64)], step))
    findings = judged("low_precision_accumulation", numerics).findings
    lines = {f"{finding.where.file}:{finding.where.line}" for finding in findings if "difference" in finding.title}
    assert lines == ({line_of("cancellation")} if planted else set())


@pytest.mark.slow
def test_a_sum_in_16_bits_is_computed_again(recorded: Any) -> None:
    import jax.numpy as jnp

    def program(step: list[int]) -> None:
        for dtype in ("bfloat16", "float32"):
            jax.jit(lambda x: jax.lax.cumsum(x))(jnp.ones(4_000, dtype) * 1.01)
        step[0] += 1

    numerics = recorded(program)
    (loss,) = numerics.losses
    exact = np.cumsum(np.full(4_000, float(jnp.bfloat16(1.01))))
    given = np.asarray(jax.jit(jax.lax.cumsum)(jnp.ones(4_000, "bfloat16") * 1.01)).astype(np.float64)
    assert (loss.how, loss.op, loss.terms) == ("rounding", "cumsum", 4_000)
    assert loss.error == pytest.approx(np.linalg.norm(given - exact) / np.linalg.norm(exact), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "status"), [(1e-9, "found"), (10.0, "clean")])
def test_updates_that_change_nothing(recorded: Any, rate: float, status: str) -> None:
    from tests.plugins.numerics.planted_jax import masked, train

    weights = [normal(8, 8, dtype="bfloat16")]
    given = [normal(4, 8, dtype="bfloat16")] * 3
    numerics = recorded(lambda step: train(masked, weights, given, step, rate=rate))
    updates = [f for f in judged("low_precision_accumulation", numerics).findings if "updates" in f.title]
    assert len(updates) == (status == "found")


def test_counts_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    import jax.numpy as jnp

    from perfscope.plugins.numerics.jax.observer import statistics
    from perfscope.plugins.numerics.torch.statistics import counts, extremes

    values = np.exp(np.random.default_rng(0).uniform(-60, 60, 10_000)).astype(np.float32)
    values[:8] = [0.0, -0.0, 1.0, -7e4, 1e-5, 448.0, 464.0, 465.0]
    numbers = np.asarray(jax.jit(statistics)(jnp.asarray(values))).tolist()
    given = torch.from_numpy(values)
    assert numbers[2:] == counts(given).tolist()
    assert numbers[:2] == pytest.approx(extremes(given).tolist())
    assert np.isnan(np.asarray(statistics(jnp.asarray([1.0, np.nan])))[:2]).all()


def test_jax_is_left_as_it_was_and_results_are_bit_identical(recorded: Any) -> None:
    from tests.plugins.numerics.planted_jax import masked, train

    before = jax.jit
    weights, given = [normal(8, 8)], [normal(4, 8, seed=number) for number in range(4)]
    alone = train(masked, weights, given, [0])
    kept: list[Any] = []
    recorded(lambda step: kept.append(train(masked, weights, given, step)))
    assert jax.jit is before
    assert np.array_equal(alone[0], kept[0][0])


def test_static_arguments_methods_and_keywords(recorded: Any) -> None:
    import jax.numpy as jnp

    def program(step: list[int]) -> None:
        class Model:
            @partial(jax.jit, static_argnums=(0,), static_argnames=("times",))
            def apply(self, x: Any, *, times: int, scale: Any) -> Any:
                return jnp.exp(x * scale) * times

        Model().apply(normal(4), times=3, scale=jnp.float32(1000.0))
        step[0] += 1

    numerics = recorded(program)
    assert {item.name for item in numerics.tensors} == {"x", "scale", "result"}
    (event,) = numerics.nonfinite
    assert (event.op, event.name) == ("exp", "result")


def test_a_function_with_effects_is_looked_at_from_outside(recorded: Any) -> None:
    import jax.numpy as jnp

    printed: list[float] = []

    def program(step: list[int]) -> None:
        @jax.jit
        def logged(x: Any) -> Any:
            jax.debug.callback(lambda value: printed.append(float(value)), x.sum())
            return jnp.log(x - x)

        logged(normal(4)).block_until_ready()
        jax.effects_barrier()
        step[0] += 1

    numerics = recorded(program)
    assert len(printed) == 1
    assert "logged: its ops are not watched" in numerics.notes[0]
    (event,) = numerics.nonfinite
    assert (event.name, event.op, event.watched) == ("result", "", False)


@pytest.mark.slow
def test_flax_layers_have_their_names(recorded: Any) -> None:
    nn = pytest.importorskip("flax.linen")
    import jax.numpy as jnp

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(2)(nn.LayerNorm()(nn.relu(nn.Dense(8)(x))))

    model = Model()
    params = model.init(jax.random.key(0), normal(4, 8))

    def program(step: list[int]) -> None:
        gradients_of = jax.jit(jax.grad(lambda params, x: jnp.mean(model.apply(params, x) ** 2)))
        gradients_of(params, normal(4, 8))
        step[0] += 1

    names = {(item.kind, item.name) for item in recorded(program).tensors}
    assert {
        ("output", "Dense_0"),
        ("output", "LayerNorm_0"),
        ("gradient", "input of Dense_0"),
    } <= names  # Flax names the outer one first
    assert ("parameter gradient", "params/params/Dense_0/kernel") in names


@pytest.mark.slow
def test_a_loss_scale_that_never_settles(recorded: Any) -> None:
    scaling = pytest.importorskip("flax.training.dynamic_scale")
    import jax.numpy as jnp

    def program(step: list[int]) -> None:
        @jax.jit
        def train_step(scale: Any, w: Any) -> Any:
            gradient_of = scale.value_and_grad(lambda w: jnp.mean(jnp.sqrt(w * 0.0)))
            scale, _, loss, gradient = gradient_of(w)
            return scale, loss, gradient

        scale = scaling.DynamicScale()
        for _ in range(12):
            scale, _, _ = train_step(scale, normal(4))
            step[0] += 1

    numerics = recorded(program)
    assert numerics.steps[0].scale == 32768.0
    assert len(numerics.scale_halved) == 11
    assert judged("unstable_scale", numerics).findings


@pytest.mark.slow
def test_run_and_report(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import jax, jax.numpy as jnp\n"
        "@jax.jit\n"
        "def train_step(w, x, low):\n"
        "    loss, g = jax.value_and_grad(lambda w: jnp.log(jnp.maximum(jnp.mean((x @ w) ** 2) - low, 0)))(w)\n"
        "    return w - 0.01 * g, loss\n"
        "w = jnp.eye(8)\n"
        "for step in range(6):\n"
        "    w, loss = train_step(w, jnp.ones((4, 8)), 0.0 if step < 3 else 9e9)\n"
    )
    command = [sys.executable, "-m", "perfscope", "run", "--numerics", "-o", "runs", "train.py"]
    done = warm.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "is not finite from step 3 on" in done.stderr
    assert "train.py:4" in done.stderr
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    document = json.loads((folder / "report.json").read_text())
    assert document["numerics"][0]["steps"] == 6
    assert {row["name"] for row in document["numerics"][0]["rows"]} >= {"loss", "w", "x"}
    processes = json.loads((folder / "rank00000" / "process.json").read_text())
    assert [capture["tool"] for capture in processes["captures"]] == ["jax_numerics"]
