# SPDX-License-Identifier: Apache-2.0
"""Operators of a graph as functions of JAX: one row of TABLE each.

A function takes (run, node, operands): `run` is the evaluation at hand (evaluate.Run), which
knows reducers, computations and the device's coordinates; `node` is the document's, whose
attributes have HLO's names (schemas/graph.json).  Indices, comparisons and windows mean what
they mean in HLO: gathers clamp, scatters leave out what lies outside.
"""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .collectives import COLLECTIVES
from .errors import PlanError
from .layouts import Layout, parse_shape

ROUND = lax.RoundingMethod


def refuse(node, what):
    raise PlanError(f"node {node.get('name')} ({node['op']}): {what}")


# ---- attributes ----


def numbers(text):
    """ "2x2" """
    return [int(n) for n in text.split("x")]


def window_of(node):
    """{size=3x3 stride=2x2 pad=0_1x0_1 ...} as lists, defaults filled in."""
    found = dict(re.findall(r"(\w+)=([-\w]+)", node["window"])) if node.get("window") else {}
    size = numbers(found["size"]) if found else []
    one = [1] * len(size)
    pads = found.get("pad")
    return {
        "size": size,
        "stride": numbers(found["stride"]) if "stride" in found else one,
        "pad": [tuple(map(int, p.split("_"))) for p in pads.split("x")]
        if pads else [(0, 0)] * len(size),
        "lhs_dilate": numbers(found["lhs_dilate"]) if "lhs_dilate" in found else one,
        "rhs_dilate": numbers(found["rhs_dilate"]) if "rhs_dilate" in found else one,
        "reversal": numbers(found["rhs_reversal"]) if "rhs_reversal" in found else [],
    }  # fmt: skip


def scalar(value, dtype):
    """One number of a literal: nan, inf and large integers are strings, complex are pairs."""
    if isinstance(value, list):
        return complex(scalar(value[0], "float64"), scalar(value[1], "float64"))
    if isinstance(value, str):
        kind = int if jnp.issubdtype(dtype, jnp.integer) else float
        return kind(value)
    return value


def literal(node, dtype, dims):
    """The value of a constant as a numpy array; of a splat, one element."""
    value = node["value"]
    if isinstance(value, str) and value == "elided":
        refuse(node, "its value was left out of the text that was imported")
    pair = dtype.kind == "c" and isinstance(value, list) and not isinstance(value[0], list)
    if isinstance(value, list) and not pair:
        return np.array([scalar(v, dtype) for v in value]).astype(dtype).reshape(dims)
    return np.array(scalar(value, dtype)).astype(dtype)


def precision_of(node):
    """What JAX calls precision: the algorithm of a product, or "{highest,default}" by operand."""
    if "algorithm" in node:
        name = node["algorithm"].removeprefix("dot_").upper()
        if name not in lax.DotAlgorithmPreset.__members__:
            refuse(node, f"algorithm '{node['algorithm']}' is not known to this JAX")
        return lax.DotAlgorithmPreset[name]
    names = re.findall(r"\w+", node.get("operand_precision", ""))
    levels = {"default": lax.Precision.DEFAULT, "high": lax.Precision.HIGH,
              "highest": lax.Precision.HIGHEST}  # fmt: skip
    if any(name not in levels for name in names):
        refuse(node, f"precision '{node['operand_precision']}' is not built")
    return tuple(levels[name] for name in (names * 2)[:2]) or None


# ---- leaves ----


def constant(run, node, _):
    dtype, dims = parse_shape(node["shape"])
    whole = parse_shape(node["global"])[1] if "global" in node else dims
    value = literal(node, dtype, whole)
    if value.ndim == 0 and dims:
        return lax.full(dims, value, dtype)
    if "global" not in node:
        return value if value.ndim == 0 else jnp.asarray(value)
    layout, value = Layout(run.mesh, whole, node["layout"]), jnp.asarray(value)
    for d in range(len(whole)):
        at = layout.own_index(d, run.coords)
        if at is not None:
            value = jnp.take(value, at, axis=d, mode="fill", fill_value=0)
    return value


def iota(run, node, _):
    dtype, dims = parse_shape(node["shape"])
    d = node["iota_dimension"]
    at = None
    if "global" in node:
        whole = parse_shape(node["global"])[1]
        at = Layout(run.mesh, whole, node["layout"]).own_index(d, run.coords)
    if at is None:
        return lax.broadcasted_iota(dtype, dims, d)
    return lax.broadcast_in_dim(at.astype(dtype), dims, (d,))


# ---- elementwise ----


def compare(run, node, operands):
    a, b = operands
    a, b = jnp.asarray(a), jnp.asarray(b)
    direction = node["direction"]
    if node.get("total_order") and jnp.issubdtype(a.dtype, jnp.floating):
        # -NaN < -inf < ... < -0 < 0 < ... < NaN: as integers
        a, b = total_order_key(a), total_order_key(b)
    return getattr(lax, direction.lower())(a, b)


def total_order_key(x):
    """A signed integer for each float, in the order of floats with NaN and -0."""
    bits = x.dtype.itemsize * 8
    raw = lax.bitcast_convert_type(x, f"int{bits}")
    flipped = lax.bitwise_xor(raw, jnp.asarray(np.iinfo(f"int{bits}").max, raw.dtype))
    return lax.select(lax.lt(raw, jnp.zeros_like(raw)), flipped, raw)


def convert(run, node, operands):
    return lax.convert_element_type(operands[0], parse_shape(node["shape"])[0])


def bitcast_convert(run, node, operands):
    return lax.bitcast_convert_type(operands[0], parse_shape(node["shape"])[0])


def reduce_precision(run, node, operands):
    return lax.reduce_precision(operands[0], node["exponent_bits"], node["mantissa_bits"])


def plain(function):
    """A function of the operands alone."""
    return lambda run, node, operands: function(*operands)


def select(pred, a, b):
    return lax.select(jnp.asarray(pred), jnp.asarray(a), jnp.asarray(b))


# ---- moves ----


def broadcast(run, node, operands):
    dims = parse_shape(node["shape"])[1]
    return lax.broadcast_in_dim(operands[0], dims, node.get("dimensions", []))


def concatenate(run, node, operands):
    return lax.concatenate(operands, node["dimensions"][0])


def pad(run, node, operands):
    rows = [tuple(map(int, p.split("_"))) for p in node.get("padding", "").split("x") if p]
    return lax.pad(*operands, [(row + (0,))[:3] for row in rows])


def reshape(run, node, operands):
    return lax.reshape(operands[0], parse_shape(node["shape"])[1])


def slice_(run, node, operands):
    rows = re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", node.get("slice", ""))
    start, limit, stride = zip(*((int(a), int(b), int(c or 1)) for a, b, c in rows))
    return lax.slice(operands[0], start, limit, stride)


# ---- contractions ----


def dot(run, node, operands):
    contracting = node.get("lhs_contracting_dims", []), node.get("rhs_contracting_dims", [])
    batch = node.get("lhs_batch_dims", []), node.get("rhs_batch_dims", [])
    return lax.dot_general(
        *operands, (contracting, batch), precision=precision_of(node),
        preferred_element_type=parse_shape(node["shape"])[0],
    )  # fmt: skip


def convolution(run, node, operands):
    lhs, rhs = operands
    window = window_of(node)
    labels = re.match(r"(.*)_(.*)->(.*)", node["dim_labels"]).groups()
    order = [sorted(label, key=lambda c: ("bfio".find(c), c)) for label in labels]
    lhs_spec, out_spec = (
        tuple(labels[i].index(c) for c in ["b", "f", *(c for c in order[i] if c.isdigit())])
        for i in (0, 2)
    )
    spatial = [c for c in order[1] if c.isdigit()]
    rhs_spec = tuple(labels[1].index(c) for c in ["o", "i", *spatial])
    turned = [rhs_spec[2 + i] for i, r in enumerate(window["reversal"]) if r]
    return lax.conv_general_dilated(
        lhs, lax.rev(rhs, turned) if turned else rhs, window["stride"], window["pad"],
        window["lhs_dilate"], window["rhs_dilate"],
        lax.ConvDimensionNumbers(lhs_spec, rhs_spec, out_spec),
        feature_group_count=node.get("feature_group_count", 1),
        batch_group_count=node.get("batch_group_count", 1), precision=precision_of(node),
        preferred_element_type=parse_shape(node["shape"])[0],
    )  # fmt: skip


# ---- reductions and windows ----

REDUCERS = {
    "sum": lax.add, "prod": lax.mul, "max": lax.max, "min": lax.min,
    "and": lax.bitwise_and, "or": lax.bitwise_or,
}  # fmt: skip


def reducer(run, node, member, several=False):
    """A reducer as a function of scalars."""
    found = run.reducers[node[member]]
    if "kind" in found:
        if found["kind"] not in REDUCERS:
            refuse(node, f"cannot combine by '{found['kind']}'")
        return REDUCERS[found["kind"]]

    def combine(a, b):
        values = [*a, *b] if several else [a, b]
        results = run.computation(found, values)
        return results if several else results[0]

    return combine


def reduce(run, node, operands):
    n = len(operands) // 2
    dims = node.get("dimensions", [])
    if n == 1:
        x, start = operands
        return lax.reduce(jnp.asarray(x), start, reducer(run, node, "to_apply"), dims)
    combine = reducer(run, node, "to_apply", several=True)
    start = tuple(operands[n:])
    return tuple(lax.reduce(tuple(map(jnp.asarray, operands[:n])), start, combine, dims))


def reduce_window(run, node, operands):
    w = window_of(node)
    combine = reducer(run, node, "to_apply")
    return lax.reduce_window(
        *operands, combine, w["size"], w["stride"], w["pad"], w["lhs_dilate"], w["rhs_dilate"]
    )


def select_and_scatter(run, node, operands):
    """As the transpose of a maximum over windows, which XLA makes the same operator of."""
    x, source, start = operands
    pick, add = run.reducers[node["select"]], run.reducers[node["scatter"]]
    ops = [n["op"] for n in pick.get("nodes", []) if n["op"] != "parameter"]
    picks = ops == ["compare"] and pick["nodes"][-1]["direction"] == "GE"
    if add.get("kind") != "sum" or not picks or pick["nodes"][-1]["in"] != [0, 1]:
        refuse(node, "runs where it picks the largest element and adds")
    w = window_of(node)
    low = np.array(-np.inf if jnp.issubdtype(x.dtype, jnp.floating)
                   else jnp.iinfo(x.dtype).min, x.dtype)  # fmt: skip
    largest = partial(
        lax.reduce_window, init_value=low, computation=lax.max,
        window_dimensions=w["size"], window_strides=w["stride"], padding=w["pad"],
    )  # fmt: skip
    (found,) = jax.vjp(largest, x)[1](source)
    return found if not np.any(start) else lax.add(found, jnp.broadcast_to(start, x.shape))


def sort(run, node, operands):
    """Sorted by as many operands, first to last, as the computation compares."""
    n_keys, falling = sort_keys(run, node, [jnp.asarray(x).dtype for x in operands])
    keys = [descending(x) if falling else x for x in operands[:n_keys]]
    extra = list(operands[:n_keys]) if falling else []
    found = lax.sort(
        tuple(keys + extra + list(operands[n_keys:])), dimension=node["dimensions"][0],
        is_stable=node.get("is_stable", False), num_keys=n_keys,
    )  # fmt: skip
    found = found[n_keys:] if falling else found
    return found if len(operands) > 1 else found[0]


def descending(x):
    """A key that rises where x falls."""
    x = jnp.asarray(x)
    return lax.neg(x) if jnp.issubdtype(x.dtype, jnp.inexact) else lax.bitwise_not(x)


def samples(dtype):
    """Values that tell orders apart."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array([-np.inf, -2, -0.0, 0.0, 1, 3, np.inf, np.nan]).astype(dtype)
    if dtype == bool:
        return np.array([False, True])
    info = jnp.iinfo(dtype)
    return np.array([info.min, max(info.min, -1), 0, 1, 5, info.max]).astype(dtype)


def sort_keys(run, node, dtypes):
    """(number of keys, descending) of a sort's computation: found by trying samples, since
    lax.sort takes no computation."""
    with jax.ensure_compile_time_eval():
        rng = np.random.default_rng(0)
        values = [
            [rng.choice(samples(d), 400) for d in dtypes for _ in range(1)] for _ in range(2)
        ]
        for k in range(len(dtypes)):  # equal keys, so that the next one decides
            same = rng.random(400) < 0.5
            values[1][k] = np.where(same, values[0][k], values[1][k])
        pairs = [v for pair in zip(*values) for v in pair]
        got = np.asarray(run.computation(run.reducers[node["to_apply"]], pairs)[0])
        for falling in (False, True):
            for n in range(1, len(dtypes) + 1):
                if np.array_equal(got, before(values, n, falling)):
                    return n, falling
    refuse(node, "sorts by a computation that is no comparison of its operands in order")


def before(values, n_keys, falling):
    """Whether the first of two rows of sort keys comes before the second, as lax.sort says:
    NaN last, -0 equal to 0."""
    result, equal = np.zeros(len(values[0][0]), bool), np.ones(len(values[0][0]), bool)
    for a, b in list(zip(*values))[:n_keys]:
        nan = [np.isnan(v.astype("float32")) if v.dtype.kind in "fV" else False for v in (a, b)]
        less = (b < a) if falling else (a < b)
        less = less | (~np.asarray(nan[0]) & nan[1]) if not falling else less
        result |= equal & less
        equal &= (a == b) | (np.asarray(nan[0]) & nan[1])
    return result


def topk(run, node, operands):
    if node["largest"]:
        return tuple(lax.top_k(operands[0], node["k"]))
    if not jnp.issubdtype(operands[0].dtype, jnp.floating):
        refuse(node, "of the smallest integers is not built")
    values, places = lax.top_k(lax.neg(operands[0]), node["k"])
    return lax.neg(values), places


def cholesky(run, node, operands):
    x = operands[0]
    if node.get("lower"):
        return lax.linalg.cholesky(x, symmetrize_input=False)
    turned = jnp.conj(jnp.swapaxes(x, -1, -2))
    return jnp.conj(
        jnp.swapaxes(lax.linalg.cholesky(turned, symmetrize_input=False), -1, -2)
    )


def triangular_solve(run, node, operands):
    return lax.linalg.triangular_solve(
        *operands, left_side=node.get("left_side", False), lower=node.get("lower", False),
        transpose_a=node.get("transpose_a", False),
        unit_diagonal=node.get("unit_diagonal", False),
    )  # fmt: skip


def fft(run, node, operands):
    return lax.fft(operands[0], lax.FftType[node["fft_type"]], tuple(node["fft_length"]))


# ---- indexing ----


def with_vector_last(indices, dim):
    """Indices whose index vectors are along the last dimension, as lax wants them."""
    if dim == indices.ndim:
        return lax.expand_dims(indices, (dim,))
    return jnp.moveaxis(indices, dim, -1)


def own_rows(run, node, indices, operand, index_map, window):
    """Indices into the whole operand as indices into the device's block, and whether each
    index vector points there; None: the operand is not split where it is indexed."""
    if "global" not in node:
        return indices, None
    whole = parse_shape(node["global"])[1]
    layout = Layout(run.mesh, whole, node["layout"])
    columns, inside = [], None
    wide = jnp.promote_types(indices.dtype, "int32")
    for i, d in enumerate(index_map):
        at = indices[..., i]
        if d in layout.factors and window[d] > 1:
            if window[d] != operand.shape[d]:
                refuse(node, "a window that is cut")
        elif d in layout.factors:
            limit = jnp.asarray(whole[d] - window[d], indices.dtype)
            at = clamped = jnp.clip(at, 0, limit)
            valid = True if node["op"] == "gather" else at == indices[..., i]
            at = layout.local_index(d, clamped.astype(wide), run.coords).astype(wide)
            here = (at >= 0) & valid
            inside = here if inside is None else inside & here
            at = jnp.where(here, at, -1)
        columns.append(at.astype(wide))
    return jnp.stack(columns, -1), inside


def gather(run, node, operands):
    operand, indices = operands[0], with_vector_last(operands[1], node["index_vector_dim"])
    offset, sizes = node.get("offset_dims", []), node["slice_sizes"]
    indices, inside = own_rows(
        run, node, indices, operand, node.get("start_index_map", []), sizes
    )
    numbers = lax.GatherDimensionNumbers(
        tuple(offset), tuple(node.get("collapsed_slice_dims", [])),
        tuple(node.get("start_index_map", [])), tuple(node.get("operand_batching_dims", [])),
        tuple(node.get("start_indices_batching_dims", [])),
    )  # fmt: skip
    found = lax.gather(
        operand, indices, numbers, tuple(sizes),
        unique_indices=node.get("unique_indices", False) and inside is None,
        indices_are_sorted=node.get("indices_are_sorted", False) and inside is None,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )  # fmt: skip
    if inside is None:
        return found
    loops = [d for d in range(found.ndim) if d not in offset]
    mask = lax.broadcast_in_dim(inside, found.shape, loops)
    return lax.select(mask, found, jnp.zeros_like(found))


SCATTERS = {
    "sum": lax.scatter_add, "prod": lax.scatter_mul, "min": lax.scatter_min,
    "max": lax.scatter_max, "assign": lax.scatter,
}  # fmt: skip


def scatter(run, node, operands):
    operand, indices, updates = operands
    indices = with_vector_last(indices, node["index_vector_dim"])
    kind = run.reducers[node["to_apply"]].get("kind")
    if kind not in SCATTERS:
        refuse(node, f"cannot combine by '{kind or 'a computation of its own'}'")
    moved = node.get("scatter_dims_to_operand_dims", [])
    window = [1] * operand.ndim
    dropped = node.get("inserted_window_dims", []) + node.get("input_batching_dims", [])
    kept = [d for d in range(operand.ndim) if d not in dropped]
    for d, u in zip(kept, node.get("update_window_dims", [])):
        window[d] = updates.shape[u]
    indices, inside = own_rows(run, node, indices, operand, moved, window)
    numbers = lax.ScatterDimensionNumbers(
        tuple(node.get("update_window_dims", [])),
        tuple(node.get("inserted_window_dims", [])), tuple(moved),
        tuple(node.get("input_batching_dims", [])),
        tuple(node.get("scatter_indices_batching_dims", [])),
    )  # fmt: skip
    return SCATTERS[kind](
        operand, indices, updates, numbers,
        indices_are_sorted=node.get("indices_are_sorted", False) and inside is None,
        unique_indices=node.get("unique_indices", False),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )  # fmt: skip


def dynamic_slice(run, node, operands):
    return lax.dynamic_slice(
        operands[0], operands[1:], node["dynamic_slice_sizes"], allow_negative_indices=False
    )


def dynamic_update_slice(run, node, operands):
    return lax.dynamic_update_slice(
        operands[0], operands[1], operands[2:], allow_negative_indices=False
    )


def while_(run, node, operands):
    condition, body = (run.computations[node[k]] for k in ("condition", "body"))
    return tuple(
        lax.while_loop(
            lambda state: run.computation(condition, state)[0],
            lambda state: tuple(run.computation(body, state)),
            tuple(map(jnp.asarray, operands)),
        )
    )


def custom_call(run, node, _):
    refuse(node, f"the call of '{node['target']}' is not built: only operators of XLA are run")


def element(run, node, operands):
    value = operands[0]
    return value[node["index"]] if isinstance(value, (tuple, list)) else value


# The operator table's last column: operators that are a function of jax.lax.
ROW = re.compile(r'^AP_OP\(\w+, "([^"]+)", .*, "(\w+)"\)$', re.MULTILINE)
OPS_DEF = Path(__file__).with_name("ops.def").read_text()
ELEMENTWISE = {op: getattr(lax, name) for op, name in ROW.findall(OPS_DEF)}

TABLE = {
    "constant": constant, "iota": iota,
    **{op: plain(function) for op, function in ELEMENTWISE.items()},
    "round-nearest-afz": plain(lambda x: lax.round(x, ROUND.AWAY_FROM_ZERO)),
    "round-nearest-even": plain(lambda x: lax.round(x, ROUND.TO_NEAREST_EVEN)),
    "copy": plain(lambda x: x), "select": plain(select),
    "bitcast-convert": bitcast_convert, "compare": compare, "convert": convert,
    "reduce-precision": reduce_precision,
    "broadcast": broadcast, "concatenate": concatenate, "pad": pad, "reshape": reshape,
    "reverse": lambda run, node, operands: lax.rev(operands[0], node["dimensions"]),
    "slice": slice_,
    "transpose": lambda run, node, operands: lax.transpose(operands[0], node["dimensions"]),
    "dot": dot, "convolution": convolution,
    "cholesky": cholesky, "fft": fft, "reduce": reduce, "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter, "sort": sort, "topk": topk,
    "triangular-solve": triangular_solve,
    "gather": gather, "scatter": scatter, "dynamic-slice": dynamic_slice,
    "dynamic-update-slice": dynamic_update_slice, "custom-call": custom_call,
    "while": while_, "get-tuple-element": element,
    **COLLECTIVES,
}  # fmt: skip
