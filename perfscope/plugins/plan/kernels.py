"""Time of the kernels of one decoder layer, of the head and of the optimizer on one device, as ranges by category.

Products of a layer with ``T`` tokens, ``h`` features, ``q`` features of queries, ``k`` of keys, ``f`` of the
feed-forward, on a device that has one part in ``t``: ``T x h x (q + 2k)/t``, ``T x q/t x h``, ``T x h x f/t`` (two with
a gate) and ``T x f/t x h``; backward has two products of the same size for each. Attention: two products of
``T x s x d`` for each head forward, five backward (Dao et al. 2022, FlashAttention), half of it if masked scores are
skipped.
"""

from __future__ import annotations

from msgspec import Struct

from perfscope.analyzers.devices import Sizes, Target, bytes_ns, flops_ns
from perfscope.analyzers.predict import Factors, Work, ns_range, usual_range
from perfscope.plugins.plan.decoder import Decoder

CATEGORIES = ("products", "attention", "kernels")
"""As the assumptions that move them."""

WIDE = 2
"""Bytes of an activation: bfloat16 or float16, also where products run in fp8."""

STEP_READS = (30, 44)
"""Bytes per parameter that the optimizer moves: Adam with float32 weights and moments reads 16 and writes 12 and the
copy of 2; with a separate pass for the norm of gradients and casts, 44."""


class Span(Struct, frozen=True):
    """ns, from fast to slow, and the FLOPs in it."""

    low: float = 0.0
    high: float = 0.0
    flops: int = 0

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high, self.flops + other.flops)

    def times(self, count: float) -> Span:
        """The span of ``count`` runs."""
        return Span(self.low * count, self.high * count, round(self.flops * count))


class Parts(Struct, frozen=True, kw_only=True):
    """Spans by category."""

    products: Span = Span()
    attention: Span = Span()
    kernels: Span = Span()

    def __add__(self, other: Parts) -> Parts:
        return Parts(**{name: getattr(self, name) + getattr(other, name) for name in CATEGORIES})

    def times(self, count: float) -> Parts:
        """The parts of ``count`` runs."""
        return Parts(**{name: getattr(self, name).times(count) for name in CATEGORIES})

    @property
    def flops(self) -> int:
        """FLOPs of all parts."""
        return sum(getattr(self, name).flops for name in CATEGORIES)


class LayerWork(Struct, frozen=True, kw_only=True):
    """Work of a layer (or of the head) on one micro-batch. ``again``: what each policy repeats in the backward."""

    forward: Parts
    inputs: Parts
    """Backward: gradients of the layer's input, which the layer before waits for."""
    weights: Parts
    """Backward: gradients of its weights, which nothing waits for."""
    again: dict[str, Parts]

    def backward(self, policy: str) -> Parts:
        """Backward with what the policy repeats."""
        return self.inputs + self.weights + self.again[policy]


class Pricer:
    """Prices kernels of a target; equal ones are priced once."""

    def __init__(self, target: Target, factors: Factors, dtype: str) -> None:
        self._target, self._factors, self._dtype = target, factors, dtype
        self._known: dict[tuple[object, ...], Span] = {}

    def product(self, rows: int, inner: int, columns: int, batch: int = 1) -> Span:
        """A product ``[batch, rows, inner] x [batch, inner, columns]``."""
        key = ("product", rows, inner, columns, batch)
        if key not in self._known:
            sizes = Sizes(batch=batch, rows=rows, columns=columns, inner=inner)
            moved = WIDE * batch * (rows * inner + inner * columns + rows * columns)
            work = Work(category="product", bytes=moved, flops=sizes.flops, dtype=self._dtype, sizes=sizes)
            self._known[key] = self._span(work, work)
        return self._known[key]

    def attention(self, sequences: int, heads: int, queries: int, keys: int, head: int, *, backward: bool) -> Span:
        """Attention of ``heads`` over ``sequences``; masked scores are skipped at the fast end."""
        key = ("attention", sequences, heads, queries, keys, head, backward)
        if key not in self._known:
            sizes = Sizes(batch=sequences * heads, rows=queries, columns=keys, inner=head)
            flops = 2 * sizes.flops * (5 if backward else 2) // 2
            moved = WIDE * sequences * heads * head * (queries + keys) * (4 if backward else 2)
            work = Work(category="attention backward" if backward else "attention", bytes=moved, flops=flops,
                        dtype="bfloat16" if self._dtype == "fp8" else self._dtype, sizes=sizes)  # fmt: skip
            half = Sizes(batch=sizes.batch, rows=queries, columns=max(1, keys // 2), inner=head)
            skipped = Work(category=work.category, bytes=moved, flops=flops // 2, dtype=work.dtype, sizes=half)
            self._known[key] = self._span(skipped, work)
        return self._known[key]

    def moved(self, low: float, high: float) -> Span:
        """Kernels that move bytes: fused into as few as possible, to separate ones."""
        key = ("moved", round(low), round(high))
        if key not in self._known:
            few = Work(category="elementwise", bytes=round(low), dtype="bfloat16")
            many = Work(category="elementwise", bytes=round(high), dtype="bfloat16")
            self._known[key] = self._span(few, many)
        return self._known[key]

    def _span(self, fast: Work, slow: Work) -> Span:
        device, factors = self._target.device, self._factors
        low, high = usual_range(device, fast), usual_range(device, slow)
        if low is None or high is None:
            least = max(_flops_ns(self._target, fast), bytes_ns(device, fast.bytes), factors.kernel[0])
            most = max(_flops_ns(self._target, slow) / factors.matrix, bytes_ns(device, slow.bytes) / factors.memory)
            low = high = ns_range(least, most + factors.kernel[1])
        return Span(float(low.low), float(max(low.low, high.high)), fast.flops)


def _flops_ns(target: Target, work: Work) -> float:
    return (flops_ns(target.device, work.flops, work.dtype) or 0.0) if work.flops else 0.0


def layer_work(
    model: Decoder, pricer: Pricer, *, sequences: int, sequence: int, tensor: int, context: int, expert: int
) -> LayerWork:
    """One layer on one micro-batch of ``sequences``. With experts, the mean of its dense and its other layers.

    Every expert gets equally many tokens: an assumption; imbalance takes longer.
    """
    length = sequence // context
    tokens = sequences * length
    dense = _feed_forward(model.ffn, model, pricer, tokens, tensor)
    routed = Parts()
    if model.experts:
        visits = max(1, tokens * model.experts_per_token)
        local = max(1, model.experts // expert)
        each = max(1, visits * expert // model.experts)  # tokens of all devices of the axis arrive here
        routed = Parts(
            products=_matrices(pricer, each, model.hidden, model.expert_ffn // tensor, model.matrices, batch=local)
            + pricer.product(tokens, model.hidden, model.experts),
            kernels=pricer.moved(*(WIDE * bound * visits / tensor for bound in _elements(model, model.expert_ffn))),
        )
        if model.shared_ffn:
            routed += _feed_forward(model.shared_ffn, model, pricer, tokens, tensor)
    share = model.expert_layers / model.layers
    mlp = dense.times(1 - share) + routed.times(share)
    heads = model.heads // tensor
    core = pricer.attention(sequences, heads, length, sequence, model.head_dim, backward=False)
    around = Parts(
        products=pricer.product(tokens, model.hidden, (model.queries + 2 * model.keys) // tensor)
        + pricer.product(tokens, model.queries // tensor, model.hidden),
        kernels=_norms(model, pricer, tokens, tensor),
    )
    forward = around + mlp + Parts(attention=core)
    half = Parts(products=forward.products)
    backward = Parts(
        attention=pricer.attention(sequences, heads, length, sequence, model.head_dim, backward=True),
        kernels=forward.kernels.times(2),
    )
    return LayerWork(
        forward=forward,
        inputs=half + backward,
        weights=half,
        again={
            "none": Parts(),
            "dots": Parts(attention=core, kernels=forward.kernels),
            "full": forward,
        },
    )


def _matrices(pricer: Pricer, tokens: int, hidden: int, features: int, matrices: int, batch: int = 1) -> Span:
    wide = pricer.product(tokens, hidden, features, batch).times(matrices - 1)
    return wide + pricer.product(tokens, features, hidden, batch)


def _feed_forward(features: int, model: Decoder, pricer: Pricer, tokens: int, tensor: int) -> Parts:
    low, high = _elements(model, features)
    return Parts(
        products=_matrices(pricer, tokens, model.hidden, features // tensor, model.matrices),
        kernels=pricer.moved(WIDE * low * tokens / tensor, WIDE * high * tokens / tensor),
    )


def _elements(model: Decoder, features: int) -> tuple[int, int]:
    """Elements per token that the activation reads and writes: in one kernel, and in one for each operation."""
    return (3 * features, 5 * features) if model.gated else (2 * features, 4 * features)


def _norms(model: Decoder, pricer: Pricer, tokens: int, tensor: int) -> Span:
    """Two norms with their residual sums, divided along the sequence by tensor parallelism, and rotary embeddings.

    Fused: a norm reads two arrays and writes two. Separate: the sum reads two and writes one, the norm casts, squares,
    scales.
    """
    features = model.hidden / tensor
    rotary = (model.queries + model.keys) / tensor
    return pricer.moved(WIDE * tokens * (8 * features + 2 * rotary), WIDE * tokens * (16 * features + 6 * rotary))


def head_work(model: Decoder, pricer: Pricer, *, tokens: int, tensor: int) -> LayerWork:
    """The last product and the loss: logits read three times in 16 bits, or six times in float32."""
    logits = model.vocab // tensor
    product = Parts(products=pricer.product(tokens, model.hidden, logits))
    loss = Parts(kernels=pricer.moved(2 * 3 * tokens * logits, 4 * 6 * tokens * logits))
    return LayerWork(
        forward=product + loss,
        inputs=product,
        weights=product,
        again={"none": Parts(), "dots": Parts(), "full": Parts()},
    )


def embedding_work(model: Decoder, pricer: Pricer, *, tokens: int, tensor: int) -> Parts:
    """Rows of the embedding read forward and added backward."""
    each = WIDE * tokens * model.hidden / tensor
    return Parts(kernels=pricer.moved(4 * each, 8 * each))


def optimizer_work(pricer: Pricer, parameters: float) -> Parts:
    """Adam on a device's own parameters."""
    return Parts(kernels=pricer.moved(*(bound * parameters for bound in STEP_READS)))
