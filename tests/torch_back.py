#!/usr/bin/env python3
"""Modules whose operators DTensor refuses, or computes otherwise than one process: they train.

    torch_back.py [NAME...]

Each module runs forward and backward on four processes (gloo, a mesh of 2x2) under layouts by hand,
beside one process from the same seed: the same loss and gradients to 1e-5. Every row of the tables
in autopar/torch/gather.py has to occur in some module. A line for each module; exit 1 where one
differs, fails, or a row is left over.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
from autopar.torch import gather  # noqa: E402
from autopar.torch.loader import Plan, check_document, loss_in  # noqa: E402

KINDS = {}


def rows():
    return {"x": torch.randn(8, 16, 32)}


def images():
    return {"x": torch.randn(8, 8, 16, 16)}


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return (self.b(self.through(self.a(x))) - x).square().mean()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x):
        return self.b(self.through(self.a(x))).square().mean()


def kind(base=Rows, inputs=None, **parts):
    """Makes a kind of a function through(module, activations); parts make modules."""
    def add(function):
        def make():
            torch.manual_seed(0)
            module = type(function.__name__, (base,), {"through": function})()
            for name, part in parts.items():
                setattr(module, name, part())
            return module, (inputs or (images if base is Images else rows))()

        KINDS[function.__name__] = make
        return function
    return add


# ---- tensors of one process ----


@kind()
def in_place_on_plain(self, h):
    out = torch.zeros(8, 16, 32)
    out[:, ::2] = h[:, ::2]
    out += h * 0.5
    out[:, 1].copy_(h[:, 0])
    return out


@kind()
def in_place_by_slices(self, h):
    out = torch.zeros_like(h)
    for k in range(4):
        out[:, k * 4:(k + 1) * 4] = h[:, k * 4:(k + 1) * 4].cumsum(1)
    return out


@kind()
def index_add_on_plain(self, h):
    out = torch.zeros(4, 8, 32)
    out.index_add_(0, torch.arange(16) % 4, h.transpose(0, 1))
    return h + out.mean(0)[:, None]


@kind()
def masks_in_place(self, h):
    s = h @ h.transpose(1, 2)
    s.masked_fill_(torch.ones(16, 16).triu(1).bool(), float("-inf"))
    return s.softmax(-1) @ h


@kind()
def in_place_on_sums(self, h):
    s = h.sum(0, keepdim=True)
    s.masked_fill_(torch.ones(16, 32).tril().bool(), 1.0)
    return h + s


@kind()
def in_place_in_a_view(self, h):
    h = h * 1.0
    h.view(8, 4, 4, 32)[:, :, 0].mul_(2.0)
    h.view(128, 32).select(0, 3).zero_()
    return h


@kind()
def value_read(self, h):
    return h * (1.0 + float(h.detach().abs().max() > 1e9)) + h.detach().square().mean().item()


@kind()
def turned_in_place(self, h):
    h = h * 1.0
    h.transpose_(0, 1)
    h = h.sin()
    return h.transpose_(0, 1).unsqueeze_(0).squeeze_(0).swapaxes_(1, 2).cumsum(1).transpose(1, 2)


@kind()
def short_time_spectrum(self, h):
    s = torch.stft(h.flatten(1), 16, 8, window=torch.hann_window(16), return_complex=True)
    return h * s.abs().mean((1, 2))[:, None, None]


# ---- operators without a rule ----


@kind()
def rolled(self, h):
    return torch.roll(h, 3, 1) + torch.flip(h, [1]) + h.cumsum(1)


@kind()
def sorted_and_scattered(self, h):
    v, i = h.topk(8, dim=-1)
    j = torch.arange(16).flip(0)[None, :, None].expand(8, 16, 32)
    return torch.zeros_like(h).scatter(-1, i, v) + h.sort(1)[0] + h.gather(1, j) + h[:, torch.arange(16) % 4]


@kind()
def fourier(self, h):
    return torch.fft.irfft(torch.fft.rfft(h, dim=1) * 1.5, n=16, dim=1)


@kind(r=lambda: nn.LSTM(32, 32, batch_first=True))
def lstm(self, h):
    return self.r(h)[0]


@kind(r=lambda: nn.GRU(32, 16, bidirectional=True))
def gru(self, h):
    return self.r(h)[0]


@kind(r=lambda: nn.RNN(32, 32, num_layers=2, batch_first=True))
def rnn(self, h):
    y, last = self.r(h, torch.zeros(2, 8, 32))
    return y + last[-1][:, None]


@kind(r=lambda: nn.MultiheadAttention(32, 4, batch_first=True))
def attention_module(self, h):
    return self.r(h, h, h, need_weights=False)[0]


@kind(r=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)),
      s=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32)))
def normed_weights(self, h):
    return self.r(h) + self.s(h)


@kind(Images)
def resized(self, h):
    h = F.interpolate(F.interpolate(h, scale_factor=2, mode="bilinear"), size=(16, 16))
    return F.pixel_unshuffle(F.pixel_shuffle(h, 2), 2) + F.avg_pool2d(h, 3, 1, 1)


@kind(Images)
def sampled(self, h):
    grid = F.affine_grid(torch.eye(2, 3)[None].expand(8, 2, 3), [8, 16, 16, 16], align_corners=False)
    return F.fold(F.unfold(F.grid_sample(h, grid, align_corners=False), 3, padding=1), (16, 16), 3, padding=1)


@kind(Images, g=lambda: nn.GroupNorm(4, 16), i=lambda: nn.InstanceNorm2d(16, affine=True),
      c=lambda: nn.BatchNorm2d(16), t=lambda: nn.ConvTranspose2d(16, 16, 2, 2))
def normed_images(self, h):
    return self.c(F.silu(self.g(h))) + F.max_pool2d(self.t(self.i(h)), 2)


@kind(Images, d=lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), e=lambda: nn.Linear(32, 16))
def embedded_time(self, h):
    h = self.d(h) + self.e(torch.linspace(0, 1, 32).expand(8, 32))[:, :, None, None]
    return h * torch.sigmoid(F.adaptive_avg_pool2d(h, 1))


# ---- layouts ----


@kind()
def heads(self, h):
    q = h.reshape(8, 16, 4, 8).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(8, 16, 32)


@kind()
def windows(self, h):
    w = h.view(8, 4, 4, 4, 8).permute(0, 2, 1, 3, 4).reshape(-1, 4, 32)
    k = h.view(8, 16, 4, 8)[:, :, :2].repeat_interleave(2, 2).reshape(8, 16, 32)
    return (w.softmax(1) * w).reshape(8, 16, 32) + k


@kind()
def dropped(self, h):
    return F.dropout(h, 0.2) + torch.rand_like(h)


@kind(inputs=lambda: {"x": torch.randn(6, 15, 32)}, n=lambda: nn.LayerNorm(32))
def uneven_batch(self, h):
    return self.n(h).mean(1, keepdim=True) + F.gelu(h).softmax(1)


@kind(inputs=lambda: {"x": torch.randn(5, 7, 32)})
def uneven_everything(self, h):
    return (h.flatten(0, 1) @ h.mean((0, 1))[:, None]).view(5, 7, 1) + h


@kind(Images, inputs=lambda: {"x": torch.randn(6, 8, 15, 15)}, c=lambda: nn.BatchNorm2d(16))
def uneven_images(self, h):
    return self.c(F.max_pool2d(h, 3, 1, 1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.g, self.a, self.b = (nn.Embedding(13, 30, padding_idx=0), nn.EmbeddingBag(13, 30),
                                          nn.Linear(30, 27), nn.Linear(27, 11))

    def forward(self, x, y):
        h = self.e(x) + self.g(x)[:, None]
        return F.cross_entropy(self.b(F.relu(self.a(h))).transpose(1, 2), y, label_smoothing=0.1)


@kind(Words, lambda: {"x": torch.arange(42).view(6, 7) % 13, "y": torch.arange(42).view(6, 7) % 11})
def uneven_words(self):
    """Words has a forward of its own."""


class Losses(nn.Module):
    """A loss of each reduction of PyTorch's own, and its gradient's place among others."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(32, 32)

    def forward(self, x):
        h = self.a(x)
        return self.through(h, x.sigmoid()) + 0.25 * F.mse_loss(h, x, reduction="sum") / x.numel()


@kind(Losses)
def mean_of_squares(self, h, y):
    return F.mse_loss(h, y)


@kind(Losses)
def means_of_losses(self, h, y):
    return F.smooth_l1_loss(h, y) + F.soft_margin_loss(h, y) + F.huber_loss(h, y, delta=0.5)


@kind(Losses)
def mean_of_cross_entropies(self, h, y):
    return F.binary_cross_entropy(h.sigmoid(), y) + F.l1_loss(h, y)


@kind(Losses, lambda: {"x": torch.randn(6, 7, 32)})
def uneven_means(self, h, y):
    return F.mse_loss(h, y) + F.smooth_l1_loss(h, y) + F.binary_cross_entropy(h.sigmoid(), y)


@kind(Losses)
def cosines_of_pairs(self, h, y):
    near = torch.arange(128) % 2 * 2 - 1
    return F.cosine_embedding_loss(h.flatten(0, 1), y.flatten(0, 1), near, margin=0.1)


@kind(Losses)
def other_losses(self, h, y):
    h, y = h.flatten(0, 1), y.flatten(0, 1)
    return (F.kl_div(h.log_softmax(-1), y.softmax(-1), reduction="batchmean") + F.triplet_margin_loss(h, y, y.flip(0))
            + F.poisson_nll_loss(h, y) + F.gaussian_nll_loss(h, y, h.square() + 1) + F.hinge_embedding_loss(h, y.round() * 2 - 1)
            + F.margin_ranking_loss(h[:, :16], y[:, :16], y[:, 16:].round() * 2 - 1, margin=0.1)
            + F.multilabel_soft_margin_loss(h, y.round()) + F.multi_margin_loss(h, torch.arange(128) % 32)
            + F.cross_entropy(h, y.softmax(-1)) + F.nll_loss(h.log_softmax(-1), torch.arange(128) % 32, weight=torch.arange(1., 33.))
            + F.binary_cross_entropy_with_logits(h, y, pos_weight=torch.arange(1., 33.)))


@kind(Losses, lambda: {"x": torch.randn(6, 7, 32)})
def uneven_other_losses(self, h, y):
    h, y = h.flatten(0, 1), y.flatten(0, 1)
    return (F.kl_div(h.log_softmax(-1), y.softmax(-1), reduction="batchmean") + F.triplet_margin_loss(h, y, y.flip(0))
            + F.poisson_nll_loss(h, y) + F.gaussian_nll_loss(h, y, h.square() + 1) + F.hinge_embedding_loss(h, y.round() * 2 - 1)
            + F.cross_entropy(h, y.softmax(-1)) + F.nll_loss(h.log_softmax(-1), torch.arange(42) % 32, weight=torch.arange(1., 33.))
            + F.binary_cross_entropy_with_logits(h, y, pos_weight=torch.arange(1., 33.))
            + F.cosine_embedding_loss(h, y, torch.arange(42) % 2 * 2 - 1, margin=0.1))


@kind(Losses)
def losses_of_each(self, h, y):
    return F.smooth_l1_loss(h, y, reduction="none").square().mean() + F.huber_loss(h, y, reduction="sum")


# ---- layouts by hand ----

AXES, SIZES = ("x", "y"), (2, 2)


def split(dims, *at):
    """Placements: Shard(d) for each mesh axis, Replicate for None or a dimension that is not there."""
    return [f"Shard({d})" if d is not None and d < len(dims) else "Replicate" for d in at]


def layouts(model, inputs, batch_at, weight_at):
    """The document: every input and parameter split so; of weights, every second along the other."""
    def parameter(k, name, p):
        at = [d if d is None or k % 2 else 1 - d for d in weight_at]
        at = split(p.shape, *at) if p.dim() > 1 else split(p.shape, None, None)
        return {"name": name, "shape": list(p.shape), "local": list(p.shape), "placements": at,
                "gradient": at}

    named = enumerate(p for p in model.named_parameters())
    return {"autopar_torch": 1, "microbatches": 1, "differences": [],
            "mesh": {"axes": list(AXES), "shape": list(SIZES)}, "fsdp": None, "activations": [],
            "buffers": [name for name, _ in model.named_buffers()], "collectives": [],
            "inputs": [{"name": name, "shape": list(x.shape), "placements": split(x.shape, *batch_at)}
                       for name, x in inputs.items()],
            "parameters": [parameter(k, name, p) for k, (name, p) in named]}


WAYS = {"batch": ((0, 0), (None, None)), "batch and channels": ((0, None), (None, 0)),
        "channels twice": ((None, None), (0, 0))}


def run(model, inputs, step):
    torch.manual_seed(1)
    loss = step(model, inputs)
    return loss, {name: getattr(p.grad, "full_tensor", lambda p=p: p.grad)()
                  for name, p in model.named_parameters() if p.grad is not None}


def alone(model, inputs):
    loss = loss_in(model(**inputs))
    loss.backward()
    return loss.item()


def compare(make, way):
    """The largest difference from one process, relative, and what departed."""
    want, gradients = run(*make(), alone)
    model, inputs = make()
    document = layouts(model, inputs, *WAYS[way])
    check_document(document)
    plan = Plan(document)
    got, made = run(plan.parallelize(model), inputs, plan.step)
    largest = max(g.abs().max() for g in gradients.values())
    return max(abs(got - want) / abs(want), *(
        ((made[name] - g).abs().max() / largest).item() for name, g in gradients.items())), plan.departures


def work(rank, names, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    seen, wrong = [], 0
    for name in names:
        errors = {}
        for way in WAYS:
            try:
                errors[way], departures = compare(KINDS[name], way)
                seen += departures
            except RuntimeError as e:  # on every process
                errors[way] = e
        if rank == 0:
            bad = [f"{way}: {e}" for way, e in errors.items() if not (isinstance(e, float) and e <= 1e-5)]
            wrong += len(bad)
            print("\n  ".join([f"{'not ' * bool(bad)}ok {name}", *bad]), flush=True)
    if rank == 0 and len(names) == len(KINDS):
        rows = [lack.text for lack in gather.LACKS] + [text for text, *_ in gather.REFUSALS] + [gather.INTERLEAVED]
        left = [row for row in rows if not any(f": {row}, " in text for text in seen)]
        print(f"{len(rows) - len(left)} of {len(rows)} rows of the tables occur", *left, sep="\n  not: ")
        wrong += len(left)
    dist.destroy_process_group()
    if wrong:
        sys.exit(1)


def main():
    names = sys.argv[1:] or list(KINDS)
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (names, f"{folder}/store"), nprocs=4, start_method="fork")


if __name__ == "__main__":
    main()
