"""flax.nnx: nnx.jit, nnx.value_and_grad, nnx.Optimizer."""

import jax
import optax
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(784, 512, rngs=rngs)
        self.norm = nnx.LayerNorm(512, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.second = nnx.Linear(512, 10, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(nnx.gelu(self.norm(self.first(x)))))


model = Model(rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, images, labels):
    def loss_fn(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


model.train()
key = jax.random.key(1)
for step in range(20):
    key, batch_key = jax.random.split(key)
    images = jax.random.normal(batch_key, (64, 784))
    labels = jax.random.randint(batch_key, (64,), 0, 10)
    loss = train_step(model, optimizer, images, labels)
print("done", float(loss))
