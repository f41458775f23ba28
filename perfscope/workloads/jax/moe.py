"""A mixture of experts in JAX: ``einsum``, ``ragged`` (sorted), ``scatter`` into fixed room, ``grouped`` by kernels.

Shapes: B batch, L sequence, T = B * L tokens, D model features, E experts, K experts a token,
R = T * K routed rows, C capacity of an expert, F hidden features, G = 2 * F, S slots.

    python -m perfscope.workloads.jax.moe --variant einsum
    python -m perfscope.workloads.jax.moe --variant scatter --size gpu

``einsum`` and ``scatter`` give an expert room for ``CAPACITY`` times its fair share and drop further rows, as
GShard does; without overflow all three compute the same. ``--heads`` is the number of experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, uniform
from perfscope.workloads.jax.options import parse
from perfscope.workloads.jax.training import train
from perfscope.workloads.options import Size

VARIANTS = ("einsum", "ragged", "scatter", "grouped")
SIZES = {
    "tiny": Size(batch=2, seq=16, dim=32, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=128, dim=128, heads=8, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}
CHOICES = 2
"""K: experts a token goes to."""
CAPACITY = 2.0
"""Room of an expert over its fair share R / E."""


def einsum(experts: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """Rows moved to their experts, and back, by products with one-hot matrices: y_TD."""
    count, capacity = len(experts["up_EDG"]), _capacity(experts, expert_TK)
    expert_TKE = jax.nn.one_hot(expert_TK, count, dtype=x_TD.dtype)
    place_TKC = jax.nn.one_hot(_places(expert_TK, count).reshape(expert_TK.shape), capacity, dtype=x_TD.dtype)
    sent_TEC = jnp.einsum("tke,tkc->tec", expert_TKE, place_TKC)
    x_ECD = jnp.einsum("tec,td->ecd", sent_TEC, x_TD)  # defect: dense_expert_compute: T * E * C * D products
    y_ECD = jax.nn.glu(x_ECD @ experts["up_EDG"]) @ experts["down_EFD"]
    back_TEC = jnp.einsum("tk,tke,tkc->tec", weight_TK, expert_TKE, place_TKC)
    return jnp.einsum("tec,ecd->td", back_TEC, y_ECD)  # defect: dense_expert_compute: as many again


def ragged(experts: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """Tokens sorted by expert, one ragged product for all of them; nothing is dropped: y_TD."""
    choices, expert_R = expert_TK.shape[1], expert_TK.ravel()
    order_R = jnp.argsort(expert_R, stable=True)
    token_R = order_R // choices
    rows_E = jnp.bincount(expert_R, length=len(experts["up_EDG"])).astype(jnp.int32)
    h_RF = jax.nn.glu(jax.lax.ragged_dot(x_TD[token_R], experts["up_EDG"], rows_E))  # defect: dense_expert_compute
    y_RD = jax.lax.ragged_dot(h_RF, experts["down_EFD"], rows_E)  # defect: dense_expert_compute: on CPUs
    return jnp.zeros_like(x_TD).at[token_R].add(y_RD * weight_TK.ravel()[order_R, None])


def scatter(experts: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """Rows moved as rows, into room of fixed size, in which all experts compute at once: y_TD."""
    capacity = _capacity(experts, expert_TK)
    room_ECD, slot_R = into_room(x_TD, expert_TK, len(experts["up_EDG"]), capacity)
    return out_of_room(computed(experts, room_ECD), slot_R, weight_TK)


def into_room(x_TD: jax.Array, expert_TK: jax.Array, count: int, capacity: int) -> tuple[jax.Array, jax.Array]:
    """The rows in the room of their experts, and the slot of each: room_ECD, slot_R (E * C: it did not fit)."""
    place_R, expert_R = _places(expert_TK, count), expert_TK.ravel()
    slot_R = jnp.where(place_R < capacity, expert_R * capacity + place_R, count * capacity)
    x_RD = jnp.repeat(x_TD, expert_TK.shape[1], axis=0)
    room_SD = jnp.zeros((count * capacity + 1, x_TD.shape[1]), x_TD.dtype).at[slot_R].add(x_RD)
    return room_SD[:-1].reshape(count, capacity, -1), slot_R


def computed(experts: Weights, x_ECD: jax.Array) -> jax.Array:
    """All experts at once, each on its room: y_ECD."""
    return jax.nn.glu(x_ECD @ experts["up_EDG"]) @ experts["down_EFD"]


def out_of_room(y_ECD: jax.Array, slot_R: jax.Array, weight_TK: jax.Array) -> jax.Array:
    """The rows of each token, weighted and added up: y_TD."""
    y_SD = jnp.pad(y_ECD.reshape(-1, y_ECD.shape[2]), ((0, 1), (0, 0)))
    return jnp.einsum("tk,tkd->td", weight_TK, y_SD[slot_R].reshape(*weight_TK.shape, -1))


def grouped(experts: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """Rows sorted by expert, each expert's from the beginning of a block; nothing is dropped: y_TD."""
    # Loaded here: the other variants run where Pallas does not load (jax 0.6 without absl-py).
    from perfscope.workloads.jax.kernels.grouped import grouped_matmul, layout

    count, expert_R = len(experts["up_EDG"]), expert_TK.ravel()
    rows_E = jnp.bincount(expert_R, length=count).astype(jnp.int32)
    first_E, expert_S, block = layout(rows_E, expert_R.size)
    slot_R = first_E[expert_R] + _places(expert_TK, count)
    room_SD = jnp.zeros((len(expert_S) * block, x_TD.shape[1]), x_TD.dtype)
    room_SD = room_SD.at[slot_R].set(jnp.repeat(x_TD, expert_TK.shape[1], axis=0))
    h_SF = jax.nn.glu(grouped_matmul(room_SD, experts["up_EDG"], expert_S))
    y_SD = grouped_matmul(h_SF, experts["down_EFD"], expert_S)
    return jnp.einsum("tk,tkd->td", weight_TK, y_SD[slot_R].reshape(*expert_TK.shape, -1))


def _capacity(experts: Weights, expert_TK: jax.Array) -> int:
    """C: places an expert has, the integer that the PyTorch twin computes."""
    return -(-int(CAPACITY * expert_TK.size) // len(experts["up_EDG"]))


def _places(expert_TK: jax.Array, count: int) -> jax.Array:
    """place_R: how many rows before this one chose the same expert."""
    expert_R = expert_TK.ravel()
    rank_RE = jax.nn.one_hot(expert_R, count, dtype=jnp.int32).cumsum(0)
    return jnp.take_along_axis(rank_RE, expert_R[:, None], axis=1)[:, 0] - 1


DISPATCH = {"einsum": einsum, "ragged": ragged, "scatter": scatter, "grouped": grouped}


class Block:
    """Pre-norm feed-forward block whose tokens choose ``CHOICES`` experts each: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        self.size, self.dispatch = size, DISPATCH[variant]

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of one layer, float32; those of the experts are normal with variance 1 / inputs."""
        dim, experts, hidden = self.size.dim, self.size.heads, 2 * self.size.dim
        return {
            "norm": norm_weights(dim),
            "router_DE": uniform(generator, dim, dim, experts),
            "experts": {
                "up_EDG": _normal(generator, dim, experts, dim, 2 * hidden),
                "down_EFD": _normal(generator, hidden, experts, hidden, dim),
            },
        }

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""
        x_TD = layer_norm(weights["norm"], x_BLD).reshape(-1, self.size.dim)
        with jax.named_scope("router"):
            logit_TK, expert_TK = jax.lax.top_k(x_TD @ weights["router_DE"], CHOICES)
            weight_TK = jax.nn.softmax(logit_TK.astype(jnp.float32)).astype(x_BLD.dtype)
        with jax.named_scope("experts"):
            y_TD = self.dispatch(weights["experts"], x_TD, weight_TK, expert_TK)
        return x_BLD + y_TD.reshape(x_BLD.shape)


def _normal(generator: np.random.Generator, inputs: int, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape, np.float32) * np.float32(inputs**-0.5)


if __name__ == "__main__":
    train(Block, parse(__doc__ or "", VARIANTS, SIZES))
