# SPDX-License-Identifier: Apache-2.0
"""Operators for which DTensor lacks a rule, made of those that have one.

DTensor's convolution takes whole weights and a batch that is split along one mesh axis; poolings
and batch norm have no rule. plan.context() puts these in their place, in traced modules, too.
Convolutions are computed on local tensors: along a mesh axis the batch is split, or the weight's
output channels, or the channels that are summed over; else both are whole.
"""
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

aten = torch.ops.aten
CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
for packet in (aten.conv1d, aten.conv2d, aten.conv3d):
    CONVOLUTIONS |= {packet, packet.default, packet.padding}
TRANSPOSED = {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
for packet in (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d):
    TRANSPOSED |= {packet, *(getattr(packet, name) for name in packet.overloads())}
RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
POOLINGS = {torch.max_pool2d, F.avg_pool2d, torch._C._nn.adaptive_avg_pool2d,
            *(getattr(aten, name).default
              for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"))}


def axis_rule(x, weight, splits_out, splits_in):
    """Placements of input, weight and output along a mesh axis, as near as they lie."""
    if x.is_shard(0):
        return Shard(0), Replicate(), Shard(0)
    if splits_out and weight.is_shard(0):
        return Replicate(), Shard(0), Shard(1)
    if splits_in and (weight.is_shard(1) or x.is_shard(1)):
        return Shard(1), Shard(1), Partial()
    return Replicate(), Replicate(), Replicate()


def local(x, at, partial):
    """The local part in these placements; along the axes with partial, gradients are sums."""
    grads = [Partial() if sums else p for p, sums in zip(at, partial)]
    x = x if x.placements == at else x.redistribute(placements=at)
    return x.to_local(grad_placements=grads)


def as_dtensor(x, mesh):
    if x is None or isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def of_local(y, mesh, at, shape):
    """The DTensor of this shape whose local part is y."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(y, mesh, at, run_check=False, shape=torch.Size(shape), stride=stride)


def pooling(function, x, *rest, **options):
    """Each channel of each row by itself."""
    at = tuple(p if p.is_shard(0) or p.is_shard(1) else Replicate() for p in x.placements)
    y = function(local(x, at, [False] * len(at)), *rest, **options)
    return of_local(y, x.device_mesh, at, [*x.shape[:2], *y.shape[2:]])


def convolution(function, x, weight, bias=None, *rest, **options):
    """rest and options: stride, padding, dilation, groups."""
    mesh = next(t for t in (x, weight) if isinstance(t, DTensor)).device_mesh
    x, weight, bias = (as_dtensor(t, mesh) for t in (x, weight, bias))
    groups = options.get("groups", rest[3] if len(rest) > 3 else 1)
    splits = [groups == 1 and n % mesh.size() == 0 for n in weight.shape[:2]]
    ways = [axis_rule(at, w, *splits) for at, w in zip(x.placements, weight.placements)]
    x_at, weight_at, out = zip(*ways)
    y = function(local(x, x_at, [at.is_shard(0) for at in weight_at]),
                 local(weight, weight_at, [at.is_shard(0) for at in x_at]), None, *rest, **options)
    y = of_local(y, mesh, out, [x.shape[0], weight.shape[0], *y.shape[2:]])
    return y if bias is None else y + bias.reshape([1, -1] + [1] * (y.dim() - 2))


def transposed(function, x, weight, bias=None, *rest, **options):
    """rest and options: stride, padding, output_padding, groups, dilation. Each row by itself."""
    mesh = next(t for t in (x, weight) if isinstance(t, DTensor)).device_mesh
    x, weight, bias = (as_dtensor(t, mesh) for t in (x, weight, bias))
    groups = options.get("groups", rest[3] if len(rest) > 3 else 1)
    at = tuple(p if p.is_shard(0) else Replicate() for p in x.placements)
    rows, whole = [p.is_shard(0) for p in at], (Replicate(),) * mesh.ndim
    y = function(local(x, at, [False] * mesh.ndim), local(weight, whole, rows), None, *rest, **options)
    y = of_local(y, mesh, at, [x.shape[0], weight.shape[1] * groups, *y.shape[2:]])
    return y if bias is None else y + bias.reshape([1, -1] + [1] * (y.dim() - 2))


def recurrent(function, x, state, weights, *rest):
    """rest: has_biases, num_layers, dropout, train, bidirectional, batch_first. Each row of the batch
    by itself; packed sequences, which have no such dimension, whole."""
    mesh = next(t for t in tree_leaves((x, state, weights)) if isinstance(t, DTensor)).device_mesh
    whole = (Replicate(),) * mesh.ndim
    x = as_dtensor(x, mesh)
    packed = isinstance(weights, (bool, torch.Tensor))  # x, sizes, state, weights, ...
    dim = None if packed or x.dim() < 3 else 0 if rest[5] else 1
    at = whole if dim is None else tuple(p if p.is_shard(dim) else Replicate() for p in x.placements)
    rows = [not p.is_replicate() for p in at]

    def given(t, at, partial):
        return local(as_dtensor(t, mesh), at, partial) if isinstance(t, torch.Tensor) else t

    def taken(y, at, shape):
        return of_local(y.contiguous(), mesh, at, shape)

    alone = [False] * mesh.ndim
    if dim is None:
        args = tree_map(lambda t: given(t, whole, alone), (state, weights, *rest))
        return tree_map(lambda y: taken(y, whole, y.shape), function(given(x, whole, alone), *args))
    state_at = tuple(Shard(1) if split else Replicate() for split in rows)
    made = function(given(x, at, alone), tree_map(lambda t: given(t, state_at, alone), state),
                    [given(w, whole, rows) for w in weights], *rest)
    n = x.shape[dim]
    y, *states = made
    shape = [n, *y.shape[1:]] if dim == 0 else [y.shape[0], n, *y.shape[2:]]
    return taken(y, at, shape), *(taken(s, state_at, [s.shape[0], n, s.shape[2]]) for s in states)


def batch_norm(x, mean, var, weight, bias, momentum, eps):
    """Of the whole batch; changes the running statistics."""
    dims, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    whole = [p if p.is_shard(1) else Replicate() for p in x.placements]
    count = x.numel() // x.shape[1]
    now = x.sum(dims, keepdim=True).redistribute(placements=whole) / count
    spread = (x - now).square().sum(dims, keepdim=True).redistribute(placements=whole) / count
    if mean is not None:
        with torch.no_grad():
            mean.lerp_(as_laid(now, mean), momentum)
            var.lerp_(as_laid(spread, var) * (count / (count - 1)), momentum)
    y = (x - now) * torch.rsqrt(spread + eps)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def as_laid(x, like):
    """One number per channel, as the running statistics lie."""
    x = x.detach().redistribute(placements=[Replicate()] * x.device_mesh.ndim).reshape(-1)
    return x.redistribute(placements=like.placements) if isinstance(like, DTensor) else x.to_local()


def functional_batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1,
                          eps=1e-5):
    """The arguments of F.batch_norm, as traced modules have them."""
    return x, weight, bias, mean, var, training, momentum, eps


class Whole(torch.autograd.Function):
    """A DTensor as a tensor of every process; its gradient may be either."""

    @staticmethod
    def forward(ctx, x):
        ctx.mesh, ctx.at = x.device_mesh, x.placements
        return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim).to_local().clone()

    @staticmethod
    def backward(ctx, grad):
        grad = as_dtensor(grad, ctx.mesh)
        return grad.redistribute(placements=[p if p.is_shard() else Replicate() for p in ctx.at])


IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"))}


def changes_plain(func, args, kwargs):
    """Whether func writes DTensors into a tensor of one process."""
    name = getattr(func, "__name__", "").partition(".")[0]
    target = kwargs.get("out")
    if target is None and args and (name in IN_PLACE or name[-1:] == "_" != name[-2:-1]):
        target = args[0]
    return isinstance(target, torch.Tensor) and not isinstance(target, DTensor) and any(
        isinstance(x, DTensor) for x in tree_leaves((args, kwargs)))


class Rules(TorchFunctionMode):
    """Puts the functions of this file in the place of PyTorch's, for DTensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in CONVOLUTIONS and any(isinstance(x, DTensor) for x in args):
            return convolution(func, *args, **kwargs)
        if func in TRANSPOSED and any(isinstance(x, DTensor) for x in args):
            return transposed(func, *args, **kwargs)
        if func in RECURRENT and any(isinstance(x, DTensor) for x in tree_leaves(args)):
            return recurrent(func, *args, **kwargs)
        if func in POOLINGS and isinstance(args[0], DTensor):
            return pooling(func, *args, **kwargs)
        if func in (F.batch_norm, aten.batch_norm.default) and isinstance(args[0], DTensor):
            given = functional_batch_norm(*args, **kwargs) if func is F.batch_norm else args
            x, weight, bias, mean, var, training, momentum, eps = given[:8]
            if training:
                return batch_norm(x, mean, var, weight, bias, momentum, eps)
        if changes_plain(func, args, kwargs):
            args, kwargs = tree_map_only(DTensor, Whole.apply, (args, kwargs))
        return func(*args, **kwargs)
