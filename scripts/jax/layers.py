"""Layers and losses that the models share.

A parameter is named by its path ("gpt/h_0/mlp/fc/w") in one flat dict.  A layer takes that
dict and its own path, and runs under a name scope of that path, so that the HLO metadata
tells layers apart.  Weights are f32 and are cast to the type of the activations on use.
"""
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp

NEGATIVE = -1e9


@dataclasses.dataclass(frozen=True)
class Spec:
    """An array to be made: normal(mean, std), or integers in [0, high) if high > 0."""

    shape: tuple
    std: float = 0.0
    mean: float = 0.0
    high: int = 0

    @property
    def dtype(self):
        return "int32" if self.high else "float32"


def dense_spec(path, n_in, n_out, bias=True, std=None):
    """Specs of a dense layer; the default scale keeps the variance."""
    specs = {f"{path}/w": Spec((n_in, n_out), std=std or n_in**-0.5)}
    if bias:
        specs[f"{path}/b"] = Spec((n_out,), std=0.02)
    return specs


def dense(p, path, x):
    """x @ w, plus b where the layer has one."""
    with jax.named_scope(path):
        y = x @ p[f"{path}/w"].astype(x.dtype)
        bias = p.get(f"{path}/b")
        return y if bias is None else y + bias.astype(x.dtype)


def layer_norm_spec(path, n):
    return {
        f"{path}/scale": Spec((n,), std=0.1, mean=1.0),
        f"{path}/bias": Spec((n,), std=0.02),
    }


def widened(x):
    """In f32 at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def layer_norm(p, path, x):
    """Layer norm over the last dimension, computed in f32."""
    with jax.named_scope(path):
        wide = widened(x)
        mean = jnp.mean(wide, axis=-1, keepdims=True)
        var = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
        y = (wide - mean) * jax.lax.rsqrt(var + 1e-5)
        return (y * p[f"{path}/scale"] + p[f"{path}/bias"]).astype(x.dtype)


def rms_norm_spec(path, n):
    return {f"{path}/scale": Spec((n,), std=0.1, mean=1.0)}


def rms_norm(p, path, x):
    """RMS norm over the last dimension."""
    with jax.named_scope(path):
        var = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(var + 1e-6) * p[f"{path}/scale"]


def attention_spec(path, width, bias, query_std=None):
    """Four projections.  A key bias would have a gradient of exactly zero: there is none."""
    return {
        **dense_spec(f"{path}/q", width, width, bias, query_std),
        **dense_spec(f"{path}/k", width, width, bias=False),
        **dense_spec(f"{path}/v", width, width, bias),
        **dense_spec(f"{path}/o", width, width, bias),
    }


def attention(p, path, x, memory, heads, scale, causal=False, bias=None):
    """Multi-head attention of x over memory; bias [heads, q, k] is added to the scores."""
    batch, n_q, width = x.shape
    n_k = memory.shape[1]
    head = width // heads
    q = dense(p, f"{path}/q", x)
    k = dense(p, f"{path}/k", memory)
    v = dense(p, f"{path}/v", memory)
    with jax.named_scope(f"{path}/core"):
        q = q.reshape(batch, n_q, heads, head)
        k = k.reshape(batch, n_k, heads, head)
        v = v.reshape(batch, n_k, heads, head)
        scores = widened(jnp.einsum("bqhd,bkhd->bhqk", q, k)) * scale
        if bias is not None:
            scores = scores + bias
        if causal:
            rows = jax.lax.broadcasted_iota(jnp.int32, (n_q, n_k), 0)
            columns = jax.lax.broadcasted_iota(jnp.int32, (n_q, n_k), 1)
            scores = jnp.where(rows >= columns, scores, NEGATIVE)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, n_q, width)
    return dense(p, f"{path}/o", y)


def embed(p, path, tokens, dtype=jnp.float32):
    """Rows of a table, by gather."""
    with jax.named_scope(path):
        return p[path][tokens].astype(dtype)


def cross_entropy(logits, labels):
    """Mean of logsumexp(logits) - logits[label], in f32."""
    with jax.named_scope("loss"):
        logits = widened(logits)
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="clip")[
            ..., 0
        ]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def cross_entropy_one_hot(logits, labels):
    """The same number, with a one-hot product in place of the gather."""
    with jax.named_scope("loss"):
        one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        picked = jnp.sum(logits * one_hot, axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)
