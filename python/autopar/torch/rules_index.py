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
        put = {lax.scatter_add: at.add, lax.scatter_mul: at.multiply, lax.scatter_max: at.max,
               lax.scatter_min: at.min}.get(f, at.set)
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


REDUCTIONS = {"sum": (lax.scatter_add, 0), "mean": (lax.scatter_add, 0), "prod": (lax.scatter_mul, 1),
              "amax": (lax.scatter_max, None), "amin": (lax.scatter_min, None)}


def least_of(x, reduce):
    """What any other value replaces: of amax the least one, of amin the greatest."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return -jnp.inf if reduce == "amax" else jnp.inf
    return jnp.iinfo(x.dtype).min if reduce == "amax" else jnp.iinfo(x.dtype).max


@rule("scatter_reduce.two")
def scatter_reduce(of, x, dim, index, src, reduce, include_self=True):
    src = lax.slice(src, (0,) * src.ndim, index.shape)
    f, start = REDUCTIONS[reduce]
    count = None
    if reduce == "mean" or not include_self:
        count = scatter_into(of, jnp.zeros(x.shape, jnp.int32), dim, index, jnp.ones(index.shape, jnp.int32),
                             lax.scatter_add)
    begin = x if include_self else lax.select(count > 0, jnp.full_like(x, least_of(x, reduce) if start is None
                                                                        else start), x)
    made = scatter_into(of, begin, dim, index, src, f)
    if reduce != "mean":
        return made
    count = count + 1 if include_self else lax.max(count, jnp.ones_like(count))
    return made / count.astype(made.dtype) if jnp.issubdtype(made.dtype, jnp.floating) else (
        jnp.floor_divide(made, count.astype(made.dtype)))


@rule("index_reduce")
def index_reduce(of, x, dim, index, src, reduce, include_self=True):
    at = lax.broadcast_in_dim(index, src.shape, (dim % x.ndim,))
    return scatter_reduce(of, x, dim, at, src, reduce, include_self)


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
    """How many bags there are, and how many indices each has, from the offsets; None if they differ."""
    offsets = of.known(of.node.args[at])
    count = None if offsets is None or len(offsets) == 0 else size // len(offsets)
    if count is None or not torch.equal(offsets, torch.arange(len(offsets)) * count):
        return None
    return len(offsets), count


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(of, weight, index, offsets, scale_grad=False, mode=0, sparse=False,
                  weights=None, include_last=False, padding=-1):
    even = bags(of, 2, index.size)
    if weights is not None or padding >= 0 or include_last or not even:
        return ragged_bags(of, weight, index, offsets, mode, weights, padding)
    index = index.reshape(even)
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
        grad = jnp.where(best < 0, jnp.zeros_like(grad), grad)  # of empty bags
        best = lax.max(best, jnp.zeros_like(best))
        return zero.at[best, columns].add(grad, mode="promise_in_bounds", wrap_negative_indices=False)
    if scale_grad:
        number = jnp.zeros(n, grad.dtype).at[index].add(like(grad, 1), mode="promise_in_bounds")
        weights = (1 if weights is None else weights) / rows_of(number, index)
    even = bags(of, 2, index.size)
    if weights is not None or padding >= 0 or not even or even[0] != grad.shape[0]:
        bag = by_bag(of, index, offsets, grad.shape[0])
        each = rows_of(grad, bag) * share_of(index, bag, grad.shape[0], mode, weights, padding)[:, None]
        return zero.at[index].add(each, mode="promise_in_bounds", wrap_negative_indices=False)
    index = index.reshape(even)
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


def by_bag(of, index, offsets, bags):
    """The bag of each index, and which indices count; offsets: where bags begin, the last possibly beyond."""
    at = lax.broadcasted_iota(offsets.dtype, (index.size, offsets.size), 0)
    return total((at >= offsets[None]).astype(jnp.int64), (1,)) - 1


def share_of(index, bag, n, mode, weights, padding):
    """What each index's row counts for in its bag."""
    counts = jnp.ones(index.shape, jnp.float32) if padding < 0 else (index != padding).astype(jnp.float32)
    share = counts
    if mode == 1:
        number = jnp.zeros(n, jnp.float32).at[bag].add(counts, mode="promise_in_bounds")
        share = counts / rows_of(lax.max(number, jnp.ones_like(number)), bag)
    return share if weights is None else share * weights


def ragged_bags(of, weight, index, offsets, mode, weights, padding):
    n = of.results[0].shape[0]
    bag = by_bag(of, index, offsets, n)
    if mode == 2:
        return maxima_of_bags(weight, index, bag, n, padding)
    rows = rows_of(weight, index) * share_of(index, bag, n, mode, weights, padding)[:, None]
    return jnp.zeros((n, weight.shape[1]), weight.dtype).at[bag].add(rows, mode="promise_in_bounds"), None, None, None


def maxima_of_bags(weight, index, bag, n, padding):
    """Zero for an empty bag, whose index is -1."""
    within = (lax.broadcasted_iota(bag.dtype, (n, bag.size), 0) == bag[None]) & (index != padding)[None]
    shape = (*within.shape, weight.shape[1])
    rows = jnp.where(spread(within, shape, (0, 1)), spread(rows_of(weight, index), shape, (1, 2)), like(weight, -jnp.inf))
    full = spread(total(within.astype(jnp.int64), (1,)) > 0, (n, weight.shape[1]), (0,))
    best = index.astype(jnp.int64).at[lax.argmax(rows, 1, jnp.int64)].get(mode="promise_in_bounds")
    made = lax.reduce_max(rows, (1,))
    return jnp.where(full, made, jnp.zeros_like(made)), None, None, jnp.where(full, best, -jnp.ones_like(best))


@rule("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(of, grad, weight, index, offsets, offset2bag, mode, padding=-1):
    bag = by_bag(of, index, offsets, grad.shape[0])
    made = total(rows_of(grad, bag) * rows_of(weight, index), (1,))
    return made if padding < 0 else jnp.where(index == padding, jnp.zeros_like(made), made)


@rule("put")
def put(of, x, index, values, accumulate=False):
    at = x.reshape(-1).at[jnp.where(index < 0, index + x.size, index)]
    return (at.add if accumulate else at.set)(values, mode="promise_in_bounds").reshape(x.shape)


@rule("take")
def take(of, x, index):
    return rows_of(x.reshape(-1), jnp.where(index < 0, index + like(index, x.size), index))


def numbered(mask):
    """How many places of the mask come before each one, in row-major order."""
    flat = mask.reshape(-1).astype(jnp.int64)
    return (lax.cumsum(flat) - flat).reshape(mask.shape)


@rule("masked_scatter")
def masked_scatter(of, x, mask, source):
    mask = jnp.broadcast_to(mask, of.shape)
    at = lax.min(numbered(mask), jnp.full(of.shape, source.size - 1, jnp.int64))
    return lax.select(mask, rows_of(source.reshape(-1), at), jnp.broadcast_to(x, of.shape))


@rule("masked_scatter_backward")
def masked_scatter_backward(of, grad, mask, sizes):
    mask = jnp.broadcast_to(mask, grad.shape)
    grad = jnp.where(mask, grad, jnp.zeros_like(grad))
    at = lax.min(numbered(mask), jnp.full(grad.shape, math.prod(sizes) - 1, jnp.int64))
    zero = jnp.zeros(math.prod(sizes), grad.dtype)
    return zero.at[at].add(grad, mode="promise_in_bounds").reshape(of.shape)


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


# ---- products by group ----


@rule("_grouped_mm")
def grouped(of, x, w, offs=None, bias=None, out_dtype=None):
    """Rows of x up to offs[g], from those of the last group, times w[g]; or, for x and w of rank 2, the columns
    of x times as many rows of w: a product for each group."""
    if offs is None or bias is not None:
        raise NotImplementedError("_grouped_mm without offsets, or with a bias")
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=jnp.zeros(1, jnp.int32))
    if w.ndim == 3 and x.ndim == 2:
        return lax.ragged_dot(x, w, sizes, preferred_element_type=of.dtype)
    if w.ndim == 2 and x.ndim == 2:
        return by_group(x.T, w, sizes).astype(of.dtype)
    raise NotImplementedError(f"_grouped_mm of tensors of rank {x.ndim} and {w.ndim}")


def by_group(x, y, sizes):
    """[group, K, N]: the product of the transpose of each group's rows of x [rows, K] and y [rows, N]."""
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    return lax.ragged_dot_general(x, y, sizes, numbers)


@rule("transformers::grouped_mm_fallback")
def grouped_fallback(of, x, w, offs):
    return grouped(of, x, w, offs)


@rule("transformers::grouped_mm_fallback_backward")
def grouped_fallback_backward(of, x, w, offs, grad):
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=jnp.zeros(1, jnp.int32))
    return lax.ragged_dot(grad, w.swapaxes(1, 2), sizes), by_group(x, grad, sizes)
