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

aten = torch.ops.aten
CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
for packet in (aten.conv1d, aten.conv2d, aten.conv3d):
    CONVOLUTIONS |= {packet, packet.default, packet.padding}
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


class Rules(TorchFunctionMode):
    """Puts the functions of this file in the place of PyTorch's, for DTensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in CONVOLUTIONS and any(isinstance(x, DTensor) for x in args):
            return convolution(func, *args, **kwargs)
        if func in POOLINGS and isinstance(args[0], DTensor):
            return pooling(func, *args, **kwargs)
        if func in (F.batch_norm, aten.batch_norm.default) and isinstance(args[0], DTensor):
            given = functional_batch_norm(*args, **kwargs) if func is F.batch_norm else args
            x, weight, bias, mean, var, training, momentum, eps = given[:8]
            if training:
                return batch_norm(x, mean, var, weight, bias, momentum, eps)
        return func(*args, **kwargs)
