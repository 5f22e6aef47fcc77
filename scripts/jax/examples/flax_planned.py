# SPDX-License-Identifier: Apache-2.0
"""A training script with Flax and Optax as people write it: a small transformer that learns to
copy, with dropout, on one device."""

import sys
from functools import partial

import autopar
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

VOCAB, WIDTH, LENGTH, BATCH, STEPS = 64, 64, 16, 16, 8


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, h, mask=mask)
        h = nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))
        h = nn.Dropout(0.1, deterministic=False)(nn.gelu(h))
        return x + nn.Dense(WIDTH)(h)


class Net(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCAB, WIDTH)(tokens)
        x = x + self.param("position", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        for _ in range(2):
            x = Block()(x)
        return nn.Dense(VOCAB)(nn.LayerNorm()(x))


def create_state():
    net, keys = Net(), dict(zip(["params", "dropout"], jax.random.split(jax.random.key(0))))
    params = net.init(keys, jnp.zeros((BATCH, LENGTH), jnp.int32))["params"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return TrainState.create(apply_fn=net.apply, params=params, tx=optimizer)


def batches():
    rng = np.random.default_rng(0)
    while True:
        tokens = rng.integers(VOCAB, size=(BATCH, LENGTH), dtype=np.int32)
        yield {"tokens": tokens, "labels": np.roll(tokens, 1, axis=1)}


@partial(jax.jit, donate_argnums=0)
def train_step(state, batch, key):
    def loss_fn(params):
        key_now = jax.random.fold_in(key, state.step)
        logits = state.apply_fn({"params": params}, batch["tokens"], rngs={"dropout": key_now})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return losses.mean(), (logits.argmax(-1) == batch["labels"]).mean()

    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss, "accuracy": accuracy}


def example_args():
    return create_state(), next(batches()), jax.random.key(1)


def main():
    state, key = create_state(), jax.random.key(1)
    plan = autopar.load(sys.argv[1])
    step, state = plan.jit(train_step), plan.shard(state)
    for i, batch in zip(range(STEPS), batches()):
        state, metrics = step(state, batch, key)
        print(f"step {i} loss {metrics['loss']:.5f} accuracy {metrics['accuracy']:.3f}")
    with open(sys.argv[-1], "wb") as file:
        file.write(flax.serialization.to_bytes(plan.unshard(state)))


if __name__ == "__main__":
    main()
