# SPDX-License-Identifier: Apache-2.0
"""A Llama in plain JAX: RMS norm, rotary positions, grouped queries, gated feed-forward; bf16
weights, Adam in f32.  The width is that of the models of 1B; two layers (LLAMA_TINY=1: small).

    export.py --step llama.py:train_step --args llama.py:example_args --donate 0,1 -o llama.hlo.gz
"""

import os

import jax
import jax.numpy as jnp
import numpy as np

TINY = bool(os.environ.get("LLAMA_TINY"))
LAYERS, WIDTH, HEADS, KV_HEADS, FFN = (2, 64, 4, 2, 128) if TINY else (2, 2048, 32, 4, 5632)
VOCAB, LENGTH, BATCH = (128, 16, 8) if TINY else (32000, 64, 8)
HEAD = WIDTH // HEADS
RATE = 1e-5


def norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype)


def rotate(x):
    """Rotary positions of [batch, length, heads, head]."""
    half = HEAD // 2
    angles = jnp.arange(LENGTH)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None, :], jnp.cos(angles)[:, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(w, x):
    batch, length = x.shape[:2]
    q = rotate((x @ w["q"]).reshape(batch, length, HEADS, HEAD))
    k = rotate((x @ w["k"]).reshape(batch, length, KV_HEADS, HEAD))
    v = (x @ w["v"]).reshape(batch, length, KV_HEADS, HEAD)
    q = q.reshape(batch, length, KV_HEADS, HEADS // KV_HEADS, HEAD)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32) * HEAD**-0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1).astype(x.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", shares, v).reshape(batch, length, WIDTH) @ w["o"]


def logits_of(params, tokens):
    x = params["embed"][tokens]
    for i in range(LAYERS):
        w = params[f"layer_{i}"]
        with jax.named_scope(f"llama/layer_{i}"):
            x = x + attention(w, norm(x, w["norm_1"]))
            h = norm(x, w["norm_2"])
            x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    return (norm(x, params["norm"]) @ params["head"]).astype(jnp.float32)


def loss_of(params, batch):
    logits = logits_of(params, batch["tokens"])
    picked = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def train_step(params, opt_state, batch):
    """Adam with f32 moments: (loss, params, opt_state)."""
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    step = opt_state["step"] + 1
    fix = jnp.sqrt(1 - 0.95 ** step.astype(jnp.float32)) / (1 - 0.9 ** step.astype(jnp.float32))

    def update(p, g, m, v):
        g = g.astype(jnp.float32)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * jnp.square(g)
        move = RATE * fix * m / (jnp.sqrt(v) + 1e-6)
        return (p.astype(jnp.float32) - move).astype(p.dtype), m, v

    found = jax.tree.map(update, params, grads, opt_state["m"], opt_state["v"])
    params, m, v = jax.tree.transpose(
        jax.tree.structure(params), jax.tree.structure((0, 0, 0)), found
    )
    return loss, params, {"m": m, "step": step, "v": v}


def example_args():
    rng = np.random.default_rng(0)

    def weight(*shape):
        scale = shape[0] ** -0.5 if shape != (VOCAB, WIDTH) else 1.0
        return (scale * rng.standard_normal(shape, np.float32)).astype(jnp.bfloat16)

    kv = KV_HEADS * HEAD
    layer = {
        "q": (WIDTH, WIDTH), "k": (WIDTH, kv), "v": (WIDTH, kv), "o": (WIDTH, WIDTH),
        "gate": (WIDTH, FFN), "up": (WIDTH, FFN), "down": (FFN, WIDTH),
    }  # fmt: skip
    ones = np.ones(WIDTH, np.float32)
    params = {"embed": weight(VOCAB, WIDTH), "head": weight(WIDTH, VOCAB), "norm": ones}
    for i in range(LAYERS):
        weights = {name: weight(*shape) for name, shape in layer.items()}
        params[f"layer_{i}"] = {**weights, "norm_1": ones, "norm_2": ones}
    zeros = jax.tree.map(lambda p: np.zeros(p.shape, np.float32), params)
    opt_state = {"m": zeros, "step": np.int32(0), "v": jax.tree.map(np.copy, zeros)}
    tokens = rng.integers(VOCAB, size=(BATCH, LENGTH + 1), dtype=np.int32)
    return params, opt_state, {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
