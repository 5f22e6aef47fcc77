#!/usr/bin/env python3
"""Operators of ATen by autopar's rules beside PyTorch: results, through a loss, and gradients.

    torch_rules.py [NAME...]

Each function takes floating-point tensors; its results, times fixed random numbers, are the loss. The joint
graph of AOTAutograd is evaluated by the rules in JAX, and the loss and all gradients must be PyTorch's to
1e-5 of the largest. A line for each function that differs or fails; exit 1 if there is one.
"""
import os
import sys
import warnings

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
from autopar.torch import capture, hlo  # noqa: E402
from autopar.torch.rules import to_numpy  # noqa: E402

torch.manual_seed(0)
CASES = {}
AT = torch.randint(0, 5, (12,))
MASK = torch.rand(4, 4) > 0.4


def case(name, function, *shapes):
    CASES[name] = function, [torch.randn(s) for s in shapes]


# ---- padding, pooling, sampling ----

for dims, size in ((1, (2, 3, 7)), (2, (2, 3, 7, 6)), (3, (2, 3, 5, 6, 7))):
    pads = [2, 1, 0, 2, 1, 1][:2 * dims]
    for mode in ("reflect", "replicate", "circular", "constant"):
        case(f"pad{dims}d {mode}", lambda x, p=pads, m=mode: F.pad(x, p, m), size)
for n, sizes in enumerate(((2, 3), (7, 6), (5, 4), (1, 1))):
    case(f"adaptive_max_pool2d {sizes}", lambda x, s=sizes: F.adaptive_max_pool2d(x, s), (2, 3, 7, 6))
    case(f"adaptive_avg_pool2d {sizes}", lambda x, s=sizes: F.adaptive_avg_pool2d(x, s), (2, 3, 7, 6))
case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3), (2, 3, 10))
case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), (1, 2, 5, 6, 4))
case("max_pool with indices", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 6, 6))
case("max_pool3d", lambda x: F.max_pool3d(x, 2, 2, 1), (1, 2, 4, 6, 6))
case("lp_pool", lambda x: F.lp_pool2d(x.abs() + 0.1, 3, 2), (2, 3, 6, 6))
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        for align in (False, True):
            case(f"grid_sample {mode} {padding} {align}",
                 lambda x, g, m=mode, p=padding, a=align: F.grid_sample(x, g.tanh() * 1.3, m, p, a),
                 (2, 3, 5, 6), (2, 4, 3, 2))

IDENTITY = {(n, align): F.affine_grid(torch.eye(n, n + 1)[None], (1, 1, *(3, 5, 5)[-n:]), align)
            for n in (2, 3) for align in (False, True)}  # samples on borders and mirrors, at kinks of clipping
for n, mode, padding in ([(2, m, p) for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection")]
                         + [(3, "bilinear", p) for p in ("zeros", "border", "reflection")]):
    for align in (False, True):
        case(f"grid_sample of the identity {n}d {mode} {padding} {align}",
             lambda x, g, m=mode, p=padding, a=align, i=IDENTITY[n, align]: F.grid_sample(x, g - g.detach() + i, m, p, a),
             (1, 3, *(3, 5, 5)[-n:]), (1, *(3, 5, 5)[-n:], n))
case("grid_sample 3d", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (2, 3, 4, 5, 6), (2, 3, 2, 2, 3))
case("affine_grid", lambda t, x: F.grid_sample(x, F.affine_grid(t, (2, 3, 5, 6), False), align_corners=False),
     (2, 2, 3), (2, 3, 5, 6))
for mode, size in (("nearest", (2, 3, 5)), ("linear", (2, 3, 5)), ("bilinear", (2, 3, 5, 4)), ("bicubic", (2, 3, 5, 4)),
                   ("area", (2, 3, 5, 4)), ("nearest-exact", (2, 3, 5, 4)), ("trilinear", (1, 2, 3, 4, 5)),
                   ("nearest", (2, 3, 5, 4)), ("nearest", (1, 2, 3, 4, 5))):
    case(f"interpolate {mode} {len(size) - 2}d", lambda x, m=mode: F.interpolate(x, scale_factor=1.7, mode=m), size)
    if mode not in ("nearest", "nearest-exact", "area"):
        case(f"interpolate {mode} {len(size) - 2}d aligned", lambda x, m=mode: F.interpolate(
            x, scale_factor=2, mode=m, align_corners=True), size)
case("interpolate antialias", lambda x: F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True), (2, 3, 7, 6))
case("unfold and fold", lambda x: F.fold(F.unfold(x, 3, 2, 1, 2) * 2, (8, 8), 3, 2, 1, 2), (2, 3, 8, 8))
case("pixel shuffles", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) ** 2, 2), (2, 8, 3, 3))
case("channel shuffle", lambda x: F.channel_shuffle(x, 2), (2, 8, 3, 3))
case("conv transposed 3d", lambda x, w: F.conv_transpose3d(x, w, None, 2, 1, 1), (1, 2, 3, 3, 3), (2, 3, 3, 3, 3))
case("conv transposed groups", lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2, 2), (2, 4, 3, 3), (4, 3, 3, 3))
case("conv1d same", lambda x, w: F.conv1d(x, w, padding="same", dilation=2), (2, 4, 9), (6, 4, 4))

# ---- indices ----

for reduce in ("sum", "prod", "mean", "amax", "amin"):
    for own in (True, False):
        case(f"scatter_reduce {reduce} {own}", lambda x, y, r=reduce, o=own: x.scatter_reduce(
            0, AT[:, None].expand(12, 3), y, r, include_self=o), (6, 3), (12, 3))
for reduce in ("prod", "mean", "amax", "amin"):
    case(f"index_reduce {reduce}", lambda x, y, r=reduce: x.index_reduce(0, AT, y, r), (6, 3), (12, 3))
case("index_copy", lambda x, y: x.index_copy(0, torch.tensor([4, 0, 2]), y), (6, 3), (3, 3))
case("index_fill", lambda x: x.index_fill(1, torch.tensor([2, 0]), 3.0), (6, 3))
case("index_add", lambda x, y: x.index_add(1, torch.tensor([2, 0, 2]), y, alpha=2), (6, 4), (6, 3))
case("take", lambda x: torch.take(x, torch.tensor([[1, 5], [5, 11]])), (3, 4))
case("take_along_dim", lambda x: torch.take_along_dim(x, x.argsort(1, descending=True), 1), (3, 5))
case("put", lambda x, y: x.put(torch.tensor([1, 5, 7]), y), (3, 4), (3,))
case("masks", lambda x: x[MASK] * 2 + x[:, MASK[0]].sum() + torch.masked_select(x, MASK), (4, 4))
case("mask assigned", lambda x: (lambda y: (y.__setitem__(MASK, 3.0), y)[1])(x * 2), (4, 4))
case("masked_scatter", lambda x, y: x.masked_scatter(MASK, y), (4, 4), (16,))
case("diagonals", lambda x: torch.diagonal_scatter(x, x.diagonal(1) * 2, 1) + torch.diag_embed(x.diagonal(0, 1, 0)), (4, 4))
case("diagonals of a batch", lambda x, y: torch.diagonal_scatter(x, y, -1, 0, 2), (4, 3, 5), (3, 3))
case("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, 2), (3, 4), (3,))
case("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 6, 2), (3, 7), (3, 3))
case("as_strided", lambda x: x.as_strided((3, 2), (2, 1), 1) * 2, (4, 4))
case("as_strided of a transpose", lambda x: (x.t() * 1.0).contiguous().t().as_strided((3, 2), (1, 4)), (4, 3))
case("kthvalue, median, mode", lambda x: x.kthvalue(2, 1)[0] + x.median(1)[0] + x.quantile(0.3, 1), (4, 5))
case("sort by", lambda x: x.sort(1, descending=True)[0] + x[:, x[0].argsort()] + x.msort(), (4, 5))
case("unique of a constant", lambda x: x[torch.tensor([3, 1, 1]).unique()], (4, 5))
case("cdist", lambda x, y: sum(torch.cdist(x, y, p) for p in (1.0, 2.0, 3.0, 1.5, float("inf"))), (2, 4, 3), (2, 5, 3))
case("cdist to itself", lambda x: torch.cdist(x, x), (4, 3))
case("pdist", lambda x: F.pdist(x), (5, 3))
case("embedding with max_norm off", lambda w: F.embedding(AT[:5], w, padding_idx=1, scale_grad_by_freq=False), (5, 4))
case("repeat_interleave", lambda x: x.repeat_interleave(torch.tensor([2, 0, 1]), 0).sum() + x.repeat_interleave(2, 1), (3, 4))
case("rot90, roll, flip", lambda x: torch.rot90(x, 1, (0, 1)) + torch.roll(x, (1, 2), (0, 1)).t() + x.fliplr().t(), (3, 4))

# ---- running and reduced ----

case("cummax", lambda x: x.cummax(1)[0] + x.cummin(0)[0], (4, 6))
case("logcumsumexp", lambda x: x.logcumsumexp(1), (4, 6))
case("cumprod, cumsum", lambda x: x.cumprod(1) + x.cumsum(0), (4, 6))
case("norms", lambda x: torch.linalg.norm(x) + x.norm(1, 1).sum() + torch.linalg.vector_norm(x, 3, 0).sum()
     + torch.linalg.matrix_norm(x) + x.norm(float("inf")), (4, 6))
case("statistics", lambda x: x.std(1).sum() + x.var(0, unbiased=False).sum(), (4, 6))
case("log-sums", lambda x: x.logsumexp((0, 1)) + x.softmax(0).log().sum() + torch.logaddexp(x, x.flip(0)).sum()
     + torch.logaddexp2(x, x.flip(0)).sum(), (4, 6))
case("special", lambda x: torch.special.xlogy(x.abs(), x.abs()) + torch.special.entr(x.sigmoid()) + torch.xlogy(x, x.exp())
     + torch.special.ndtr(x) + torch.sinc(x) + torch.special.i0(x)
     + torch.special.xlog1py(x, x.abs()) + torch.logit(x.sigmoid()) + torch.special.i0e(x) + torch.special.i1(x), (4, 6))
case("gamma", lambda x: torch.lgamma(x.abs() + 1) + torch.digamma(x.abs() + 1) + torch.polygamma(1, x.abs() + 1)
     + torch.mvlgamma(x.abs() + 2, 2), (4, 6))
case("rounded", lambda x: x * (x.frac() + x.fmod(0.7) + x.remainder(0.3) + x.copysign(x.flip(0)) + x.ldexp(x.round().detach())
                               + x.nan_to_num() + torch.float_power(x.abs() + 1, 1.5).float()), (4, 6))
case("activations", lambda x: F.softplus(x) + F.mish(x) + F.hardswish(x) + F.logsigmoid(x) + F.softsign(x) + F.tanhshrink(x)
     + F.glu(torch.cat([x, x], 1)) + F.hardsigmoid(x) + F.softshrink(x) + F.hardshrink(x) + F.threshold(x, 0.1, 2) + F.celu(x)
     + F.prelu(x, torch.tensor([0.3])) + F.gelu(x, approximate="tanh") + F.silu(x), (4, 6))
case("losses", lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1)) + F.huber_loss(x, y) + F.smooth_l1_loss(x, y)
     + F.poisson_nll_loss(x, y.abs(), full=True) + F.soft_margin_loss(x, y.sign().detach()) + F.hinge_embedding_loss(x, y.sign().detach())
     + F.cosine_embedding_loss(x, y, torch.ones(4)) + F.margin_ranking_loss(x, y, torch.ones(4, 6)) + F.multi_margin_loss(x, AT[:4])
     + F.triplet_margin_loss(x, y, x.flip(0)) + F.cross_entropy(x, y.softmax(1)) + F.nll_loss(x.log_softmax(1), AT[:4])
     + F.multilabel_soft_margin_loss(x, (y > 0).float().detach()), (4, 6), (4, 6))
case("cross entropy", lambda x: F.cross_entropy(x, torch.where(AT[:4] > 2, -100, AT[:4]), torch.arange(1.0, 7), label_smoothing=0.1)
     + F.cross_entropy(x.view(2, 6, 2), AT[:4].view(2, 2), reduction="sum"), (4, 6))
case("norm layers", lambda x, w, b: F.group_norm(x, 2, w, b) + F.instance_norm(x, weight=w, bias=b) + F.local_response_norm(x, 3)
     + F.layer_norm(x, (5,)) + F.rms_norm(x, (5,)) + F.normalize(x, dim=1) + F.batch_norm(x, None, None, w, b, True), (3, 4, 5), (4,), (4,))

# ---- products, Fourier transforms ----

case("products", lambda x, y: torch.einsum("bij,bkj->bik", x, y).sum() + torch.tensordot(x, y, ([0, 2], [0, 2])).sum()
     + torch.baddbmm(x @ y.mT, x, y.mT, beta=0.5).sum() + torch.kron(x[0], y[0]).sum() + torch.inner(x, y).sum()
     + torch.outer(x[0, 0], y[0, 0]).sum() + torch.linalg.cross(x, y).sum() + torch.addbmm(x[0] @ y[0].mT, x, y.mT).sum()
     + torch.addmv(x[0, :, 0], x[0], y[0, 0]).sum() + torch.addr(x[0], x[0, :, 0], y[0, 0]).sum() + torch.linalg.multi_dot(
         [x[0], y[0].mT, x[0]]).sum() + torch.matrix_power(x[0] @ y[0].mT, 3).sum() + torch.vdot(x[0, 0], y[0, 0])
     + F.bilinear(x, y, torch.ones(2, 3, 3)).sum() + torch.trace(x[0]) + torch.linalg.vecdot(x, y).sum(), (2, 4, 3), (2, 4, 3))
case("a transpose seen in other shapes", lambda x: (lambda y: y.reshape(4, 2, 3) @ y.reshape(4, 3, 2))(x.permute(2, 0, 1)), (2, 3, 4))
case("stft", lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs(), (2, 64))
case("fft", lambda x: torch.fft.fft2(x).abs() + torch.fft.ifft(torch.fft.fftshift(torch.fft.fft(x))).real
     + torch.fft.irfftn(torch.fft.rfftn(x) * 2, s=(4, 6)) + torch.fft.hfft(x.to(torch.complex64), 6), (4, 6))
case("complex", lambda x, y: torch.view_as_real(torch.polar(x.abs(), y) * torch.complex(x, y)).sum(-1) + torch.complex(x, y).angle(),
     (3, 4), (3, 4))
case("bags", lambda w: F.embedding_bag(AT.view(4, 3), w, mode="mean") + F.embedding_bag(
    AT, w, torch.tensor([0, 3, 3, 8])) + F.embedding_bag(AT.view(4, 3), w, per_sample_weights=torch.ones(4, 3), mode="sum")
    + F.embedding_bag(AT.view(4, 3), w, mode="mean", padding_idx=2) + F.embedding_bag(
        AT, w, torch.tensor([0, 3, 3, 8, 12]), mode="sum", include_last_offset=True) + F.embedding_bag(AT.view(4, 3), w, mode="max"), (5, 4))
case("weighted bags", lambda w, s: F.embedding_bag(AT, w, torch.tensor([0, 3, 3, 8]), per_sample_weights=s, mode="sum"),
     (5, 4), (12,))
case("bags by frequency", lambda w: F.embedding_bag(AT.view(4, 3), w, scale_grad_by_freq=True), (5, 4))
case("maxima of bags", lambda w: F.embedding_bag(AT, w, torch.tensor([0, 3, 3, 8]), mode="max")
     + F.embedding_bag(AT.view(4, 3), w, mode="max", padding_idx=2), (5, 4))
case("conjugates", lambda x, y: torch.einsum("ij,kj->ik", torch.complex(x, y), torch.complex(y, x).conj()).imag
     + torch.complex(x, y).tanh().real[:, :3] + torch.complex(x, y).mH.abs()[:3], (3, 4), (3, 4))
case("grouped products", lambda x, w: F.grouped_mm(x, w, offs=torch.tensor([3, 3, 9, 12], dtype=torch.int32)), (12, 8), (4, 8, 16))
case("attention", lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True, is_causal=True), (2, 4, 6, 8), (2, 2, 6, 8))

# ---- kinks, ties and rows of zeros ----

LINE = torch.tensor([-6., -3, -2, -1, -.5, -0., 0, 0, .5, 1, 1, 2, 3, 6, 7])
TIES = torch.tensor([[1., 2, 2, 0], [0, 0, 0, 0], [-1, -1, 3, 3], [2, 2, 2, 2]])
for name, function in {
        "rectified": lambda x: F.relu(x) + F.relu6(x) + F.leaky_relu(x, 0.1) + F.prelu(x, torch.tensor([0.2])) + F.threshold(x, 1, 5),
        "clamped": lambda x: F.hardtanh(x) + x.clamp(-1, 1) + x.clamp_min(0) + x.clamp(max=2) + torch.clamp(x, LINE[3], LINE[9]),
        "exponential units": lambda x: F.elu(x) + F.celu(x) + F.selu(x) + F.softplus(x, 2, 2) + F.logsigmoid(x),
        "hard units": lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.softshrink(x, 0.5) + F.hardshrink(x, 0.5) + F.softsign(x),
        "powers of zero": lambda x: x.abs() + x**0 + x.abs()**1.5 + x**3 + torch.sinc(x) + torch.special.entr(x.sigmoid()),
        "smaller and larger": lambda x: torch.maximum(x, LINE.flip(0)) + torch.minimum(x, 2 - x) + torch.fmax(x, x * 1) + torch.fmin(x, LINE),
        "angles": lambda x: torch.hypot(x, x * 2) + torch.atan2(x, x + 1) + x.acos().nan_to_num() + torch.copysign(x, -LINE)}.items():
    CASES[name] = function, [LINE]
for name, function in {
        "largest of ties": lambda x: x.amax(1) + x.amin(0) + x.max(1)[0] + x.min(1)[0] + x.max() + x.min() + x.amax((0, 1)),
        "running and sorted ties": lambda x: x.cummax(1)[0] + x.cummin(1)[0] + x.sort(1)[0] + x.sort(0, descending=True)[0],
        "pools of ties": lambda x: F.max_pool1d(x, 2, 1) + F.adaptive_max_pool1d(x, 3) + F.max_pool2d(x[None], (1, 2), 1)[0],
        "dilated pools": lambda x: F.max_pool2d(x[None], 2, 1, dilation=2),
        "norms of zero rows": lambda x: sum(x.norm(p=p, dim=1) for p in (1, 2, 3, float("inf"))) + torch.linalg.matrix_norm(x * 0),
        "scaled zero rows": lambda x: F.normalize(x, dim=1) + F.normalize(x, 1, 1) + F.layer_norm(x, (4,)) + F.cosine_similarity(x, x.flip(1))[:, None],
        "spread of zero rows": lambda x: x.std(1) + x.var(1) + torch.std_mean(x, 1)[0] + F.pairwise_distance(x, x.detach(), eps=0),
        "products of zeros": lambda x: x.prod(1) + x.cumprod(1)[:, 2] + x.prod(),
        "equal points": lambda x: torch.cdist(x, x) + torch.cdist(x, x.detach(), 1) + torch.cdist(x, x.flip(1), float("inf")),
        "masked rows": lambda x: x.masked_fill(x == 0, -float("inf")).softmax(1)[[0, 2, 3]] + F.scaled_dot_product_attention(
            x[None], x[None], x[None], torch.arange(4)[:, None] > torch.arange(4))[0, 1:],
        "losses at their kinks": lambda x: F.l1_loss(x, x.detach().flip(1)) + F.smooth_l1_loss(x, torch.ones(4, 4)) + F.huber_loss(
            x, torch.ones(4, 4)) + F.margin_ranking_loss(x, x.detach().flip(1), torch.ones(4, 4)) + F.multi_margin_loss(x, AT[:4] % 4),
        "complex zeros": lambda x: torch.complex(x, x * 0).abs() + torch.fft.fft(x).abs() + torch.sgn(torch.complex(x, x.flip(0))).real}.items():
    CASES[name] = function, [TIES]


class Case(nn.Module):
    def __init__(self, function, tensors):
        super().__init__()
        self.function = function
        self.tensors = nn.ParameterList(tensors)
        self.factor = None

    def forward(self, one):
        made = self.function(*self.tensors)
        if self.factor is None:
            self.factor = torch.rand(made.shape, generator=torch.Generator().manual_seed(1)) + 0.5
        return (made * self.factor).sum() * one


def compare(function, tensors):
    """The largest difference from PyTorch, relative."""
    module, one = Case(function, tensors), torch.ones(())
    want = module(one)
    want.backward()
    step = capture.capture(module, {"one": one})
    given = [to_numpy(t.value) for t in step.arguments]
    loss, gradients, _ = jax.jit(hlo.function_of(step))(*given)
    pairs = [(loss, want)] + [(g, module.get_parameter(n).grad) for n, g in zip(step.reached(), gradients)]
    return max(np.abs(a - b.detach().numpy()).max() / max(np.abs(b.detach().numpy()).max(), 1e-3) for a, b in pairs)


def main():
    warnings.simplefilter("ignore")
    wrong = 0
    for name in sys.argv[1:] or CASES:
        try:
            error = compare(*CASES[name])
            said = "" if error <= 2e-5 else f"differs by {error:.1e}"
        except Exception as e:
            said = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
        wrong += bool(said)
        print(f"{'not ' * bool(said)}ok {name} {said}".rstrip(), flush=True)
    print(f"{len(sys.argv[1:] or CASES) - wrong} passed, {wrong} failed")
    return wrong != 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
