# SPDX-License-Identifier: Apache-2.0
"""Values of tensors that depend on neither inputs nor weights, while a forward pass is traced.

A traced tensor has no values. Modules read some nevertheless: `if mask.all()`, `x[~torch.eye(n).bool()]`.
Where such a tensor is made of constants and buffers alone, Known computes it beside the traced one, and
what is read, or has a size that depends on values, is taken from there. Buffers whose values were read
must not change from step to step: Known.read names them. All other reads are PyTorch's to refuse.
"""
import contextlib

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

LARGEST = 1 << 16  # elements of a tensor whose values are computed; chosen: at most 1 MB of 16-byte numbers
VALUE_ERRORS = DataDependentOutputException, DynamicOutputShapeException


def is_real(x):
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and not isinstance(x, FakeTensor)
    return plain and not torch._is_functional_tensor(x) and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def is_in_place(func, kwargs):
    name = getattr(func, "__name__", "")
    plain = name.endswith("_") and not name.endswith("__")
    return plain or "out" in kwargs or name == "__setitem__" or name.startswith("__i") and name not in (
        "__int__", "__index__", "__invert__")


def tolist(self):
    """For FunctionalTensor.tolist, which reads values unseen."""
    return [tolist(x) for x in self] if self.dim() else self.item()


class Value:
    """What a traced tensor is, and the buffers that it is made of."""

    def __init__(self, real, buffers=frozenset()):
        self.real, self.buffers = real, buffers


class Known(TorchFunctionMode):
    """Around one forward pass. buffers: traced tensor and its real one, by name."""

    def __init__(self, buffers=()):
        super().__init__()
        self.read, self.stale, self.own = set(), set(), {}
        for name, traced, real in buffers:
            if is_real(real) and real.numel() <= LARGEST:
                with _disable_current_modes(), torch.no_grad():
                    traced._autopar_value = Value(real.detach().clone(), frozenset([name]))

    def value(self, x):
        """The Value of a tensor, or None."""
        found = getattr(x, "_autopar_value", None)
        if found is None and is_real(x) and not x.requires_grad and x.numel() <= LARGEST:
            if id(x) not in self.own:
                with _disable_current_modes():
                    self.own[id(x)] = x, Value(x.detach().clone())
            found = self.own[id(x)][1]
        return None if found is None or self.memory(found) in self.stale else found

    @staticmethod
    def memory(value):
        return value.real.untyped_storage()._cdata

    def forget(self, args, kwargs):
        """An operator writes what is not known into its first operand."""
        for x in tree_leaves((args[:1], kwargs.get("out"))):
            found = self.value(x) if isinstance(x, torch.Tensor) else None
            if found is not None:
                self.stale.add(self.memory(found))

    def real(self, func, args, kwargs):
        """The operator on real tensors; None where it draws random numbers."""
        as_real = lambda x: self.value(x).real if isinstance(x, torch.Tensor) else x
        with _disable_current_modes(), torch.no_grad():
            before = torch.get_rng_state()
            made = func(*tree_map(as_real, args), **tree_map(as_real, kwargs))
            if not torch.equal(torch.get_rng_state(), before):
                torch.set_rng_state(before)
                return None
        return made

    def masks_as_indices(self, args):
        """For x[...]: known masks as the indices of what they select."""
        def of(item):
            if isinstance(item, torch.Tensor) and item.dtype == torch.bool and item.dim():
                found = self.value(item)
                if found is not None:
                    self.read |= found.buffers
                    with _disable_current_modes():
                        return list(found.real.nonzero(as_tuple=True))
            return [item]

        places = args[1] if isinstance(args[1], tuple) else (args[1],)
        places = tuple(part for item in places for part in of(item))
        return (args[0], places if len(places) > 1 else places[0], *args[2:])

    @staticmethod
    def repeated(times, x, dim=None, output_size=None):
        """repeat_interleave, for known numbers of times."""
        x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
        with _disable_current_modes():
            at = torch.arange(x.shape[dim]).repeat_interleave(times)
        return x.index_select(dim, at)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__"):
            args = self.masks_as_indices(args)
        elif name == "masked_select" and len(args) == 2 and self.value(args[1]) is not None:
            x, mask = torch.broadcast_tensors(*args) if args[0].shape != args[1].shape else args
            return self.__torch_function__(torch.Tensor.__getitem__, types, (x, mask))
        elif name == "repeat_interleave" and len(args) > 1 and isinstance(args[1], torch.Tensor):
            found = self.value(args[1])
            if found is not None:
                self.read |= found.buffers
                return self.repeated(found.real, args[0], *args[2:], **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        values = [self.value(x) for x in tensors]
        known = all(v is not None for v in values)
        buffers = frozenset().union(*(v.buffers for v in values)) if known else None
        try:
            made = func(*args, **kwargs)
        except VALUE_ERRORS:
            result = self.real(func, args, kwargs) if known else None
            if result is None:
                raise
            self.read |= buffers
            return result
        if not known:
            if is_in_place(func, kwargs):
                self.forget(args, kwargs)
            return made
        self.note(func, args, kwargs, made, buffers)
        return made

    def note(self, func, args, kwargs, made, buffers):
        """Notes the values of what an operator has made of known tensors."""
        out = tree_leaves(made)
        new = [x for x in out if isinstance(x, torch.Tensor)]
        if not new or any(x.numel() > LARGEST or x.requires_grad for x in new):
            if is_in_place(func, kwargs):
                self.forget(args, kwargs)
            return
        try:
            real = self.real(func, args, kwargs)
        except Exception:  # an operator that traced tensors alone have
            real = None
        if real is None:
            if is_in_place(func, kwargs):
                self.forget(args, kwargs)
            return
        for x, y in zip(out, tree_leaves(real)):
            if isinstance(x, torch.Tensor) and not is_real(x) and x.shape == y.shape and x.dtype == y.dtype:
                x._autopar_value = Value(y, buffers)


# ---- functions of PyTorch in whose place others are ----


@contextlib.contextmanager
def patched(owner, **values):
    old = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def dense_gradients():
    """Of embeddings with sparse=True, too."""
    embedding, bag = torch.embedding, torch.embedding_bag
    with patched(torch, embedding=lambda w, x, padding=-1, scale=False, sparse=False: embedding(w, x, padding, scale),
                 embedding_bag=lambda w, x, offsets, scale=False, mode=0, sparse=False, *rest: bag(
                     w, x, offsets, scale, mode, False, *rest)):
        yield
