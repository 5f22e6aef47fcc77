#!/usr/bin/env python3
"""The models of scripts/bench-gpu in PyTorch or JAX, as rows of its table.

    bench-gpu-python.py torch|jax [--tiny] [MODEL...]

The GPTs are those of `ap-model gpt`: pre-norm, learned positions, tied head, GELU, Adam; the Llama is
that of `ap-model llama`: RMS norms, rotary positions, grouped queries, gated SiLU, a head of its own.
bf16 with f32 master weights, or f32 with tf32 products. --tiny: small sizes, for a machine
without a GPU. A step's time is the mean of 20, after 3.
"""
import functools
import sys
import time

TINY = "--tiny" in sys.argv
ONLY = [a for a in sys.argv[2:] if a != "--tiny"]
STEPS = 2 if TINY else 20
#        name, layers, hidden, heads, vocabulary, batch, sequence, type
GPTS = [("gpt2", 12, 768, 12, 50257, 8, 1024, "bf16"),
        ("gpt2", 12, 768, 12, 50257, 8, 1024, "f32")]
#        layers, hidden, heads, heads of keys, inner, vocabulary, batch, sequence
LLAMA = (4, 2048, 32, 8, 8192, 32000, 2, 2048)
if TINY:
    LLAMA = (1, 64, 4, 2, 128, 100, 2, 16)
    GPTS = [("gpt2", 2, 64, 4, 100, 2, 16, "bf16"), ("gpt2", 2, 64, 4, 100, 2, 16, "f32")]


def run(models):
    """Those that were asked for, in that order; all."""
    for name in ONLY or models:
        if name in models:
            models[name]()


def row(name, label, kind, sec, giga, loss):
    print("%-14s %-10s %-5s %9.2f %9s %6s %8.2f %9.4f"
          % (name, label, "tf32" if kind == "f32" else kind, sec * 1e3, "", "", giga, loss), flush=True)


def timed(step, ready):
    losses = [step() for _ in range(3)]
    ready(losses[-1])
    start = time.perf_counter()
    for _ in range(STEPS):
        last = step()
    ready(last)
    return (time.perf_counter() - start) / STEPS, float(losses[2])


def with_torch():
    import torch
    from torch import nn
    from torch.nn import functional as F

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    class Block(nn.Module):
        def __init__(self, hidden, heads):
            super().__init__()
            self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            b, s, h = x.shape
            q, k, v = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
            return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self, layers, hidden, heads, vocab, seq):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
            self.blocks, self.norm = nn.ModuleList(Block(hidden, heads) for _ in range(layers)), nn.LayerNorm(hidden)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    class LlamaBlock(nn.Module):
        def __init__(self, hidden, heads, keys, inner):
            super().__init__()
            self.heads, self.keys, self.norms = heads, keys, nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
            width = hidden // heads * keys
            sizes = [(hidden, hidden), (hidden, width), (hidden, width), (hidden, hidden), (hidden, inner),
                     (hidden, inner), (inner, hidden)]
            self.w = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)

        def forward(self, x, cos, sin):
            b, s, h = x.shape
            y = self.norms[0](x)
            q, k, v = (w(y).view(b, s, n, -1).transpose(1, 2)
                       for w, n in zip(self.w, (self.heads, self.keys, self.keys)))
            y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                               enable_gqa=True)
            x = x + self.w[3](y.transpose(1, 2).reshape(b, s, h))
            y = self.norms[1](x)
            return x + self.w[6](F.silu(self.w[4](y)) * self.w[5](y))

    class Llama(nn.Module):
        def __init__(self, layers, hidden, heads, keys, inner, vocab, seq):
            super().__init__()
            self.tokens, self.norm = nn.Embedding(vocab, hidden), nn.RMSNorm(hidden)
            self.blocks = nn.ModuleList(LlamaBlock(hidden, heads, keys, inner) for _ in range(layers))
            self.head = nn.Linear(hidden, vocab, bias=False)
            half = hidden // heads // 2
            angle = torch.arange(seq)[:, None] * 10000.0 ** (-torch.arange(half) / half)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())

        def forward(self, ids, labels):
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), labels.flatten())

    def measure(name, kind, model, inputs, loss_of):
        for label in ["torch"] if TINY else ["torch", "compiled"]:
            run = torch.compile(model) if label == "compiled" else model
            adam = torch.optim.Adam(model.parameters(), fused=device == "cuda")
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()

            def step():
                with torch.autocast(device, torch.bfloat16, enabled=kind == "bf16"):
                    loss = loss_of(run, *inputs)
                loss.backward()
                adam.step()
                adam.zero_grad(set_to_none=True)
                return loss.detach()

            sec, loss = timed(step, lambda x: x.item())
            peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
            row(name, label, kind, sec, peak / 1e9, loss)

    def gpt(name, layers, hidden, heads, vocab, batch, seq, kind):
        ids = torch.randint(vocab, (2, batch, seq), device=device)
        measure(f"{name}-{kind}", kind, GPT(layers, hidden, heads, vocab, seq).to(device), tuple(ids),
                lambda run, a, b: run(a, b))

    def llama():
        ids = torch.randint(LLAMA[5], (2, *LLAMA[6:]), device=device)
        measure("llama-bf16", "bf16", Llama(*LLAMA[:6], LLAMA[7]).to(device), tuple(ids), lambda run, a, b: run(a, b))

    def resnet():
        try:
            from torchvision.models import resnet50
        except ImportError:
            print("resnet50       torch      no torchvision", flush=True)
            return
        n, size = (2, 32) if TINY else (64, 224)
        images = torch.randn(n, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
        model = resnet50().to(device, memory_format=torch.channels_last)
        labels = torch.randint(1000, (n,), device=device)
        measure("resnet50", "f32", model, (images, labels), lambda run, x, y: F.cross_entropy(run(x), y))

    run({f"{g[0]}-{g[-1]}": functools.partial(gpt, *g) for g in GPTS} | {"llama-bf16": llama, "resnet50": resnet})


def with_jax():
    import jax
    import jax.numpy as jnp
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")

    def norm(x, scale, shift=None):
        y = x.astype(jnp.float32)
        if shift is not None:
            y = y - jnp.mean(y, -1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5) * scale
        return (y if shift is None else y + shift).astype(x.dtype)

    def cross_entropy(logits, labels):
        logits = logits.astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))

    def llama(p, ids, labels, heads, dtype):
        p = jax.tree.map(lambda w: w.astype(dtype) if w.ndim > 1 else w, p)
        x = p["tokens"][ids]
        b, s, h = x.shape
        half = h // heads // 2
        angle = jnp.arange(s)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]

        def rotate(x):
            a, b = jnp.split(x, 2, -1)
            return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1).astype(x.dtype)

        for w in p["blocks"]:
            y = norm(x, w["norm0"])
            q, k, v = ((y @ w[n]).reshape(b, s, -1, 2 * half) for n in "qkv")
            x = x + jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True).reshape(b, s, h) @ w["o"]
            y = norm(x, w["norm1"])
            x = x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return cross_entropy(norm(x, p["norm"]) @ p["head"], labels)

    def forward(p, ids, labels, heads, dtype):
        p = jax.tree.map(lambda w: w.astype(dtype) if w.ndim > 1 else w, p)
        x = p["tokens"][ids] + p["places"]
        b, s, h = x.shape
        for w in p["blocks"]:
            q, k, v = jnp.split((norm(x, w["norm0"], w["shift0"]) @ w["qkv"] + w["bias0"].astype(dtype))
                                .reshape(b, s, 3 * heads, -1), 3, axis=2)
            x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, s, h) @ w["out"]
            x = x + jax.nn.gelu(norm(x, w["norm1"], w["shift1"]) @ w["up"] + w["bias1"].astype(dtype)) @ w["down"]
        return cross_entropy(norm(x, p["norm"], p["shift"]) @ p["tokens"].T, labels)

    @functools.partial(jax.jit, static_argnums=(3, 4, 5), donate_argnums=0)
    def train(state, ids, labels, heads, dtype, of):
        p, m, v, t = state
        loss, g = jax.value_and_grad(of)(p, ids, labels, heads, dtype)
        t = t + 1
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        p = jax.tree.map(lambda w, a, b: w - 1e-3 * (a / (1 - 0.9 ** t)) / (jnp.sqrt(b / (1 - 0.999 ** t)) + 1e-8),
                         p, m, v)
        return (p, m, v, t), loss

    keys = iter(jax.random.split(jax.random.key(0), 1000))

    def weight(*shape):
        return 0.02 * jax.random.normal(next(keys), shape, jnp.float32)

    def measure(name, kind, p, ids, heads, of):
        p = jax.tree.map(jnp.array, p)  # donated buffers must not be shared
        zero = jax.tree.map(jnp.zeros_like, p)
        box = [(p, zero, jax.tree.map(jnp.zeros_like, p), jnp.zeros(()))]

        def step():
            box[0], loss = train(box[0], ids[0], ids[1], heads, jnp.bfloat16 if kind == "bf16" else jnp.float32, of)
            return loss

        sec, loss = timed(step, jax.block_until_ready)
        stats = jax.devices()[0].memory_stats() or {}
        row(name, "jax", kind, sec, stats.get("peak_bytes_in_use", 0) / 1e9, loss)

    def gpt(name, layers, hidden, heads, vocab, batch, seq, kind):
        one, no = jnp.ones(hidden), jnp.zeros(hidden)
        p = {"tokens": weight(vocab, hidden), "places": weight(seq, hidden), "norm": one, "shift": no, "blocks": [
            {"qkv": weight(hidden, 3 * hidden), "out": weight(hidden, hidden), "up": weight(hidden, 4 * hidden),
             "down": weight(4 * hidden, hidden), "norm0": one, "norm1": one, "shift0": no, "shift1": no,
             "bias0": jnp.zeros(3 * hidden), "bias1": jnp.zeros(4 * hidden)} for _ in range(layers)]}
        ids = jax.random.randint(next(keys), (2, batch, seq), 0, vocab)
        measure(f"{name}-{kind}", kind, p, ids, heads, forward)

    def llama_model():
        layers, hidden, heads, few, inner, vocab, batch, seq = LLAMA
        width, one = hidden // heads * few, jnp.ones(hidden)
        p = {"tokens": weight(vocab, hidden), "head": weight(hidden, vocab), "norm": one, "blocks": [
            {"q": weight(hidden, hidden), "k": weight(hidden, width), "v": weight(hidden, width),
             "o": weight(hidden, hidden), "gate": weight(hidden, inner), "up": weight(hidden, inner),
             "down": weight(inner, hidden), "norm0": one, "norm1": one} for _ in range(layers)]}
        measure("llama-bf16", "bf16", p, jax.random.randint(next(keys), (2, batch, seq), 0, vocab), heads, llama)

    run({f"{g[0]}-{g[-1]}": functools.partial(gpt, *g) for g in GPTS} | {"llama-bf16": llama_model})


{"torch": with_torch, "jax": with_jax}[sys.argv[1]]()
