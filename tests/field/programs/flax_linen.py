"""flax.linen with optax and a TrainState."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(512)(x))
        x = nn.LayerNorm()(x)
        return nn.Dense(10)(x)


model = MLP()
params = model.init(jax.random.key(0), jnp.ones((1, 784)))["params"]
state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))


@jax.jit
def train_step(state, images, labels):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


key = jax.random.key(1)
for step in range(20):
    key, batch_key = jax.random.split(key)
    images = jax.random.normal(batch_key, (64, 784))
    labels = jax.random.randint(batch_key, (64,), 0, 10)
    state, loss = train_step(state, images, labels)
print("done", float(loss))
