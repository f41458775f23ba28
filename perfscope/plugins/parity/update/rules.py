"""The rule by which an optimizer updates a weight, identified from its responses to chosen gradients.

An optimizer is a function of weights and gradients whose settings may not be readable (a closure of Optax). Its
responses to a few constant weights and gradients determine the settings of SGD with momentum (I. Sutskever et al., ICML
2013) and of Adam and AdamW (D. Kingma and J. Ba, ICLR 2015; I. Loshchilov and F. Hutter, ICLR 2019): learning rate and
betas from an impulse, epsilon and its place from gradients of its size, weight decay from weights without a gradient. A
rule counts as identified only if it reproduces every response.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.plugins.parity.document import OptimizerSetting

SIZES = (1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
"""Sizes of gradients and of weights: an epsilon between 1e-13 and 1 shows in one of them."""
CLOSE = 1e-5
"""Relative difference up to which a response is the rule's: responses are float64, and settings may be float32."""
NOTHING = 1e-8
"""Smaller fitted settings are 0."""
SAME = 1e-3
"""Relative difference up to which two identified settings are the same."""

Place = Literal["after the root", "inside the root", "before the bias correction"]


class Probe(Struct, frozen=True):
    """A weight and its gradients, a step each; all elements are equal."""

    start: float
    gradients: tuple[float, ...]


PROBES: dict[str, Probe] = {
    "impulse": Probe(0.0, (1.0, 0.0, 0.0)),
    "varied": Probe(0.0, (1.0, 0.1, 3.0)),
    **{f"gradient {size}": Probe(0.0, (size, size)) for size in SIZES},
    **{f"weight {size}": Probe(size, (0.0, 0.0)) for size in SIZES},
}


class Rule(Struct, frozen=True, kw_only=True):
    """How a weight is updated. Settings that a kind does not have keep their defaults."""

    kind: Literal["frozen", "sgd", "adam", "unknown"]
    learning_rate: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    epsilon_place: Place = "after the root"
    bias_correction: bool = True
    weight_decay: float = 0.0
    decoupled: bool = False
    """Weight decay shrinks the weight itself; otherwise it is added to the gradient."""


Responses = Mapping[str, Sequence[float]]
"""Probe -> the weight after each of its steps."""


def simulated(rule: Rule, probe: Probe) -> list[float]:
    """The weight after each step of a probe, by the formulas of the rule."""
    weight, first, second, found = probe.start, 0.0, 0.0, []
    for step, gradient in enumerate(probe.gradients, 1):
        given = gradient + (0.0 if rule.decoupled else rule.weight_decay * weight)
        shrunk = rule.learning_rate * rule.weight_decay * weight if rule.decoupled else 0.0
        if rule.kind == "sgd":
            first = rule.momentum * first + given
            change = given + rule.momentum * first if rule.nesterov else first
        else:
            first = rule.beta1 * first + (1 - rule.beta1) * given
            second = rule.beta2 * second + (1 - rule.beta2) * given * given
            change = _adam(rule, step, first, second)
        weight = weight - rule.learning_rate * change - shrunk
        found.append(weight)
    return found


def _adam(rule: Rule, step: int, first: float, second: float) -> float:
    if first == 0.0:
        return 0.0
    of_first, of_second = (1 - rule.beta1**step, 1 - rule.beta2**step) if rule.bias_correction else (1.0, 1.0)
    if rule.epsilon_place == "inside the root":
        root = math.sqrt(second / of_second + rule.epsilon)
    elif rule.epsilon_place == "before the bias correction":
        root = (math.sqrt(second) + rule.epsilon) / math.sqrt(of_second)
    else:
        root = math.sqrt(second / of_second) + rule.epsilon
    return first / of_first / root if root else 0.0


def identify(responses: Responses) -> Rule:
    """The rule of a weight; ``unknown`` if none of the known ones has these responses."""
    changes = {name: np.diff([PROBES[name].start, *after]) for name, after in responses.items()}
    if not all(np.isfinite(change).all() for change in changes.values()):
        return Rule(kind="unknown")
    if not any(change.any() for change in changes.values()):
        return Rule(kind="frozen")
    per_size = [changes[f"gradient {size}"][0] / size for size in SIZES]
    linear = _constant(per_size)
    try:
        rules = _sgds(changes) if linear else _adams(changes)
    except (ArithmeticError, ValueError, np.linalg.LinAlgError):
        rules = []
    return next((rule for rule in rules if _miss(rule, responses) <= CLOSE), Rule(kind="unknown"))


def _constant(values: Sequence[float]) -> bool:
    return bool(np.ptp(values) <= CLOSE * np.max(np.abs(values)))


def _miss(rule: Rule, responses: Responses) -> float:
    """Largest difference of a response from the rule's, relative to the change."""
    worst = 0.0
    for name, after in responses.items():
        start = PROBES[name].start
        wanted, made = np.diff([start, *after]), np.diff([start, *simulated(rule, PROBES[name])])
        # 4: a change is the difference of two rounded weights
        scale = max(float(np.max(np.abs(wanted))), 4 * abs(start) * 2.0**-52 / CLOSE, 1e-300)
        worst = max(worst, float(np.max(np.abs(wanted - made))) / scale)
    return worst


def _sgds(changes: Mapping[str, np.ndarray]) -> list[Rule]:
    """Rules of SGD that may explain the changes, the simplest first."""
    found = []
    for nesterov, decoupled in ((False, False), (True, False), (False, True), (True, True)):
        rule = Rule(kind="sgd", learning_rate=abs(changes["impulse"][0]), nesterov=nesterov, decoupled=decoupled)
        probes = ("impulse", "varied", "weight 1.0")
        fitted = _fitted(rule, ("learning_rate", "momentum", "weight_decay"), probes, changes)
        near = {name: 0.0 for name in ("momentum", "weight_decay") if abs(getattr(fitted, name)) < NOTHING}
        found.append(replace(fitted, **near))
    return found


def _adams(changes: Mapping[str, np.ndarray]) -> list[Rule]:
    """Rules that may explain the changes, for each place of epsilon, with and without bias correction."""
    found = []
    rate = float(abs(changes["impulse"][0])) or 1e-3
    for corrected, place in itertools.product((True, False), get_args(Place)):
        if place == "before the bias correction" and not corrected:
            continue
        rule = Rule(kind="adam", learning_rate=rate, beta1=0.9, beta2=0.99, bias_correction=corrected,
                    epsilon_place=place)  # fmt: skip
        for _ in range(6):  # epsilon and decay change the response to an impulse a little
            rule = _fitted(rule, ("learning_rate", "beta1", "beta2"), ("impulse", "varied", "gradient 1.0"), changes)
            rule = _with_decay(_with_epsilon(rule, changes), changes)
        found.append(rule)
    return found


_FREE: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "learning_rate": (math.log, math.exp),
    "beta1": (lambda value: math.log(1 - value), lambda point: 1 - math.exp(min(point, 0.0))),
    "beta2": (lambda value: math.log(1 - value), lambda point: 1 - math.exp(min(point, 0.0))),
    "momentum": (float, float),
    "weight_decay": (float, float),
}
"""Setting -> its coordinate, in which all of the range is alike, and back."""


def _fitted(rule: Rule, names: Sequence[str], probes: Sequence[str], changes: Mapping[str, np.ndarray]) -> Rule:
    """The rule with the settings ``names`` that explain the changes best, by Gauss-Newton."""
    observed = np.concatenate([changes[name] for name in probes])
    scale = np.max(np.abs(observed))

    def made(point: np.ndarray) -> Rule:
        return replace(rule, **{name: _FREE[name][1](float(value)) for name, value in zip(names, point, strict=True)})

    def residual(point: np.ndarray) -> np.ndarray:
        candidate = made(point)
        each = [np.diff([PROBES[name].start, *simulated(candidate, PROBES[name])]) for name in probes]
        return np.asarray((np.concatenate(each) - observed) / scale)

    point = np.array([_FREE[name][0](getattr(rule, name)) for name in names])
    for _ in range(40):
        here = residual(point)
        slopes = np.stack([(residual(point + step) - here) / 1e-6 for step in np.eye(len(names)) * 1e-6], 1)
        move = np.clip(np.linalg.lstsq(slopes, -here, rcond=None)[0], -1, 1)
        point = point + move
        if np.max(np.abs(move)) < 1e-13:
            break
    return made(point)


def _with_epsilon(rule: Rule, changes: Mapping[str, np.ndarray]) -> Rule:
    """Epsilon from the gradient whose response is nearest to half of that without an epsilon."""
    bare = replace(rule, epsilon=0.0)

    def kept(size: float) -> float:
        whole = simulated(bare, PROBES[f"gradient {size}"])[0]
        return float(changes[f"gradient {size}"][0] / whole) if whole else 1.0

    size = min(SIZES, key=lambda each: abs(kept(each) - 0.5))
    if kept(size) > 1 - CLOSE:
        return bare
    wanted = abs(changes[f"gradient {size}"][0])
    return replace(rule, epsilon=_solved(
        lambda epsilon: abs(simulated(replace(rule, epsilon=epsilon), PROBES[f"gradient {size}"])[0]) > wanted
    ))  # fmt: skip


def _with_decay(rule: Rule, changes: Mapping[str, np.ndarray]) -> Rule:
    """Weight decay from weights without a gradient: linear in the weight if it is decoupled."""
    firsts = {size: changes[f"weight {size}"][0] for size in SIZES}
    if not firsts[1.0]:
        return rule
    if _constant([firsts[size] / size for size in SIZES[:4]]):
        return replace(rule, weight_decay=float(-firsts[1.0] / rule.learning_rate), decoupled=True)
    half = rule.learning_rate / 2
    size = min(SIZES, key=lambda each: abs(abs(firsts[each]) - half))
    probe, wanted = PROBES[f"weight {size}"], abs(firsts[size])
    decay = _solved(
        lambda decay: abs(simulated(replace(rule, weight_decay=decay), probe)[0] - probe.start) < wanted
    )  # fmt: skip
    return replace(rule, weight_decay=decay)


def _solved(below: Callable[[float], bool]) -> float:
    """The value between 1e-40 and 1e6 up to which a monotone condition holds, by bisection of its logarithm."""
    low, high = math.log(1e-40), math.log(1e6)
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if below(math.exp(middle)) else (low, middle)
    return math.exp(low)


def _setting(name: str, a: str, b: str, *, same: bool) -> OptimizerSetting:
    return OptimizerSetting(name=name, a=a, b=b, same=same)


def settings(a: Rule, b: Rule) -> list[OptimizerSetting]:
    """The settings of two rules, in the order in which a difference is worth a look."""
    if a.kind != b.kind or a.kind in ("unknown", "frozen"):
        return [_setting("rule", _KINDS[a.kind], _KINDS[b.kind], same=a.kind == b.kind)]
    names = ("learning_rate", "momentum", "nesterov") if a.kind == "sgd" else (
        "learning_rate", "beta1", "beta2", "bias_correction", "epsilon")  # fmt: skip
    found = [_setting("rule", _KINDS[a.kind], _KINDS[b.kind], same=True)]
    for name in names:
        one, other = getattr(a, name), getattr(b, name)
        found.append(_setting(name.replace("_", " "), _text(one), _text(other), same=_equal(one, other)))
    if a.kind == "adam" and (a.epsilon or b.epsilon):
        same_place = a.epsilon_place == b.epsilon_place
        found.append(_setting("place of epsilon", a.epsilon_place, b.epsilon_place, same=same_place))
    decay = _equal(a.weight_decay, b.weight_decay) and (a.decoupled == b.decoupled or not a.weight_decay)
    found.append(_setting("weight decay", _decay(a), _decay(b), same=decay))
    return found


_KINDS = {"frozen": "not updated", "sgd": "SGD", "adam": "Adam", "unknown": "not identified"}


def _equal(one: float, other: float) -> bool:
    return bool(one == other or abs(one - other) <= SAME * max(abs(one), abs(other)))


def _text(value: float) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:.4g}"


def _decay(rule: Rule) -> str:
    if not rule.weight_decay:
        return "0"
    where = "decoupled" if rule.decoupled else "added to the gradient"
    plain = rule.kind == "sgd" and not rule.momentum  # then both are one
    return _text(rule.weight_decay) if plain else f"{_text(rule.weight_decay)}, {where}"
