#!/usr/bin/env python3
"""Exports a module with optimizers of torch.optim, each checked over five steps; exit 1 if one differs.

    torch_optimizers.py FOLDER [NAME...]

Each function takes the module and returns its optimizer, as export.py --optimizer asks for it. Two
groups have their own learning rate and weight decay.
"""
import argparse
import sys
from pathlib import Path

import torch
from torch import nn, optim
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(16, 32), nn.Linear(32, 10)

    def forward(self, x, y):
        return F.cross_entropy(self.head(F.gelu(self.up(x))), y)


def build():
    torch.manual_seed(0)
    return Net(), {"x": torch.randn(32, 16), "y": torch.arange(32) % 10}


def matrices():
    """Muon is for matrices."""
    model, inputs = build()
    model.up.bias.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    return model, inputs


def groups(model):
    return [{"params": list(model.up.parameters()), "lr": 0.02},
            {"params": list(model.head.parameters()), "weight_decay": 0.1}]


OPTIMIZERS = {
    "plain": lambda m: optim.SGD(groups(m), lr=0.1),
    "momentum": lambda m: optim.SGD(groups(m), lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda m: optim.SGD(groups(m), lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda m: optim.Adam(groups(m), lr=0.01, amsgrad=True),
    "adamw": lambda m: optim.AdamW(groups(m), lr=0.01),
    "rate": lambda m: optim.AdamW(m.parameters(), lr=torch.tensor(0.01)),
    "sgdrate": lambda m: optim.SGD(m.parameters(), lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.01),
    "adagrad": lambda m: optim.Adagrad(groups(m), lr=0.01, lr_decay=0.1, initial_accumulator_value=0.1),
    "adamax": lambda m: optim.Adamax(groups(m), lr=0.01),
    "rmsprop": lambda m: optim.RMSprop(groups(m), lr=0.01, centered=True, momentum=0.5),
    "nadam": lambda m: optim.NAdam(groups(m), lr=0.01),
    "radam": lambda m: optim.RAdam(groups(m), lr=0.01),
    "adadelta": lambda m: optim.Adadelta(groups(m), lr=0.1),
    "asgd": lambda m: optim.ASGD(groups(m), lr=0.01),
    "rprop": lambda m: optim.Rprop(groups(m), lr=0.01),
    "muon": lambda m: optim.Muon([m.up.weight, m.head.weight], lr=0.01),
}
globals().update(OPTIMIZERS)


def adafactor(model):
    return optim.Adafactor(model.parameters())


def lbfgs(model):
    return optim.LBFGS(model.parameters())


def damped(model):
    return optim.SGD(model.parameters(), momentum=0.9, dampening=0.5)


def scheduled(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return optimizer, optim.lr_scheduler.StepLR(optimizer, 1)


class Counting(optim.AdamW):
    """Its learning rate falls by a count that is no tensor."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


class Falling(optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = group["lr"] * 0.5
        return super().step(closure)


class Cooling(optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["lr"].mul_(0.5)


class Noting(optim.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.notes = {"seen": []}

    def step(self, closure=None):
        self.notes["seen"].append(1)
        super().step(closure)


class Marking(optim.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.marks = set()

    def step(self, closure=None):
        self.marks.add(len(self.marks))
        super().step(closure)


class Signed(optim.SGD):
    """A step of its own that changes nothing but tensors."""

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad.sign(), alpha=-group["lr"])


OPTIMIZERS["signed"] = signed = lambda m: Signed(groups(m), lr=0.01)


def counting(model):
    return Counting(model.parameters(), lr=0.01)


def falling(model):
    return Falling(model.parameters(), lr=0.01)


def cooling(model):
    return Cooling(model.parameters(), lr=torch.tensor(0.01))


def marking(model):
    return Marking(model.parameters(), lr=0.01)


def noting(model):
    return Noting(model.parameters(), lr=0.01)


def partly(model):
    return optim.SGD(model.up.parameters(), lr=0.1)


def nothing():
    return None


def broken(model):
    return optim.SGD(model.tail.parameters())


def main():
    from autopar.torch import export

    wrong = 0
    for name in sys.argv[2:] or OPTIMIZERS:
        model, inputs = matrices() if name == "muon" else build()
        how = argparse.Namespace(out=f"{sys.argv[1]}/{name}", optimizer=f"{__file__}:{name}", lr=0, steps=5,
                                 check=True)
        try:
            export.export(model.train(), inputs, how)
            print(f"ok {name}", flush=True)
        except export.StepError as e:
            wrong += 1
            print(f"not ok {name}: {e}", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
