"""Compares two recordings with a reference: rows of errors, and the first layer not explained by rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.plugins.parity.document import Arrays, Divergence, Recording, Row, RowKind
from perfscope.plugins.parity.errors import (
    FACTOR,
    cosine,
    expected_error,
    max_ulp,
    relative_error,
    roundoff,
)
from perfscope.plugins.parity.matching import Align, Match, alignment, joined, match_layers, one_batch, unmatched
from perfscope.plugins.parity.results import (
    MOST_EXACT,
    Result,
    between,
    last_common,
    lines,
    place,
    same_result,
    telling,
)
from perfscope.plugins.parity.translation import Translation

ALIKE = 0.1
"""Relative difference up to which values belong to one layer, if only their weights indicate that."""
OPS_OF_A_STEP = 16
"""Ops of an optimizer per weight: Adam has fourteen."""
FEW = 0.125
"""Share of an array's rows up to which a difference in only these rows gets a remark."""
IN_ANOTHER_ORDER = "in another order of ops: every later layer and all gradients of weights agree"


class Side(Struct, frozen=True, kw_only=True):
    """A recording with its arrays."""

    recording: Recording
    arrays: Arrays


class Work(Struct, frozen=True):
    """Ops that round, and terms of reductions."""

    roundings: int
    terms: int


class Comparison:
    """Compares ``a`` with ``b``.

    ``reference``: a run of A, or of B if ``of_b``, in a wider dtype, with the same layers.
    """

    def __init__(
        self, a: Side, b: Side, reference: Side, *, of_b: bool = False, translation: Translation | None = None
    ) -> None:
        """Match the layers; ``ValueError`` if the reference and its side have different layers."""
        self.a, self.b, self.reference = a, b, reference
        self.of_b, self.translation = of_b, translation
        self._aligned: dict[Match, Align] = {}
        sure, possible = match_layers(a.recording, b.recording, translation)
        alike = [match for match in possible if self._is_alike(match)]
        self.matches = sorted([*sure, *alike], key=lambda match: match.a[-1])
        base = b if of_b else a
        if [layer.name for layer in base.recording.layers] != [layer.name for layer in reference.recording.layers]:
            raise ValueError("the reference ran through other layers")

    @property
    def judged(self) -> Side:
        """The side without the reference."""
        return self.a if self.of_b else self.b

    def rows(self) -> list[Row]:
        """Activations in the order of A's forward, gradients in the order of its backward, then weight gradients."""
        of_weights = list(self._weights("weight gradient"))
        activations = self._without_regrouped(dict(self._layers("activation")), of_weights)
        gradients = dict(self._layers("gradient"))
        for match, row in activations.items():
            if row.regrouped and match in gradients:
                gradients[match] = _regrouped(gradients[match], row.remark, of_b=self.of_b)
        return [*activations.values(), *gradients.values(), *of_weights]

    def _without_regrouped(self, rows: dict[Match, Row], of_weights: Sequence[Row]) -> dict[Match, Row]:
        """Rows in which a layer does not count as a divergence if everything after it agrees.

        A side may group a layer's ops in another way: a norm that scales its statistic before it multiplies its input
        has the other side's value one op after the one that reads the weight. Such a layer is recorded too early. It
        is excused if all later layers agree, and the other side's value follows before the next layer. Without that
        value it is excused where no gradient of a weight shows an error (a wrong value changes that of a weight in its
        layer or in the next) and the dtype is so exact that an error cannot vanish in the layers after it.
        """
        right = {row.name for row in of_weights} if not any(row.diverges for row in of_weights) else set()
        result, agree, later = dict(rows), True, False
        for match in reversed(list(rows)):
            row = rows[match]
            remark = self._value_after(match, row) if row.diverges and agree and later else ""
            if row.diverges and agree and later and not remark and row.expected <= MOST_EXACT:
                own = {name.partition("[")[0] for n in match.a for name in self.a.recording.layers[n].weights}
                remark = IN_ANOTHER_ORDER if own and own <= right else ""
            if remark:
                result[match] = _regrouped(row, remark, of_b=self.of_b)
            else:
                agree &= not row.diverges
            later = True
        return result

    def _value_after(self, match: Match, row: Row) -> str:
        """Op of one side, soon after its layer, with the other side's value of the layer; ``''`` without one."""
        numbers = {"a": match.a[-1], "b": match.b[-1]}
        for side, other in (("b", "a"), ("a", "b")):
            own = self._results(other, numbers[other] - 1, numbers[other])[-1:]
            after = self._results(side, numbers[side], numbers[side] + 1)
            found = [result for result in after if own and same_result(own[0], result, row.expected)]
            if found:
                return f"{side.upper()} has this value at {place(found)}"
        return ""

    def _results(self, side: str, last: int, layer: int) -> list[Result]:
        of = self.a if side == "a" else self.b
        return between(of.recording, of.arrays, last, layer)

    def weights(self) -> list[Row]:
        """B's own weights against A's, for weights that should be equal."""
        return list(self._weights("weight"))

    def unmatched(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Layers of A and of B that the other side lacks."""
        left_a, left_b = unmatched(self.a.recording, self.b.recording, self.matches, self.translation)
        return left_a, left_b

    def first(self, rows: Sequence[Row]) -> Divergence | None:
        """First divergence: an activation that differs, else a gradient, else a weight gradient."""
        row = next((row for row in rows if row.diverges), None)
        if row is None:
            return None
        if row.kind != "activation":
            before = [other for other in rows[: rows.index(row)] if other.kind == row.kind]
            return Divergence(row=row, after=before[-1].name if before else "")
        index = [other for other in rows if other.kind == "activation"].index(row)
        match, earlier = self.matches[index], self.matches[:index]
        after = rows[index - 1].name if index else ""
        lasts = [max((getattr(other, side)[-1] for other in earlier), default=-1) for side in ("a", "b")]
        results_a = self._results("a", lasts[0], match.a[-1])
        results_b = self._results("b", lasts[1], match.b[-1])
        exact, lines_a, lines_b = self._open_lines(match, row)
        # The last op is the layer itself, which differs.
        common = last_common(results_a[:-1], results_b[:-1], row.expected) if exact else None
        there, here = (-1, -1) if common is None else common
        return Divergence(
            row=row,
            after=after,
            exact=exact,
            lines_a=lines_a,
            lines_b=lines_b,
            common_a=place(results_a[there : there + 1]) if common else "",
            common_b=place(results_b[here : here + 1]) if common else "",
            next_a=place(results_a[there + 1 : there + 2]),
            next_b=place(results_b[here + 1 : here + 2]),
        )

    def _open_lines(self, match: Match, row: Row) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        """Lines of each side, from the first layer of the same module up to ``match``, that may hold the difference.

        Lines all of whose results the other side also has are left out, if ops can be distinguished (the first value).
        """
        module = row.name.rpartition(".")[0]
        index = self.matches.index(match)
        first = index
        while module and first and self._name(self.matches[first - 1]).startswith(f"{module}."):
            first -= 1
        begin = [max((getattr(one, side)[-1] for one in self.matches[:first]), default=-1) for side in ("a", "b")]
        a, b = self._results("a", begin[0], match.a[-1]), self._results("b", begin[1], match.b[-1])
        exact = telling([*a, *b], row.expected)
        enough = row.expected if exact else None
        return exact, lines(a, b, enough), lines(b, a, enough)

    def _layers(self, kind: RowKind) -> Iterator[tuple[Match, Row]]:
        prefix = "layer" if kind == "activation" else "gradient"
        before = Work(0, 0) if kind == "activation" else self._work(self.matches[-1]) if self.matches else Work(0, 0)
        worse = 0.0
        for match in self.matches if kind == "activation" else reversed(self.matches):
            keys_a, keys_b = ([f"{prefix}:{number}" for number in side] for side in (match.a, match.b))
            a, b = self._values(self.a, keys_a), self._values(self.b, keys_b)
            reference = self._values(self.reference, keys_b if self.of_b else keys_a)
            if a is None or b is None or reference is None:
                continue
            a, b, reference = one_batch((a, b, reference), add=kind == "gradient")
            here = self._work(match)
            passes = 1 if kind == "activation" else 2  # the backward of an op counts as two
            done = Work(passes * abs(here.roundings - before.roundings), passes * abs(here.terms - before.terms))
            row = self._row(match, kind, (a, b, reference), done, worse)
            before = here
            if not row.diverges:
                base, own = (row.error_b, row.error_a) if self.of_b else (row.error_a, row.error_b)
                worse = max(worse, (own or 0.0) / base if base else 0.0)
            yield match, row

    def _is_alike(self, match: Match) -> bool:
        a, b = (
            joined([side.arrays[f"layer:{number}"] for number in numbers])
            for side, numbers in ((self.a, match.a), (self.b, match.b))
        )
        error = relative_error(alignment(b, a, ALIKE)(b), a)
        return error is not None and error <= ALIKE

    def _values(self, side: Side, keys: Sequence[str]) -> np.ndarray | None:
        if not all(key in side.arrays for key in keys):
            return None
        return joined([side.arrays[key] for key in keys])

    def _work(self, match: Match) -> Work:
        """Work of the judged side up to a layer."""
        layer = self.judged.recording.layers[(match.a if self.of_b else match.b)[-1]]
        return Work(layer.roundings, layer.terms)

    def _row(
        self, match: Match, kind: RowKind, values: tuple[np.ndarray, np.ndarray, np.ndarray], done: Work, worse: float
    ) -> Row:
        a, b, reference = values
        own, base = (a, b) if self.of_b else (b, a)
        number = (match.a if self.of_b else match.b)[-1]
        layers = self.judged.recording.layers
        ran = layers[: number + 1] if kind == "activation" else layers
        dtype = coarsest([self.judged.recording.dtype, *(layer.dtype for layer in ran)])
        error_base = relative_error(base, reference)
        expected = self._expected(dtype, error_base, done, self._whole(number, kind), worse)
        align = self._aligned.get(match) or alignment(own, reference, expected)
        self._aligned.setdefault(match, align)
        own = align(own)
        error = relative_error(own, reference)
        op = [self.a.recording.layers[match.a[-1]], self.b.recording.layers[match.b[-1]]]
        return Row(
            name=self._name(match),
            kind=kind,
            diverges=error is None or error > expected,
            error_a=error if self.of_b else error_base,
            error_b=error_base if self.of_b else error,
            expected=expected,
            cosine=cosine(own, reference),
            max_ulp=max_ulp(own, reference, dtype),
            dtype=dtype,
            op_a=op[0].op,
            op_b=op[1].op,
            line_a=op[0].line,
            line_b=op[1].line,
            remark=_remark(a, b, own, reference, error, expected),
        )

    def _whole(self, number: int, kind: RowKind) -> Work:
        """All that was done up to a layer: for a gradient the whole forward, and the backward from its end."""
        layers = self.judged.recording.layers
        here, last = layers[number], layers[-1]
        if kind == "activation":
            return Work(here.roundings, here.terms)
        return Work(3 * last.roundings - 2 * here.roundings, 3 * last.terms - 2 * here.terms)

    def update_bound(self, dtype: str, error_base: float | None) -> float:
        """The largest error that rounding explains of one step of an optimizer on the gradients of weights."""
        last = self.judged.recording.layers[-1]
        work = Work(3 * last.roundings + OPS_OF_A_STEP, 3 * last.terms)
        return self._expected(dtype, error_base, work, work, 0.0)

    def _expected(self, dtype: str, error_base: float | None, done: Work, whole: Work, worse: float) -> float:
        """The largest error that rounding explains; see `errors`."""
        base = (self.b if self.of_b else self.a).recording.dtype
        if error_base is None or roundoff(base) <= roundoff(self.reference.recording.dtype):
            return expected_error(dtype, whole.roundings, whole.terms)
        inherited = max(FACTOR * roundoff(dtype) / roundoff(base), worse) * error_base
        return expected_error(dtype, done.roundings, done.terms) + inherited

    def _name(self, match: Match) -> str:
        names = [self.a.recording.layers[number].name for number in match.a]
        torch = self.b.recording.framework == "torch" and self.a.recording.framework != "torch"
        return " + ".join([self.b.recording.layers[number].name for number in match.b] if torch else names)

    def _weights(self, kind: RowKind) -> Iterator[Row]:
        """Weights, or their gradients, by A's names."""
        translation = self.translation
        if translation is None:
            return
        prefix = "weight:" if kind == "weight" else "weight_gradient:"
        a, b, reference = (_named(side, prefix) for side in (self.a, self.b, self.reference))
        # weights without a gradient
        zeros = {weight.name: np.zeros(weight.shape) for weight in self.b.recording.weights}
        if kind == "weight":
            reference = a
        elif self.of_b and reference:
            reference = translation.to_a({**zeros, **reference}, add=True)
        if not a or not b or not reference:
            return
        b = translation.to_a({**zeros, **b}, add=kind != "weight")
        layers = self.judged.recording.layers
        dtype, last = coarsest([self.judged.recording.dtype, *(layer.dtype for layer in layers)]), layers[-1]
        work = Work(3 * last.roundings, 3 * last.terms)
        for name in sorted(a.keys() & b.keys() & reference.keys() - translation.tied_in_a(), key=list(a).index):
            if kind == "weight":
                yield _weight_row(name, a[name], b[name], 2 * roundoff(dtype), dtype)
                continue
            own, base = (a[name], b[name]) if self.of_b else (b[name], a[name])
            error, error_base = relative_error(own, reference[name]), relative_error(base, reference[name])
            expected = self._expected(dtype, error_base, work, work, 0.0)
            yield Row(
                name=name,
                kind=kind,
                diverges=error is None or error > expected,
                error_a=error if self.of_b else error_base,
                error_b=error_base if self.of_b else error,
                expected=expected,
                cosine=cosine(own, reference[name]),
                max_ulp=max_ulp(own, reference[name], dtype),
                dtype=dtype,
            )


def _named(side: Side, prefix: str) -> Arrays:
    return {key.removeprefix(prefix): array for key, array in side.arrays.items() if key.startswith(prefix)}


def _remark(
    a: np.ndarray, b: np.ndarray, own: np.ndarray, reference: np.ndarray, error: float | None, expected: float
) -> str:
    if own.size != reference.size:
        return f"{list(a.shape)} in A, {list(b.shape)} in B"
    if error is None:
        finite = [bool(np.isfinite(side).all()) for side in (a, b)]
        if all(finite):
            return "zero in the reference"
        return "not finite" if any(finite) else "not finite on both sides"
    if error <= expected or own.ndim < 2:
        return ""
    rows, wanted = own.reshape(-1, own.shape[-1]), reference.reshape(-1, own.shape[-1])
    scale = np.linalg.norm(wanted) / math.sqrt(len(wanted))
    wrong = int(np.sum(np.linalg.norm(rows - wanted, axis=1) > expected * scale))
    if not 0 < wrong <= FEW * len(rows):
        return ""
    return f"only {wrong} of its {len(rows)} rows differ: a choice, as of an expert, may have fallen differently"


def _regrouped(row: Row, remark: str, *, of_b: bool) -> Row:
    """The row of a layer whose value one side has at a later op: its errors compare different values."""
    return replace(
        row, diverges=False, regrouped=True, remark=remark, cosine=None, max_ulp=None,
        error_a=None if of_b else row.error_a, error_b=row.error_b if of_b else None,
    )  # fmt: skip


def _weight_row(name: str, a: np.ndarray, b: np.ndarray, expected: float, dtype: str) -> Row:
    error = relative_error(b, a)
    diverges = error is None or error > expected
    remark = ""
    if diverges and a.ndim == 2 and a.shape[0] == a.shape[1]:
        turned = relative_error(b.T, a)
        remark = "it is A's transposed" if turned is not None and turned <= expected else ""
    return Row(
        name=name,
        kind="weight",
        diverges=diverges,
        error_a=0.0,
        error_b=error,
        expected=expected,
        cosine=cosine(b, a),
        max_ulp=max_ulp(b, a, dtype),
        dtype=dtype,
        remark=remark,
    )


def coarsest(dtypes: Sequence[str]) -> str:
    """The dtype with the largest unit roundoff."""
    return max(dtypes, key=roundoff)
