"""``--checkpoint`` against programs that have the policy themselves: the compiled programs are the same."""

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

from perfscope.model.errors import DataError
from perfscope.plugins.ahead.jax import compat
from perfscope.plugins.ahead.jax.checkpoint.rewrite import Checkpoints, checkpointed
from perfscope.plugins.ahead.request import parse_checkpoint
from tests.plugins.ahead.compilers import require_checkpoint
from tests.plugins.ahead.policies import book_of, step_of, under

pytestmark = pytest.mark.jax
LAYERS = 4
PAIRS = (("none", "full"), ("none", "dots"), ("full", "none"), ("dots", "full"))
"""Policy in the program, and requested policy."""


@pytest.fixture(autouse=True)
def _needs_checkpoint() -> None:
    require_checkpoint()


def block(weights: Any, x: jax.Array) -> jax.Array:
    h = checkpoint_name(jax.nn.gelu(x @ weights["up"]), "hidden")
    return x + jnp.tanh(h) @ weights["down"]


def scanned(policy: str) -> Callable[..., Any]:
    def body(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        return block(weights, x), None

    return lambda weights, x: (jax.lax.scan(under(policy, body), x, weights)[0] ** 2).mean()


def looped(policy: str) -> Callable[..., Any]:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for at in range(LAYERS):
            x = under(policy, block)(jax.tree.map(lambda leaf: leaf[at], weights), x)  # noqa: B023
        return (x**2).mean()

    return loss


def jitted(policy: str) -> Callable[..., Any]:
    model: Callable[..., Any] = jax.jit(looped(policy))
    return model


def jitted_layers(policy: str) -> Callable[..., Any]:
    called = under(policy, jax.jit(lambda weights, x: block(weights, x)))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for at in range(LAYERS):
            x = called(jax.tree.map(lambda leaf: leaf[at], weights), x)  # noqa: B023
        return (x**2).mean()

    return loss


def blocked(policy: str) -> Callable[..., Any]:
    """A layer that contains a loop and a checkpoint, like attention in blocks."""

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        parts = x.reshape(4, 2, -1)
        turn = jax.checkpoint(lambda total, part: (total + jnp.tanh(part @ weights["up"]), None))
        total, _ = jax.lax.scan(turn, jnp.zeros((2, weights["up"].shape[1])), parts)
        return x + (jnp.repeat(total, 4, 0) @ weights["down"]), None

    return lambda weights, x: (jax.lax.scan(under(policy, layer), x, weights)[0] ** 2).mean()


def stacked(width: int, layers: int) -> tuple[Any, jax.Array]:
    """Weights of so many layers, and a batch."""
    one = {"up": jnp.ones((16, width)), "down": jnp.ones((width, 16))}
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * layers), one), jnp.ones((8, 16))


SMALL, LARGE = (16, 3), (64, LAYERS)
"""(Width, layers) of the weights."""


def traced(fun: Callable[..., Any], asked: str, size: tuple[int, int] = LARGE) -> Checkpoints:
    """As `book_of` has it."""
    return book_of(fun, asked, *stacked(*size))


@functools.cache
def changed(
    model: Callable[[str], Callable[..., Any]], source: str, asked: str | None, size: tuple[int, int] = LARGE
) -> tuple[str, Checkpoints | None]:
    """A model that has the policy ``source``, compiled under another; once for all tests."""
    text, book = step_of(model(source), asked, *stacked(*size))
    return numbered(text), book


def own(model: Callable[[str], Callable[..., Any]], policy: str, size: tuple[int, int] = LARGE) -> str:
    return changed(model, policy, None, size)[0]


def numbered(text: str) -> str:
    """Names by their first use, because the number of earlier names is irrelevant."""
    names: dict[str, str] = {}
    return re.sub(r"\b[a-z_][\w\-]*(?:\.\d+)+", lambda one: names.setdefault(one[0], f"name{len(names)}"), text)


@pytest.mark.slow
@pytest.mark.parametrize("model", [scanned, looped, jitted, jitted_layers, blocked])
def test_the_program_is_the_one_with_the_policy(model: Callable[[str], Callable[..., Any]]) -> None:
    for source, policy in PAIRS:
        text, book = changed(model, source, policy)
        assert text == own(model, policy), (source, policy)
        assert book is not None
        assert book.changed


@pytest.mark.slow
def test_the_same_policy_changes_nothing() -> None:
    for policy in ("none", "full", "dots"):
        assert changed(scanned, policy, policy)[0] == own(scanned, policy)


def test_policies_differ() -> None:
    """The test above does not compare one program with itself."""
    assert len({own(scanned, policy) for policy in ("none", "full", "dots")}) == 3
    assert own(looped, "none") != own(looped, "full")


@pytest.mark.slow
def test_names() -> None:
    text, book = changed(scanned, "none", "names")
    assert text == own(scanned, "names")
    assert changed(scanned, "none", "names:hidden")[0] == text
    assert book is not None
    assert [one.how for one in book.changed] == ["wrapped"]
    absent = traced(scanned("none"), "names:nobody")
    with pytest.raises(DataError, match=r"nothing could be checkpointed: the program does not name any of nobody"):
        absent.notes()


def test_a_loop_within_a_layer_is_left_and_told() -> None:
    book = traced(blocked("none"), "full")
    notes = book.notes()
    assert [one.how for one in book.changed] == ["wrapped"]
    assert book.changed[0].place.count == LAYERS
    assert any("left as it is: the scan" in note and "within the loop at" in note for note in notes)
    assert any("left as it is: the checkpoint" in note for note in notes)


@pytest.mark.slow
def test_a_line_names_what_is_no_layer() -> None:
    book = traced(blocked("none"), "full")
    inner = next(one for one in book.left if one.place.kind == "checkpoint")
    text, named = changed(blocked, "none", f"none@{inner.place.at}")
    assert named is not None
    assert [(one.place.kind, one.how) for one in named.changed] == [("checkpoint", "removed")]
    assert text != own(blocked, "none")
    wrong = traced(blocked("none"), "full@nowhere.py:1")
    with pytest.raises(DataError, match=r"nothing at nowhere\.py:1; there is the scan at "):
        wrong.notes()


def test_a_loop_over_time_in_layers_of_a_python_loop_is_no_layer() -> None:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for at in range(LAYERS):
            x, _ = jax.lax.scan(lambda h, part: (jnp.tanh(h + part), None), x, jnp.stack([x, x]))
            x = block(jax.tree.map(lambda leaf: leaf[at], weights), x)  # noqa: B023
        return x.mean()

    book = traced(loss, "full")
    assert [(one.place.kind, one.how, one.place.count) for one in book.changed] == [("calls", "wrapped", LAYERS)]
    assert [one.why for one in book.left] == ["it runs several times alike: a loop within layers"]


def test_a_loop_that_sums_up_is_no_layer() -> None:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, w: (total + block(w, x).sum(), None), 0.0, weights)[0]

    book = traced(loss, "full")
    with pytest.raises(
        DataError, match=r"nothing of it is a layer: the scan at .*the turns of its loop hand no array to each other"
    ):
        book.notes()


def test_a_first_layer_that_is_another_one_is_not_among_those_alike() -> None:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        parts = [jax.tree.map(lambda leaf: leaf[at], weights) for at in range(LAYERS)]  # noqa: B023
        x = x.astype(jnp.bfloat16)
        for part in parts:
            x = block(part, x)
        return x.mean()

    book = traced(loss, "full")
    assert [(one.place.kind, one.place.count) for one in book.changed] == [("calls", LAYERS - 1)]


def test_what_calls_into_python_is_left() -> None:
    def body(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        jax.experimental.io_callback(lambda: None, None)
        return block(weights, x), None

    book = traced(lambda weights, x: jax.lax.scan(body, x, weights)[0].mean(), "full")
    with pytest.raises(DataError, match=r"it calls into Python, which jax\.checkpoint refuses"):
        book.notes()


def test_a_jax_that_is_not_known_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.CHECKPOINT_INTERFACES, "gone", ("jax._src.core", "gone"))
    with (
        pytest.raises(DataError, match=r"^this jax .* has no jax\._src\.core\.gone as jax [^\n]*$"),
        checkpointed(parse_checkpoint("full")),
    ):
        pass


@pytest.mark.slow
def test_inside_a_shard_map_and_under_vmap() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    one = {"up": jnp.ones((2, 4, 8)), "down": jnp.ones((2, 8, 4))}

    def slopes(weights: Any, x: jax.Array) -> Any:
        return jax.grad(scanned("none"))(weights, x)

    x = jnp.ones((3, 4))
    plain = slopes(one, x)
    with checkpointed(parse_checkpoint("full")) as book:
        mapped = jax.jit(jax.shard_map(slopes, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec()))(one, x)
        batched = jax.jit(jax.vmap(slopes, in_axes=(None, 0)))(one, x[None])
    assert book is not None
    assert {one.how for one in book.changed} == {"wrapped"}
    for left, right, third in zip(*map(jax.tree.leaves, (plain, mapped, batched)), strict=True):
        assert jnp.allclose(left, right, rtol=1e-5)
        assert jnp.allclose(left, third[0], rtol=1e-5)


def test_nothing_is_differentiated() -> None:
    with checkpointed(parse_checkpoint("full")) as book:
        jax.jit(lambda x: x * 2).trace(jnp.ones(3))
    assert book is not None
    with pytest.raises(
        DataError, match=r"^--checkpoint full: nothing could be checkpointed: the program differentiates"
    ):
        book.notes()


def test_nothing_alike_and_no_loop() -> None:
    book = traced(lambda weights, x: (x @ weights["up"][0]).sum(), "full")
    with pytest.raises(DataError, match=r"no function that is called several times alike"):
        book.notes()
    none = traced(lambda weights, x: (x @ weights["up"][0]).sum(), "none")
    assert none.notes() == ["--checkpoint none: its layers have no checkpoint; compiled as it is"]


def test_what_reads_values_is_not_looked_at_and_runs_all_the_same() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return x * 2 if x > 0 else x * 3

    with checkpointed(parse_checkpoint("full")) as book:
        assert jax.grad(loss)(1.0) == 2
    assert book is not None
    with pytest.raises(DataError, match=r"reads values \(TracerBoolConversionError\)"):
        book.notes()


@pytest.mark.slow
def test_results_that_are_no_arrays_come_back() -> None:
    def loss(weights: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        y = scanned("none")(weights, x)
        return y, {"name": "step", "twice": 2 * y, "none": None}

    one = {"up": jnp.ones((2, 4, 8)), "down": jnp.ones((2, 8, 4))}
    x = jnp.ones((3, 4))
    plain = jax.value_and_grad(loss, has_aux=True)(one, x)
    with checkpointed(parse_checkpoint("full")):
        changed = jax.value_and_grad(loss, has_aux=True)(one, x)
    assert changed[0][1]["name"] == "step"
    assert jax.tree.structure(plain) == jax.tree.structure(changed)
    numbers = [leaf for leaf in jax.tree.leaves(plain) if not isinstance(leaf, str)]
    for left, right in zip(numbers, [one for one in jax.tree.leaves(changed) if not isinstance(one, str)], strict=True):
        assert jnp.allclose(left, right, rtol=1e-6)


RULE_LAYERS = SMALL[1]
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


def block_with_rules(weights: Any, x: jax.Array) -> jax.Array:
    return x + squash(flash(x @ weights["up"], x @ weights["up"])) @ weights["down"]


def plain(weights: Any, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(jnp.tanh(x @ weights["up"]) @ weights["down"])


def layers_of(weights: Any) -> list[Any]:
    return [jax.tree.map(lambda leaf: leaf[at], weights) for at in range(RULE_LAYERS)]  # noqa: B023


def scanned_layers(policy: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    body = under(policy, lambda x, weights: (layer(weights, x), None))
    return lambda weights, x: jax.lax.scan(body, x, weights)[0]


def rules_in_a_scan(policy: str) -> Callable[..., Any]:
    return lambda weights, x: (scanned_layers(policy, block_with_rules)(weights, x) ** 2).mean()


def rules_in_a_list(policy: str) -> Callable[..., Any]:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in layers_of(weights):
            x = under(policy, block_with_rules)(part, x)
        return (x**2).mean()

    return loss


def a_function_with_a_rule_is_the_layer(policy: str) -> Callable[..., Any]:
    layer = jax.custom_vjp(lambda weights, x: plain(weights, x))
    layer.defvjp(
        lambda weights, x: (plain(weights, x), (jnp.tanh(x @ weights["up"]), weights, x)),
        lambda kept, slope: jax.vjp(plain, *kept[1:])[1](slope + kept[0].mean()),
    )

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in layers_of(weights):
            x = under(policy, layer)(part, x)
        return (x**2).mean()

    return loss


def jitted_within_jitted(policy: str) -> Callable[..., Any]:
    inner = jax.jit(lambda weights, x: scanned_layers(policy, plain)(weights, x))
    return lambda weights, x: (jax.jit(lambda w, x: inner(w, x))(weights, x) ** 2).mean()


def mapped_layers(policy: str) -> Callable[..., Any]:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for part in layers_of(weights):
            x = jax.vmap(under(policy, plain), in_axes=(None, 0))(part, x)
        return (x**2).mean()

    return loss


def a_mapped_model(policy: str) -> Callable[..., Any]:
    return lambda weights, x: (jax.vmap(scanned_layers(policy, plain), in_axes=(None, 0))(weights, x) ** 2).mean()


def in_a_shard_map(policy: str) -> Callable[..., Any]:
    spec, mesh = jax.sharding.PartitionSpec, jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
    model = jax.shard_map(
        scanned_layers(policy, plain),
        mesh=mesh,
        in_specs=(spec(), spec("data")),
        out_specs=spec("data"),
        check_vma=False,
    )
    return lambda weights, x: (model(weights, x) ** 2).mean()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(rules_in_a_scan, marks=pytest.mark.slow),
        a_function_with_a_rule_is_the_layer,
        pytest.param(jitted_within_jitted, marks=pytest.mark.slow),
        pytest.param(mapped_layers, marks=pytest.mark.slow),
        pytest.param(a_mapped_model, marks=pytest.mark.slow),
        pytest.param(in_a_shard_map, marks=pytest.mark.slow),
    ],
)
def test_the_program_with_rules_is_the_one_with_the_policy(model: Model) -> None:
    assert own(model, "none", SMALL) != own(model, "full", SMALL)
    for source, policy in (("none", "full"), ("full", "dots" if model is rules_in_a_scan else "none")):
        text, book = changed(model, source, policy, SMALL)
        assert book is not None
        assert book.changed, book.outcomes
        assert text == own(model, policy, SMALL), (source, policy)


@pytest.mark.slow
def test_rules_in_layers_of_a_list() -> None:
    """The same operations on the same shapes; XLA for a CPU has some of them in another order."""
    for source, policy in (("none", "full"), ("full", "none")):
        text, book = changed(rules_in_a_list, source, policy, SMALL)
        assert book is not None
        found = [(one.place.kind, one.how, one.place.count) for one in book.changed]
        assert found == ([("calls", "wrapped", RULE_LAYERS)] if source == "none" else [("checkpoint", "removed", 1)])
        assert operations(text) == operations(own(rules_in_a_list, policy, SMALL))


def operations(text: str) -> Counter[tuple[str, ...]]:
    return Counter(re.findall(r" = (\S+) ([\w\-]+)\(", text))


def test_a_rule_is_left_and_told() -> None:
    book = traced(rules_in_a_scan("none"), "full", SMALL)
    assert [(one.place.kind, one.how, one.place.count) for one in book.changed] == [("scan", "wrapped", RULE_LAYERS)]
    assert {one.why for one in book.left} == {"no checkpoint reaches into custom_vjp_call"}
    assert any("in a derivative rule of the program's own" in why for why in book.unseen)


def test_a_gradient_within_is_looked_at_and_what_is_around_it_is_not() -> None:
    def energy(weights: Any, x: jax.Array) -> jax.Array:
        return scanned_layers("none", plain)(weights, x).sum()

    def penalty(weights: Any, x: jax.Array) -> jax.Array:
        return (jax.grad(energy, 1)(weights, x) ** 2).sum()

    book = traced(penalty, "full", SMALL)
    assert [(one.place.kind, one.how) for one in book.changed] == [("scan", "wrapped")]
    assert any("differentiates something itself" in why for why in book.unseen)


def test_only_a_rule_has_loops() -> None:
    book = traced(lambda weights, x: flash(x @ weights["up"][0], x).sum(), "full", SMALL)
    with pytest.raises(DataError, match=r"nothing of it is a layer: the scan at .*reaches into custom_vjp_call"):
        book.notes()
    primal = next(one for one in book.left if "reaches into" in one.why)
    named = traced(lambda weights, x: flash(x @ weights["up"][0], x).sum(), f"full@{primal.place.at}", SMALL)
    with pytest.raises(DataError, match=r"nothing at tests/.*there is the scan at"):
        named.notes()


@pytest.mark.slow
def test_names_that_a_rule_gives() -> None:
    text, book = changed(rules_in_a_scan, "none", "names:hidden", SMALL)
    assert book is not None
    assert book.changed
    assert text == own(rules_in_a_scan, "names", SMALL) != own(rules_in_a_scan, "full", SMALL)


def in_a_branch(weights: Any, x: jax.Array) -> jax.Array:
    model = scanned_layers("none", plain)
    return model(weights, jax.lax.cond(x[0, 0] > 0, model, lambda _, x: x, weights, x)).mean()


def in_a_while_loop(weights: Any, x: jax.Array) -> jax.Array:
    model = scanned_layers("none", plain)
    shift = jax.lax.while_loop(lambda one: one.sum() < 10, model.__get__(weights), jax.lax.stop_gradient(x))
    return (model(weights, x) + jax.lax.stop_gradient(shift)).sum()


@pytest.mark.parametrize(("loss", "name"), [(in_a_branch, "cond"), (in_a_while_loop, "while")])
def test_what_no_checkpoint_reaches_into_is_left_and_told(loss: Callable[..., Any], name: str) -> None:
    book = traced(loss, "full", SMALL)
    assert [(one.place.kind, one.how) for one in book.changed] == [("scan", "wrapped")]
    assert [one.why for one in book.left] == [f"no checkpoint reaches into {name}"]


def a_scan_alone(weights: Any, x: jax.Array) -> jax.Array:
    return (scanned_layers("none", plain)(weights, x) ** 2).mean()


@pytest.mark.slow
def test_gradients_outside_of_jit() -> None:
    one = {"up": jnp.full((RULE_LAYERS, 8, 8), 0.1), "down": jnp.full((RULE_LAYERS, 8, 8), 0.2)}
    x = jnp.linspace(-1, 1, 32).reshape(4, 8)
    plainly = jax.grad(a_scan_alone)(one, x)
    with checkpointed(parse_checkpoint("full")) as book:
        slopes = jax.grad(a_scan_alone)(one, x)
    assert book is not None
    assert book.changed
    for left, right in zip(jax.tree.leaves(plainly), jax.tree.leaves(slopes), strict=True):
        assert jnp.allclose(left, right, rtol=1e-5)
