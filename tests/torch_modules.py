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


class Bent(nn.Module):
    """Functions at their kinks: rows of zeros, a bias of zeros."""

    KINKS = (F.relu, F.relu6, F.elu, F.celu, F.selu, F.hardsigmoid, F.hardswish, torch.abs,
             lambda x: x.clamp(min=0), lambda x: x.amax(1, keepdim=True) + x,
             lambda x: torch.maximum(x, torch.zeros_like(x)), lambda x: x.norm(dim=-1, keepdim=True),
             lambda x: F.max_pool1d(x, 2).repeat(1, 2), lambda x: F.smooth_l1_loss(x, x.detach()) + x)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in self.KINKS)
        for layer in self.layers:
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        made = (f(layer(x)) for f, layer in zip(self.KINKS, self.layers))
        return sum((y * (torch.arange(y.shape[1]) + 1.0)).mean() for y in made)


class Layers(nn.Module):
    """Layers that are made of many operators: their gradients are PyTorch's."""

    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(20, 8, mode="mean", sparse=True)
        self.rnn = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.value = nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))
        self.register_buffer("last", torch.zeros(8))

    def forward(self, tokens, mask):
        x = self.table(tokens)[None].expand(2, -1, -1)
        x = self.value(self.rnn(x)[0])
        with torch.no_grad():
            self.last.copy_(x.mean((0, 1)))
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)  # a row of it sees nothing
        return (torch.fft.rfft(y, dim=1).abs() * torch.arange(3)[:, None]).sum()


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


LEVELS = torch.linspace(0, 1, 8)  # a tensor that the module closes over


def with_known(self, a, x):
    """Reads values that constants alone make, and keeps tensors that it has made."""
    y, off = a(x), ~torch.eye(8, dtype=torch.bool)
    if not hasattr(self, "kept"):
        self.kept, self.kept_too = (torch.arange(64.0).view(8, 8) / 64)[off].view(8, 7), {"half": torch.ones(()) / 2}
    width = torch.arange(3, 9).max().item()
    y = y[:, :width] * LEVELS + self.kept.sum(1) + self.kept_too["half"]
    return y.repeat_interleave(torch.tensor([1, 1, 2, 0, 1, 1, 1, 1]), 1) if off.any() and LEVELS[1] > 0 else x


def with_counted(self, a, x):
    """Reads the value of a buffer that it changes."""
    self.count += 1
    return a(x) if self.count > 3 else x


def with_hook(_, a, x):
    y = a(x)
    y.register_hook(lambda g: 2 * g)
    return y


def with_change(_, a, x):
    with torch.no_grad():
        a.weight.mul_(0.9)
    return a(x)


def with_memory(self, a, x):
    self.last = a(x)
    return self.last


no_grad, inference, autocast = case(with_no_grad), case(with_inference), case(with_autocast)
nearest = case(lambda _, a, x: a(x) * torch.eye(8)[a(x).argmin(1)])  # argmin is a function of its own in the text
detached = case(lambda _, a, x: a(x).detach() * a(x))
own = case(lambda _, a, x: Round.apply(a(x)))
hook, change, memory, known = case(with_hook), case(with_change), case(with_memory), case(with_known)
dropout = case(lambda _, a, x: F.dropout(a(x), 0.1))
unruled = case(lambda _, a, x: a(x) * torch.linalg.svdvals(a(x))[0])
effect = case(lambda _, a, x: a(x) * torch.linalg.inv(a(x).T @ a(x) + torch.eye(a(x).shape[1])).sum())
sized = case(lambda _, a, x: a(x)[x.sum(1) > 0])
values = case(lambda _, a, x: a(x) if x.sum() > 0 else x)
logits = case(None, forward=lambda self, x, y: {"logits": self.b(self.a(x))})
second = case(None, forward=lambda self, x, y: (self.a(x), self.b(self.a(x)).sum()))


def counted():
    model, inputs = case(with_counted)()
    model.register_buffer("count", torch.zeros(()))
    return model, inputs


def layer_dropout():
    model, inputs = detached()
    model.drop = nn.Dropout(0.1)
    return model, inputs


def rnn_dropout():
    torch.manual_seed(0)
    model, inputs = case(lambda self, a, x: self.rnn(a(x)[:, None])[0][:, 0])()
    model.rnn = nn.GRU(8, 8, 2, dropout=0.5)
    return model, inputs


def counter():
    model, inputs = case(lambda self, a, x: a(x) * self.scale.mul_(0.9))()
    model.register_buffer("scale", torch.ones(8))
    return model, inputs


def replaced(kept=lambda x: x.detach()):
    def forward(self, a, x):
        y = a(x)
        self.scale = 0.9 * self.scale + 0.1 * kept(y).abs().mean()
        return y / self.scale.detach()

    model, inputs = case(forward)()
    model.register_buffer("scale", torch.ones(()))
    return model, inputs


def replaced_with_gradient():
    return replaced(lambda x: x)


def bent():
    torch.manual_seed(0)
    x = torch.randn(8, 8)
    x[:4] = 0
    return Bent(), {"x": x}


def at_a_kink():
    return with_weights(lambda w, x: (x @ w + torch.relu(x * w - 1)).square().sum(), torch.ones(8, 8))


def ties():
    """Which of equal values topk takes is open; quantile takes others where it is traced."""
    return with_weights(lambda w, x: (w * x).topk(3)[0].sum() + (w * x).square().sum(), torch.arange(64).view(8, 8) // 7 % 3.0)


def tied_quantile():
    return with_weights(lambda w, x: ((w * x).quantile(0.3, 1) * 9).sum() + (w * x).square().sum(),
                        torch.arange(64).view(8, 8) // 7 % 3.0)


def with_weights(function, w):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(w.clone())

        def forward(self, x):
            return function(self.w, x)

    return Weighted(), {"x": torch.ones(8, 8)}


def layers():
    torch.manual_seed(0)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[3] = False
    return Layers(), {"tokens": torch.randint(0, 20, (5, 3)), "mask": mask}


def wide_mask():
    """A causal mask of a batch that would take 256 GiB; for --shapes-only."""
    def through(_, a, x):
        place = torch.arange(512).expand(2**20, 512)
        scores = a(x) @ a(x).transpose(1, 2)
        return torch.where(place[:, :, None] >= place[:, None], scores, 0.0) @ x

    def forward(self, x):
        return self.b(self.through(self.a, x)).mean()

    return case(through, forward=forward)()[0], {"x": torch.ones(()).expand(2**20, 512, 8)}


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
