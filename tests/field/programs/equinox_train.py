"""equinox: eqx.filter_jit and optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

model = eqx.nn.MLP(784, 10, 512, 2, key=jax.random.key(0))
optimizer = optax.adamw(1e-3)
opt_state = optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_value_and_grad
def loss_fn(model, images, labels):
    logits = jax.vmap(model)(images)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


@eqx.filter_jit
def make_step(model, opt_state, images, labels):
    loss, grads = loss_fn(model, images, labels)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


key = jax.random.key(1)
for step in range(20):
    key, batch_key = jax.random.split(key)
    images = jax.random.normal(batch_key, (64, 784))
    labels = jax.random.randint(batch_key, (64,), 0, 10)
    model, opt_state, loss = make_step(model, opt_state, images, labels)
print("done", float(loss))
