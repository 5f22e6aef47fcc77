#!/usr/bin/env python3
"""The models of scripts/bench/gpu-table in PyTorch or JAX, as rows of its table.

    bench.py torch|jax --done FILE [--each SEC] [--steps N] SPEC:WAY...

SPEC is a JSON file that gpu-table writes: a model's name, type, optimizer, heads, parameters as ap-exec
numbers them, and the losses of ap-exec's first steps. WAY is torch, compiled, jax or jax-nhwc. A model starts
from the values that ap-exec's seed 0 gives, weights and batch, so that its losses must be the same up to
rounding: the last column says so, or by how much they differ. A step's time is the mean of --steps, after 3.

A row that fails is a line that says why. One that takes longer than --each seconds, compiling included, ends
the program; FILE counts the rows that were begun, so that the caller can start again behind it.
"""
import argparse
import faulthandler
import gc
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
CHUNK = 1 << 18  # elements that a thread draws at a time: they stay in its cache
# How far losses may be off: the first three steps of one model in two programs that round differently.
TOLERANCE = {"bf16": 1e-2, "tf32": 1e-3, "f32": 1e-4}


def mix(z):
    """SplitMix64's, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


class Model:
    """A spec; values by the names of its parameters."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.__dict__.update(json.load(f))
        self.number = {p["name"]: k for k, p in enumerate(self.params)}

    def __contains__(self, name):
        return name in self.number

    def shape(self, name):
        return tuple(self.params[self.number[name]]["dims"])

    def layers(self, leaf):
        """Paths of the layers that have this leaf."""
        return [f"{self.root}/h_{i}" for i in range(len(self.params)) if f"{self.root}/h_{i}/{leaf}" in self]

    def draw(self, name):
        """What ap-exec draws (cmd/ap-exec/run/data.c), to the bit."""
        k = self.number[name]
        p = self.params[k]
        n = int(np.prod(p["dims"]))
        seed = mix(np.array([GOLDEN], np.uint64))
        stream = mix(seed + np.array([k + 1], np.uint64) * np.uint64(GOLDEN))
        integer = p["dtype"] == "s32"
        out = np.empty(n, np.int32 if integer else np.float32)

        def fill(start):
            z = np.arange(start + 1, min(start + CHUNK, n) + 1, dtype=np.uint64)
            z *= np.uint64(GOLDEN)
            z += stream
            mix(z)
            part = out[start:start + CHUNK]
            if integer:
                part[:] = z % np.uint64(self.int_range)
                return
            part[:] = z >> np.uint64(40)
            unit = np.float32(2.0 ** -24)
            if p["role"] != "weight":
                part *= 2 * unit
                part -= np.float32(1)
                return
            part *= unit / 8
            scale = len(p["dims"]) <= 1 and ("scale" in name or "gamma" in name)
            part += np.float32(1 - 0.0625 if scale else -0.0625)

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(0, n, CHUNK)))
        return out.reshape(p["dims"])


def verdict(model, losses):
    """ok, or the relative difference to ap-exec's losses."""
    if not model.losses:
        return "-"
    if not all(map(math.isfinite, losses)):
        return "not finite"
    off = max(abs(a / b - 1) for a, b in zip(losses, model.losses))
    return "ok" if off <= TOLERANCE[model.type] else f"{off:.1e} off"


def row(model, way, step, ready, peak, steps):
    """Measures; step() gives a loss that ready() waits for."""
    losses = [step() for _ in range(3)]
    ready(losses[-1])
    start = time.perf_counter()
    for _ in range(steps):
        last = step()
    ready(last)
    sec = (time.perf_counter() - start) / steps
    losses = [float(x) for x in losses]
    rate = model.flops / sec / 1e12
    print("%-14s %-10s %-5s %9.2f %9.1f %6.1f %8.2f %9.4f %s" % (
        model.name, way, model.type, sec * 1e3, rate, 100 * rate / model.peak if model.peak else 0, peak() / 1e9,
        losses[2], verdict(model, losses)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["torch", "jax"])
    parser.add_argument("--done", required=True)
    parser.add_argument("--each", type=int, default=150)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("rows", nargs="+")
    args = parser.parse_args()
    if args.framework == "torch":
        from in_torch import prepare
    else:
        from in_jax import prepare
    rows = [(text, *text.rsplit(":", 1)) for text in args.rows]
    while rows:
        text, path, way = rows.pop(0)
        if text:
            with open(args.done, "a", encoding="utf-8") as f:
                print(text, file=f)
        faulthandler.dump_traceback_later(args.each, exit=True)  # also where a compiler hangs
        model = Model(path)
        try:
            row(model, way, *prepare(model, way), args.steps)
        except Exception as e:  # the other rows go on
            why = (str(e).strip() or type(e).__name__).splitlines()[0]
            print("%-14s %-10s %s" % (model.name, way, why[:160]), flush=True)
            if way == "jax" and model.type == "bf16":
                rows.insert(0, ("", path, "jax-xla"))  # attention by XLA, not by cuDNN
        gc.collect()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
