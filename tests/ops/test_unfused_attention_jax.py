"""unfused_attention on what jax makes of attention here: written out in many ways, blocked, and near misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.accuracy.labels import lines_of
from tests.hlo_build import hlo_trace
from tests.workloads.jax.numbers import workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

B, H, L, K = 2, 2, 256, 16


def array(*dims: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(dims, dtype)


QUERIES = (array(B, H, L, K),) * 3
BIAS = array(B, H, L, L)
TNH = array(B, L, 4, K)
GROUPED = array(B, L, 2, K)


def compiled(function: Callable[..., Any], *arguments: Any) -> Outcome:
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return judge(load_rule("unfused_attention"), hlo_trace(module_of(text.splitlines(), "here.hlo.txt")))


def gradient(function: Callable[..., Any], *numbers: int) -> Callable[..., Any]:
    return jax.grad(lambda *arguments: (function(*arguments) ** 2).sum(), argnums=numbers or (0, 1, 2))  # type: ignore[no-any-return]


def attend(q: Any, k: Any, v: Any, bias: Any = 0.0, *, change: Callable[[Any], Any] = lambda p: p) -> Any:
    scores = jax.numpy.einsum("bhlk,bhmk->bhlm", q, k) / 4 + bias
    return jax.numpy.einsum("bhlm,bhmk->bhlk", change(jax.nn.softmax(scores)), v)


def library(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
    return jax.nn.dot_product_attention(q, k, v, bias=bias, implementation="xla")


def naive(*qkv: Any) -> Any:
    return workload("attention").naive_attention(*qkv)


def blocked(*qkv: Any) -> Any:
    return workload("attention").blocked_attention(*qkv)


def unrolled(q: Any, k: Any, v: Any) -> Any:
    """Online softmax with the loop over blocks of keys written out."""
    jnp = jax.numpy
    top = jnp.full(q.shape[:3], -jnp.inf)
    total, o = jnp.zeros(q.shape[:3]), jnp.zeros(q.shape)
    for first in range(0, L, 64):
        s = q @ k[:, :, first : first + 64].mT
        new = jnp.maximum(top, s.max(-1))
        p, shrink = jnp.exp(s - new[..., None]), jnp.exp(top - new)
        total = total * shrink + p.sum(-1)
        o = o * shrink[..., None] + p @ v[:, :, first : first + 64]
        top = new
    return o / total[..., None]


def late(q: Any, k: Any, v: Any) -> Any:
    """Divided by the sum after the product."""
    s = q @ k.mT
    e = jax.numpy.exp(s - s.max(-1, keepdims=True))
    return e @ v / e.sum(-1, keepdims=True)


def by_log_sum(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.mT
    return jax.numpy.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)) @ v


def layers(attention: Callable[..., Any]) -> tuple[Callable[..., Any], Any, Any]:
    """Three layers in a loop, with the shapes of weights and input."""

    def step(w: Any, x: Any) -> Any:
        def layer(x: Any, layer_w: Any) -> tuple[Any, None]:
            o = attention(*jax.numpy.einsum("bld,dchk->cbhlk", x, layer_w))
            return x + o.transpose(0, 2, 1, 3).reshape(x.shape), None

        return jax.lax.scan(layer, x, w)[0]

    return step, array(3, H * K, 3, H, K), array(B, L, H * K)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(naive, QUERIES, id="forward"),
        pytest.param(gradient(naive), QUERIES, id="gradients"),
        pytest.param(naive, (array(B, H, L, K, dtype="bfloat16"),) * 3, id="bfloat16"),
        pytest.param(jax.vmap(naive), (array(2, B, H, L, K),) * 3, id="vmap"),
        pytest.param(late, QUERIES, id="normalised late"),
        pytest.param(gradient(late), QUERIES, id="gradients normalised late"),
        pytest.param(by_log_sum, QUERIES, id="log of the sum"),
        pytest.param(attend, (*QUERIES, BIAS), id="bias"),
        pytest.param(gradient(attend, 0, 3), (*QUERIES, BIAS), id="gradient of a bias"),
        pytest.param(lambda q, k, v, m: attend(q, k, v, change=lambda p: p * m), (*QUERIES, BIAS), id="dropout"),
        pytest.param(attend, (array(B, H, 128, K), *(array(B, H, 512, K),) * 2), id="cross attention"),
        pytest.param(library, (TNH, TNH, TNH), id="dot_product_attention"),
        pytest.param(library, (TNH, GROUPED, GROUPED), id="grouped queries"),
        pytest.param(library, (TNH, GROUPED, GROUPED, array(B, 4, L, L)), id="grouped queries and bias"),
        pytest.param(gradient(library), (TNH, GROUPED, GROUPED), id="gradients of grouped queries"),
    ],
)
def test_attention_written_out_is_flagged(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    outcome = compiled(function, *arguments)
    assert outcome.status == "flagged"
    (finding,) = outcome.findings
    assert (finding.where.file or "").endswith(".py")
    assert finding.evidence[0]["times"] == 1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(blocked, QUERIES, id="blocked"),
        pytest.param(gradient(blocked), QUERIES, id="gradients of blocked"),
        pytest.param(unrolled, QUERIES, id="unrolled"),
        pytest.param(gradient(unrolled), QUERIES, id="gradients of unrolled"),
        pytest.param(lambda q, k, v: q @ k.mT @ v, QUERIES, id="no softmax"),
        pytest.param(attend, (array(B, H, 1, K), *(array(B, H, 512, K),) * 2), id="one query at a time"),
        pytest.param(naive, (array(8, 4, 32, 32),) * 3, id="a short sequence"),
        pytest.param(lambda x, a, b: jax.nn.softmax(x @ a) @ b, (array(512, 16), array(16, 256), array(256, 16)),
                     id="a gate"),
        pytest.param(
            gradient(lambda w, x, y: jax.numpy.take_along_axis(jax.nn.log_softmax(x @ w), y[:, None], 1), 0, 1),
            (array(16, 256), array(512, 16), array(512, dtype="int32")), id="a loss over a vocabulary"),
        pytest.param(gradient(lambda a, b: jax.numpy.diagonal(jax.nn.log_softmax(a @ b.mT)), 0, 1),
                     (array(256, 16), array(256, 16)), id="a contrastive loss"),
    ],
)  # fmt: skip
def test_what_is_none_is_clean(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    assert compiled(function, *arguments).status == "clean"


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_a_loop_over_layers_hides_nothing_and_makes_nothing_blocked(backward: bool) -> None:
    for attention, found in ((naive, "flagged"), (jax.checkpoint(naive), "flagged"), (blocked, "clean")):
        step, *shapes = layers(attention)
        outcome = compiled(gradient(step, 0) if backward else step, *shapes)
        assert outcome.status == found
        for finding in outcome.findings:
            assert "written out 3 times per run" in finding.title
            assert ("jax/attention.py", finding.where.line) in lines_of("unfused_attention", "scores")


@pytest.mark.slow
def test_the_backward_in_its_own_loop_belongs_to_the_same_finding() -> None:
    def moved(attention: Callable[..., Any], *, backward: bool) -> tuple[set[str], int]:
        step, *shapes = layers(attention)
        (finding,) = compiled(gradient(step, 0) if backward else step, *shapes).findings
        rows = finding.evidence
        return {str(row["phase"]) for row in rows}, sum(int(row["between_kernels_bytes"] or 0) for row in rows)

    forward = moved(naive, backward=False)
    saved, again = moved(naive, backward=True), moved(jax.checkpoint(naive), backward=True)
    assert forward[0] == saved[0] == {"forward"}
    assert again[0] == {"forward", "recompute"}
    # Saved probabilities are written and read in the backward; gradients of both go through memory in either.
    assert saved[1] > 2 * forward[1]
    assert again[1] > 2 * forward[1]


@pytest.mark.slow
def test_the_workload_and_its_twins() -> None:
    """One step of training at the size for the CPU, as `perfscope run` sees it."""
    from perfscope.workloads.jax.training import LanguageModel, start, step_of
    from perfscope.workloads.options import Options

    attention = workload("attention")
    size = attention.SIZES["cpu"]
    tokens = array(size.batch, size.seq + 1, dtype="int32")
    found = {}
    for variant in attention.VARIANTS:
        model = LanguageModel(attention.Block, Options(variant=variant, size=size, dtype="float32"))
        found[variant] = compiled(step_of(model), jax.eval_shape(lambda model=model: start(model)), tokens)
    assert {name: outcome.status for name, outcome in found.items()} == {
        "naive": "flagged", "blocked": "clean", "pallas": "clean", "library": "flagged", "window-naive": "flagged",
        "window": "clean", "shared-naive": "flagged", "shared": "clean",
    }  # fmt: skip
    (finding,) = found["naive"].findings
    assert (finding.where.file or "").endswith("attention.py")
    assert ("jax/attention.py", finding.where.line) in lines_of("unfused_attention", "scores")
