"""grain: a MapDataset pipeline feeds a jitted step."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax


def sample(index):
    generator = np.random.default_rng(index)
    return {"x": generator.normal(size=256).astype(np.float32), "y": np.int32(index % 10)}


data = grain.MapDataset.range(512).shuffle(seed=0).map(sample).batch(16).to_iter_dataset()
optimizer = optax.sgd(0.1)
params = {"w": jnp.zeros((256, 10))}
opt_state = optimizer.init(params)


@jax.jit
def train_step(params, opt_state, batch):
    def loss_fn(params):
        logits = batch["x"] @ params["w"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


for batch in data:
    params, opt_state, loss = train_step(params, opt_state, batch)
print("done", float(loss))
