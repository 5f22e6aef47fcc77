"""Modules for tests/torch_export.bats: what gradients do, and mistakes that users make.

Each function returns (module, inputs), as scripts/torch/export.py takes them.
"""
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, y):
        return F.cross_entropy(self.b(self.through(self.a, x)), y)

    def through(self, a, x):
        return a(x)


def case(through, **changes):
    def make():
        torch.manual_seed(0)
        kind = type("Case", (Net,), {"through": through} | changes)
        return kind(), {"x": torch.randn(16, 8), "y": torch.arange(16) % 4}

    return make


def with_no_grad(_, a, x):
    with torch.no_grad():
        t = torch.tanh(a(x))
    return t * a(x) + t


def with_inference(_, a, x):
    with torch.inference_mode():
        t = a(x)
    return t.clone() * a(x)


def with_autocast(_, a, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            t = a(x)
        y = t * a(x)
    return y.float()


class Round(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.round()

    @staticmethod
    def backward(_, g):
        return g


def with_hook(_, a, x):
    y = a(x)
    y.register_hook(lambda g: 2 * g)
    return y


def with_change(_, a, x):
    with torch.no_grad():
        a.weight.mul_(0.9)
    return a(x)


def with_activation_change(_, a, x):
    y = a(x)
    with torch.no_grad():
        y.mul_(0.9)
    return y


def with_memory(self, a, x):
    self.last = a(x)
    return self.last


no_grad, inference, autocast = case(with_no_grad), case(with_inference), case(with_autocast)
detached = case(lambda _, a, x: a(x).detach() * a(x))
own = case(lambda _, a, x: Round.apply(a(x)))
hook, change, memory = case(with_hook), case(with_change), case(with_memory)
activation = case(with_activation_change)
dropout = case(lambda _, a, x: F.dropout(a(x), 0.1))
logits = case(None, forward=lambda self, x, y: {"logits": self.b(self.a(x))})
second = case(None, forward=lambda self, x, y: (self.a(x), self.b(self.a(x)).sum()))


def layer_dropout():
    model, inputs = detached()
    model.drop = nn.Dropout(0.1)
    return model, inputs


def counter():
    model, inputs = case(lambda self, a, x: a(x) * self.scale.mul_(0.9))()
    model.register_buffer("scale", torch.ones(8))
    return model, inputs


def norm():
    model, inputs = case(lambda self, a, x: self.norm(a(x) * self.scale))()
    model.norm = nn.BatchNorm1d(8)
    model.register_buffer("scale", torch.full((8,), 2.0))
    return model, inputs


def parameter_hook():
    model, inputs = detached()
    model.a.weight.register_hook(lambda g: 2 * g)
    return model, inputs


def number():
    model, inputs = detached()
    return model, inputs | {"y": 3}


def alone():
    return detached()[0]


def text():
    return detached()[0], "x"
