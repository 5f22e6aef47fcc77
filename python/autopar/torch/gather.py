# SPDX-License-Identifier: Apache-2.0
"""What DTensor cannot do, and what runs instead: operands are gathered first.

DTensor refuses operators in layouts that it has no rule for, and takes some that it computes
otherwise than one process.  LACKS is the table of both.  Inside plan.context() such an operator gets
its operands whole along the fewest mesh axes that DTensor accepts, else whole, and runs replicated.
Where the module goes on, a later hook of the plan splits the result again.  Each such place is said
(plan.departures): the module, the operator, the layouts, what was gathered.
"""
import bisect
import dataclasses
import itertools
import math
import re

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
OUT_OF_MEMORY = torch.OutOfMemoryError, MemoryError

# ---- layouts ----


def is_uneven(x, axis):
    """Whether the mesh axis is one of those that split a dimension into parts of different sizes."""
    p, mesh = x.placements[axis], x.device_mesh
    if not hasattr(p, "dim"):
        return False
    parts = [n for q, n in zip(x.placements, mesh.shape) if getattr(q, "dim", None) == p.dim]
    return x.shape[p.dim] % math.prod(parts) != 0


def evened(at, shape, sizes):
    """Placements in which no dimension is split along several mesh axes (of these sizes) into parts
    of different sizes: DTensor takes those for one list of equal chunks, and redistributes them
    wrongly. Such a dimension is split along the first axis alone."""
    at = list(at)
    for dim, size in enumerate(shape):
        axes = [a for a, p in enumerate(at) if getattr(p, "dim", None) == dim]
        if len(axes) > 1 and size % math.prod(sizes[a] for a in axes):
            for a in axes[1:]:
                at[a] = Replicate()
    return tuple(at)


def gathered(x, axes):
    """A copy of x that is whole along these mesh axes, one after the other where parts differ in
    size (see evened); x itself where it is so."""
    if any(is_uneven(x, axis) for axis in axes):
        for axis in sorted(axes, reverse=True):
            x = x.redistribute(placements=[*x.placements[:axis], Replicate(), *x.placements[axis + 1:]])
        return x
    at = [Replicate() if a in axes else p for a, p in enumerate(x.placements)]
    return x if tuple(at) == x.placements else x.redistribute(placements=at)


def every_axis(x):
    return range(x.device_mesh.ndim)


def as_partial(whole, mesh, axis, reduce_op):
    """Local parts along a mesh axis that reduce to `whole`."""
    if reduce_op in ("avg", "max", "min") or mesh.get_local_rank(axis) == 0:
        return whole
    return torch.ones_like(whole) if reduce_op == "product" else torch.zeros_like(whole)


def assign(x, value):
    """x holds this value, a DTensor, from now on, in the placements that it has."""
    kept = [p if type(p) is Partial or not isinstance(p, Partial) else Replicate()
            for p in x.placements]
    at = [Replicate() if isinstance(p, Partial) else p for p in kept]
    local = value.redistribute(placements=at).to_local()
    for axis, p in enumerate(kept):
        if isinstance(p, Partial):
            local = as_partial(local, x.device_mesh, axis, p.reduce_op)
    if tuple(kept) == x.placements:
        x._local_tensor.copy_(local)
    else:  # partial sums under a mask, which no other value has
        x._local_tensor, x._spec = local, dataclasses.replace(x._spec, placements=tuple(kept))


def text_of(value):
    """A tensor's shape and layout: [8, 16] S(0) R; lists of tensors in brackets."""
    if isinstance(value, DTensor):
        return f"{list(value.shape)} {' '.join(map(str, value.placements))}"
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)} of one process"
    return "[" + ", ".join(map(text_of, value)) + "]"


def texts_of(args):
    return ", ".join(text_of(x) for x in args if any(
        isinstance(t, torch.Tensor) for t in tree_leaves(x)))


# ---- the table ----

# Operators that take parts of different sizes, beside pointwise ones.
PARTWISE = {
    packet.name() for name in (
        "mm", "addmm", "bmm", "t", "transpose", "permute", "detach", "alias", "clone", "embedding",
        "embedding_dense_backward", "_to_copy", "sum", "copy_", "fill_", "zero_", "split",
        "full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty",
        "new_full", "new_empty_strided")
    for packet in (getattr(getattr(aten, name), overload) for overload in getattr(aten, name).overloads())}
READS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default,
         aten.item.default, aten.nonzero.default, aten._unique2.default}

FILLS = {aten.fill_.Scalar, aten.fill_.Tensor}


def uneven(func, operands):
    """Axes along which parts differ in size; the last processes may have none."""
    axes = {axis for x in operands for axis in every_axis(x) if is_uneven(x, axis)}
    alone = len(axes) < 2 and (torch.Tag.pointwise in func.tags or func.name() in PARTWISE)
    return () if alone else axes


def reduces(func):
    return any(a.name == "reduction" for a in func._schema.arguments)


def uneven_mean(func, operands):
    """A loss of operands that DTensor brings into one layout itself (partial sums, unlike layouts): it
    takes its mean as that of equal parts, which it makes of different sizes."""
    operands = [x for x in operands if x.dim()]
    if not operands or not reduces(func) or all(n % x.device_mesh.size() == 0 for x in operands for n in x.shape):
        return ()
    return {axis for x in operands for axis in every_axis(x) if x.placements[axis].is_partial()
            or x.placements[axis] != operands[0].placements[axis]}


def filled(func, operands):
    """A number in place of partial sums: DTensor writes it into every part."""
    if func not in FILLS:
        return ()
    return {axis for axis in every_axis(operands[0]) if operands[0].placements[axis].is_partial()}


def read(func, operands):
    """A value that Python reads is the whole tensor's."""
    if func not in READS:
        return ()
    return {axis for x in operands for axis in every_axis(x) if not x.placements[axis].is_replicate()}


def interleaved(made):
    """Mesh axes to gather: a view has made one dimension whose parts are interleaved along several
    axes, and DTensor redistributes such parts wrongly (without an error)."""
    for x in tree_leaves(made):
        found = {}
        for a, p in enumerate(x.placements if isinstance(x, DTensor) else ()):
            if hasattr(p, "split_factor"):
                found.setdefault(p.dim, []).append(a)
        if any(len(axes) > 1 for axes in found.values()):
            return [a for axes in found.values() for a in axes[1:]]
    return ()


@dataclasses.dataclass
class Lack:
    """A row: what DTensor does, in which versions of PyTorch it was seen; finds(operator, operands):
    the mesh axes along which the operands are gathered first."""

    text: str
    versions: str
    finds: callable


LACKS = [
    Lack("parts of different sizes", "2.15", uneven),
    Lack("a loss's mean of parts of different sizes", "2.15", uneven_mean),
    Lack("a number is written into partial sums", "2.15", filled),
    Lack("the value is read", "2.15", read),
]
INTERLEAVED = "DTensor redistributes parts of merged dimensions wrongly"
# What DTensor's own refusals say, by versions of PyTorch: text for people, and a pattern.
REFUSALS = [
    ("DTensor has no rule for the operator", "2.5 to 2.15", r"sharding strategy registered"),
    ("DTensor changes no layout in place", "2.5 to 2.15",
     r"in-?place operations that require placement changes|out variant .*placement"),
    ("DTensor has no such stride", "2.15", r"as_strided not supported"),
]
# Gradients of means, which DTensor divides by the elements of the local part; seen in 2.15. (Means
# that PyTorch makes of other operators, as those of l1_loss or kl_div are, it computes rightly.)
MEANS = {aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default,
         aten.huber_loss_backward.default, aten.soft_margin_loss_backward.default,
         aten.binary_cross_entropy_backward.default}
RANDOM = {aten.bernoulli_.float, aten.uniform_.default, aten.normal_.default,
          aten.exponential_.default, aten.rand_like.default, aten.randn_like.default,
          aten.bernoulli.default, aten.bernoulli.p, aten.native_dropout.default}


def refusal(error):
    """What DTensor refuses, in words."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return next((text for text, _, pattern in REFUSALS if re.search(pattern, str(error))),
                f"DTensor fails ({said[:120]})")


# ---- where ----


class Places:
    """Which module runs: forward by hooks, backward by autograd's numbers of its nodes."""

    def __init__(self):
        self.names, self.numbers, self.at = [], [], []

    def note(self):
        number = torch.autograd._get_sequence_nr()
        if self.numbers and self.numbers[-1] == number:
            self.at[-1] = self.name()
        else:
            self.numbers.append(number)
            self.at.append(self.name())

    def name(self):
        return self.names[-1] if self.names else ""

    def watch(self, model, prefix=""):
        def enter(name):
            def hook(*_):
                self.names.append(name)
                self.note()
            return hook

        def leave(*_):
            self.names.pop()
            self.note()

        for name, module in model.named_modules(prefix=prefix):
            module.register_forward_pre_hook(enter(name), prepend=True)
            module.register_forward_hook(leave, always_call=True)

    def start(self):
        self.names, self.numbers, self.at = [], [], []

    def here(self):
        """The module that runs now, in words."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self.names[-1] if self.name() else "the outermost module"
        k = bisect.bisect_right(self.numbers, node._sequence_nr()) - 1
        return f"backward of {self.at[k] if k >= 0 and self.at[k] else 'the outermost module'}"


# ---- running ----


class Gathers(TorchDispatchMode):
    """Runs what DTensor refuses on gathered operands. say(text): of each such place."""

    def __init__(self, places, say):
        super().__init__()
        self.places, self.say = places, say

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not any(issubclass(t, DTensor) for t in types):
            return func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags and getattr(aten, func._opname[:-1], None) and func._opname != "detach_":
            return turned(self, func, args, kwargs)
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, DTensor)]
        if func in RANDOM and operands[0].device.type == "cpu":
            return drawn(func, args, kwargs)
        for lack in LACKS:
            axes = lack.finds(func, operands)
            if axes:
                return self.gather(func, args, kwargs, lack.text, axes)
        try:
            made = computed(func, args, kwargs)
        except OUT_OF_MEMORY:  # of one process alone: the others would wait for its part of a gather
            raise
        except Exception as e:  # DTensor's refusals have no type of their own
            return self.gather(func, args, kwargs, refusal(e), ())
        axes = interleaved(made)
        if axes:
            return self.gather(func, args, kwargs, INTERLEAVED, axes)
        return followed(func, args, kwargs, made)

    def whole(self, func, args, kwargs, mesh):
        try:
            return on_whole(func, args, kwargs, mesh)
        except OUT_OF_MEMORY:
            raise
        except Exception as e:
            given = texts_of([*args, *kwargs.values()])
            raise RuntimeError(f"{self.places.here()}: {func} of {given}: {e}") from e

    def gather(self, func, args, kwargs, text, axes):
        """The operator on operands that are whole along `axes` and the fewest others."""
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, DTensor)]
        mesh = operands[0].device_mesh
        split = [a for a in range(mesh.ndim) if any(not x.placements[a].is_replicate() for x in operands)]
        before = f"{func} of {texts_of([*args, *kwargs.values()])}"
        others = [a for a in reversed(split) if a not in axes]
        for n in range(0 if axes else 1, len(others) + 1):
            for more in itertools.combinations(others, n):
                chosen = {*axes, *more}
                try:
                    result = on_gathered(func, args, kwargs, chosen)
                except OUT_OF_MEMORY:
                    raise
                except Exception:  # as above
                    continue
                self.tell(text, before, operands, chosen, "gathered along " + " and ".join(
                    mesh.mesh_dim_names[a] for a in sorted(chosen)))
                return result
        result = self.whole(func, args, kwargs, mesh)
        self.tell(text, before, operands, set(split), "computed whole by every process")
        return result

    def tell(self, text, before, operands, axes, done):
        moved = sum(x.numel() * x.element_size() for x in operands
                    if any(not x.placements[a].is_replicate() for a in axes))
        self.say(f"{self.places.here()}: {text}, {before}: {done}, {moved} bytes")


def computed(func, args, kwargs):
    """What DTensor makes of the operator; gradients of means are divided by the whole's elements."""
    made = func(*args, **kwargs)
    if func in MEANS and reduction(func, args, kwargs) == 1:  # the mean
        made._local_tensor.mul_(made._local_tensor.numel() / max(made.numel(), 1))
    return made


def reduction(func, args, kwargs):
    """The operator's argument of this name, or its default, which operators are called without."""
    for k, a in enumerate(func._schema.arguments):
        if a.name == "reduction":
            return args[k] if k < len(args) else kwargs.get(a.name, a.default_value)
    raise TypeError(f"{func} has no reduction")


def written(func, args, kwargs):
    """Operands that the operator changes in place."""
    named = {a.name: v for a, v in zip(func._schema.arguments, args)} | kwargs
    return [x for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
            for x in tree_leaves(named.get(a.name)) if isinstance(x, torch.Tensor)]


def turned(mode, func, args, kwargs):
    """transpose_ and its like, for which DTensor has no rule: the operand becomes the view."""
    with mode:
        made, x = getattr(aten, func._opname[:-1])(*args, **kwargs), args[0]
    x._local_tensor, x._spec = made._local_tensor, made._spec
    return return_and_correct_aliasing(func, args, kwargs, x)  # sizes and strides of the whole


def put_back(made, changed):
    """In the place of copies that an operator changed, and returns, the operands themselves."""
    own = {id(copy): x for x, copy in changed}
    for x, copy in changed:
        assign(x, copy)
        write_through(x)
    return tree_map(lambda y: own.get(id(y), y), made)


def on_gathered(func, args, kwargs, axes):
    with torch.no_grad():
        changes = {id(x) for x in written(func, args, kwargs)}
        changed = []

        def operand(x):
            if not isinstance(x, DTensor):
                return x
            y = gathered(x, axes)
            if id(x) in changes:
                y = y.clone() if y is x else y
                changed.append((x, y))
            return y

        given = tree_map(operand, (args, kwargs))
        made = computed(func, *given)
        return put_back(made, changed) if changed else viewed(func, args, kwargs, made)


def on_whole(func, args, kwargs, mesh):
    """The operator on whole local tensors, by every process."""
    with torch.no_grad():
        changes = {id(x) for x in written(func, args, kwargs)}
        changed = []
        at = [Replicate()] * mesh.ndim

        def of_local(y):
            return DTensor.from_local(y, mesh, at, run_check=False) if isinstance(y, torch.Tensor) else y

        def operand(x):
            if not isinstance(x, DTensor):
                return x
            y = gathered(x, every_axis(x)).to_local()
            y = y.contiguous() if func is aten.view.default else y
            if id(x) in changes:
                y = y.clone()
                changed.append((x, y))
            return y

        given = tree_map(operand, (args, kwargs))
        made = func(*given[0], **given[1])
        if not changed:
            return viewed(func, args, kwargs, tree_map(of_local, made))
        own = {id(copy): x for x, copy in changed}
        made = tree_map(lambda y: own.get(id(y), y), made)
        for x, copy in changed:
            assign(x, of_local(copy))
            write_through(x)
        return tree_map(lambda y: y if isinstance(y, DTensor) else of_local(y), made)


# ---- views of what was gathered ----


def is_view(func):
    return func._schema._is_view_op()


def viewed(func, args, kwargs, made):
    """A view of a gathered copy: what is written into it is written through to its base."""
    if is_view(func):
        for k, y in enumerate(tree_leaves(made)):
            if isinstance(y, DTensor):
                y._autopar_view = args[0], lambda x, k=k: tree_leaves(
                    func(x, *args[1:], **kwargs))[k]
    return made


def is_copy(x, y):
    """Whether a view has other memory than its base: DTensor has redistributed the base first."""
    return (isinstance(y, DTensor) and y._local_tensor.untyped_storage().data_ptr()
            != x._local_tensor.untyped_storage().data_ptr())


def followed(func, args, kwargs, made):
    """What DTensor has made: views of copies, views of such views, and what is written in place."""
    if is_view(func):
        if any(is_copy(args[0], y) for y in tree_leaves(made)):
            return viewed(func, args, kwargs, made)
        for y in tree_leaves(made) if hasattr(args[0], "_autopar_view") else ():
            y._autopar_view = args[0], None
    elif func._schema.is_mutable:
        for x in written(func, args, kwargs):
            write_through(x)
    return made


def write_through(x):
    """x has changed, and if it is a view of a copy, its base changes, too."""
    if not hasattr(x, "_autopar_view"):
        return
    base, view = x._autopar_view
    if view is not None:
        with torch.no_grad():
            whole = gathered(base, every_axis(base)).to_local().clone()
            view(whole).copy_(gathered(x, every_axis(x)).to_local())
            at = [Replicate()] * base.device_mesh.ndim
            assign(base, DTensor.from_local(whole, base.device_mesh, at, run_check=False))
    write_through(base)


# ---- random numbers ----


def drawn(func, args, kwargs):
    """On CPUs DTensor draws by process: every process draws the whole tensor's, as one would."""
    x = args[0]
    mesh = x.device_mesh
    with torch.no_grad():
        like = torch.empty(x.shape, dtype=x.dtype)
        if func in (aten.bernoulli.default, aten.bernoulli.p, aten.native_dropout.default):
            like = gathered(x, every_axis(x)).to_local()
        made = func(like, *args[1:], **kwargs)
        at = [Replicate() if isinstance(p, Partial) else p for p in x.placements]

        def split(y):
            return distribute_tensor(y, mesh, at, src_data_rank=None)

        if made is like:
            assign(x, DTensor.from_local(made, mesh, [Replicate()] * mesh.ndim, run_check=False))
            return x
        return tree_map(split, made)
