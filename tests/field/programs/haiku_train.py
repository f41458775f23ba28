"""haiku: hk.transform and optax."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax


def forward(images):
    return hk.Sequential([hk.Linear(512), jax.nn.relu, hk.Linear(512), jax.nn.relu, hk.Linear(10)])(images)


network = hk.without_apply_rng(hk.transform(forward))
optimizer = optax.adam(1e-3)
params = network.init(jax.random.PRNGKey(0), jnp.ones((1, 784)))
opt_state = optimizer.init(params)


def loss_fn(params, images, labels):
    logits = network.apply(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def update(params, opt_state, images, labels):
    grads = jax.grad(loss_fn)(params, images, labels)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state


key = jax.random.PRNGKey(1)
for step in range(20):
    key, batch_key = jax.random.split(key)
    images = jax.random.normal(batch_key, (64, 784))
    labels = jax.random.randint(batch_key, (64,), 0, 10)
    params, opt_state = update(params, opt_state, images, labels)
print("done")
