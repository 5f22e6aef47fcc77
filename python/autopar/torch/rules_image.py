# SPDX-License-Identifier: Apache-2.0
"""Rules of convolutions, poolings and interpolation; gradients are JAX's transposes of linear
operators, and of the maximum's choice that the forward pass made."""
import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .rules import like, rule, total, wide


def taken(x, at, dim):
    """x at constant places of a dimension, which become the dimensions of the places."""
    return x.at[(slice(None),) * dim + (jnp.asarray(at),)].get(
        mode="promise_in_bounds", wrap_negative_indices=False)


def per_dim(value, n):
    value = [value] if isinstance(value, int) else list(value)
    return value * n if len(value) == 1 else value


def numbers(n):
    return lax.conv_dimension_numbers((1,) * (n + 2), (1,) * (n + 2),
                                      ("NC" + "DHW"[3 - n:], "OI" + "DHW"[3 - n:],
                                       "NC" + "DHW"[3 - n:]))


def convolve(x, w, stride, padding, dilation, transposed, output_padding, groups):
    n = x.ndim - 2
    stride, padding, dilation = (per_dim(v, n) for v in (stride, padding, dilation))
    if not transposed:
        return lax.conv_general_dilated(
            x, w, stride, [(p, p) for p in padding], rhs_dilation=dilation,
            dimension_numbers=numbers(n), feature_group_count=groups)
    extra = per_dim(output_padding, n)
    span = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
    # [in, out/groups, ...] to [out, in/groups, ...], turned round
    w = lax.rev(w, tuple(range(2, w.ndim)))
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    w = w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])
    return lax.conv_general_dilated(
        x, w, (1,) * n, [(s - p, s - p + e) for s, p, e in zip(span, padding, extra)],
        lhs_dilation=stride, rhs_dilation=dilation, dimension_numbers=numbers(n),
        feature_group_count=groups)


@rule("convolution")
def convolution(of, x, w, bias, *how):
    y = convolve(x, w, *how)
    return y if bias is None else y + lax.broadcast_in_dim(bias, y.shape, (1,))


@rule("convolution_backward")
def convolution_backward(of, grad, x, w, bias_sizes, *how_and_mask):
    *how, mask = how_and_mask
    dx = dw = db = None
    if mask[0]:
        dx, = jax.linear_transpose(lambda a: convolve(a, w, *how), x)(grad)
    if mask[1]:
        dw, = jax.linear_transpose(lambda a: convolve(x, a, *how), w)(grad)
    if mask[2]:
        db = total(grad, (0, *range(2, grad.ndim)))
    return dx, dw, db


# ---- poolings ----


def windows(x, kernel, stride, padding, dilation, ceil):
    """lax.reduce_window's window, strides, padding and dilation over the trailing dimensions."""
    n = len(kernel)
    lead = x.ndim - n
    stride = per_dim(stride or kernel, n)
    padding, dilation = per_dim(padding, n), per_dim(dilation, n)
    pads = []
    for size, k, s, p, d in zip(x.shape[lead:], kernel, stride, padding, dilation):
        reach = size + 2 * p - d * (k - 1) - 1
        count = (-(-reach // s) if ceil else reach // s) + 1
        count -= ceil and (count - 1) * s >= size + p  # a window that begins in the padding
        pads.append((p, (count - 1) * s + d * (k - 1) + 1 - size - p))
    ones, none = (1,) * lead, ((0, 0),) * lead
    return ones + tuple(kernel), ones + tuple(stride), none + tuple(pads), ones + tuple(dilation)


def cropped(x, pads):
    """x without what a window beyond its end would pad by less than nothing."""
    for d, (_, high) in enumerate(pads):
        if high < 0:
            x = lax.slice_in_dim(x, 0, x.shape[d] + high, axis=d)
    return x, tuple((low, max(high, 0)) for low, high in pads)


def max_pool(x, kernel, stride, padding, dilation, ceil):
    window, strides, pads, dilations = windows(x, kernel, stride, padding, dilation, ceil)
    x, pads = cropped(x, pads)
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return lax.reduce_window(x, np.array(least, x.dtype), lax.max, window, strides, pads,
                             window_dilation=dilations)


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_rule(of, x, kernel, stride=(), padding=0, dilation=1, ceil=False):
    n = 3 if "3d" in of.node.target._schema.name else 2
    kernel = per_dim(kernel, n)
    made = max_pool(x, kernel, stride, padding, dilation, ceil)
    readers = {str(reader.target) for user in of.node.users if user.args[1] == 1 for reader in user.users}
    if all(name.endswith("_with_indices_backward.default") for name in readers):
        return made, None  # max_pool_backward finds the places itself
    return made, places_of_maxima(x, made.shape[-n:], kernel, stride, padding, dilation)


def places_of_maxima(x, sizes, kernel, stride, padding, dilation):
    """Where the maximum of each window is, counted over the trailing dimensions."""
    n = len(kernel)
    stride, padding, dilation = (per_dim(v, n) for v in (stride or kernel, padding, dilation))
    flat, inside = np.zeros((1,) * (2 * n), np.int64), np.ones((1,) * (2 * n), bool)
    for k, size in enumerate(x.shape[-n:]):
        at = np.arange(sizes[k])[:, None] * stride[k] - padding[k] + np.arange(kernel[k])[None] * dilation[k]
        shape = [1] * (2 * n)
        shape[k], shape[n + k] = at.shape
        inside = inside & ((at >= 0) & (at < size)).reshape(shape)
        flat = flat * size + np.clip(at, 0, size - 1).reshape(shape)
    flat, inside = flat.reshape(*sizes, -1), inside.reshape(*sizes, -1)
    parts = taken(x.reshape(*x.shape[:-n], -1), flat, x.ndim - n)
    return chosen_places(jnp.where(jnp.asarray(inside), parts, like(parts, -np.inf)), flat)


def chosen_places(parts, flat):
    """The places `flat` of the first maxima along the last dimension."""
    best = lax.argmax(parts, parts.ndim - 1, jnp.int64)
    chosen = lax.broadcasted_iota(jnp.int64, parts.shape, parts.ndim - 1) == best[..., None]
    return total(jnp.where(chosen, jnp.asarray(flat), 0), (parts.ndim - 1,))


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(of, grad, x, kernel, stride, padding, dilation, ceil, _):
    n = 3 if "3d" in of.node.target._schema.name else 2
    if set(per_dim(dilation, n)) != {1}:  # of which JAX has no derivative
        at = places_of_maxima(x, grad.shape[-n:], per_dim(kernel, n), stride, padding, dilation)
        return scattered(grad, at, x.shape, n)
    pool = lambda a: max_pool(a, per_dim(kernel, n), stride, padding, dilation, ceil)
    return jax.vjp(pool, x)[1](grad)[0]


def avg_pool(x, kernel, stride, padding, ceil, whole, divisor):
    """whole: padding counts among what the average is of."""
    window, strides, pads, _ = windows(x, kernel, stride, padding, 1, ceil)

    def sums(a, pads):
        a, pads = cropped(a, pads)
        return lax.reduce_window(a, np.array(0, a.dtype), lax.add, window, strides, pads)

    made = sums(x, pads)
    if divisor is not None:
        return made / like(made, divisor)
    lead, padding = x.ndim - len(kernel), per_dim(padding, len(kernel))
    ones = np.ones((1,) * lead + x.shape[lead:], np.float32)
    if whole:
        grown = [(0, 0)] * lead + [(p, p) for p in padding]
        ones = np.pad(ones, grown, constant_values=1)
        pads = tuple((low - p, high - p) for (low, high), p in zip(pads, [0] * lead + padding))
    with jax.ensure_compile_time_eval():
        count = np.asarray(sums(jnp.asarray(ones), pads))
    if (count == count.flat[0]).all():
        return made / like(made, float(count.flat[0]))
    return made / jnp.asarray(count, made.dtype)


@rule("avg_pool2d", "avg_pool3d")
def avg_pool_rule(of, x, kernel, stride=(), padding=0, ceil=False, whole=True, divisor=None):
    n = 3 if "3d" in of.node.target._schema.name else 2
    return avg_pool(x, per_dim(kernel, n), stride, padding, ceil, whole, divisor)


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(of, grad, x, kernel, stride, padding, ceil, whole, divisor):
    n = 3 if "3d" in of.node.target._schema.name else 2
    pool = lambda a: avg_pool(a, per_dim(kernel, n), stride, padding, ceil, whole, divisor)
    return jax.linear_transpose(pool, x)(grad)[0]


def adaptive_avg(x, sizes):
    """The mean of each of sizes[d] parts, which may overlap, of trailing dimension d."""
    for k, parts in enumerate(sizes):
        d = x.ndim - len(sizes) + k
        size = x.shape[d]
        mean = np.zeros((parts, size), np.float32)
        for i in range(parts):
            start, end = i * size // parts, -(-(i + 1) * size // parts)
            mean[i, start:end] = 1 / (end - start)
        made = lax.dot_general(wide(x), jnp.asarray(mean), (((d,), (1,)), ((), ())))
        x = jnp.moveaxis(made, -1, d).astype(x.dtype)
    return x


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(of, x, sizes):
    return adaptive_avg(x, sizes)


@rule("max_unpool2d", "max_unpool3d")
def max_unpool(of, x, at, *sizes):
    return scattered(x, at, of.shape, 3 if "3d" in of.node.target._schema.name else 2)


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(of, grad, x):
    sizes = grad.shape[2:] if grad.ndim == x.ndim else grad.shape[1:]
    n = 3 if "3d" in of.node.target._schema.name else 2
    return jax.linear_transpose(lambda a: adaptive_avg(a, sizes[-n:]), x)(grad)[0]


def adaptive_windows(size, parts):
    """[parts, width]: places of each part, its last repeated."""
    ends = [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]
    width = max(end - start for start, end in ends)
    return np.array([[min(start + k, end - 1) for k in range(width)] for start, end in ends])


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(of, x, sizes):
    """Maxima of parts, which may overlap, and their places among the trailing dimensions."""
    n = len(sizes)
    sizes = [x.shape[x.ndim - n + k] if s is None else s for k, s in enumerate(sizes)]
    flat = np.zeros((1,) * (2 * n), np.int64)
    for k, parts in enumerate(sizes):
        places = adaptive_windows(x.shape[x.ndim - n + k], parts)
        shape = [1] * (2 * n)
        shape[k], shape[n + k] = places.shape
        flat = flat * x.shape[x.ndim - n + k] + places.reshape(shape)
    flat = np.ascontiguousarray(flat).reshape(*sizes, -1)
    rows = x.reshape(*x.shape[:x.ndim - n], -1)
    parts = taken(rows, flat, rows.ndim - 1)
    return lax.reduce_max(parts, (parts.ndim - 1,)), chosen_places(parts, flat)


@rule("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(of, grad, x, at):
    n = 3 if "3d" in of.node.target._schema.name else 2
    return scattered(grad, at, x.shape, n)


def scattered(values, at, shape, n):
    """Zeros of a shape, to which values are added at places counted over its last n dimensions."""
    lead = shape[:len(shape) - n]
    flat = values.reshape(math.prod(lead), -1), at.reshape(math.prod(lead), -1)
    rows = lax.broadcasted_iota(jnp.int64, flat[1].shape, 0)
    zero = jnp.zeros((math.prod(lead), math.prod(shape[len(shape) - n:])), values.dtype)
    return zero.at[rows, flat[1]].add(flat[0], mode="promise_in_bounds", wrap_negative_indices=False).reshape(shape)


# ---- padding ----


def padded(x, pads, mode):
    config = [(0, 0)] * x.ndim
    for k in range(len(pads) // 2):
        config[x.ndim - 1 - k] = (pads[2 * k], pads[2 * k + 1])
    return jnp.pad(x, config, mode)


def mode_of(of):
    return "edge" if "replication" in of.node.target._schema.name else "reflect"


@rule(*(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def pad_rule(of, x, pads):
    return padded(x, pads, mode_of(of))


@rule(*(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def pad_backward(of, grad, x, pads):
    return jax.linear_transpose(lambda a: padded(a, pads, mode_of(of)), x)(grad)[0]


# ---- interpolation ----


def linear_weights(size, out, align, factor):
    """[out, size]: how much each place of the result takes of each place."""
    if align:
        at = np.arange(out) * ((size - 1) / (out - 1) if out > 1 else 0)
    else:
        step = 1 / factor if factor else size / out
        at = np.maximum((np.arange(out) + 0.5) * step - 0.5, 0)
    low = np.minimum(np.floor(at).astype(int), size - 1)
    high, part = np.minimum(low + 1, size - 1), at - low
    weights = np.zeros((out, size), np.float32)
    np.add.at(weights, (np.arange(out), low), 1 - part)
    np.add.at(weights, (np.arange(out), high), part)
    return weights


def smooth_weights(size, out, align, factor, filter_of, support):
    """linear_weights of a filter that is as wide as the step from place to place (antialias)."""
    step = (size - 1) / (out - 1) if align and out > 1 else 1 / factor if factor and not align else size / out
    weights = np.zeros((out, size), np.float64)
    for i in range(out):
        middle = step * (i + 0.5)
        low = max(int(middle - support * max(step, 1) + 0.5), 0)
        high = min(int(middle + support * max(step, 1) + 0.5), size)
        at = np.arange(low, high)
        found = filter_of((at - middle + 0.5) / max(step, 1))
        weights[i, low:high] = found / found.sum()
    return weights.astype(np.float32)


def triangle(t):
    return np.maximum(1 - np.abs(t), 0)


def smooth_cubic(t, a=-0.5):
    t = np.abs(t)
    return np.where(t < 1, ((a + 2) * t - (a + 3)) * t * t + 1, np.where(t < 2, (((t - 5) * t + 8) * t - 4) * a, 0))


SMOOTH = {"bilinear": (triangle, 1), "bicubic": (smooth_cubic, 2)}


def smooth_of(of):
    return SMOOTH["bicubic" if "bicubic" in of.node.target._schema.name else "bilinear"]


@rule("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa.vec")
def smooth(of, x, size, align, *factors):
    given = factors[0] if len(factors) == 1 and isinstance(factors[0], list) else factors
    return interpolate(x, of.shape[2:], align, [*given] or [None, None], smooth_of(of))


@rule("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward")
def smooth_backward(of, grad, out_size, in_size, align, *factors):
    x = jax.ShapeDtypeStruct(tuple(in_size), grad.dtype)
    given = [*factors] or [None, None]
    return jax.linear_transpose(lambda a: interpolate(a, out_size, align, given, smooth_of(of)), x)(grad)[0]


def interpolate(x, sizes, align, factors, smoothed=None):
    for k, out in enumerate(sizes):
        d = x.ndim - len(sizes) + k
        weights = smooth_weights(x.shape[d], out, align, factors[k], *smoothed) if smoothed else (
            linear_weights(x.shape[d], out, align, factors[k]))
        weights = jnp.asarray(weights)
        made = lax.dot_general(wide(x), weights, (((d,), (1,)), ((), ())))
        x = jnp.moveaxis(made, -1, d).astype(x.dtype)
    return x


@rule("upsample_bilinear2d", "upsample_bilinear2d.vec")
def bilinear(of, x, size, align, *factors):
    given = factors[0] if len(factors) == 1 and isinstance(factors[0], list) else factors
    return interpolate(x, of.shape[2:], align, [*given] or [None, None])


@rule("upsample_bilinear2d_backward")
def bilinear_backward(of, grad, out_size, in_size, align, *factors):
    x = jax.ShapeDtypeStruct(tuple(in_size), grad.dtype)
    given = [*factors] or [None, None]
    return jax.linear_transpose(lambda a: interpolate(a, out_size, align, given), x)(grad)[0]


def nearest_places(size, out, factor):
    step = 1 / factor if factor else size / out
    return np.minimum(np.floor(np.arange(out) * step).astype(int), size - 1)


def nearest(x, sizes, factors):
    for k, out in enumerate(sizes):
        d = x.ndim - len(sizes) + k
        at = nearest_places(x.shape[d], out, factors[k])
        every = out // x.shape[d] if out % x.shape[d] == 0 else 0
        if every and (at == np.arange(out) // every).all():
            x = jnp.repeat(x, every, axis=d)
        else:
            x = taken(x, at, d)
    return x


@rule("upsample_nearest2d", "upsample_nearest2d.vec")
def nearest_rule(of, x, size, *factors):
    given = factors[0] if len(factors) == 1 and isinstance(factors[0], list) else factors
    return nearest(x, of.shape[2:], [*given] or [None, None])


@rule("upsample_nearest2d_backward")
def nearest_backward(of, grad, out_size, in_size, *factors):
    x = jax.ShapeDtypeStruct(tuple(in_size), grad.dtype)
    given = [*factors] or [None, None]
    return jax.linear_transpose(lambda a: nearest(a, out_size, given), x)(grad)[0]


@rule("_cdist_forward")
def cdist(of, x, y, p, mode):
    return distance(x[..., :, None, :] - y[..., None, :, :], p)


def distance(apart, p):
    """The p-norm along the last dimension."""
    apart = lax.abs(apart)
    if p == 2:
        return lax.sqrt(total(apart * apart, (apart.ndim - 1,)))
    if p == math.inf:
        return lax.reduce_max(apart, (apart.ndim - 1,))
    return lax.pow(total(lax.pow(apart, like(apart, p)), (apart.ndim - 1,)), like(apart, 1 / p))


@rule("_cdist_backward")
def cdist_backward(of, grad, x, y, p, far):
    """Of the first operand."""
    each = slope(x[..., :, None, :] - y[..., None, :, :], p, far[..., None], grad[..., None])
    return total(each, (each.ndim - 2,))


def slope(apart, p, far, grad):
    """The gradient of distance(apart, p), which is `far`; 0 where that is 0."""
    zero = jnp.zeros_like(apart)
    if p == 0:
        return zero
    if p == 1:
        each = lax.sign(apart) * grad
    elif p == math.inf:
        each = jnp.where(lax.abs(apart) == far, lax.sign(apart), zero) * grad
    else:
        power = apart if p == 2 else lax.sign(apart) * lax.pow(lax.abs(apart), like(apart, p - 1))
        each = power * (grad / lax.pow(far, like(far, p - 1)) if p != 2 else grad / far)
        each = jnp.where((far == 0) | ((apart == 0) & (p < 2)), zero, each)
    return each


# ---- sampling at places ----


def unnormalised(at, size, align):
    return (at + 1) * ((size - 1) / 2) if align else ((at + 1) * size - 1) / 2


def reflected(at, low, high):
    """at, mirrored at low and at high; both are doubled, to be integers."""
    if low == high:
        return jnp.zeros_like(at)
    low, span = low / 2, (high - low) / 2
    off = lax.abs(at - low)
    rest = lax.rem(off, jnp.full_like(off, span))
    flips = jnp.floor(off / span)
    return jnp.where(flips % 2 == 0, rest + low, span - rest + low)


def place(at, size, padding, align):
    at = unnormalised(at, size, align)
    if padding == 2:
        at = reflected(at, 0, 2 * (size - 1)) if align else reflected(at, -1, 2 * size - 1)
    if not padding:
        return at
    # at an end, where jnp.clip halves the gradient, PyTorch's is 0; the mirrors' kinks lie there or beyond
    return jnp.where((at > 0) & (at < size - 1), at, lax.stop_gradient(jnp.clip(at, 0, size - 1)))


def picked(x, at):
    """x [N, C, sizes...] at integer places [N, ..., n]; 0 outside."""
    inside, index = True, []
    for d in range(at.shape[-1]):
        inside = inside & (at[..., d] >= 0) & (at[..., d] < x.shape[2 + d])
        index.append(jnp.clip(at[..., d], 0, x.shape[2 + d] - 1).astype(jnp.int64))
    rows = lax.broadcasted_iota(jnp.int64, index[0].shape, 0)
    found = jnp.moveaxis(x, 1, -1).at[(rows, *index)].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return jnp.where(inside[..., None], found, jnp.zeros_like(found))


def cubic(t):
    """Weights of the four places around, as PyTorch has them (A = -0.75)."""
    a = -0.75
    near = lambda v: ((a + 2) * v - (a + 3)) * v * v + 1
    far = lambda v: ((a * v - 5 * a) * v + 8 * a) * v - 4 * a
    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def grid_sample(x, grid, mode, padding, align):
    """mode: 0 linear, 1 nearest, 2 cubic; padding: 0 zeros, 1 border, 2 reflection. The grid's last dimension
    begins with the last dimension's place."""
    n = x.ndim - 2
    grid, sizes = grid[..., ::-1], x.shape[2:]
    if mode == 2:
        at = jnp.stack([unnormalised(grid[..., d], sizes[d], align) for d in range(n)], -1)
        low = jnp.floor(at)
        weights = [cubic(at[..., d] - low[..., d]) for d in range(n)]
        made = 0
        for ky in range(4):
            for kx in range(4):
                each = low + jnp.asarray([ky - 1, kx - 1], low.dtype)
                if padding:  # places are whole numbers already: the sizes as if aligned
                    each = jnp.stack([place(each[..., d] * (2 / (sizes[d] - 1)) - 1 if align else (
                        2 * each[..., d] + 1) / sizes[d] - 1, sizes[d], padding, align) for d in range(n)], -1)
                    each = jnp.round(each)
                made = made + picked(x, each) * (weights[0][ky] * weights[1][kx])[..., None]
        return jnp.moveaxis(made, -1, 1)
    at = jnp.stack([place(grid[..., d], sizes[d], padding, align) for d in range(n)], -1)
    if mode == 1:
        return jnp.moveaxis(picked(x, lax.round(at, lax.RoundingMethod.TO_NEAREST_EVEN)), -1, 1)
    low, made = jnp.floor(at), 0
    for corner in np.ndindex(*(2,) * n):
        part = at - low
        weight = math.prod((part[..., d] if c else 1 - part[..., d]) for d, c in enumerate(corner))
        made = made + picked(x, low + jnp.asarray(corner, low.dtype)) * weight[..., None]
    return jnp.moveaxis(made, -1, 1)


@rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(of, x, grid, mode, padding, align):
    return grid_sample(x, grid, mode, padding, align)


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(of, grad, x, grid, mode, padding, align, mask):
    made = jax.vjp(lambda a, b: grid_sample(a, b, mode, padding, align), x, grid)[1](grad)
    return tuple(g if wanted else None for g, wanted in zip(made, mask))


@rule("_pdist_forward")
def pdist(of, x, p=2.0):
    rows, columns = np.triu_indices(x.shape[0], 1)
    return distance(taken(x, rows, 0) - taken(x, columns, 0), p)


@rule("_pdist_backward")
def pdist_backward(of, grad, x, p, far):
    rows, columns = np.triu_indices(x.shape[0], 1)
    each = slope(taken(x, rows, 0) - taken(x, columns, 0), p, far[..., None], grad[..., None])
    zero = jnp.zeros_like(x)
    return zero.at[jnp.asarray(rows)].add(each) - zero.at[jnp.asarray(columns)].add(each)
