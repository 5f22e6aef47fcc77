"""The models of bench.py in JAX. Weights are a dictionary by ap-model's names, cast where they are used."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

GPU = jax.default_backend() == "gpu"


def norm(p, path, x):
    """In f32, of what is kept in x's type."""
    y = x.astype(jnp.float32)
    if f"{path}/bias" in p:
        y = y - jnp.mean(y, -1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5) * p[f"{path}/scale"]
    return (y + p.get(f"{path}/bias", 0)).astype(x.dtype)


def dense(p, path, x):
    w, b = (p.get(f"{path}/{n}") for n in "wb")
    y = x @ w.astype(x.dtype)
    return y if b is None else y + b.astype(x.dtype)


def attention(q, k, v, way):
    # cuDNN's, where the type is one of its
    kind = "cudnn" if GPU and q.dtype == jnp.bfloat16 and way == "jax" else None
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kind)


def cross_entropy(logits, labels):
    logits = logits.astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


# --- mixtures of experts (as in in_torch.py) ---


@jax.custom_vjp
def dispatch(x, token, slot, kept):
    return x[token]


dispatch.defvjp(lambda x, token, slot, kept: (x[token], (slot, kept)),
                lambda kept, d: ((d[kept[0]] * kept[1][..., None]).sum(1), None, None, None))


@jax.custom_vjp
def combine(y, gates, token, slot, of_slot):
    return (y[slot] * gates[..., None].astype(y.dtype)).sum(1)


def combine_back(saved, d):
    y, gates, token, slot, of_slot = saved
    flat = jnp.append(gates.ravel(), 0)  # the last one: of a slot without a token
    return ((d[token] * flat[of_slot][:, None]).astype(y.dtype),
            (y[slot] * d[:, None, :]).sum(-1, dtype=gates.dtype), None, None, None)


combine.defvjp(lambda *a: (combine(*a), a), combine_back)


def experts(model, p, path, x):
    batch, seq, width = x.shape
    top, n = model.top, p[f"{path}/fc/w"].shape[0]
    capacity = -(-top * seq // n)
    slots = n * batch * capacity

    probs = jax.nn.softmax(dense(p, f"{path}/router", x).astype(jnp.float32))
    gates, best = lax.top_k(probs, top)
    gates = gates / gates.sum(-1, keepdims=True)
    choice = best.swapaxes(1, 2).reshape(batch, top * seq)  # all first choices, then all second ones
    hot = (choice[..., None] == jnp.arange(n)).astype(jnp.int32)
    place = jnp.take_along_axis(jnp.cumsum(hot, 1), choice[..., None], -1)[..., 0] - 1
    kept = place < capacity
    slot = jnp.where(kept, (choice * batch + jnp.arange(batch)[:, None]) * capacity + place, slots)
    slot, kept = (t.reshape(batch, top, seq).swapaxes(1, 2).reshape(-1, top) for t in (slot, kept))
    size = batch * seq * top
    of_slot = jnp.full(slots, size).at[slot.ravel()].set(jnp.arange(size), mode="drop", unique_indices=False)
    token = jnp.minimum(of_slot // top, batch * seq - 1)  # of an empty slot: any
    slot = jnp.minimum(slot, slots - 1)

    y = dispatch(x.reshape(-1, width), token, slot, kept).reshape(n, -1, width)
    for name in ("fc", "proj"):
        w, b = (p[f"{path}/{name}/{leaf}"].astype(x.dtype) for leaf in "wb")
        y = jnp.einsum("esi,eio->eso", y, w) + b[:, None]
        y = jax.nn.gelu(y) if name == "fc" else y
    y = combine(y.reshape(slots, width), gates.reshape(-1, top) * kept, token, slot, of_slot)
    share = hot[:, :seq].astype(jnp.float32).mean((0, 1))
    return y.reshape(x.shape).astype(x.dtype), n * (share * probs.mean((0, 1))).sum()


# --- transformers ---


def gpt(model, p, x, labels, dtype, way):
    root = model.root
    x = (p[f"{root}/wte"][x] + p[f"{root}/wpe"]).astype(dtype)
    b, s, h = x.shape
    aux = 0
    for path in model.layers("ln_1/scale"):
        y = dense(p, f"{path}/attn/qkv", norm(p, f"{path}/ln_1", x))
        q, k, v = jnp.split(y.reshape(b, s, 3 * model.heads, -1), 3, 2)
        x = x + dense(p, f"{path}/attn/o", attention(q, k, v, way).reshape(b, s, h))
        y = norm(p, f"{path}/ln_2", x)
        if f"{path}/moe/router/w" in p:
            y, balance = experts(model, p, f"{path}/moe", y)
            aux = aux + balance
        else:
            y = dense(p, f"{path}/mlp/proj", jax.nn.gelu(dense(p, f"{path}/mlp/fc", y)))
        x = x + y
    x = norm(p, f"{root}/ln_f", x)
    return cross_entropy(x @ p[f"{root}/wte"].T.astype(dtype), labels) + 0.01 * aux, {}


def llama(model, p, x, labels, dtype, way):
    x = p["llama/wte"][x].astype(dtype)
    b, s, h = x.shape
    half = h // model.heads // 2
    angle = jnp.arange(s)[:, None] * 5e5 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]

    def rotate(x):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1).astype(x.dtype)

    for path in model.layers("ln_1/scale"):
        y = norm(p, f"{path}/ln_1", x)
        q, k, v = (dense(p, f"{path}/attn/{n}", y).reshape(b, s, -1, 2 * half) for n in "qkv")
        x = x + dense(p, f"{path}/attn/o", attention(rotate(q), rotate(k), v, way).reshape(b, s, h))
        y = norm(p, f"{path}/ln_2", x)
        y = jax.nn.silu(dense(p, f"{path}/mlp/gate", y)) * dense(p, f"{path}/mlp/up", y)
        x = x + dense(p, f"{path}/mlp/down", y)
    head = p["llama/head/w"] if "llama/head/w" in p else p["llama/wte"].T
    return cross_entropy(norm(p, "llama/ln_f", x) @ head.astype(dtype), labels), {}


def resnet(model, p, image, label, dtype, way):
    """Results beside the loss: the batch norms' running statistics."""
    kept = {}

    def conv_norm(path, x, stride=1):
        x = lax.conv_general_dilated(x, p[f"{path}/w"], (stride, stride), "SAME",
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = jnp.mean(x, (0, 1, 2))
        var = jnp.mean(x * x, (0, 1, 2)) - mean * mean
        for name, value in (("mean", mean), ("var", var)):
            kept[f"{path}/bn/{name}"] = value
        return (x - mean) * (lax.rsqrt(var + 1e-5) * p[f"{path}/bn/scale"]) + p[f"{path}/bn/bias"]

    x = jax.nn.relu(conv_norm("resnet/stem", image, 2 if p["resnet/stem/w"].shape[0] == 7 else 1))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for s, i in ((s, i) for s in range(4) for i in range(50)):
        path = f"resnet/stage_{s}/block_{i}"
        if f"{path}/conv_0/w" not in p:
            continue
        stride = 2 if s and i == 0 else 1
        deep = f"{path}/conv_2/w" in p
        y = conv_norm(f"{path}/conv_0", x, 1 if deep else stride)
        y = conv_norm(f"{path}/conv_1", jax.nn.relu(y), stride if deep else 1)
        if deep:
            y = conv_norm(f"{path}/conv_2", jax.nn.relu(y))
        if f"{path}/shortcut/w" in p:
            x = conv_norm(f"{path}/shortcut", x, stride)
        x = jax.nn.relu(x + y)
    return cross_entropy(dense(p, "resnet/fc", x.mean((1, 2))), label), kept


# --- rows ---


def update(kind, state, g, lr):
    p, states, t = state
    tree = jax.tree.map
    if kind == "momentum":
        m = tree(lambda a, b: 0.9 * a + b, states, g)
        return tree(lambda w, a: w - lr * a, p, m), m, t
    t = t + 1
    m = tree(lambda a, b: 0.9 * a + 0.1 * b, states[0], g)
    v = tree(lambda a, b: 0.999 * a + 0.001 * b * b, states[1], g)
    decay = 0.01 if kind == "adamw" else 0
    p = tree(lambda w, a, b: w - lr * (a / (1 - 0.9 ** t) / (jnp.sqrt(b / (1 - 0.999 ** t)) + 1e-8) + decay * w),
             p, m, v)
    return p, (m, v), t


def weights(model):
    """By name; those of attn/q, k and v of the GPTs side by side."""
    p = {}
    for row in model.params:
        name = row["name"]
        if row["role"] != "weight":
            continue
        path, _, leaf = name.rpartition("/")
        if model.root != "llama" and path[-6:-1] == "attn/" and path[-1] in "qkv":
            if path[-1] == "q":
                parts = [model.draw(f"{path[:-1]}{n}/{leaf}") for n in "qkv"]
                p[f"{path[:-1]}qkv/{leaf}"] = jnp.array(np.concatenate(parts, -1))
        else:
            p[name] = jnp.array(model.draw(name))
    return p


def prepare(model, way):
    of = {"resnet": resnet, "llama": llama}.get(model.root, gpt)
    dtype = jnp.bfloat16 if model.type == "bf16" else jnp.float32
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if model.type == "tf32" else "float32")
    p = weights(model)
    zero = functools.partial(jax.tree.map, jnp.zeros_like)
    states = zero(p) if model.optimizer == "momentum" else (zero(p), zero(p))
    kept = {r["name"]: jnp.zeros(r["dims"]) for r in model.params if r["name"].endswith(("/bn/mean", "/bn/var"))}
    names = ("image", "label") if model.root == "resnet" else ("tokens", "labels")
    inputs = [jnp.array(model.draw(n)) for n in names]

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, kept, x, y):
        (loss, new), g = jax.value_and_grad(lambda p: of(model, p, x, y, dtype, way), has_aux=True)(state[0])
        kept = {k: 0.9 * kept[k] + 0.1 * new[k] for k in kept}
        return update(model.optimizer, state, g, model.lr), kept, loss

    box = [(p, states, jnp.zeros(())), kept]
    options = {"xla_gpu_force_conv_nhwc": True} if way == "jax-nhwc" else None
    compiled = train.lower(*box, *inputs).compile(compiler_options=options)

    def step():
        box[0], box[1], loss = compiled(*box, *inputs)
        return loss

    # the allocator's peak would be that of all models so far
    memory = compiled.memory_analysis()
    peak = (memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes)
    return step, jax.block_until_ready, lambda: peak
