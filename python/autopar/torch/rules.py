# SPDX-License-Identifier: Apache-2.0
"""ATen's operators in JAX: TABLE has a function for each, by its name.

A rule gets the operator (lower.Operator: its node, shape and dtype of its result) and its
operands, tensors as arrays. It returns an array of that shape and dtype, or a tuple of these,
with None for a result that nothing reads. rules_index.py and rules_image.py have further operators.
"""
import math

import jax
import numpy as np
import torch
from jax import lax
from jax import numpy as jnp

TABLE = {}
IGNORED = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
DTYPES = {
    torch.bool: jnp.bool_, torch.uint8: jnp.uint8, torch.int8: jnp.int8, torch.int16: jnp.int16,
    torch.int32: jnp.int32, torch.int64: jnp.int64, torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16, torch.float32: jnp.float32, torch.float64: jnp.float64,
    torch.complex64: jnp.complex64, torch.complex128: jnp.complex128,
}


def rule(*names):
    """For ATen's operators, with their overload unless it is the default; or NAMESPACE::NAME of others."""
    def add(function):
        for name in names:
            space, _, name = name.rpartition("::")
            TABLE[f"{space or 'aten'}.{name}" + ("" if "." in name else ".default")] = function
        return function

    return add


def dtype_of(dtype):
    return DTYPES[dtype]


def to_numpy(tensor):
    tensor = tensor.detach().cpu().resolve_conj()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        return tensor.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def is_random(node):
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def wide(x):
    """In f32 at least, as PyTorch's kernels compute."""
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def dims_of(dims, rank):
    """Dimensions, counted from 0; none given: all."""
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(d % rank for d in dims) if dims and rank else tuple(range(rank))


def like(x, value):
    return jnp.full((), value, x.dtype)


def spread(x, shape, dims):
    """x over a shape in which its dimensions are `dims`."""
    return lax.broadcast_in_dim(x, shape, dims)


# ---- elementwise ----

UNARY = {
    "abs": lax.abs, "neg": lax.neg, "exp": lax.exp, "exp2": lax.exp2, "log": lax.log,
    "log1p": lax.log1p, "expm1": lax.expm1, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "sin": lax.sin,
    "cos": lax.cos, "tan": lax.tan, "tanh": lax.tanh, "sinh": lax.sinh, "cosh": lax.cosh,
    "asin": lax.asin, "acos": lax.acos, "atan": lax.atan, "asinh": lax.asinh, "acosh": lax.acosh,
    "atanh": lax.atanh, "erf": lax.erf, "erfc": lax.erfc, "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma, "digamma": lax.digamma, "floor": lax.floor, "ceil": lax.ceil,
    "sign": lax.sign, "sgn": lax.sign, "sigmoid": lax.logistic, "bitwise_not": lax.bitwise_not,
    "conj_physical": lax.conj, "_conj_physical": lax.conj, "_conj": lax.conj, "resolve_conj": lax.conj,
    "_neg_view": lax.neg,
    "special_i0e": lax.bessel_i0e, "special_i1e": lax.bessel_i1e,
    "i0": lambda x: lax.bessel_i0e(x) * lax.exp(lax.abs(x)),
    "special_i1": lambda x: lax.bessel_i1e(x) * lax.exp(lax.abs(x)),
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "trunc": lambda x: jnp.where(x < 0, lax.ceil(x), lax.floor(x)),
    "reciprocal": lambda x: like(x, 1) / x, "square": lambda x: x * x,
    "relu": lambda x: lax.max(x, jnp.zeros_like(x)),
    "log2": lambda x: lax.log(x) * like(x, 1 / math.log(2)),
    "log10": lambda x: lax.log(x) * like(x, 1 / math.log(10)),
}
ROUNDING = {"floor", "ceil", "trunc", "round"}
EXACT = ROUNDING | {"abs", "neg", "_neg_view", "sign", "sgn", "bitwise_not", "relu", "square", "conj_physical",
                   "_conj_physical", "_conj", "resolve_conj"}
for unary_name, unary_function in UNARY.items():
    def unary(of, x, f=unary_function, name=unary_name):
        if not jnp.iscomplexobj(x):
            x = x.astype(of.dtype)
        if name in ROUNDING and jnp.issubdtype(x.dtype, jnp.integer):
            return x
        return f(x) if name in EXACT else f(wide(x)).astype(of.dtype)

    rule(unary_name, f"prims::{unary_name}")(unary)


def pair(of, x, y, dtype=None):
    """Both operands in the operator's type and shape."""
    dtype = dtype or of.dtype
    return [jnp.broadcast_to(jnp.asarray(a, dtype) if np.isscalar(a) else a.astype(dtype), of.shape)
            for a in (x, y)]


def both(f):
    return lambda of, x, y: f(*pair(of, x, y))


def remainder(x, y):
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.remainder(x, y)
    rest = lax.rem(x, y)
    return jnp.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def logical(f):
    return lambda of, x, y: f(*(jnp.broadcast_to(a != 0 if a.dtype != jnp.bool_ else a, of.shape)
                                for a in (x, y)))


def but_nan(f):
    """f of both operands; where one is no number, the other."""
    return lambda x, y: jnp.where(jnp.isnan(x), y, jnp.where(jnp.isnan(y), x, f(x, y)))


BINARY = {
    "fmax": but_nan(lax.max), "fmin": but_nan(lax.min),
    "mul": lambda x, y: x & y if x.dtype == jnp.bool_ else x * y, "maximum": lax.max, "minimum": lax.min, "fmod": lax.rem, "atan2": lax.atan2,
    "remainder": remainder, "bitwise_and": lax.bitwise_and, "bitwise_or": lax.bitwise_or,
    "bitwise_xor": lax.bitwise_xor, "hypot": jnp.hypot,
    "bitwise_left_shift": lax.shift_left, "bitwise_right_shift": lax.shift_right_arithmetic,
}
for binary_name, binary_function in BINARY.items():
    rule(f"{binary_name}.Tensor", f"{binary_name}.Scalar", binary_name, f"prims::{binary_name}")(both(binary_function))
for logical_name, logical_function in (("and", lax.bitwise_and), ("or", lax.bitwise_or),
                                       ("xor", lax.bitwise_xor)):
    rule(f"logical_{logical_name}")(logical(logical_function))
for compare_name in ("eq", "ne", "lt", "le", "gt", "ge"):
    def compare(of, x, y, f=getattr(lax, compare_name)):
        return f(*pair(of, x, y, of.type_of_operands()))

    rule(f"{compare_name}.Tensor", f"{compare_name}.Scalar", f"prims::{compare_name}")(compare)


@rule("add.Tensor", "add.Scalar", "prims::add")
def add(of, x, y, alpha=1):
    x, y = pair(of, x, y)
    y = y if alpha == 1 else y * like(y, alpha)
    return x | y if of.dtype == jnp.bool_ else x + y


@rule("sub.Tensor", "sub.Scalar", "prims::sub")
def sub(of, x, y, alpha=1):
    x, y = pair(of, x, y)
    return x - (y if alpha == 1 else y * like(y, alpha))


@rule("rsub.Scalar", "rsub.Tensor")
def rsub(of, x, y, alpha=1):
    return sub(of, y, x, alpha)


@rule("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "prims::div")
def div(of, x, y, rounding_mode=None):
    x, y = pair(of, x, y)
    if rounding_mode is None:
        return x / y
    if jnp.issubdtype(of.dtype, jnp.integer):
        return x // y if rounding_mode == "floor" else lax.div(x, y)
    return UNARY["floor" if rounding_mode == "floor" else "trunc"](x / y)


@rule("floor_divide")
def floor_divide(of, x, y):
    return div(of, x, y, "floor")


@rule("true_divide.Tensor")
def true_divide(of, x, y):
    return div(of, x, y)


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "prims::pow")
def power(of, x, y):
    if np.isscalar(y):
        x = x.astype(of.dtype)
        if float(y).is_integer() and abs(y) <= 64:
            return lax.integer_pow(x, int(y))
        if y in (0.5, -0.5):
            return (lax.sqrt if y > 0 else lax.rsqrt)(wide(x)).astype(of.dtype)
    return lax.pow(*pair(of, x, y))


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", "prims::where")
def where(of, condition, x, y):
    return lax.select(jnp.broadcast_to(condition, of.shape), *pair(of, x, y))


@rule("clamp", "clamp.Tensor", "hardtanh", "clip")
def clamp(of, x, least=None, most=None):
    if least is None and most is None and of.node.target is torch.ops.aten.hardtanh.default:
        least, most = -1.0, 1.0
    x = jnp.broadcast_to(x.astype(of.dtype), of.shape)
    for limit, f in ((least, lax.max), (most, lax.min)):
        if limit is not None:
            x = f(x, pair(of, limit, 0)[0])
    return x


@rule("clamp_min", "clamp_min.Tensor")
def clamp_min(of, x, least):
    return clamp(of, x, least)


@rule("clamp_max", "clamp_max.Tensor")
def clamp_max(of, x, most):
    return clamp(of, x, None, most)


@rule("leaky_relu")
def leaky_relu(of, x, slope=0.01):
    return jnp.where(x > 0, x, x * like(x, slope))


@rule("elu")
def elu(of, x, alpha=1.0, scale=1.0, input_scale=1.0):
    low = lax.expm1(x * like(x, input_scale)) * like(x, alpha * scale)
    return jnp.where(x > 0, x * like(x, scale), low)


@rule("gelu")
def gelu(of, x, approximate="none"):
    w = wide(x)
    if approximate == "tanh":
        inner = like(w, math.sqrt(2 / math.pi)) * (w + like(w, 0.044715) * w * w * w)
        return (like(w, 0.5) * w * (like(w, 1) + lax.tanh(inner))).astype(of.dtype)
    return (w * like(w, 0.5) * (like(w, 1) + lax.erf(w * like(w, math.sqrt(0.5))))).astype(of.dtype)


@rule("logical_not")
def logical_not(of, x):
    return lax.bitwise_not(x if x.dtype == jnp.bool_ else x != 0)


@rule("signbit")
def signbit(of, x):
    return jnp.signbit(x) if jnp.issubdtype(x.dtype, jnp.floating) else x < 0


@rule("copysign.Tensor", "copysign.Scalar")
def copysign(of, x, y):
    x, y = pair(of, x, y)
    return lax.select(jnp.signbit(y), -lax.abs(x), lax.abs(x))


@rule("isnan", "isinf", "isfinite")
def is_kind(of, x):
    return {"isnan": jnp.isnan, "isinf": jnp.isinf, "isfinite": jnp.isfinite}[
        of.node.target._schema.name.split("::")[1]](x)


@rule("_to_copy", "to.dtype", "view.dtype", "prims::convert_element_type")
def to_copy(of, x, *_, dtype=None, copy=None):
    if of.dtype == jnp.bool_ and x.dtype != jnp.bool_:
        return x != 0
    if jnp.issubdtype(of.dtype, jnp.integer) and jnp.issubdtype(x.dtype, jnp.floating):
        x = UNARY["trunc"](x)
    return x.astype(of.dtype)


@rule("copy")
def copy(of, x, y, non_blocking=False):
    return jnp.broadcast_to(y.astype(of.dtype), of.shape)


@rule("polygamma")
def polygamma(of, n, x):
    return lax.polygamma(jnp.full_like(x, n), x)


@rule("complex")
def complex_of(of, x, y):
    return lax.complex(x, y)


@rule("polar")
def polar(of, length, angle):
    return lax.complex(length * lax.cos(angle), length * lax.sin(angle))


@rule("angle")
def angle_of(of, x):
    if jnp.iscomplexobj(x):
        return lax.atan2(lax.imag(x), lax.real(x))
    return jnp.where(x < 0, like(x, math.pi), jnp.zeros_like(x)).astype(of.dtype)


# ---- reductions ----


def total(x, dims):
    """A sum, of low types in f32."""
    if not dims:
        return x
    return lax.reduce_sum(wide(x), tuple(dims)).astype(x.dtype)


def kept(of, made):
    return made.reshape(of.shape)


@rule("sum")
def sum_all(of, x, dtype=None):
    return sum_dims(of, x)


@rule("sum.dim_IntList")
def sum_dims(of, x, dims=None, keepdim=False, dtype=None):
    return kept(of, total(x.astype(of.dtype), dims_of(dims, x.ndim)))


@rule("mean", "mean.dim")
def mean(of, x, dims=None, keepdim=False, dtype=None):
    x, dims = x.astype(of.dtype), dims_of(dims, x.ndim)
    made = total(wide(x), dims)
    return kept(of, (made / like(made, math.prod(x.shape[d] for d in dims))).astype(of.dtype))


@rule("var.correction", "var_mean.correction")
def variance(of, x, dims=None, correction=1, keepdim=False):
    w, dims = wide(x), dims_of(dims, x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    middle, at = total(w, dims) / like(w, count), [d for d in range(x.ndim) if d not in dims]
    apart = w - spread(middle, x.shape, at)
    var = total(apart * apart, dims) / like(w, max(count - (1 if correction is None else correction), 0))
    if isinstance(of.results, (tuple, list)):
        return kept(of, var.astype(of.dtype)), kept(of, middle.astype(of.dtype))
    return kept(of, var.astype(of.dtype))


@rule("prod", "prod.dim_int")
def prod(of, x, dims=None, keepdim=False, dtype=None):
    return kept(of, jnp.prod(x.astype(of.dtype), dims_of(dims, x.ndim), dtype=of.dtype))


@rule("any", "any.dim", "any.dims")
def any_of(of, x, dims=None, keepdim=False):
    return kept(of, jnp.any(x != 0 if x.dtype != jnp.bool_ else x, dims_of(dims, x.ndim)))


@rule("all", "all.dim", "all.dims")
def all_of(of, x, dims=None, keepdim=False):
    return kept(of, jnp.all(x != 0 if x.dtype != jnp.bool_ else x, dims_of(dims, x.ndim)))


@rule("amax", "max")
def amax(of, x, dims=None, keepdim=False):
    return kept(of, lax.reduce_max(x, dims_of(dims, x.ndim)))


@rule("amin", "min")
def amin(of, x, dims=None, keepdim=False):
    return kept(of, lax.reduce_min(x, dims_of(dims, x.ndim)))


def argument(of, x, dim, find):
    x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
    return kept(of, find(x, dim % max(x.ndim, 1), jnp.int64))


@rule("argmax")
def argmax(of, x, dim=None, keepdim=False):
    return argument(of, x, dim, lax.argmax)


@rule("argmin")
def argmin(of, x, dim=None, keepdim=False):
    return argument(of, x, dim, lax.argmin)


@rule("max.dim")
def max_dim(of, x, dim, keepdim=False):
    return amax(of, x, dim), argument(of, x, dim, lax.argmax)


@rule("min.dim")
def min_dim(of, x, dim, keepdim=False):
    return amin(of, x, dim), argument(of, x, dim, lax.argmin)


@rule("cumsum", "cumprod")
def cumulate(of, x, dim, dtype=None):
    f = lax.cumsum if of.node.target is torch.ops.aten.cumsum.default else lax.cumprod
    x = x.astype(of.dtype)
    return f(x, axis=dim % x.ndim) if x.ndim else x


@rule("logsumexp")
def logsumexp(of, x, dims, keepdim=False):
    return kept(of, jax.nn.logsumexp(wide(x), dims_of(dims, x.ndim)).astype(of.dtype))


@rule("histc")
def histc(of, x, bins=100, least=0, most=0):
    if least == most:
        raise NotImplementedError("histc without its bounds")
    each = jnp.floor((x.reshape(-1, 1) - least) * like(wide(x), bins / (most - least)))
    each = jnp.where(x.reshape(-1, 1) == most, bins - 1, each)
    return total((each == jnp.arange(bins)[None]).astype(of.dtype), (0,))


@rule("topk")
def topk(of, x, k, dim=-1, largest=True, sort=True):
    moved = jnp.moveaxis(x, dim, -1)
    values, places = lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim).astype(jnp.int64)


@rule("sort", "sort.stable")
def sort(of, x, *args, stable=True, dim=-1, descending=False):
    args = [a for a in args]
    if args and isinstance(args[0], bool):  # sort.default has (dim, descending)
        args = args[1:]
    dim, descending = (args + [dim, descending][len(args):])[:2]
    dim %= max(x.ndim, 1)
    places = lax.broadcasted_iota(jnp.int64, x.shape, dim)
    keys = -x if descending else x
    _, values, order = lax.sort((keys, x, places), dimension=dim, is_stable=True, num_keys=1)
    return values, order


@rule("kthvalue", "median.dim")
def kthvalue(of, x, *args, dim=-1, keepdim=False):
    """The k-th smallest, and of equal ones the first; the median is the lower one of two."""
    median = of.node.target is torch.ops.aten.median.dim
    k, args = ((x.shape[args[0] if args else dim] + 1) // 2, args) if median else (args[0], args[1:])
    dim = (args[0] if args else dim) % x.ndim
    values, places = sort(of, x, dim=dim)
    return tuple(kept(of, lax.index_in_dim(a, k - 1, dim)) for a in (values, places))


# ---- products of three, and of batches that are summed ----


@rule("_trilinear")
def trilinear(of, a, b, c, new_a, new_b, new_c, summed, unroll=1):
    """The product of three tensors, which have new dimensions of size 1 at new_a (b, c), summed."""
    rank = a.ndim + len(new_a)
    subscript = lambda new: "".join(chr(97 + d) for d in range(rank) if d not in new)
    return jnp.einsum(f"{subscript(new_a)},{subscript(new_b)},{subscript(new_c)}->{subscript(summed)}", a, b, c)


@rule("addbmm")
def addbmm(of, x, a, b, beta=1, alpha=1):
    made = lax.dot_general(a, b, (((0, 2), (0, 1)), ((), ())), preferred_element_type=of.dtype)
    return made * like(made, alpha) + jnp.broadcast_to(x, of.shape) * like(made, beta)


# ---- softmax and norms ----


def softmax_parts(x, dim):
    """exp(x - max) and its sum, kept."""
    dim %= max(x.ndim, 1)
    at = [d for d in range(x.ndim) if d != dim]
    e = lax.exp(x - spread(lax.reduce_max(x, (dim,)), x.shape, at)) if x.ndim else jnp.ones_like(x)
    return e, spread(total(e, (dim,)), x.shape, at) if x.ndim else e


@rule("_softmax")
def softmax(of, x, dim, half_to_float=False):
    e, s = softmax_parts(wide(x), dim)
    return (e / s).astype(of.dtype)


@rule("_log_softmax")
def log_softmax(of, x, dim, half_to_float=False):
    w = wide(x)
    at = [d for d in range(x.ndim) if d != dim % x.ndim]
    top = spread(lax.reduce_max(w, (dim % x.ndim,)), x.shape, at)
    s = total(lax.exp(w - top), (dim % x.ndim,))
    return (w - top - spread(lax.log(s), x.shape, at)).astype(of.dtype)


def normalise(x, dims, eps):
    """(x - mean) rstd over dims, mean and rstd without them; in f32 at least."""
    w, at = wide(x), [d for d in range(x.ndim) if d not in dims]
    count = like(w, math.prod(x.shape[d] for d in dims))
    middle = total(w, dims) / count
    apart = w - spread(middle, x.shape, at)
    rstd = lax.rsqrt(total(apart * apart, dims) / count + like(w, eps))
    return apart * spread(rstd, x.shape, at), middle, rstd


def scale(y, weight, bias, dims):
    """y weight + bias, which have the dimensions dims of y."""
    if weight is not None:
        y = y * spread(weight.astype(y.dtype), y.shape, dims)
    return y if bias is None else y + spread(bias.astype(y.dtype), y.shape, dims)


def typed(of, *made):
    return tuple(x.reshape(r.shape).astype(dtype_of(r.dtype)) for x, r in zip(made, of.results))


@rule("native_layer_norm")
def layer_norm(of, x, shape, weight, bias, eps):
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    y, middle, rstd = normalise(x, dims, eps)
    return typed(of, scale(y, weight, bias, dims), middle, rstd)


@rule("native_group_norm")
def group_norm(of, x, weight, bias, n, c, hw, groups, eps):
    y, middle, rstd = normalise(x.reshape(n, groups, -1), (2,), eps)
    return typed(of, scale(y.reshape(x.shape), weight, bias, (1,)), middle, rstd)


@rule("_fused_rms_norm")
def rms_norm(of, x, shape, weight, eps):
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    w, at = wide(x), range(x.ndim - len(shape))
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(total(w * w, dims) / like(w, math.prod(shape)) + like(w, eps))
    return typed(of, scale(w * spread(rstd, x.shape, at), weight, None, dims), rstd)


@rule("_weight_norm_interface")
def weight_norm(of, v, g, dim=0):
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    norms = lax.sqrt(total(v * v, dims)).reshape(g.shape)
    return v * (g / norms), norms


@rule("_weight_norm_interface_backward")
def weight_norm_backward(of, grad, v, g, norms, dim):
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    along = total(grad * v, dims).reshape(g.shape) / norms
    return g / norms * (grad - v * (along / norms)), along


@rule("_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats")
def batch_norm(of, x, weight, bias, *rest):
    """The running variance is the unbiased one."""
    if len(rest) == 3:
        running, (training, momentum, eps) = None, rest
    else:
        *running, training, momentum, eps = rest
    if not training:
        var = lax.rsqrt(wide(running[1]) + like(wide(running[1]), eps))
        y = (wide(x) - spread(wide(running[0]), x.shape, (1,))) * spread(var, x.shape, (1,))
        empty = jnp.zeros((0,), jnp.float32)
        return typed(of, scale(y, weight, bias, (1,)), empty, empty, *running)
    dims = (0, *range(2, x.ndim))
    y, middle, rstd = normalise(x, dims, eps)
    made = [scale(y, weight, bias, (1,)), middle, rstd]
    if running:
        count = x.size // x.shape[1]
        apart = wide(x) - spread(middle, x.shape, (1,))
        var = total(apart * apart, dims) / like(apart, count - 1)
        made += [old * like(old, 1 - momentum) + new.astype(old.dtype) * like(old, momentum)
                 for old, new in zip(running, (middle, var))]
    return typed(of, *made)


# ---- shapes ----


@rule("expand")
def expand(of, x, sizes, implicit=False):
    return spread(x, of.shape, range(len(of.shape) - x.ndim, len(of.shape))) if all(
        a == b for a, b in zip(x.shape, of.shape[len(of.shape) - x.ndim:])
    ) else jnp.broadcast_to(x, of.shape)


@rule("cat")
def cat(of, parts, dim=0):
    parts = [x.astype(of.dtype) for x in parts if x.shape != (0,)]
    return lax.concatenate(parts, dim % len(of.shape))


@rule("split_with_sizes", "split.Tensor", "split_with_sizes_copy")
def split(of, x, sizes, dim=0):
    dim %= x.ndim
    ends = np.cumsum([0, *(r.shape[dim] for r in of.results)])
    return tuple(lax.slice_in_dim(x, int(a), int(b), axis=dim) for a, b in zip(ends, ends[1:]))


@rule("unbind.int")
def unbind(of, x, dim=0):
    return tuple(lax.index_in_dim(x, k, dim, keepdims=False) for k in range(x.shape[dim]))


def bounds(size, start, end):
    start, end = (size if v is None or v > size else max(v + size, 0) if v < 0 else v
                  for v in (0 if start is None else start, end))
    return start, max(start, end)


@rule("slice.Tensor")
def slice_of(of, x, dim=0, start=None, end=None, step=1):
    start, end = bounds(x.shape[dim], start, end)
    return lax.slice_in_dim(x, start, end, step, dim % x.ndim)


@rule("select.int")
def select(of, x, dim, index):
    return lax.index_in_dim(x, index, dim, keepdims=False)


@rule("slice_scatter")
def slice_scatter(of, x, part, dim=0, start=None, end=None, step=1):
    """The part in its place, by a pad and a selection; whole: the part."""
    dim %= x.ndim
    start, end = bounds(x.shape[dim], start, end)
    if part.shape == x.shape:
        return part.astype(of.dtype)
    size = part.shape[dim]
    config = [(0, 0, 0)] * x.ndim
    high = x.shape[dim] - start - (size - 1) * step - 1
    config[dim] = (start, high, step - 1)
    padded = lax.pad(part.astype(of.dtype), like(x, 0), config)
    at = lax.broadcasted_iota(jnp.int64, x.shape, dim)
    inside = (at >= start) & (at < end) & ((at - start) % step == 0)
    return lax.select(inside, padded, x)


@rule("select_scatter")
def select_scatter(of, x, part, dim, index):
    dim %= x.ndim
    at = lax.broadcasted_iota(jnp.int64, x.shape, dim) == index % x.shape[dim]
    dims = [d for d in range(x.ndim) if d != dim]
    return lax.select(at, spread(part.astype(of.dtype), x.shape, dims), x)


@rule("constant_pad_nd")
def constant_pad(of, x, pads, value=0):
    config = [(0, 0, 0)] * x.ndim
    for k in range(len(pads) // 2):
        config[x.ndim - 1 - k] = (pads[2 * k], pads[2 * k + 1], 0)
    return lax.pad(x, like(x, value), config)


@rule("repeat")
def repeat(of, x, times):
    x = x.reshape((1,) * (len(times) - x.ndim) + x.shape)
    return jnp.tile(x, times)


@rule("flip")
def flip(of, x, dims):
    return lax.rev(x, dims_of(dims, x.ndim))


@rule("roll")
def roll(of, x, shifts, dims=()):
    return jnp.roll(x, shifts, tuple(dims)) if dims else jnp.roll(x, shifts[0])


@rule("unfold")
def unfold(of, x, dim, size, step):
    dim %= x.ndim
    n = (x.shape[dim] - size) // step + 1
    parts = [lax.slice_in_dim(x, k, k + (n - 1) * step + 1, step, dim) for k in range(size)]
    return jnp.stack(parts, -1)


@rule("diagonal")
def diagonal(of, x, offset=0, dim1=0, dim2=1):
    return jnp.diagonal(x, offset, dim1, dim2)


def memory_order(of, x):
    """The elements of the first operand as they lie in PyTorch's memory, and the order of its dimensions there."""
    strides = of.node.args[0].meta["val"].stride()
    order = sorted(range(x.ndim), key=lambda d: (-strides[d], -x.shape[d]))
    step = 1
    for d in reversed(order):
        if x.shape[d] != 1 and strides[d] != step:
            raise NotImplementedError("as_strided of a tensor that has gaps in memory")
        step *= x.shape[d]
    return lax.transpose(x, order).reshape(-1), order


def strided(of, size, stride, offset):
    at = jnp.full(tuple(size), offset or 0, jnp.int64)
    for d, step in enumerate(stride):
        at = at + lax.broadcasted_iota(jnp.int64, tuple(size), d) * step
    return at


@rule("as_strided")
def as_strided(of, x, size, stride, offset=None):
    return memory_order(of, x)[0].at[strided(of, size, stride, offset)].get(
        mode="promise_in_bounds", wrap_negative_indices=False)


@rule("as_strided_scatter")
def as_strided_scatter(of, x, part, size, stride, offset=None):
    flat, order = memory_order(of, x)
    made = flat.at[strided(of, size, stride, offset)].set(part, mode="promise_in_bounds", wrap_negative_indices=False)
    made = made.reshape([x.shape[d] for d in order])
    return lax.transpose(made, [order.index(d) for d in range(x.ndim)])


@rule("diagonal_scatter")
def diagonal_scatter(of, x, part, offset=0, dim1=0, dim2=1):
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    at = lax.broadcasted_iota(jnp.int64, x.shape, dim2) - lax.broadcasted_iota(jnp.int64, x.shape, dim1) == offset
    others = [d for d in range(x.ndim) if d not in (dim1, dim2)]
    along = dim1 if offset >= 0 else dim2  # the dimension whose places the diagonal counts
    size = x.shape[along]
    config = [(0, 0, 0)] * (part.ndim - 1) + [(0, size - part.shape[-1], 0)]
    padded = lax.pad(part.astype(of.dtype), like(x, 0), config)
    dims = sorted((*others, along))
    padded = jnp.moveaxis(padded, -1, dims.index(along))
    return lax.select(at, spread(padded, x.shape, dims), x)


@rule("logcumsumexp")
def logcumsumexp(of, x, dim):
    return lax.cumlogsumexp(wide(x), axis=dim % x.ndim).astype(of.dtype) if x.ndim else x


@rule("cummax", "cummin")
def cummax(of, x, dim):
    """PyTorch's index is that of the last of equal values."""
    if not x.ndim:
        return x, jnp.zeros((), jnp.int64)
    dim %= x.ndim
    best = (lax.cummax if of.node.target is torch.ops.aten.cummax.default else lax.cummin)(x, axis=dim)
    at = lax.broadcasted_iota(jnp.int64, x.shape, dim)
    return best, lax.cummax(jnp.where(x == best, at, 0), axis=dim)


@rule("tril", "triu")
def triangle(of, x, k=0):
    rows, columns = (lax.broadcasted_iota(jnp.int64, x.shape, x.ndim - d) for d in (2, 1))
    lower = of.node.target is torch.ops.aten.tril.default
    keep = rows + k >= columns if lower else rows + k <= columns
    return lax.select(keep, x, jnp.zeros_like(x))


# ---- new tensors ----


@rule("full_like", "full", "scalar_tensor", "new_full", "fill.Scalar", "fill.Tensor")
def full(of, *args, dtype=None):
    value = args[-1]
    return jnp.broadcast_to(jnp.asarray(value).astype(of.dtype), of.shape)


@rule("zeros_like", "new_zeros", "zeros", "empty_like", "empty.memory_format", "new_empty",
      "empty_strided", "new_empty_strided", "empty_permuted")
def zeros(of, *_, dtype=None):
    return jnp.zeros(of.shape, of.dtype)


@rule("ones_like", "new_ones", "ones")
def ones(of, *_, dtype=None):
    return jnp.ones(of.shape, of.dtype)


@rule("arange.start_step")
def arange(of, start, end, step=1, dtype=None):
    return jnp.arange(of.shape[0]).astype(of.dtype) * like(jnp.zeros((), of.dtype), step) + like(
        jnp.zeros((), of.dtype), start)
