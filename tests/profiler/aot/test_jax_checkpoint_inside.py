"""``--checkpoint`` where layers, or what is in them, are in functions with rules, branches and maps."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from perfscope.model.documents.compile_request import parse_checkpoint
from perfscope.model.errors import DataError
from perfscope.profiler.ahead.jax.checkpoint.rewrite import Checkpoints, checkpointed
from tests.profiler.aot.policies import MARKS, step_of, under

pytestmark = MARKS
LAYERS = 3
Model = Callable[[str], Callable[..., Any]]


def attend(q: jax.Array, k: jax.Array) -> jax.Array:
    """Over blocks of keys, as attention that keeps no scores is written."""

    def turn(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
        return total + jnp.tanh(q @ part.T) @ part, None

    return jax.lax.scan(turn, jnp.zeros_like(q), k.reshape(4, -1, k.shape[-1]))[0]


def _flash(q: jax.Array, k: jax.Array) -> jax.Array:
    return attend(q, k)


def _forward(q: jax.Array, k: jax.Array) -> Any:
    return checkpoint_name(attend(q, k), "hidden"), (q, k)


def _backward(kept: Any, slope: jax.Array) -> Any:
    return jax.vjp(attend, *kept)[1](slope)


flash: Any = jax.custom_vjp(_flash)
flash.defvjp(_forward, _backward)
squash: Any = jax.custom_jvp(lambda x: jnp.where(x > 0, x, 0.1 * x))
squash.defjvp(lambda given, slopes: (squash(*given), jnp.where(given[0] > 0, 1.0, 0.1) * slopes[0]))


def block(weights: Any, x: jax.Array) -> jax.Array:
    return x + squash(flash(x @ weights["up"], x @ weights["up"])) @ weights["down"]


def plain(weights: Any, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(jnp.tanh(x @ weights["up"]) @ weights["down"])


def each(weights: Any) -> list[Any]:
    return [jax.tree.map(lambda leaf: leaf[at], weights) for at in range(LAYERS)]  # noqa: B023


def scanned(policy: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    body = under(policy, lambda x, weights: (layer(weights, x), None))
    return lambda weights, x: jax.lax.scan(body, x, weights)[0]


def rules_in_a_scan(policy: str) -> Callable[..., Any]:
    return lambda weights, x: (scanned(policy, block)(weights, x) ** 2).mean()


def rules_in_a_list(policy: str) -> Callable[..., Any]:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in each(weights):
            x = under(policy, block)(part, x)
        return (x**2).mean()

    return loss


def a_function_with_a_rule_is_the_layer(policy: str) -> Callable[..., Any]:
    layer = jax.custom_vjp(lambda weights, x: plain(weights, x))
    layer.defvjp(
        lambda weights, x: (plain(weights, x), (jnp.tanh(x @ weights["up"]), weights, x)),
        lambda kept, slope: jax.vjp(plain, *kept[1:])[1](slope + kept[0].mean()),
    )

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in each(weights):
            x = under(policy, layer)(part, x)
        return (x**2).mean()

    return loss


def dropped(policy: str, x: jax.Array, part: Any) -> jax.Array:
    return jax.lax.cond(x.sum() > 0, under(policy, plain), lambda _, x: x, part, x)


def layers_dropped_in_a_scan(policy: str) -> Callable[..., Any]:
    """The whole turn has the policy."""
    body = under(policy, lambda x, part: (dropped("none", x, part), None))
    return lambda weights, x: (jax.lax.scan(body, x, weights)[0] ** 2).mean()


def layers_dropped_with_checkpoints_in_branches(policy: str) -> Callable[..., Any]:
    return lambda weights, x: (
        jax.lax.scan(lambda x, part: (dropped(policy, x, part), None), x, weights)[0] ** 2
    ).mean()


def layers_dropped_in_a_list(policy: str) -> Callable[..., Any]:
    """What is called alike is the branch's function; the policy is around the choice of it."""
    whole = under(policy, lambda x, part: jax.lax.cond(x.sum() > 0, plain, lambda _, x: x, part, x))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in each(weights):
            x = whole(x, part)
        return (x**2).mean()

    return loss


def a_scan_in_a_branch(policy: str) -> Callable[..., Any]:
    """Only one of two branches runs, so neither is a loop that runs several times alike."""
    model = scanned(policy, plain)
    return lambda weights, x: (jax.lax.cond(x[0, 0] > 0, model, lambda w, x: 2 * model(w, x), weights, x) ** 2).mean()


def a_list_in_a_branch(policy: str) -> Callable[..., Any]:
    def model(weights: Any, x: jax.Array) -> jax.Array:
        for part in each(weights):
            x = under(policy, plain)(part, x)
        return x

    return lambda weights, x: (jax.lax.switch(x.size, [lambda _, x: x, lambda _, x: -x, model], weights, x) ** 2).mean()


def jitted_within_jitted(policy: str) -> Callable[..., Any]:
    inner = jax.jit(lambda weights, x: scanned(policy, plain)(weights, x))
    return lambda weights, x: (jax.jit(lambda w, x: inner(w, x))(weights, x) ** 2).mean()


def mapped_layers(policy: str) -> Callable[..., Any]:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in each(weights):
            x = jax.vmap(under(policy, plain), in_axes=(None, 0))(part, x)
        return (x**2).mean()

    return loss


def a_mapped_model(policy: str) -> Callable[..., Any]:
    return lambda weights, x: (jax.vmap(scanned(policy, plain), in_axes=(None, 0))(weights, x) ** 2).mean()


def in_a_shard_map(policy: str) -> Callable[..., Any]:
    spec, mesh = jax.sharding.PartitionSpec, jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    model = jax.shard_map(
        scanned(policy, plain), mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec("data"), check_vma=False
    )
    return lambda weights, x: (model(weights, x) ** 2).mean()


def a_gradient_within(policy: str) -> Callable[..., Any]:
    """A penalty on the gradient: the layers are differentiated within what is differentiated."""

    def energy(weights: Any, x: jax.Array) -> jax.Array:
        return scanned(policy, plain)(weights, x).sum()

    return lambda weights, x: (jax.grad(energy, 1)(weights, x) ** 2).sum()


def compiled(fun: Callable[..., Any], asked: str | None) -> tuple[str, Checkpoints | None]:
    """As `step_of` has it."""
    one = {"up": jnp.ones((16, 16)), "down": jnp.ones((16, 16))}
    weights = jax.tree.map(lambda leaf: jnp.stack([leaf] * LAYERS), one)
    text, book = step_of(fun, asked, weights, jnp.ones((8, 16)))
    return numbered(text), book


def numbered(text: str) -> str:
    """Names by their first use: how many were made before them says nothing of the program."""
    names: dict[str, str] = {}
    return re.sub(r"\b[a-z_][\w\-]*(?:\.\d+)+", lambda one: names.setdefault(one[0], f"name{len(names)}"), text)


@functools.cache
def own(model: Model, policy: str) -> str:
    return compiled(model(policy), None)[0]


@pytest.mark.parametrize(
    "model",
    [
        rules_in_a_scan,
        a_function_with_a_rule_is_the_layer,
        layers_dropped_in_a_scan,
        layers_dropped_in_a_list,
        a_scan_in_a_branch,
        a_list_in_a_branch,
        jitted_within_jitted,
        mapped_layers,
        a_mapped_model,
        in_a_shard_map,
    ],
)
def test_the_program_is_the_one_with_the_policy(model: Model) -> None:
    assert own(model, "none") != own(model, "full")
    for source, policy in (("none", "full"), ("full", "dots" if model is rules_in_a_scan else "none")):
        text, book = compiled(model(source), policy)
        assert book is not None
        assert book.changed, book.told
        assert text == own(model, policy), (source, policy)


@pytest.mark.slow
def test_rules_in_layers_of_a_list() -> None:
    """The same operations on the same shapes; XLA for a CPU has some of them in another order."""
    for source, policy in (("none", "full"), ("full", "none")):
        text, book = compiled(rules_in_a_list(source), policy)
        assert book is not None
        changed = [(one.kind, one.how, one.count) for one in book.changed]
        assert changed == ([("calls", "wrapped", LAYERS)] if source == "none" else [("checkpoint", "removed", 1)])
        assert operations(text) == operations(own(rules_in_a_list, policy))


def operations(text: str) -> Counter[tuple[str, ...]]:
    return Counter(re.findall(r" = (\S+) ([\w\-]+)\(", text))


def test_checkpoints_in_branches_are_those_of_the_layers() -> None:
    model = layers_dropped_with_checkpoints_in_branches
    for policy in ("none", "dots"):
        text, book = compiled(model("full"), policy)
        assert book is not None
        assert [(one.kind, one.how) for one in book.changed] == [
            ("checkpoint", "removed" if policy == "none" else "replaced")
        ]
        assert text == own(model, policy)


def test_a_rule_is_left_and_told_and_a_line_names_what_it_differentiates() -> None:
    _, book = compiled(rules_in_a_scan("none"), "full")
    assert book is not None
    assert [(one.kind, one.how, one.count) for one in book.changed] == [("scan", "wrapped", LAYERS)]
    assert {one.why.partition(" (")[0] for one in book.left} == {
        "in a function with a derivative rule of its own",
        "in a derivative rule of the program's own",
    }
    inner = next(one for one in book.left if "program's own" in one.why)
    text, named = compiled(rules_in_a_scan("none"), f"full@{inner.at}")
    assert named is not None
    assert [(one.kind, one.how, one.at) for one in named.changed] == [("scan", "wrapped", inner.at)]
    assert text != own(rules_in_a_scan, "none")


def test_only_a_rule_has_loops() -> None:
    _, book = compiled(lambda weights, x: flash(x @ weights["up"][0], x).sum(), "full")
    assert book is not None
    with pytest.raises(DataError, match=r"nothing of it is a layer: the scan at .*with a derivative rule of its own"):
        book.notes()
    primal = next(one for one in book.left if "with a derivative rule" in one.why)
    _, named = compiled(lambda weights, x: flash(x @ weights["up"][0], x).sum(), f"full@{primal.at}")
    assert named is not None
    with pytest.raises(DataError, match=r"nothing at tests/.*there is the scan at"):
        named.notes()


def test_names_that_a_rule_gives() -> None:
    text, book = compiled(rules_in_a_scan("none"), "names:hidden")
    assert book is not None
    assert book.changed
    assert text == own(rules_in_a_scan, "names") != own(rules_in_a_scan, "full")


def test_loops_in_a_while_loop_are_told() -> None:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        shift = jax.lax.while_loop(
            lambda one: one.sum() < 10, scanned("none", plain).__get__(weights), jax.lax.stop_gradient(x)
        )
        return (scanned("none", plain)(weights, x) + jax.lax.stop_gradient(shift)).sum()

    _, book = compiled(loss, "full")
    assert book is not None
    assert [(one.kind, one.how) for one in book.changed] == [("scan", "wrapped")]
    assert [one.why for one in book.left] == ["in a while_loop, which has no backward"]


def test_the_same_layers_on_their_own_and_in_a_gradient_within() -> None:
    """Each is looked at once, where it is differentiated first."""

    def both(policy: str) -> Callable[..., Any]:
        penalty, model = a_gradient_within(policy), scanned(policy, plain)
        return lambda weights, x: penalty(weights, x) + model(weights, x).mean()

    assert compiled(both("none"), "full")[0] == compiled(both("full"), None)[0]


def test_gradients_outside_of_jit() -> None:
    one = {"up": jnp.full((LAYERS, 8, 8), 0.1), "down": jnp.full((LAYERS, 8, 8), 0.2)}
    x = jnp.linspace(-1, 1, 32).reshape(4, 8)
    plainly = jax.grad(a_scan_in_a_branch("none"))(one, x)
    with checkpointed(parse_checkpoint("full")) as book:
        slopes = jax.grad(a_scan_in_a_branch("none"))(one, x)
    assert book is not None
    assert book.changed
    for left, right in zip(jax.tree.leaves(plainly), jax.tree.leaves(slopes), strict=True):
        assert jnp.allclose(left, right, rtol=1e-5)


def test_a_value_that_counts_turns_is_not_looked_at() -> None:
    with checkpointed(parse_checkpoint("full")) as book:
        assert jax.vjp(lambda x, turns: sum((x for _ in range(turns)), 0.0), 1.0, 3)[1](1.0)[0] == 3
    assert book is not None
    with pytest.raises(DataError, match=r"reads values \(TracerIntegerConversionError\)"):
        book.notes()
