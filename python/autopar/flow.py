# SPDX-License-Identifier: Apache-2.0
"""What a traced step says of its own data flow: which result an argument becomes, which scalar is
differentiated, where it calls back into Python.

A jaxpr is walked once.  Each value carries what it comes from: per source (an argument, or a loss
that `watch` has marked) the number of operators between them, where all of these keep the elements
in place; and the arguments that it depends on at all.  A weight's new value is nearer to the
weight than to anything else: one subtraction.
"""

import functools
import re

import jax
from jax.extend import core

MARK = "autopar_loss"
FEW = 16  # numbers in a vector of metrics
HERE = __file__.rpartition("/")[0]
# Operators of equal shapes that do not keep elements in place.
MIXING = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "sort", "gather", "fft", "rev",
    "cholesky", "triangular_solve", "transpose", "cumsum", "cumprod", "cummax", "cummin",
    "cumlogsumexp", "reduce_window_sum", "reduce_window_max", "random_bits", "threefry2x32",
}  # fmt: skip
INTO = {"scatter", "scatter-add", "scatter_add", "scatter_mul", "dynamic_update_slice"}
SHRINKING = {
    "reduce_sum", "squeeze", "reshape", "broadcast_in_dim", "slice", "dynamic_slice", "concatenate"
}  # fmt: skip


def subjaxprs(eqn):
    """Every jaxpr among an operator's parameters."""
    for value in eqn.params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one


# ---- callbacks ----


def place_of(eqns):
    """"FILE:LINE" of the user's code that the first of these operators comes from; the others call
    the ones before."""
    rows = [
        frame for eqn in eqns for frame in (getattr(eqn.source_info.traceback, "frames", None) or [])
    ]
    for skipped in ("/site-packages/", "/site-packages/jax/"):
        for frame in rows:
            if not any(part in frame.file_name for part in (skipped, HERE, "<frozen")):
                return f"{frame.file_name.rpartition('/')[2]}:{frame.line_num}"
    return "the step"


def callbacks(jaxpr, outer=()):
    """(place, name of the operator) of every call back into Python, printing included."""
    found = []
    for eqn in jaxpr.eqns:
        if "callback" in eqn.primitive.name or eqn.primitive.name == "debug_print":
            found.append((place_of((eqn, *outer)), eqn.primitive.name))
        for inner in subjaxprs(eqn):
            found += callbacks(inner, (eqn, *outer))
    return found


def places(jaxpr, primitive, outer=()):
    """Where operators of this name are, each place once."""
    found = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == primitive:
            found[place_of((eqn, *outer))] = None
        for inner in subjaxprs(eqn):
            found.update(dict.fromkeys(places(inner, primitive, (eqn, *outer))))
    return list(found)


# ---- which scalar is differentiated ----

class Watching:
    """Whether losses are marked, and inside how many differentiated functions we are."""

    on, depth = False, 0


def mark(value):
    """The value behind an operator that says how many differentiated functions it is inside of."""
    if getattr(value, "shape", None) != () or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
        return value
    named = lambda x: x + 0
    named.__name__ = f"{MARK}{Watching.depth}"
    return jax.jit(named)(value)


def inside(function, *args, **kwargs):
    Watching.depth += 1
    try:
        return function(*args, **kwargs)
    finally:
        Watching.depth -= 1


def watch():
    """From now on jax.grad, jax.value_and_grad and jax.vjp mark the scalar that they differentiate
    while a step is traced by `marks`; otherwise they are JAX's own.  To call before the step's modules
    are loaded, which keep names of their own for them."""
    if hasattr(jax.value_and_grad, "watched"):
        return
    with_value, without, vjp = jax.value_and_grad, jax.grad, jax.vjp

    def wrap(original, keep):
        @functools.wraps(original)
        def outer(fun, argnums=0, has_aux=False, **options):
            plain = original(fun, argnums, has_aux, **options)
            both = with_value(fun, argnums, has_aux, **options)

            @functools.wraps(plain)
            def inner(*args, **kwargs):
                if not Watching.on:
                    return plain(*args, **kwargs)
                value, grads = inside(both, *args, **kwargs)
                value = (mark(value[0]), *value[1:]) if has_aux else mark(value)
                if keep:
                    return value, grads
                return (grads, *value[1:]) if has_aux else grads

            return inner

        return outer

    @functools.wraps(vjp)
    def watched_vjp(fun, *primals, **options):
        if not Watching.on:
            return vjp(fun, *primals, **options)
        value, *rest = inside(vjp, fun, *primals, **options)
        return (mark(value), *rest)

    jax.value_and_grad, jax.grad, jax.vjp = wrap(with_value, True), wrap(without, False), watched_vjp
    jax.value_and_grad.watched = True


def marks(trace):
    """Results of the step that a marked loss comes to: [((differentiated functions around it,
    operators in between), result)], the outermost and nearest first.

    trace: traces the step, and returns its jaxpr.
    """
    Watching.on = True
    try:  # a precision of its own: functions that are jitted inside are traced anew
        with jax.default_matmul_precision("float32"):
            jaxpr = trace()
    finally:
        Watching.on = False
    found = Walk(jaxpr, ()).results
    return sorted((min((d, n) for (d, _), n in r.near.items()), i) for i, r in enumerate(found) if r.near)


# ---- the walk ----


class Value:
    """near: {source: operators in between}; all: the arguments it depends on, bit by bit."""

    __slots__ = ("near", "all")

    def __init__(self, near=None, all_=0):
        self.near, self.all = near or {}, all_

    def merged(self, other, more=0):
        near = dict(self.near)
        for source, n in other.near.items():
            near[source] = min(near.get(source, n + more), n + more)
        return Value(near, self.all | other.all)


class Walk:
    """A jaxpr from its arguments to its results; sources: numbers of arguments that are watched,
    none: marked losses are."""

    def __init__(self, jaxpr, sources):
        self.watched = set(sources)
        start = [Value({i: 0} if i in self.watched else None, 1 << i)
                 for i in range(len(jaxpr.invars))]  # fmt: skip
        self.results = self.run(jaxpr, start)

    def run(self, jaxpr, operands):
        values = dict(zip(jaxpr.invars, operands))
        read = lambda v: Value() if isinstance(v, core.Literal) else values.get(v, Value())
        for eqn in jaxpr.eqns:
            values.update(zip(eqn.outvars, self.eqn(eqn, [read(v) for v in eqn.invars])))
        return [read(v) for v in jaxpr.outvars]

    def eqn(self, eqn, operands):
        name, inner = eqn.primitive.name, list(subjaxprs(eqn))
        said = re.fullmatch(MARK + r"(\d+)", str(eqn.params.get("name")))
        if said and not self.watched:
            return [Value({(int(said[1]), id(eqn)): 0}, operands[0].all)]
        if name == "cond":
            found = [self.run(branch, operands[1:]) for branch in inner]
            return [functools.reduce(Value.merged, row) for row in zip(*found)]
        if name == "while":
            skip, n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            body = eqn.params["body_jaxpr"].jaxpr
            return self.loop(body, operands[skip : skip + n], operands[skip + n :], [])
        if name == "scan":
            n, m = eqn.params["num_consts"], eqn.params["num_carry"]
            return self.loop(inner[0], operands[:n], operands[n : n + m], operands[n + m :])
        same = [j for j in inner if len(j.invars) == len(operands)]
        if same and len(same[0].outvars) == len(eqn.outvars):
            return self.run(same[0], operands)
        return self.plain(eqn, operands)

    def loop(self, body, consts, carried, each):
        """Carried values: until nothing is nearer, two rounds at most."""
        for _ in range(2):
            found = self.run(body, [*consts, *carried, *each])
            carried = [a.merged(b) for a, b in zip(carried, found)]
        return [*carried, *found[len(carried) :]]

    def plain(self, eqn, operands):
        everything = functools.reduce(lambda a, b: a | b.all, operands, 0)
        name, found = eqn.primitive.name, []
        for out in eqn.outvars:
            value = Value(None, everything)
            for k, (var, operand) in enumerate(zip(eqn.invars, operands)):
                if operand.near and self.keeps(name, k, var.aval, out.aval):
                    value = value.merged(operand, 1)
            found.append(value)
        return found

    def keeps(self, name, k, operand, out):
        """Whether the elements of operand k are where they were in the result; of a loss, whether
        a number is made of it."""
        if name in MIXING or out.dtype == bool:
            return False
        if name in INTO:
            return k == 0
        if not self.watched and name in SHRINKING:
            return operand.size >= out.size or out.size <= FEW
        return operand.shape == out.shape
