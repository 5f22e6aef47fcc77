#!/usr/bin/env python3
"""Trains a module five steps with torch.optim.Muon beside AdamW, for ap-grad --optimizer muon to be compared with.

    torch_muon.py FOLDER TYPE

Writes what export.py writes, with the losses and weights of these steps. TYPE is that of the products in Muon:
bf16, as PyTorch has them, or f32, with which five steps differ by rounding in f32 alone.
"""
import argparse
import sys
import types
from pathlib import Path

import torch
from torch import nn, optim
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))


class Net(nn.Module):
    """A table, a wide and a tall matrix, a head; biases."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x, y):
        x = self.table(x)
        return F.cross_entropy(self.head(x + self.down(F.gelu(self.up(x)))), y)


class Both(optim.Optimizer):
    """Muon of the layers' matrices, AdamW of all other weights."""

    def __init__(self, model):
        super().__init__(model.parameters(), {})
        matrices = [model.up.weight, model.down.weight]
        others = [p for p in model.parameters() if p.ndim == 1 or p is model.table.weight or p is model.head.weight]
        self.parts = (optim.Muon(matrices, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                      optim.AdamW(others, lr=0.01, weight_decay=0.1))

    def step(self, closure=None):
        for part in self.parts:
            part.step()

    def moments(self, model, *_):
        """All states as ap-grad numbers them: each weight's first, AdamW's second, the counter of steps."""
        state = {p: part.state[p] for part in self.parts for p in part.state}
        found = [state[p].get("exp_avg", state[p].get("momentum_buffer")) for p in model.parameters()]
        found += [state[p]["exp_avg_sq"] for p in model.parameters() if "exp_avg_sq" in state[p]]
        return [*found, state[model.head.bias]["step"].to(torch.int32)]


def main():
    from autopar.torch import export, proof

    folder, kind = sys.argv[1:]
    if kind == "f32":
        wide = types.SimpleNamespace(**{**vars(torch), "bfloat16": torch.float32})
        sys.modules["torch.optim._muon"].torch = wide
    torch.manual_seed(0)
    model, inputs = Net(), {"x": torch.arange(32) * 5 % 12, "y": torch.arange(32) * 7 % 12}
    proof.OPTIMIZERS["both"] = lambda p, lr: Both(model)
    proof.moments_of = lambda model, both, kind: both.moments(model)
    export.export(model.train(), inputs, argparse.Namespace(out=folder, optimizer="both", lr=0, steps=5, check=False))


if __name__ == "__main__":
    main()
