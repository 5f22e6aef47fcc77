# SPDX-License-Identifier: Apache-2.0
"""Rules of operators that read and write at indices, of random numbers and Fourier transforms."""
import math

import jax
import numpy as np
import torch
from jax import lax
from jax import numpy as jnp

from .rules import dims_of, like, rule, spread, total

# ---- indices ----


def one_place(x, dim, index):
    """Where the dimension's place is the index, of size 1 along it."""
    at = lax.broadcasted_iota(index.dtype, x.shape, dim)
    return at == jnp.broadcast_to(index, x.shape)


def batched(x, dim, index):
    """Numbers of a gather of index.shape along one dimension; x, cut to the index's other sizes."""
    others = tuple(d for d in range(x.ndim) if d != dim)
    cut = lax.slice(x, (0,) * x.ndim, [x.shape[d] if d == dim else index.shape[d]
                                       for d in range(x.ndim)])
    numbers = lax.GatherDimensionNumbers((), (dim,), (dim,), others, others)
    return cut, numbers


@rule("gather")
def gather(of, x, dim, index, sparse_grad=False):
    if not x.ndim:
        return x
    x, numbers = batched(x, dim % x.ndim, index)
    return lax.gather(x, index[..., None], numbers, (1,) * x.ndim, mode="promise_in_bounds")


FEW = 8  # places along a dimension that selections write


def scatter_into(of, x, dim, index, src, f):
    dim %= max(x.ndim, 1)
    if index.shape[:dim] + index.shape[dim + 1:] != x.shape[:dim] + x.shape[dim + 1:]:
        rest = [jnp.broadcast_to(lax.broadcasted_iota(index.dtype, index.shape, d), index.shape)
                for d in range(x.ndim)]
        rest[dim] = index
        at = x.at[tuple(rest)]
        put = at.add if f is lax.scatter_add else at.multiply if f is lax.scatter_mul else at.set
        return put(src, mode="promise_in_bounds", wrap_negative_indices=False)
    others = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.ScatterDimensionNumbers((), (dim,), (dim,), others, others)
    return f(x, index[..., None], src, numbers, mode="promise_in_bounds")


@rule("scatter.value", "scatter.src")
def scatter(of, x, dim, index, src, reduce=None):
    dim %= max(x.ndim, 1)
    src = jnp.broadcast_to(jnp.asarray(src).astype(of.dtype), index.shape) if np.isscalar(src) else (
        lax.slice(src, (0,) * src.ndim, index.shape))
    same = index.shape[:dim] + index.shape[dim + 1:] == x.shape[:dim] + x.shape[dim + 1:]
    if not (same and x.ndim and index.shape[dim] <= FEW):
        return scatter_into(of, x, dim, index, src, lax.scatter)
    for k in range(index.shape[dim]):
        at, value = (lax.slice_in_dim(v, k, k + 1, axis=dim) for v in (index, src))
        x = lax.select(one_place(x, dim, at), jnp.broadcast_to(value, x.shape), x)
    return x


@rule("scatter_add")
def scatter_add(of, x, dim, index, src):
    src = lax.slice(src, (0,) * src.ndim, index.shape)
    return scatter_into(of, x, dim, index, src, lax.scatter_add)


@rule("scatter_reduce.two")
def scatter_reduce(of, x, dim, index, src, reduce, include_self=True):
    kinds = {"sum": lax.scatter_add, "prod": lax.scatter_mul, "amax": lax.scatter_max,
             "amin": lax.scatter_min}
    if reduce not in kinds or not include_self:
        raise NotImplementedError(f"scatter_reduce with {reduce}, include_self={include_self}")
    return scatter_into(of, x, dim, index, src, kinds[reduce])


def may_be_negative(of, node):
    """Whether an index counts from the end: those of x[index], not of embeddings."""
    if of.known(node) is not None:
        return bool((of.known(node) < 0).any())
    users = {str(user.target).split(".")[1] for user in node.users}
    return "index" in users or of.node.meta.get("partitioner_tag") != "is_backward"


def places(of, x, nodes):
    """The index of x[...]: one array, or all places, for each dimension."""
    found = []
    for d, node in enumerate(nodes):
        index = slice(None) if node is None else of.array(node)
        if node is not None and index.dtype == jnp.bool_:
            raise NotImplementedError("an index of booleans, whose result has no fixed size")
        if node is not None and may_be_negative(of, node):
            index = jnp.where(index < 0, index + like(index, x.shape[d]), index)
        found.append(index)
    return tuple(found)


@rule("index.Tensor")
def index_of(of, x, _):
    at = places(of, x, of.node.args[1])
    return x.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


@rule("index_put", "_unsafe_index_put")
def index_put(of, x, indices, values, accumulate=False):
    nodes = of.node.args[1]
    if len(nodes) == 1 and indices[0].dtype == jnp.bool_ and values.ndim == 0:
        mask = indices[0].reshape(indices[0].shape + (1,) * (x.ndim - indices[0].ndim))
        mask, values = jnp.broadcast_to(mask, x.shape), jnp.broadcast_to(values.astype(x.dtype), x.shape)
        return lax.select(mask, x + values if accumulate else values, x)
    at = x.at[places(of, x, nodes)]
    put = at.add if accumulate else at.set
    return put(values.astype(x.dtype), mode="promise_in_bounds", wrap_negative_indices=False)


@rule("_unsafe_index.Tensor")
def unsafe_index(of, x, _):
    return index_of(of, x, _)


def rows_of(x, index):
    return x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


@rule("embedding")
def embedding(of, weight, index, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return rows_of(weight, index)


@rule("index_select")
def index_select(of, x, dim, index):
    at = (slice(None),) * (dim % x.ndim) + (index,)
    return x.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


@rule("index_add")
def index_add(of, x, dim, index, src, alpha=1):
    at = (slice(None),) * (dim % x.ndim) + (index,)
    src = src if alpha == 1 else src * like(src, alpha)
    return x.at[at].add(src, mode="promise_in_bounds", wrap_negative_indices=False)


def bags(of, at, size):
    """How many indices each bag has, from the offsets; all have as many."""
    offsets = of.known(of.node.args[at])
    count = None if offsets is None or len(offsets) == 0 else size // len(offsets)
    if count is None or not torch.equal(offsets, torch.arange(len(offsets)) * count):
        raise NotImplementedError("an EmbeddingBag whose bags differ in size")
    return len(offsets), count


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(of, weight, index, offsets, scale_grad=False, mode=0, sparse=False,
                  weights=None, include_last=False, padding=-1):
    if weights is not None or padding >= 0 or include_last:
        raise NotImplementedError("an EmbeddingBag with weights, padding or a last offset")
    index = index.reshape(bags(of, 2, index.size))
    rows = rows_of(weight, index)
    if mode == 2:
        best = lax.argmax(rows, 1, jnp.int64)
        picked = jnp.take_along_axis(index, best, 1, mode="promise_in_bounds")
        return lax.reduce_max(rows, (1,)), None, None, picked
    made = total(rows, (1,))
    return made / like(made, index.shape[1]) if mode == 1 else made, None, None, None


@rule("_embedding_bag_backward")
def embedding_bag_backward(of, grad, index, offsets, offset2bag, bag_size, best, n, scale_grad,
                           mode, sparse, weights, padding=-1):
    zero = jnp.zeros((n, grad.shape[1]), grad.dtype)
    if mode == 2:
        columns = lax.broadcasted_iota(jnp.int64, grad.shape, 1)
        return zero.at[best, columns].add(grad, mode="promise_in_bounds", wrap_negative_indices=False)
    index = index.reshape(bags(of, 2, index.size))
    grad = grad / like(grad, index.shape[1]) if mode == 1 else grad
    each = spread(grad, (*index.shape, grad.shape[1]), (0, 2))
    return zero.at[index].add(each, mode="promise_in_bounds", wrap_negative_indices=False)


@rule("searchsorted.Tensor", "bucketize.Tensor")
def searchsorted(of, first, second, out_int32=False, right=False, side=None, sorter=None):
    bucket = of.node.target is torch.ops.aten.bucketize.Tensor
    edges, x = (second, first) if bucket else (first, second)
    right = right or side == "right"
    below = edges[..., None, :] <= x[..., None] if right else edges[..., None, :] < x[..., None]
    return total(below.astype(of.dtype), (below.ndim - 1,))


# ---- random numbers ----


def bernoulli_mask(key, p, shape):
    """True with probability p; in f32."""
    return jax.random.uniform(key, shape, jnp.float32) < jnp.float32(p)


@rule("native_dropout")
def dropout(of, x, p, train=True):
    if train is False or p == 0:
        return x, jnp.ones(x.shape, jnp.bool_)
    mask = bernoulli_mask(of.key(), 1 - p, x.shape)
    return x * mask.astype(x.dtype) * like(x, 0 if p == 1 else 1 / (1 - p)), mask


@rule("bernoulli.p", "bernoulli")
def bernoulli(of, x, p=None, generator=None):
    return bernoulli_mask(of.key(), x if p is None else p, of.shape).astype(of.dtype)


@rule("rand", "rand_like")
def rand(of, *_, dtype=None, generator=None):
    return jax.random.uniform(of.key(), of.shape, jnp.float32).astype(of.dtype)


@rule("randn", "randn_like")
def randn(of, *_, dtype=None, generator=None):
    return jax.random.normal(of.key(), of.shape, jnp.float32).astype(of.dtype)


@rule("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(of, *args, dtype=None, generator=None):
    numbers = [a for a in args if isinstance(a, int)]
    low, high = numbers if len(numbers) == 2 else (0, numbers[0])
    return jax.random.randint(of.key(), of.shape, low, high, jnp.int64).astype(of.dtype)


@rule("uniform")
def uniform(of, x, low=0.0, high=1.0, generator=None):
    return rand(of) * like(x, high - low) + like(x, low)


# ---- Fourier transforms ----


def norm_of(mode, count):
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[mode]


@rule("_fft_c2c")
def fft_c2c(of, x, dims, mode, forward):
    dims = dims_of(dims, x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    made = (jnp.fft.fftn if forward else jnp.fft.ifftn)(x, axes=dims)
    factor = norm_of(mode, count) * (1 if forward else count)
    return (made * factor).astype(of.dtype)


@rule("_fft_r2c")
def fft_r2c(of, x, dims, mode, onesided):
    dims = dims_of(dims, x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    made = (jnp.fft.rfftn if onesided else jnp.fft.fftn)(x, axes=dims)
    return (made * norm_of(mode, count)).astype(of.dtype)


@rule("_fft_c2r")
def fft_c2r(of, x, dims, mode, last):
    dims = dims_of(dims, x.ndim)
    sizes = [last if d == dims[-1] else x.shape[d] for d in dims]
    count = math.prod(sizes)
    made = jnp.fft.irfftn(x, s=sizes, axes=dims) * (count * norm_of(mode, count))
    return made.astype(of.dtype)


@rule("view_as_real")
def view_as_real(of, x):
    return jnp.stack([lax.real(x), lax.imag(x)], -1)


@rule("view_as_complex")
def view_as_complex(of, x):
    return lax.complex(x[..., 0], x[..., 1])


@rule("real")
def real(of, x):
    return lax.real(x)


@rule("imag")
def imag(of, x):
    return lax.imag(x)
