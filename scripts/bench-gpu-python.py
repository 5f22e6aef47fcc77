#!/usr/bin/env python3
"""The models of scripts/bench-gpu in PyTorch or JAX, as rows of its table.

    bench-gpu-python.py torch|jax [--tiny]

The GPTs are those of `ap-model gpt`: pre-norm with RMS norms, learned positions, tied head, GELU,
Adam; bf16 with f32 master weights, or f32 with tf32 products. --tiny: small sizes, for a machine
without a GPU. A step's time is the mean of 20, after 3.
"""
import sys
import time

TINY = "--tiny" in sys.argv
STEPS = 2 if TINY else 20
#        name, layers, hidden, heads, vocabulary, batch, sequence, type
GPTS = [("gpt2", 12, 768, 12, 50257, 8, 1024, "bf16"),
        ("gpt2", 12, 768, 12, 50257, 8, 1024, "f32"),
        ("gpt-1b", 16, 2048, 32, 32000, 2, 2048, "bf16")]
if TINY:
    GPTS = [("gpt2", 2, 64, 4, 100, 2, 16, "bf16"), ("gpt2", 2, 64, 4, 100, 2, 16, "f32")]


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
            self.heads, self.norms = heads, nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
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
            self.blocks, self.norm = nn.ModuleList(Block(hidden, heads) for _ in range(layers)), nn.RMSNorm(hidden)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

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

    for name, layers, hidden, heads, vocab, batch, seq, kind in GPTS:
        model = GPT(layers, hidden, heads, vocab, seq).to(device)
        ids = torch.randint(vocab, (2, batch, seq), device=device)
        measure(f"{name}-{kind}", kind, model, tuple(ids), lambda run, a, b: run(a, b))
        del model
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


def with_jax():
    import functools

    import jax
    import jax.numpy as jnp
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")

    def norm(x, scale):
        y = x.astype(jnp.float32)
        return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)

    def forward(p, ids, labels, heads, dtype):
        p = jax.tree.map(lambda w: w.astype(dtype) if w.ndim > 1 else w, p)
        x = p["tokens"][ids] + p["places"]
        b, s, h = x.shape
        for w in p["blocks"]:
            q, k, v = jnp.split((norm(x, w["norm0"]) @ w["qkv"]).reshape(b, s, 3 * heads, -1), 3, axis=2)
            x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, s, h) @ w["out"]
            x = x + jax.nn.gelu(norm(x, w["norm1"]) @ w["up"]) @ w["down"]
        logits = (norm(x, p["norm"]) @ p["tokens"].T).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))

    @functools.partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
    def train(state, ids, labels, heads, dtype):
        p, m, v, t = state
        loss, g = jax.value_and_grad(forward)(p, ids, labels, heads, dtype)
        t = t + 1
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        p = jax.tree.map(lambda w, a, b: w - 1e-3 * (a / (1 - 0.9 ** t)) / (jnp.sqrt(b / (1 - 0.999 ** t)) + 1e-8),
                         p, m, v)
        return (p, m, v, t), loss

    for name, layers, hidden, heads, vocab, batch, seq, kind in GPTS:
        keys = iter(jax.random.split(jax.random.key(0), 4 * layers + 4))

        def weight(*shape):
            return 0.02 * jax.random.normal(next(keys), shape, jnp.float32)

        one = jnp.ones(hidden)
        p = {"tokens": weight(vocab, hidden), "places": weight(seq, hidden), "norm": one, "blocks": [
            {"qkv": weight(hidden, 3 * hidden), "out": weight(hidden, hidden), "up": weight(hidden, 4 * hidden),
             "down": weight(4 * hidden, hidden), "norm0": one, "norm1": one} for _ in range(layers)]}
        ids = jax.random.randint(next(keys), (2, batch, seq), 0, vocab)
        p = jax.tree.map(jnp.array, p)  # donated buffers must not be shared
        zero = jax.tree.map(jnp.zeros_like, p)
        box = [(p, zero, jax.tree.map(jnp.zeros_like, p), jnp.zeros(()))]

        def step():
            box[0], loss = train(box[0], ids[0], ids[1], heads, jnp.bfloat16 if kind == "bf16" else jnp.float32)
            return loss

        sec, loss = timed(step, jax.block_until_ready)
        stats = jax.devices()[0].memory_stats() or {}
        row(f"{name}-{kind}", "jax", kind, sec, stats.get("peak_bytes_in_use", 0) / 1e9, loss)


{"torch": with_torch, "jax": with_jax}[sys.argv[1]]()
