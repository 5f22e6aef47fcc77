# SPDX-License-Identifier: Apache-2.0
"""Train steps of kinds that people train, small: what zoo-table exports, plans and runs.

Each is a function that returns (step, arguments, options): options are those of
export.py, `donate`, `frozen` and `loss`.  They are written as their users write them: with Flax's
TrainState and Optax where these are usual, with dictionaries otherwise; with what such steps
carry beside weights: typed random keys, Python numbers, averages, statistics, replay
buffers, None, frozen weights, metrics.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

ZOO = {}


def entry(function):
    ZOO[function.__name__] = function
    return function


def normal(seed, *shape, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def integers(seed, high, *shape):
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.int32)


def dense(seed, n_in, n_out):
    return {"w": normal(seed, n_in, n_out, scale=n_in**-0.5), "b": np.zeros(n_out, np.float32)}


def apply(p, x):
    return x @ p["w"] + p["b"]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def adam_step(loss_of, rate=1e-3, aux=False):
    """(step, optimizer) of the usual form: (params, opt_state, batch) -> (loss, ...)."""
    optimizer = optax.adam(rate)

    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_of, has_aux=aux)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return loss, optax.apply_updates(params, updates), opt_state

    return step, optimizer


# ---- Flax's TrainState, with averages and metrics ----


class State(train_state.TrainState):
    ema: Any = None
    key: Any = None


@entry
def flax_ema():
    """A classifier in a TrainState: dropout from a typed key, averages of the weights, and
    metrics by name, of which the loss is the third."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            for width in (64, 64):
                x = nn.gelu(nn.Dense(width)(nn.LayerNorm()(x)))
                x = nn.Dropout(0.1, deterministic=not train)(x)
            return nn.Dense(10)(x)

    net = Net()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state, batch):
        key, dropout = jax.random.split(state.key)

        def loss_of(params):
            logits = state.apply_fn(
                {"params": params}, batch["x"], train=True, rngs={"dropout": dropout}
            )
            return cross_entropy(logits, batch["y"]), logits

        (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads, key=key)
        ema = optax.incremental_update(state.params, state.ema, 0.01)
        metrics = {
            "accuracy": (logits.argmax(-1) == batch["y"]).mean(),
            "grad_norm": optax.global_norm(grads),
            "loss": loss,
        }
        return state.replace(ema=ema), metrics

    batch = {"x": normal(1, 32, 16), "y": integers(2, 10, 32)}
    params = net.init(jax.random.key(0), batch["x"], train=False)["params"]
    state = State.create(
        apply_fn=net.apply, params=params, tx=optimizer, ema=params, key=jax.random.key(1)
    )
    return train_step, (state, batch), {}


# ---- fp8 ----


class Fp8(NamedTuple):
    history: Any  # of largest absolute values
    scale: Any


def quantize(x, meta, dtype):
    """x in fp8 under the scale of earlier steps, and the statistics of this one."""
    largest = jnp.finfo(dtype).max.astype(jnp.float32)
    history = jnp.roll(meta.history, 1).at[0].set(jnp.max(jnp.abs(x)))
    scale = jnp.where(history.max() > 0, largest / history.max(), 1.0)
    q = jnp.clip(x * meta.scale, -largest, largest).astype(dtype)
    return q, Fp8(history, scale)


@jax.custom_vjp
def fp8_dot(x, w, metas):
    return fp8_forward(x, w, metas)[0]


def fp8_forward(x, w, metas):
    qx, mx = quantize(x, metas["x"], jnp.float8_e4m3fn)
    qw, mw = quantize(w, metas["w"], jnp.float8_e4m3fn)
    y = qx.astype(jnp.float32) @ qw.astype(jnp.float32)
    y = y / (metas["x"].scale * metas["w"].scale)
    return (y, {"x": mx, "w": mw}), (qx, qw, metas)


def fp8_backward(kept, cotangents):
    (qx, qw, metas), (dy, _) = kept, cotangents
    largest = jnp.finfo(jnp.float8_e5m2).max.astype(jnp.float32)
    scale = largest / jnp.maximum(jnp.max(jnp.abs(dy)), 1e-12)
    qdy = (dy * scale).astype(jnp.float8_e5m2).astype(jnp.float32)
    dx = qdy @ qw.astype(jnp.float32).T / (scale * metas["w"].scale)
    dw = qx.astype(jnp.float32).T @ qdy / (scale * metas["x"].scale)
    return dx, dw, jax.tree.map(jnp.zeros_like, metas)


fp8_dot.defvjp(lambda x, w, m: fp8_forward(x, w, m), fp8_backward)


@entry
def fp8():
    """Two layers in fp8 with delayed scaling: e4m3 forward, e5m2 backward."""

    def dot(x, w, metas):
        (y, new), _ = fp8_forward(x, jax.lax.stop_gradient(w), metas)
        return y, new

    def train_step(params, opt_state, metas, batch):
        def loss_of(params):
            h, new = batch["x"], {}
            for name in ("fc_0", "fc_1"):
                h, new[name] = fp8_dot(h, params[name], metas[name])
                h = jax.nn.relu(h)
            return jnp.mean((h @ params["head"] - batch["y"]) ** 2), new

        (loss, metas), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, metas, loss

    optimizer = optax.sgd(1e-2, momentum=0.9)
    params = {
        "fc_0": normal(0, 16, 64, scale=0.25),
        "fc_1": normal(1, 64, 64, scale=0.125),
        "head": normal(2, 64, 1, scale=0.125),
    }
    fresh = Fp8(np.zeros(4, np.float32), np.float32(1))
    metas = {name: {"x": fresh, "w": fresh} for name in ("fc_0", "fc_1")}
    batch = {"x": normal(3, 32, 16), "y": normal(4, 32, 1)}
    args = (params, optimizer.init(params), metas, batch)
    return train_step, args, {"donate": (0, 1, 2)}


# ---- state spaces and linear recurrences ----


def scan_linear(a, b):
    """h[t] = a[t] h[t - 1] + b[t] over axis 1."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(combine, (a, b), axis=1)[1]


@entry
def mamba():
    """A selective state space in two layers, by associative scans."""
    width, states = 16, 4

    def block(p, x):
        u, gate = jnp.split(apply(p["in"], x), 2, axis=-1)
        u = jax.nn.silu(u)
        dt = jax.nn.softplus(apply(p["dt"], u))
        b, c = jnp.split(apply(p["bc"], u), 2, axis=-1)
        decay = jnp.exp(dt[..., None] * -jnp.exp(p["a_log"]))
        h = scan_linear(decay, (dt * u)[..., None] * b[..., None, :])
        y = jnp.einsum("btds,bts->btd", h, c) + u * p["d"]
        return x + apply(p["out"], y * jax.nn.silu(gate))

    def loss_of(params, batch):
        h = params["embed"][batch["tokens"]]
        for p in params["layers"]:
            h = block(p, h)
        return cross_entropy(h @ params["embed"].T, batch["targets"])

    def layer(seed):
        return {
            "in": dense(seed, width, 2 * width),
            "dt": dense(seed + 1, width, width),
            "bc": dense(seed + 2, width, 2 * states),
            "out": dense(seed + 3, width, width),
            "a_log": np.log(np.tile(np.arange(1, states + 1, dtype=np.float32), (width, 1))),
            "d": np.ones(width, np.float32),
        }

    step, optimizer = adam_step(loss_of, 3e-3)
    params = {"embed": normal(9, 32, width, scale=0.3), "layers": [layer(10), layer(20)]}
    batch = {"tokens": integers(1, 32, 8, 16), "targets": integers(2, 32, 8, 16)}
    return step, (params, optimizer.init(params), batch), {"donate": (0, 1)}


@entry
def rwkv():
    """Linear attention with a decay per head, stacked layers under lax.scan, rematerialised."""
    width, heads, layers = 16, 2, 3

    def mix(p, x):
        shifted = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        x = x * p["mu"] + shifted * (1 - p["mu"])
        r, k, v = (
            (x @ p[n]).reshape(*x.shape[:2], heads, width // heads) for n in ("r", "k", "v")
        )
        w = jnp.exp(-jnp.exp(p["decay"]))[None, None, :, :, None]
        kv = k[..., :, None] * v[..., None, :]
        state = scan_linear(jnp.broadcast_to(w, kv.shape), kv)
        y = jnp.einsum("bthk,bthkv->bthv", r, state)
        return y.reshape(x.shape) @ p["o"]

    def layer(h, p):
        h = h + mix(p, h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-5))
        return h + jnp.square(jax.nn.relu(h @ p["up"])) @ p["down"], None

    def loss_of(params, batch):
        h, _ = jax.lax.scan(jax.checkpoint(layer), params["embed"][batch["x"]], params["layers"])
        return cross_entropy(h @ params["head"], batch["y"])

    def stack(seed, *shape):
        return normal(seed, layers, *shape, scale=0.5 * shape[0] ** -0.5)

    step, optimizer = adam_step(loss_of, 3e-3)
    params = {
        "embed": normal(0, 32, width, scale=0.3),
        "head": normal(1, width, 32, scale=0.25),
        "layers": {
            "mu": np.full((layers, width), 0.5, np.float32),
            "decay": np.zeros((layers, heads, width // heads), np.float32),
            **{n: stack(i + 2, width, width) for i, n in enumerate(("r", "k", "v", "o"))},
            "up": stack(6, width, 2 * width),
            "down": stack(7, 2 * width, width),
        },
    }
    batch = {"x": integers(1, 32, 4, 8), "y": integers(2, 32, 4, 8)}
    return step, (params, optimizer.init(params), batch), {"donate": (0, 1)}


# ---- experts ----


@entry
def moe():
    """Two of four experts for each token, with a capacity, a balance loss and a z-loss."""
    width, experts, capacity = 16, 4, 24

    def route(p, x):
        logits = x @ p["router"]
        probs = jax.nn.softmax(logits)
        gates, chosen = jax.lax.top_k(probs, 2)
        onehot = jax.nn.one_hot(chosen, experts)  # token, choice, expert
        flat = onehot.transpose(1, 0, 2).reshape(-1, experts)
        place = (jnp.cumsum(flat, axis=0) - 1) * flat
        place = place.reshape(2, -1, experts).transpose(1, 0, 2)
        kept = onehot * (place < capacity)
        slots = jax.nn.one_hot(place.astype(jnp.int32), capacity) * kept[..., None]
        combine = jnp.einsum("tk,tkec->tec", gates, slots)
        balance = experts * jnp.sum(onehot[:, 0].mean(0) * probs.mean(0))
        z = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)
        return slots.sum(1), combine, balance, z

    def loss_of(params, batch):
        x = params["embed"][batch["x"]].reshape(-1, width)
        dispatch, combine, balance, z = route(params, x)
        h = jnp.einsum("tec,td->ecd", dispatch, x)
        h = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", h, params["up"]))
        h = jnp.einsum("ecf,efd->ecd", h, params["down"])
        y = x + jnp.einsum("tec,ecd->td", combine, h)
        task = cross_entropy(y @ params["head"], batch["y"].reshape(-1))
        total = task + 1e-2 * balance + 1e-3 * z
        return total, {"balance": balance, "task": task, "z": z}

    step, optimizer = adam_step(loss_of, 3e-3, aux=True)
    params = {
        "embed": normal(0, 32, width),
        "router": normal(1, width, experts),
        "up": normal(2, experts, width, 32, scale=0.25),
        "down": normal(3, experts, 32, width, scale=0.2),
        "head": normal(4, width, 32, scale=0.25),
    }
    batch = {"x": integers(1, 32, 4, 16), "y": integers(2, 32, 4, 16)}
    args = (params, optimizer.init(params), batch)
    return step, args, {"donate": (0, 1), "loss": "[0][0]"}


# ---- generative models ----


@entry
def vae():
    """A variational autoencoder: reconstruction and KL terms, noise from a typed key that
    the step splits."""

    def loss_of(params, batch):
        x, key = batch
        mean, log_var = jnp.split(apply(params["enc_1"], jax.nn.relu(apply(params["enc_0"], x))), 2, -1)
        z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
        logits = apply(params["dec_1"], jax.nn.relu(apply(params["dec_0"], z)))
        rec = optax.sigmoid_binary_cross_entropy(logits, (x > 0).astype(jnp.float32)).sum(-1).mean()
        kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), -1).mean()
        return rec + kl, (rec, kl)

    def train_step(params, opt_state, x, key):
        key, now = jax.random.split(key)
        (loss, (rec, kl)), grads = jax.value_and_grad(loss_of, has_aux=True)(params, (x, now))
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        return params, opt_state, key, {"elbo_loss": loss, "kl": kl, "rec": rec}

    optimizer = optax.adam(1e-3)
    params = {
        "enc_0": dense(0, 64, 32),
        "enc_1": dense(1, 32, 16),
        "dec_0": dense(2, 8, 32),
        "dec_1": dense(3, 32, 64),
    }
    args = (params, optimizer.init(params), normal(4, 16, 64), jax.random.key(7))
    return train_step, args, {"donate": (0, 1, 3)}


@entry
def diffusion():
    """Denoising diffusion: convolutions, an embedding of the time, averages of the weights."""

    def conv(p, x):
        y = jax.lax.conv_general_dilated(
            x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return y + p["b"]

    def net(params, x, t):
        angles = t[:, None] * jnp.exp(-jnp.arange(8) * 1.0)
        time = apply(params["time"], jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        h = jax.nn.silu(conv(params["in"], x) + time[:, None, None, :])
        small = jax.lax.reduce_window(h, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        small = jax.nn.silu(conv(params["mid"], small))
        return conv(params["out"], h + jnp.repeat(jnp.repeat(small, 2, 1), 2, 2))

    def train_step(state, images, key):
        key_t, key_noise = jax.random.split(jax.random.fold_in(key, state["step"]))
        t = jax.random.randint(key_t, images.shape[:1], 0, 100)
        noise = jax.random.normal(key_noise, images.shape)
        signal = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 100))[t][:, None, None, None]
        noisy = jnp.sqrt(signal) * images + jnp.sqrt(1 - signal) * noise

        def loss_of(params):
            return jnp.mean((net(params, noisy, t.astype(jnp.float32)) - noise) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        ema = jax.tree.map(lambda e, p: 0.999 * e + 0.001 * p, state["ema"], params)
        return {"params": params, "opt": opt, "ema": ema, "step": state["step"] + 1}, loss

    def kernel(seed, n_in, n_out):
        w = normal(seed, 3, 3, n_in, n_out, scale=(9 * n_in) ** -0.5)
        return {"w": w, "b": np.zeros(n_out, np.float32)}

    optimizer = optax.adam(2e-3)
    params = {
        "time": dense(0, 16, 16),
        "in": kernel(1, 3, 16),
        "mid": kernel(2, 16, 16),
        "out": kernel(3, 16, 3),
    }
    ema = jax.tree.map(np.copy, params)
    state = {"params": params, "opt": optimizer.init(params), "ema": ema, "step": 0}
    return train_step, (state, normal(4, 8, 8, 8, 3), jax.random.key(3)), {"donate": (0,)}


@entry
def gan():
    """Two networks with an optimizer each: the discriminator first, then the generator."""

    def mlp(p, x):
        return apply(p[1], jax.nn.leaky_relu(apply(p[0], x), 0.2))

    def train_step(gen, disc, gen_opt, disc_opt, real, noise):
        def disc_loss(disc):
            fake = jax.lax.stop_gradient(mlp(gen, noise))
            return (
                jax.nn.softplus(-mlp(disc, real)).mean() + jax.nn.softplus(mlp(disc, fake)).mean()
            )

        d_loss, grads = jax.value_and_grad(disc_loss)(disc)
        updates, disc_opt = optimizer.update(grads, disc_opt)
        disc = optax.apply_updates(disc, updates)

        def gen_loss(gen):
            return jax.nn.softplus(-mlp(disc, mlp(gen, noise))).mean()

        g_loss, grads = jax.value_and_grad(gen_loss)(gen)
        updates, gen_opt = optimizer.update(grads, gen_opt)
        gen = optax.apply_updates(gen, updates)
        return gen, disc, gen_opt, disc_opt, {"d_loss": d_loss, "g_loss": g_loss}

    optimizer = optax.adam(1e-3, b1=0.5)
    gen, disc = [dense(0, 8, 32), dense(1, 32, 16)], [dense(2, 16, 32), dense(3, 32, 1)]
    args = (gen, disc, optimizer.init(gen), optimizer.init(disc), normal(4, 16, 16), normal(5, 16, 8))
    return train_step, args, {"donate": (0, 1, 2, 3), "loss": "g_loss"}


# ---- reinforcement learning ----


@entry
def dqn():
    """Deep Q-learning: a replay buffer that every step writes to and samples from, a target
    network, epsilon unused."""
    size, n_obs, n_act = 64, 6, 3

    def q(p, x):
        return apply(p["head"], jax.nn.relu(apply(p["fc"], x)))

    def train_step(params, target, opt_state, replay, new, key, epsilon, hook):
        del epsilon, hook  # of the actor
        at = replay["next"] % size
        data = {
            name: jax.lax.dynamic_update_slice_in_dim(replay["data"][name], new[name], at, 0)
            for name in new
        }
        replay = {"data": data, "next": replay["next"] + new["reward"].shape[0]}
        index = jax.random.randint(key, (16,), 0, size)
        batch = jax.tree.map(lambda x: x[index], data)

        def loss_of(params):
            chosen = jnp.take_along_axis(q(params, batch["obs"]), batch["act"][:, None], 1)[:, 0]
            best = q(target, batch["then"]).max(-1)
            goal = batch["reward"] + 0.99 * jnp.where(batch["done"], 0.0, best)
            return optax.huber_loss(chosen, jax.lax.stop_gradient(goal)).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        target = optax.incremental_update(params, target, 0.05)
        return params, target, opt_state, replay, {"td_loss": loss}

    def transitions(seed, n):
        return {
            "obs": normal(seed, n, n_obs),
            "act": integers(seed, n_act, n),
            "reward": normal(seed + 1, n),
            "then": normal(seed + 2, n, n_obs),
            "done": integers(seed, 2, n).astype(bool),
        }

    optimizer = optax.adam(1e-3)
    params = {"fc": dense(0, n_obs, 32), "head": dense(1, 32, n_act)}
    replay = {"data": transitions(10, size), "next": 8}
    target = jax.tree.map(np.copy, params)
    args = (params, target, optimizer.init(params), replay, transitions(20, 4), jax.random.key(5), 0.1, None)
    return train_step, args, {"donate": (0, 1, 2, 3)}


# ---- sequences and images ----


@entry
def mla():
    """Latent attention: keys and values from a narrow latent, a rotary part beside it."""
    width, heads, head, latent, rope = 32, 4, 8, 8, 4

    def rotate(x):
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        shape = (1, x.shape[1]) + (1,) * (x.ndim - 3) + (half,)
        cos, sin = jnp.cos(angle).reshape(shape), jnp.sin(angle).reshape(shape)
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(p, x):
        q = jnp.einsum("btd,dhk->bthk", x, p["q"])
        narrow = x @ p["kv_down"]
        c, k_rope = narrow[..., :latent], rotate(narrow[..., latent:])
        k = jnp.einsum("btc,chk->bthk", c, p["k_up"])
        v = jnp.einsum("btc,chk->bthk", c, p["v_up"])
        scores = jnp.einsum("bthk,bshk->bhts", q[..., :head], k)
        scores += jnp.einsum("bthk,bsk->bhts", rotate(q[..., head:]), k_rope)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        probs = jax.nn.softmax(jnp.where(mask, scores / (head + rope) ** 0.5, -1e9))
        return jnp.einsum("bhts,bshk,hkd->btd", probs, v, p["o"])

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    def loss_of(params, batch):
        h = params["embed"][batch["x"]]
        for p in params["layers"]:
            h = h + attend(p, norm(h, p["norm_0"]))
            u = norm(h, p["norm_1"])
            h = h + (jax.nn.silu(u @ p["gate"]) * (u @ p["up"])) @ p["down"]
        return cross_entropy(h @ params["embed"].T, batch["y"])

    def layer(seed):
        return {
            "q": normal(seed, width, heads, head + rope, scale=0.18),
            "kv_down": normal(seed + 1, width, latent + rope, scale=0.18),
            "k_up": normal(seed + 2, latent, heads, head, scale=0.35),
            "v_up": normal(seed + 3, latent, heads, head, scale=0.35),
            "o": normal(seed + 4, heads, head, width, scale=0.18),
            "gate": normal(seed + 5, width, 64, scale=0.18),
            "up": normal(seed + 6, width, 64, scale=0.18),
            "down": normal(seed + 7, 64, width, scale=0.12),
            "norm_0": np.ones(width, np.float32),
            "norm_1": np.ones(width, np.float32),
        }

    step, optimizer = adam_step(loss_of)
    params = {"embed": normal(0, 64, width, scale=0.2), "layers": [layer(10), layer(20)]}
    batch = {"x": integers(1, 64, 4, 16), "y": integers(2, 64, 4, 16)}
    return step, (params, optimizer.init(params), batch), {"donate": (0, 1)}


@entry
def cnn():
    """A residual network with batch norm; running statistics are a collection of their own."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            norm = functools.partial(nn.BatchNorm, use_running_average=False, momentum=0.9)
            y = nn.relu(norm()(nn.Conv(16, (3, 3), use_bias=False)(x)))
            return nn.relu(x + norm()(nn.Conv(16, (3, 3), use_bias=False)(y)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(16, (3, 3), name="stem")(x)
            for _ in range(2):
                x = nn.max_pool(Block()(x), (2, 2), (2, 2))
            return nn.Dense(10)(x.mean((1, 2)))

    net, optimizer = Net(), optax.sgd(0.05, momentum=0.9, nesterov=True)

    def train_step(variables, opt_state, batch):
        def loss_of(params):
            full = {"params": params, "batch_stats": variables["batch_stats"]}
            logits, new = net.apply(full, batch["x"], mutable=["batch_stats"])
            return cross_entropy(logits, batch["y"]), new["batch_stats"]

        (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(variables["params"])
        updates, opt_state = optimizer.update(grads, opt_state, variables["params"])
        params = optax.apply_updates(variables["params"], updates)
        return {"params": params, "batch_stats": stats}, opt_state, {"loss": loss}

    batch = {"x": normal(1, 16, 8, 8, 3), "y": integers(2, 10, 16)}
    variables = dict(net.init(jax.random.key(0), batch["x"]))
    args = (variables, optimizer.init(variables["params"]), batch)
    return train_step, args, {"donate": (0, 1)}


@entry
def lstm():
    """An LSTM over time under lax.scan, a mask for sequences of other lengths."""
    width = 32

    def cell(p, carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"] + p["b"], 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def loss_of(params, batch):
        xs = params["embed"][batch["x"]].transpose(1, 0, 2)
        start = (jnp.zeros((xs.shape[1], width)),) * 2
        _, hs = jax.lax.scan(functools.partial(cell, params["cell"]), start, xs)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            hs.transpose(1, 0, 2) @ params["head"], batch["y"]
        )
        mask = jnp.arange(xs.shape[0])[None] < batch["lengths"][:, None]
        return jnp.sum(losses * mask) / jnp.sum(mask)

    step, optimizer = adam_step(loss_of, 3e-3)
    params = {
        "embed": normal(0, 32, 16, scale=0.3),
        "cell": {
            "x": normal(1, 16, 4 * width, scale=0.2),
            "h": normal(2, width, 4 * width, scale=0.15),
            "b": np.zeros(4 * width, np.float32),
        },
        "head": normal(3, width, 32, scale=0.2),
    }
    batch = {
        "x": integers(4, 32, 8, 6),
        "y": integers(5, 32, 8, 6),
        "lengths": integers(6, 6, 8) + 1,
    }
    return step, (params, optimizer.init(params), batch), {"donate": (0, 1)}


@entry
def clip():
    """Images and texts pulled together: a symmetric loss with a learned temperature, bf16."""

    def encode(p, x):
        h = jax.nn.gelu(x.astype(jnp.bfloat16) @ p["up"].astype(jnp.bfloat16))
        z = (h @ p["down"].astype(jnp.bfloat16)).astype(jnp.float32)
        return z / jnp.linalg.norm(z, axis=-1, keepdims=True)

    def loss_of(params, batch):
        image = encode(params["image"], batch["image"])
        text = encode(params["text"], params["embed"][batch["text"]].mean(1))
        logits = image @ text.T * jnp.exp(jnp.minimum(params["temperature"], np.log(100.0)))
        labels = jnp.arange(logits.shape[0])
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    def tower(seed, n_in):
        return {"up": normal(seed, n_in, 64, scale=0.2), "down": normal(seed + 1, 64, 32, scale=0.12)}

    step, optimizer = adam_step(loss_of)
    params = {
        "embed": normal(0, 64, 32),
        "image": tower(1, 48),
        "text": tower(3, 32),
        "temperature": np.float32(np.log(10.0)),
    }
    batch = {"image": normal(5, 16, 48), "text": integers(6, 64, 16, 8)}
    return step, (params, optimizer.init(params), batch), {"donate": (0, 1)}


# ---- adapters ----


@entry
def lora():
    """Low-rank adapters on frozen bf16 weights; only the adapters are differentiated."""
    layers, width, rank = 2, 32, 4

    def forward(base, adapters, x):
        h = base["embed"][x].astype(jnp.float32)
        for w, ab in zip(base["layers"], adapters):
            y = h.astype(jnp.bfloat16) @ w
            h = h + jax.nn.gelu(y.astype(jnp.float32) + 2.0 * (h @ ab["a"]) @ ab["b"])
        return h @ base["embed"].T.astype(jnp.float32)

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def train_step(base, adapters, opt_state, batch):
        def loss_of(adapters):
            return cross_entropy(forward(base, adapters, batch["x"]), batch["y"])

        loss, grads = jax.value_and_grad(loss_of)(adapters)
        updates, opt_state = optimizer.update(grads, opt_state, adapters)
        return optax.apply_updates(adapters, updates), opt_state, loss

    optimizer = optax.adamw(optax.linear_schedule(1e-3, 1e-2, 10))
    base = {
        "embed": jnp.asarray(normal(0, 64, width, scale=0.2), jnp.bfloat16),
        "layers": [
            jnp.asarray(normal(i + 1, width, width, scale=0.15), jnp.bfloat16)
            for i in range(layers)
        ],
    }
    adapters = [
        {"a": normal(i + 9, width, rank, scale=0.2), "b": np.zeros((rank, width), np.float32)}
        for i in range(layers)
    ]
    batch = {"x": integers(3, 64, 8, 8), "y": integers(4, 64, 8, 8)}
    args = (base, adapters, optimizer.init(adapters), batch)
    return train_step, args, {"frozen": (0,)}


# ---- graphs, and gradients of several microbatches ----


@entry
def gnn():
    """Messages along the edges of a graph, summed at the nodes; nodes without a label."""

    def loss_of(params, graph):
        h = apply(params["in"], graph["nodes"])
        for p in params["layers"]:
            ends = jnp.concatenate([h[graph["from"]], h[graph["to"]]], -1)
            messages = jax.nn.relu(apply(p["edge"], ends))
            total = jax.ops.segment_sum(messages, graph["to"], h.shape[0])
            count = jax.ops.segment_sum(jnp.ones_like(graph["to"], h.dtype), graph["to"], h.shape[0])
            mean = total / jnp.maximum(count, 1)[:, None]
            h = h + jax.nn.relu(apply(p["node"], jnp.concatenate([h, mean], -1)))
        losses = optax.softmax_cross_entropy_with_integer_labels(
            apply(params["out"], h), jnp.maximum(graph["labels"], 0)
        )
        return jnp.sum(jnp.where(graph["labels"] >= 0, losses, 0)) / jnp.sum(graph["labels"] >= 0)

    step, optimizer = adam_step(loss_of, 3e-3)
    layers = [{"edge": dense(i, 32, 16), "node": dense(i + 1, 32, 16)} for i in (10, 20)]
    params = {"in": dense(0, 8, 16), "layers": layers, "out": dense(1, 16, 4)}
    graph = {
        "nodes": normal(2, 24, 8),
        "from": integers(3, 24, 64),
        "to": integers(4, 24, 64),
        "labels": integers(5, 5, 24) - 1,
    }
    return step, (params, optimizer.init(params), graph), {"donate": (0, 1)}


@entry
def accumulate():
    """Gradients summed over microbatches under lax.scan, an orthogonalised update (Muon's)
    of matrices, Adam's of the rest."""

    def orthogonal(m):
        x = m / (jnp.linalg.norm(m) + 1e-7)
        for _ in range(3):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x

    def loss_of(params, batch):
        h = jnp.tanh(batch["x"] @ params["w_0"])
        return jnp.mean((jnp.tanh(h @ params["w_1"]) @ params["head"] - batch["y"]) ** 2)

    def train_step(state, batches):
        def micro(total, batch):
            loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
            return jax.tree.map(jnp.add, total, (loss, grads)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state["params"]))
        (loss, grads), _ = jax.lax.scan(micro, zero, batches)
        loss, grads = jax.tree.map(lambda x: x / batches["x"].shape[0], (loss, grads))
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        updates, opt = optimizer.update({"head": grads["head"]}, state["opt"])
        params = {k: state["params"][k] - 0.02 * orthogonal(momentum[k]) for k in ("w_0", "w_1")}
        params["head"] = state["params"]["head"] + updates["head"]
        return {"params": params, "momentum": momentum, "opt": opt}, loss

    optimizer = optax.adam(1e-2)
    params = {
        "w_0": normal(0, 16, 32, scale=0.25),
        "w_1": normal(1, 32, 32, scale=0.18),
        "head": normal(2, 32, 1, scale=0.18),
    }
    state = {
        "params": params,
        "momentum": jax.tree.map(np.zeros_like, params),
        "opt": optimizer.init({"head": params["head"]}),
    }
    batches = {"x": normal(3, 4, 16, 16), "y": normal(4, 4, 16, 1)}
    return train_step, (state, batches), {"donate": (0,)}
