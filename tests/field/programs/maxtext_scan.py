"""A decoder as MaxText's: a rematerialised scan over layers, parameters sharded over a mesh, donated state."""

import os

if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

WIDTH, HEADS, DEPTH, VOCABULARY = 128, 4, 4, 1024
devices = len(jax.devices())
shape = (2, devices // 2) if devices > 1 else (1, 1)
mesh = Mesh(mesh_utils.create_device_mesh(shape), ("data", "fsdp"))
sharded = NamedSharding(mesh, P(None, "fsdp"))
stacked = NamedSharding(mesh, P(None, "fsdp", None))


def init(key):
    keys = jax.random.split(key, 4)
    scale = 0.02
    return {
        "embedding": scale * jax.random.normal(keys[0], (VOCABULARY, WIDTH)),
        "layers": {
            "qkv": scale * jax.random.normal(keys[1], (DEPTH, WIDTH, 3 * WIDTH)),
            "out": scale * jax.random.normal(keys[2], (DEPTH, WIDTH, WIDTH)),
            "mlp": scale * jax.random.normal(keys[3], (DEPTH, WIDTH, 4 * WIDTH)),
        },
    }


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


@partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
def layer(x, weights):
    batch, length, _ = x.shape
    q, k, v = jnp.split(norm(x) @ weights["qkv"].astype(x.dtype), 3, -1)
    q, k, v = (a.reshape(batch, length, HEADS, WIDTH // HEADS) for a in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype), v)
    x = x + attended.reshape(batch, length, WIDTH) @ weights["out"].astype(x.dtype)
    hidden = jax.nn.silu(norm(x) @ weights["mlp"].astype(x.dtype))
    return x + hidden @ weights["mlp"].astype(x.dtype).T, None


def loss_fn(params, tokens):
    x = params["embedding"].astype(jnp.bfloat16)[tokens[:, :-1]]
    x, _ = jax.lax.scan(layer, x, params["layers"])
    logits = (norm(x) @ params["embedding"].astype(jnp.bfloat16).T).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, opt_state, tokens):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


params = jax.tree.map(lambda a: jax.device_put(a, sharded if a.ndim == 2 else stacked), init(jax.random.key(0)))
opt_state = optimizer.init(params)
batches = NamedSharding(mesh, P(("data", "fsdp")))
for step in range(12):
    tokens = jax.device_put(jax.random.randint(jax.random.key(step), (8, 65), 0, VOCABULARY), batches)
    params, opt_state, loss = train_step(params, opt_state, tokens)
print("done", float(loss))
