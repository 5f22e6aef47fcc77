# SPDX-License-Identifier: Apache-2.0
"""A joint graph (capture.py) as a function in JAX: each operator of ATen by its rule (rules.py).

What a rule alone would lose is kept here:

- Shapes of modules.  PyTorch computes attention and linear layers on tensors whose leading
  dimensions are merged by views.  A view makes no new array: all views of the same elements share
  one `Elements`, and products take the form in which the leading dimensions are apart, so that
  batch, heads and places stay dimensions that a plan can split.
- Transposed operands.  A product reads the array under a permutation.
- Constants.  What depends on no argument is evaluated by PyTorch; a tensor that is one number, or
  counts along a dimension, is written as such wherever it is read, in the shape of its reader.
- Equal nodes are computed once, and nodes that no result needs not at all.
"""
import contextlib
import math
import operator

import jax
import torch
from jax import lax
from jax import numpy as jnp

from . import rules
from . import rules_image, rules_index  # noqa: F401 (these two fill the table)
from .capture import call_of, fail, place_of, scope_of
from .rules import dtype_of

SAME_ELEMENTS = {
    f"aten.{name}" for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "alias.default", "detach.default",
        "clone.default", "lift_fresh_copy.default", "contiguous.default")
}
LITERAL_SIZE = 8  # elements; a constant tensor of more is written as operators where it can be


# ---- values ----


class Elements:
    """Elements in row-major order.

    forms: the array in every shape in which the elements were seen; moved: (Elements, shape,
    permutation) of what these are a transpose of. Arrays that nothing reads are dropped later.
    """

    def __init__(self, array, moved=None):
        self.forms = {array.shape: array}
        self.moved = moved

    def array(self, shape):
        if shape not in self.forms:
            self.forms[shape] = lax.reshape(next(iter(self.forms.values())), shape)
        return self.forms[shape]

    def operands(self, shape):
        """Ways to read a tensor of this shape, those of most dimensions first: (array, its
        dimensions that make each dimension of the tensor).

        Only the first dimension of the tensor, or of what it is a transpose of, may be several.
        """
        if self.moved and shape == tuple(self.moved[1][d] for d in self.moved[2]):
            source, at, order = self.moved
            return [(array, [dims[d] for d in order]) for array, dims in source.operands(at)]
        self.array(shape)
        found = []
        for form, array in self.forms.items():
            n = len(form) - len(shape) + 1
            if n >= 1 and form[n:] == shape[1:] and math.prod(form[:n]) == math.prod(shape[:1]):
                found.append((array, [tuple(range(n)), *((d,) for d in range(n, len(form)))]))
        return sorted(found, key=lambda way: -way[0].ndim)


class Known:
    """A tensor that depends on no argument. make: its array by operators, or None.

    Masks of a whole batch are large: dimensions along which all is equal have one element in memory.
    """

    def __init__(self, tensor, make):
        self.tensor, self.make, self.patterns = thin(tensor), make, {}

    def array(self, shape):
        if shape not in self.patterns:
            self.patterns[shape] = pattern(self.tensor.reshape(shape))
        make = self.patterns[shape]
        if make is None and (self.make is None or self.tensor.numel() <= LITERAL_SIZE):
            return jnp.asarray(rules.to_numpy(self.tensor)).reshape(shape)
        return make() if make else self.make().array(shape)

    def operands(self, shape):
        return [(self.array(shape), [(d,) for d in range(len(shape))])]


def thin(tensor):
    """The tensor, with stride 0 along each dimension along which it is equal."""
    for d, size in enumerate(tensor.shape):
        if size > 1 and tensor.stride(d):
            one = tensor.narrow(d, 0, 1)
            if torch.equal(one, tensor.narrow(d, 1, 1)) and bool((tensor == one).all()):
                tensor = one.expand(tensor.shape)
    return tensor


def thinly(target, args, kwargs):
    """The result of an elementwise operator, with one element along dimensions along which all of its
    tensors are equal."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    dims = {d for d in range(1, 1 + max(x.dim() for x in tensors))
            if all(d > x.dim() or x.shape[-d] == 1 or not x.stride(-d) for x in tensors)}
    cut = lambda x: in_memory(x, dims) if isinstance(x, torch.Tensor) else x
    return target(*map(cut, args), **{k: cut(v) for k, v in kwargs.items()})


def in_memory(tensor, dims=None):
    """The part of a tensor that is in memory, of these dimensions alone, counted from the last."""
    for d in range(tensor.dim()):
        if not tensor.stride(d) and tensor.shape[d] and (dims is None or tensor.dim() - d in dims):
            tensor = tensor.narrow(d, 0, 1)
    return tensor


def pattern(tensor):
    """Makes the array of a tensor that is one number or counts along a dimension; else None."""
    dtype, shape = dtype_of(tensor.dtype), tuple(tensor.shape)
    if tensor.numel() == 0:
        return lambda: jnp.zeros(shape, dtype)
    tensor = in_memory(tensor)
    first = tensor[(0,) * tensor.dim()]
    if tensor.numel() == 1 or bool((tensor == first).all()):
        return lambda: jnp.full(shape, rules.to_numpy(first), dtype)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return None
    for d, size in enumerate(tensor.shape):
        line = tensor[(0,) * d + (slice(None),) + (0,) * (tensor.dim() - d - 1)]
        if size > 1 and line[1] != first:
            return count(tensor, shape, d, dtype)
    return None


def count(tensor, shape, d, dtype):
    """pattern of integers that count along dimension d; None: these do not."""
    first, second = tensor.movedim(d, 0)[(slice(2), *(0,) * (tensor.dim() - 1))]
    step = second - first
    counted = (first + step * torch.arange(shape[d])).to(tensor.dtype)
    if not bool((tensor == counted.view(-1, *(1,) * (tensor.dim() - d - 1))).all()):
        return None

    def make():
        array = lax.broadcasted_iota(dtype, shape, d)
        array = array if step == 1 else array * dtype(int(step))
        return array if first == 0 else array + dtype(int(first))

    return make


# ---- products ----


def contract(a, b, n_batch, dtype):
    """Of operands (see Elements.operands) [batch..., M, K] and [batch..., K, N]."""
    for x, xs in a:
        for y, ys in b:
            pairs = [(xs[d], ys[d]) for d in range(n_batch)] + [(xs[-1], ys[-2])]
            if all([x.shape[d] for d in of] == [y.shape[d] for d in to] for of, to in pairs):
                batch = [sum((pair[k] for pair in pairs[:-1]), ()) for k in (0, 1)]
                return lax.dot_general(x, y, (pairs[-1], batch), preferred_element_type=dtype)
    raise AssertionError("the operands' own shapes match")


def product(of, a, b, n_batch):
    """The array of a product of nodes."""
    return contract(of.value(a).operands(of.shape_of(a)), of.value(b).operands(of.shape_of(b)),
                    n_batch, of.dtype)


def add_product(of, bias, a, b, beta=1, alpha=1):
    made = product(of, a, b, 0)
    made = made if alpha == 1 else made * of.dtype(alpha)
    add = of.array(bias)
    if add.ndim == 2:
        made = made.reshape(of.shape)
    add = add if beta == 1 else add * of.dtype(beta)
    return Elements(made + jnp.broadcast_to(add.astype(of.dtype), made.shape))


def permute(of, x, order):
    shape = of.shape_of(x)
    order = tuple(d % len(shape) for d in order)
    kept = [d for d in order if shape[d] != 1]
    if kept == sorted(kept) and isinstance(of.value(x), Elements):
        return of.value(x)
    return Elements(lax.transpose(of.array(x), order), (of.value(x), shape, order))


def sum_rows(of, x, dims=None, keepdim=False, dtype=None):
    """A sum over rows whose leading dimensions a view has merged is one over all of these."""
    shape = of.shape_of(x)
    if len(shape) == 2 and [d % 2 for d in dims or ()] == [0] and not isinstance(of.value(x), Known):
        array, groups = of.value(x).operands(shape)[0]
        return Elements(rules.total(array.astype(of.dtype), groups[0]))
    return Elements(rules.sum_dims(of, of.array(x), dims, keepdim, dtype))


WHOLE = {  # operators that see nodes instead of arrays
    "aten.mm.default": lambda of, a, b: Elements(product(of, a, b, 0)),
    "aten.bmm.default": lambda of, a, b: Elements(product(of, a, b, 1)),
    "aten.addmm.default": add_product,
    "aten.permute.default": permute,
    "aten.t.default": lambda of, x: permute(of, x, range(len(of.shape_of(x)))[::-1]),
    "aten.sum.dim_IntList": sum_rows,
}


# ---- the walk ----


class Operator:
    """A node while its rule runs: shape and dtype of its result, and its operands' values."""

    def __init__(self, lowering, node):
        self.node, self.value, self.array = node, lowering.value, lowering.array
        self.key, self.lowering = lowering.next_key, lowering
        self.results = node.meta["val"]
        first = self.results[0] if isinstance(self.results, (tuple, list)) else self.results
        if isinstance(first, torch.Tensor):
            self.shape, self.dtype = tuple(first.shape), dtype_of(first.dtype)

    @staticmethod
    def shape_of(node):
        return tuple(node.meta["val"].shape)

    def type_of_operands(self):
        """The type in which PyTorch computes with the operands."""
        values = [getattr(a, "meta", {}).get("val", a) for a in self.node.args[:2]]
        return dtype_of(torch.result_type(*values) if len(values) == 2 else values[0].dtype)

    def known(self, node):
        """The tensor of an operand that depends on no argument; else None."""
        value = self.value(node)
        return value.tensor if isinstance(value, Known) else None


def needed(results):
    """Nodes that the results depend on."""
    found, pending = set(), list(results)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


CALL = "call:"  # before the name of a call, which hlo.py takes out of the text again


class Lowering:
    """Evaluates nodes of a graph for arrays of its arguments."""

    def __init__(self, module, arrays, key=None):
        """arrays: placeholder to array; key: of the random numbers."""
        self.module, self.base, self.n_random = module, key, 0
        self.values = {node: Elements(array) for node, array in arrays.items()}
        self.numbers = {}  # equal nodes

    def next_key(self):
        self.n_random += 1
        return jax.random.fold_in(self.base, self.n_random - 1)

    def value(self, node):
        return self.values[node]

    def array(self, x):
        """Operands of a rule: arrays for nodes, in lists as well."""
        if isinstance(x, torch.fx.Node):
            value = self.values[x]
            return None if value is None else value.array(tuple(x.meta["val"].shape))
        if isinstance(x, (list, tuple)):
            return [self.array(item) for item in x]
        return x

    def run(self, results):
        """Arrays of the nodes `results`."""
        alive = needed(results)
        missing = missing_rules(alive)
        if missing:
            fail("no rule for " + "; ".join(f"{name} (in {place})" for name, place in missing)
                 + ": autopar/torch/rules.py has a function for each operator that is known")
        for node in results[0].graph.nodes:
            if node in alive and node not in self.values:
                call = call_of(node)
                scope = "/".join(filter(None, [scope_of(node).replace(".", "/"), call and CALL + call]))
                with jax.named_scope(scope) if scope else contextlib.nullcontext():
                    self.values[node] = self.evaluate(node)
        return [self.array(node) for node in results]

    def evaluate(self, node):
        if node.op == "get_attr":
            return Known(getattr(self.module, node.target).detach(), None)
        if node.target is operator.getitem:
            value = self.values[node.args[0]]
            if isinstance(value, Known):
                return Known(value.tensor[node.args[1]], None)
            return value[node.args[1]]
        number = self.number(node)
        if number not in self.numbers:
            self.numbers[number] = self.compute(node)
        value = self.numbers[number]
        if isinstance(value, Elements) and str(node.target) not in WHOLE:  # the form is made in this module's scope
            value.array(tuple(node.meta["val"].shape))
        return value

    def number(self, node):
        """Equal for nodes of equal values."""
        if rules.is_random(node):
            return node

        def of(x):
            if isinstance(x, torch.fx.Node):
                return id(self.values[x]), tuple(getattr(x.meta["val"], "shape", ()))
            return tuple(map(of, x)) if isinstance(x, (list, tuple)) else (type(x), x)

        return (node.target, of(node.args), of(list(node.kwargs.items())))

    def compute(self, node):
        values = [self.values[x] for x in node.all_input_nodes]
        by_memory = str(node.target).startswith("aten.as_strided")  # see evaluate_by_torch
        if all(isinstance(v, Known) for v in values) and not rules.is_random(node) and not by_memory:
            return self.evaluate_by_torch(node)
        return self.by_rule(node)

    def evaluate_by_torch(self, node):
        def real(x):
            if isinstance(x, torch.fx.Node):
                return self.values[x].tensor
            return type(x)(map(real, x)) if isinstance(x, (list, tuple)) else x

        args, kwargs = real(node.args), {k: real(v) for k, v in node.kwargs.items()}
        if torch.Tag.pointwise in node.target.tags:
            result = thinly(node.target, args, kwargs).expand(node.meta["val"].shape)
        elif node.target is torch.ops.aten.full.default:
            result = torch.full((), *args[1:], **kwargs).expand(args[0])
        elif str(node.target) in SAME_ELEMENTS:  # a constant lies otherwise in memory than the traced tensor
            result = args[0].reshape(tuple(node.meta["val"].shape))
        else:
            result = node.target(*args, **kwargs)
        computed = node.all_input_nodes and str(node.target) in rules.TABLE | WHOLE.keys() | SAME_ELEMENTS
        if isinstance(result, torch.Tensor):
            return Known(result, (lambda: self.by_rule(node)) if computed else None)
        return tuple(Known(x, None) for x in result)

    def by_rule(self, node):
        name, of = str(node.target), Operator(self, node)
        if name in SAME_ELEMENTS or (name == "aten.expand.default"
                                     and of.shape_of(node.args[0]) == of.shape):
            value = self.values[node.args[0]]
            return Elements(value.array(of.shape)) if isinstance(value, Known) else value
        if name in WHOLE:  # has the form in which leading dimensions are apart: readers make theirs
            value = WHOLE[name](of, *node.args, **node.kwargs)
            return self.checked(of, value, next(iter(value.forms)))
        kwargs = {k: self.array(v) for k, v in node.kwargs.items() if k not in rules.IGNORED}
        try:
            made = rules.TABLE[name](of, *self.array(node.args), **kwargs)
        except NotImplementedError as e:  # of a form that the rule lacks
            fail(f"{name} (in {place_of(node)}): {e} is not supported")
        except Exception as e:  # whatever JAX raises
            fail(f"{name} (in {place_of(node)}) has a form that its rule does not take: {type(e).__name__}: {e}")
        if isinstance(of.results, (tuple, list)):
            return tuple(None if x is None else Elements(x) for x in made)
        return self.checked(of, Elements(made))

    @staticmethod
    def checked(of, value, form=None):
        """A rule's array has the type and size that PyTorch says."""
        array = value.array(form or of.shape)
        if array.dtype != of.dtype or (array.size != math.prod(of.shape) if form else array.shape != of.shape):
            raise AssertionError(f"{of.node.target}: {array.dtype}{list(array.shape)} for "
                                 f"{of.dtype.__name__}{list(of.shape)}")
        return value


def has_rule(name):
    return name in rules.TABLE or name in WHOLE or name in SAME_ELEMENTS


def missing_rules(nodes):
    """(operator, module) of the operators without a rule, each once."""
    found = {}
    for node in nodes:
        name = str(node.target)
        if node.op == "call_function" and node.target is not operator.getitem and not has_rule(name):
            free = not any(n.op == "placeholder" for n in needed([node]))
            if rules.is_random(node) or not free:
                found.setdefault(name, place_of(node))
    return sorted(found.items())
