# SPDX-License-Identifier: Apache-2.0
"""Rules of convolutions, poolings and interpolation; gradients are JAX's transposes of linear
operators, and of the maximum's choice that the forward pass made."""
import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .rules import like, rule, total, wide


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
    n = of.node.target._schema.name[-len("d_with_indices") - 1]
    return max_pool(x, per_dim(kernel, int(n)), stride, padding, dilation, ceil), None


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(of, grad, x, kernel, stride, padding, dilation, ceil, _):
    n = 3 if "3d" in of.node.target._schema.name else 2
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


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(of, grad, x):
    sizes = grad.shape[2:] if grad.ndim == x.ndim else grad.shape[1:]
    n = 3 if "3d" in of.node.target._schema.name else 2
    return jax.linear_transpose(lambda a: adaptive_avg(a, sizes[-n:]), x)(grad)[0]


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


def interpolate(x, sizes, align, factors):
    for k, out in enumerate(sizes):
        d = x.ndim - len(sizes) + k
        weights = jnp.asarray(linear_weights(x.shape[d], out, align, factors[k]))
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
            x = jnp.take(x, jnp.asarray(at), axis=d, mode="promise_in_bounds")
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
    apart = lax.abs(x[..., :, None, :] - y[..., None, :, :])
    if p == 2:
        return lax.sqrt(total(apart * apart, (apart.ndim - 1,)))
    if p == math.inf:
        return lax.reduce_max(apart, (apart.ndim - 1,))
    return lax.pow(total(lax.pow(apart, like(apart, p)), (apart.ndim - 1,)), like(apart, 1 / p))
