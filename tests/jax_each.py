"""Two train steps for tests/jax.bats, and what gradient accumulation in JAX makes of them.

A wide residual network (convolutions, batch norms with running statistics) and a layer of
experts with a balance loss (Fedus et al., "Switch Transformers", equation 4). `jax_each.py
MODEL STEPS FOLDER M...` exports the step to FOLDER/step.hlo and FOLDER/in, and writes to FOLDER/M.losses the
losses of M microbatches in turn: gradients and new statistics of each, averaged, then the update. Arguments are NumPy's, and steps are jitted: what JAX
does one operator at a time it compiles one at a time.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from autopar import export as own
import jax
import jax.numpy as jnp
import numpy as np

ROWS, RATE = 8, 0.05


def normed(x, p, s):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    y = (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"] + p["bias"]
    return y, {"mean": 0.9 * s["mean"] + 0.1 * mean, "var": 0.9 * s["var"] + 0.1 * var}


def conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def wrn_loss(params, state, x, labels):
    h, new = conv(x, params["stem"]), {}
    for i in range(3):
        p, s = params[f"block_{i}"], state[f"block_{i}"]
        a, first = normed(h, p["bn1"], s["bn1"])
        b, second = normed(conv(jax.nn.relu(a), p["w1"]), p["bn2"], s["bn2"])
        h = h + conv(jax.nn.relu(b), p["w2"])
        new[f"block_{i}"] = {"bn1": first, "bn2": second}
    logits = h.mean((1, 2)) @ params["out"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), new


def random(seed):
    draw = np.random.default_rng(seed)
    return draw, lambda *shape: (0.3 * draw.standard_normal(shape)).astype(np.float32)


def wrn():
    draw, w = random(1)
    bn = lambda: {"scale": np.ones(6, np.float32), "bias": np.zeros(6, np.float32)}
    params = {"stem": w(3, 3, 3, 6), "out": w(6, 5)}
    params |= {f"block_{i}": {"bn1": bn(), "w1": w(3, 3, 6, 6), "bn2": bn(), "w2": w(3, 3, 6, 6)} for i in range(3)}
    one = lambda: {"mean": np.zeros(6, np.float32), "var": np.ones(6, np.float32)}
    state = {f"block_{i}": {"bn1": one(), "bn2": one()} for i in range(3)}
    return params, state, w(ROWS, 8, 8, 3), draw.integers(5, size=ROWS, dtype=np.int32)


def moe_loss(params, state, x, labels):
    h, balance = x, 0.0
    for i in range(3):
        p = params[f"layer_{i}"]
        gates = jax.nn.softmax(h @ p["router"])
        chosen = jax.nn.one_hot(gates.argmax(-1), 4)
        balance += 4 * (chosen.mean((0, 1)) * gates.mean((0, 1))).sum()
        up = jax.nn.gelu(jnp.einsum("bsh,ehf->bsef", h, p["up"]))
        down = jnp.einsum("bsef,efh->bseh", up, p["down"])
        h = h + jnp.einsum("bseh,bse->bsh", down, chosen * gates)
    logits = h.mean(1) @ params["out"]
    ce = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()
    return ce + 0.5 * balance / 3, state


def moe():
    draw, w = random(2)
    params = {"out": w(8, 5)}
    params |= {f"layer_{i}": {"router": w(8, 4), "up": w(4, 8, 12), "down": w(4, 12, 8)} for i in range(3)}
    return params, {}, w(ROWS, 6, 8), draw.integers(5, size=ROWS, dtype=np.int32)


def grads(loss, params, state, x, labels):
    return jax.value_and_grad(loss, has_aux=True)(params, state, x, labels)


def update(params, g):
    return jax.tree.map(lambda p, d: p - RATE * d, params, g)


def step_of(loss):
    def step(params, state, x, labels):
        (value, state), g = grads(loss, params, state, x, labels)
        return update(params, g), state, value

    return step


wrn_step, moe_step = step_of(wrn_loss), step_of(moe_loss)

def losses(model, m, steps):
    loss = {"wrn": wrn_loss, "moe": moe_loss}[model]
    params, state, x, labels = {"wrn": wrn, "moe": moe}[model]()
    one = jax.jit(lambda *args: grads(loss, *args))

    @jax.jit
    def finish(params, parts):
        (value, state), g = jax.tree.map(lambda *v: sum(v) / m, *parts)
        return value, state, update(params, g)

    for _ in range(steps):
        parts = [one(params, state, *(a.reshape(m, ROWS // m, *a.shape[1:])[i] for a in (x, labels)))
                 for i in range(m)]
        value, state, params = finish(params, parts)
        yield float(value)


if __name__ == "__main__":
    model, steps, folder, *counts = sys.argv[1:]
    make, step = {"wrn": (wrn, wrn_step), "moe": (moe, moe_step)}[model]
    own.export(step, make(), Path(folder) / "step.hlo", (0, 1), data=Path(folder) / "in", n_steps=0)
    for m in counts:
        with open(f"{folder}/{m}.losses", "w") as file:
            print(*losses(model, int(m), int(steps)), sep="\n", file=file)
