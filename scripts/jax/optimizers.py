"""Optimizers: state specs and one update of all weights."""
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp

from layers import Spec


def zeros_like(params):
    return {path: Spec(spec.shape) for path, spec in params.items()}


def adam_state(params):
    return {"m": zeros_like(params), "step": Spec((), high=1), "v": zeros_like(params)}


def adam(params, grads, state, lr, b1=0.9, b2=0.99, eps=1e-6):
    """Adam with bias correction.  eps is large enough to damp rounding noise in gradients
    near zero."""
    with jax.named_scope("adam"):
        step = state["step"] + 1
        t = step.astype(jnp.float32)
        fix1 = 1 - b1**t
        fix2 = 1 - b2**t
        new_params, m, v = {}, {}, {}
        for path, g in grads.items():
            m[path] = b1 * state["m"][path] + (1 - b1) * g
            v[path] = b2 * state["v"][path] + (1 - b2) * jnp.square(g)
            move = (m[path] / fix1) / (jnp.sqrt(v[path] / fix2) + eps)
            new_params[path] = params[path] - lr * move
        return new_params, {"m": m, "step": step, "v": v}


def momentum_state(params):
    return {"momentum": zeros_like(params)}


def momentum(params, grads, state, lr, decay=0.9):
    """SGD with heavy-ball momentum."""
    with jax.named_scope("momentum"):
        new_params, velocity = {}, {}
        for path, g in grads.items():
            velocity[path] = decay * state["momentum"][path] + g
            new_params[path] = params[path] - lr * velocity[path]
        return new_params, {"momentum": velocity}


OPTIMIZERS = {"adam": (adam_state, adam), "momentum": (momentum_state, momentum)}
