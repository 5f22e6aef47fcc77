# SPDX-License-Identifier: Apache-2.0
"""Collectives and local steps of a partitioned graph, over the axes of the mesh.

A dimension that is gathered or cut is taken as (outer, x, inner), with x in blocks of `part`
elements, of which the last may be padded with zeros; `full` is x without padding (struct
ap_coll in libcommon/graph/graph.h).  Devices on several axes are numbered first axis major, as
JAX numbers those of a tuple of names.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .errors import PlanError
from .layouts import Layout, parse_shape


def neutral(kind, dtype):
    """What a reduction does not change by."""
    dtype = jnp.dtype(dtype)
    if kind in ("sum", "or"):
        return np.zeros((), dtype)
    if kind == "prod":
        return np.ones((), dtype)
    if kind == "and":
        return np.array(True if dtype == bool else -1).astype(dtype)
    if dtype == bool:
        return np.array(kind == "min")
    info = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(-np.inf if kind == "max" else np.inf).astype(dtype)
    return np.array(info.min if kind == "max" else info.max, dtype)


COMBINE = {
    "sum": lax.add, "prod": lax.mul, "max": lax.max, "min": lax.min,
    "and": lax.bitwise_and, "or": lax.bitwise_or,
}  # fmt: skip
ALONG = {
    "sum": lambda x: lax.reduce(x, np.zeros((), x.dtype), lax.add, (0,)),
    "prod": lambda x: jnp.prod(x, 0, dtype=x.dtype),
    "max": lambda x: jnp.max(x, 0),
    "min": lambda x: jnp.min(x, 0),
    "and": lambda x: lax.reduce(x, neutral("and", x.dtype), lax.bitwise_and, (0,)),
    "or": lambda x: lax.reduce(x, neutral("or", x.dtype), lax.bitwise_or, (0,)),
}


def names_of(run, node):
    return tuple(run.mesh.names[a] for a in node["axes"])


def group_of(run, node):
    """Number of devices of a group, and which of them this one is."""
    n, place = 1, 0
    for axis in node["axes"]:
        place = place * run.mesh.sizes[axis] + run.coords[axis]
        n *= run.mesh.sizes[axis]
    return n, place


def kind_of(node):
    return node.get("red", "sum")


# ---- a dimension as (outer, x, inner) ----


def opened(x, split, extent):
    """The dimension as three; x has `extent` elements."""
    d, outer = split["dim"], split["outer"]
    inner = x.shape[d] // (outer * extent)
    return lax.reshape(x, (*x.shape[:d], outer, extent, inner, *x.shape[d + 1 :]))


def closed(x, d):
    """Three dimensions as one again."""
    return lax.reshape(x, (*x.shape[:d], math.prod(x.shape[d : d + 3]), *x.shape[d + 3 :]))


def padded(x, d, extent):
    """Zeros behind the elements of dimension d, up to an extent."""
    if x.shape[d] == extent:
        return x
    rows = [(0, extent - x.shape[d] if i == d else 0, 0) for i in range(x.ndim)]
    return lax.pad(x, np.zeros((), x.dtype), rows)


def cut(x, d, extent):
    return x if x.shape[d] == extent else lax.slice_in_dim(x, 0, extent, axis=d)


def pieces(x, split, n):
    """[device, ...]: the blocks of an operand, its dimension closed."""
    d, part = split["dim"], split["part"]
    x = padded(opened(x, split, split["full"]), d + 1, n * part)
    x = lax.reshape(x, (*x.shape[: d + 1], n, part, *x.shape[d + 2 :]))
    x = jnp.moveaxis(x, d + 1, 0)
    return closed(x, d + 1)


# ---- collectives ----


def all_reduce(run, node, operands):
    (x,) = operands
    kind, names = kind_of(node), names_of(run, node)
    if kind == "sum" and x.dtype != bool:
        return lax.psum(x, names)
    if kind in ("max", "min") and x.dtype != bool:
        return (lax.pmax if kind == "max" else lax.pmin)(x, names)
    if x.dtype == bool:  # as bytes: there is not a reduction of pred in JAX
        function = lax.pmin if kind in ("and", "min", "prod") else lax.pmax
        return function(x.astype("uint8"), names).astype(bool)
    return ALONG[kind](lax.all_gather(x, names, axis=0, tiled=False))


def all_gather(run, node, operands):
    split, names = node["split"], names_of(run, node)
    d = split["dim"]
    if split["outer"] == 1:
        # As the first dimension, and without dimensions of one element: XLA gathers so, and
        # would copy the result of another form once more for the contraction that reads it.
        (x,) = operands
        inner = x.shape[d] // split["part"]
        x = lax.all_gather(jnp.moveaxis(x, d, 0), names, axis=0, tiled=True)
        return jnp.moveaxis(cut(x, 0, split["full"] * inner), 0, d)
    x = opened(operands[0], split, split["part"])
    x = lax.all_gather(x, names, axis=d + 1, tiled=True)
    return closed(cut(x, d + 1, split["full"]), d)


def reduce_scatter(run, node, operands):
    split, names = node["split"], names_of(run, node)
    n, _ = group_of(run, node)
    d, kind = split["dim"], kind_of(node)
    (x,) = operands
    if kind == "sum" and x.dtype != bool:
        x = padded(opened(x, split, split["full"]), d + 1, n * split["part"])
        return closed(lax.psum_scatter(x, names, scatter_dimension=d + 1, tiled=True), d)
    blocks = lax.all_to_all(pieces(x, split, n), names, 0, 0, tiled=True)
    return ALONG[kind](blocks)


def all_to_all(run, node, operands):
    split, join = node["split"], node["join"]
    n, _ = group_of(run, node)
    (x,) = operands
    blocks = lax.all_to_all(pieces(x, split, n), names_of(run, node), 0, 0, tiled=True)
    d = join["dim"]
    dims = list(blocks.shape[1:])
    inner = dims[d] // (join["outer"] * join["part"])
    dims[d : d + 1] = [join["outer"], join["part"], inner]
    blocks = jnp.moveaxis(lax.reshape(blocks, (n, *dims)), 0, d + 1)
    dims[d + 1] *= n
    return closed(cut(lax.reshape(blocks, dims), d + 1, join["full"]), d)


def collective_permute(run, node, operands):
    n = run.mesh.sizes[node["axes"][0]]
    if len(node["axes"]) == 1:  # to the next device, in a ring
        return lax.ppermute(operands[0], names_of(run, node), [(i, (i + 1) % n) for i in range(n)])
    swapped = [(i * n + j, j * n + i) for i in range(n) for j in range(n)]
    return lax.ppermute(operands[0], names_of(run, node), swapped)


# ---- local steps ----


def own_slice(run, node, operands):
    """The device's block; a copy of the whole with padding is not made."""
    split = node["split"]
    n, place = group_of(run, node)
    d, part, full = split["dim"], split["part"], split["full"]
    x = opened(operands[0], split, full)
    start = place * part
    inside = start if n * part == full else jnp.minimum(start, full - part)
    block = lax.dynamic_slice_in_dim(x, inside, part, axis=d + 1)
    if n * part != full:
        block = padded(block, d + 1, 2 * part)
        behind = jnp.minimum(start - inside, part)
        block = lax.dynamic_slice_in_dim(block, behind, part, axis=d + 1)
    return closed(block, d)


def mask(run, node, operands):
    (x,) = operands
    layout = Layout(run.mesh, parse_shape(node["global"])[1], node["layout"])
    fill = np.array(scalar_of(node)).astype(x.dtype)
    for d in range(x.ndim):
        at = layout.own_index(d, run.coords)
        if at is not None:
            inside = lax.broadcast_in_dim(at >= 0, x.shape, (d,))
            x = lax.select(inside, x, lax.full(x.shape, fill))
    return x


def scalar_of(node):
    value = node["value"]
    return float(value) if isinstance(value, str) else value


def partial_value(run, node, operands):
    (x,) = operands
    first = True
    for axis in node["axes"]:
        first = first & (jnp.asarray(run.coords[axis]) == 0)
    return jnp.where(first, x, neutral(kind_of(node), x.dtype))


# ---- over microbatches: nothing moves ----


def over_time(run, node):
    return any(run.mesh.is_time(a) for a in node.get("axes", []))


def carried_start(run, node):
    """What a value that is collected over microbatches starts from."""
    dtype, dims = parse_shape(node["shape"])
    fill = neutral(kind_of(node), dtype) if node["op"] == "all-reduce" else np.zeros((), dtype)
    return lax.full(dims, fill, dtype)


def collect(run, node, operand, before):
    """The value with this microbatch's operand in it."""
    if node["op"] == "all-reduce":
        return COMBINE[kind_of(node)](before, operand)
    if node["op"] != "all-gather":
        raise PlanError(f"node {node.get('name')}: {node['op']} between microbatches")
    split = node["split"]
    d, part, n = split["dim"], split["part"], run.mesh.sizes[0]
    whole = padded(opened(before, split, split["full"]), d + 1, n * part)
    block = opened(operand, split, part)
    whole = lax.dynamic_update_slice_in_dim(whole, block, run.coords[0] * part, axis=d + 1)
    return closed(cut(whole, d + 1, split["full"]), d)


COLLECTIVES = {
    "all-reduce": all_reduce, "all-gather": all_gather, "reduce-scatter": reduce_scatter,
    "all-to-all": all_to_all, "collective-permute": collective_permute,
    "ap-slice": own_slice, "ap-mask": mask, "ap-partial": partial_value,
}  # fmt: skip
MOVING = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
