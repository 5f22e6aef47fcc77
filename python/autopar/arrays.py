# SPDX-License-Identifier: Apache-2.0
"""The user's arrays as the plan holds them.

A Placement is one array on one mesh.  Where the plan's layout is a plain split, that is the
user's array with a NamedSharding; a split with a stride, or one that does not divide, holds the
devices' blocks one after the other, padded with zeros.  A Form is all that the plan holds of one
of the user's arrays: a stacked weight is an array per layer, a weight that several stages of a
pipeline use is an array for each.  What is not one plain array is wrapped as Placed.
"""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .errors import PlanError
from .layouts import shape_text


def is_key(leaf):
    """Typed random keys are held as their u32 data."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def shared(array):
    """Whether this process has the whole array at hand."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable


class Placement:
    """Where the elements of an array lie on a mesh of JAX's devices.

    layout: of the array on the plan's mesh (layouts.Layout).  A share of a microbatch at a time
    is held with all microbatches, as the first dimension.
    """

    def __init__(self, device_mesh, layout, dtype):
        self.layout, self.dtype = layout, np.dtype(dtype)
        self.dims = layout.dims
        mesh = layout.mesh
        self.time_dim = None
        if layout.per_microbatch():
            (self.time_dim,) = [d for d, axes in layout.axes.items() if 0 in axes]
        self.order = [self.whole_order(d) for d in range(len(self.dims))]
        held, spec = list(self.dims), []
        for d in range(len(held)):
            axes = [a for a in layout.axes.get(d, []) if not mesh.is_time(a)]
            spec.append(tuple(mesh.names[a] for a in axes) or None)
            if self.order[d] is not None:
                held[d] = len(self.order[d])
        if self.time_dim is not None:
            held[self.time_dim] //= mesh.microbatches
            held, spec = [mesh.microbatches, *held], [None, *spec]
        self.held, self.spec = tuple(held), PartitionSpec(*spec)
        self.sharding = NamedSharding(device_mesh, self.spec)
        self.plain = self.time_dim is None and all(
            order is None or np.array_equal(order, np.arange(self.dims[d]))
            for d, order in enumerate(self.order)
        )

    def whole_order(self, d):
        if d != self.time_dim:
            return self.layout.order(d)
        shares = range(self.layout.mesh.microbatches)
        return np.concatenate([self.layout.order(d, m) for m in shares])

    def key(self):
        """Equal for placements that hold an array in the same way."""
        return (self.sharding, self.layout.placements, self.dims)

    def has(self, array):
        return (
            isinstance(array, jax.Array)
            and array.shape == self.held
            and array.dtype == self.dtype
            and array.sharding.is_equivalent_to(self.sharding, len(self.held))
        )

    def place(self, value):
        """The held array of a whole one."""
        if self.plain and isinstance(value, jax.Array):
            if not value.is_fully_addressable:
                return jax.jit(lambda x: x, out_shardings=self.sharding)(value)
            if jax.process_count() == 1:  # a copy: to several devices, may_alias=False may alias
                if value.sharding.device_set & self.sharding.device_set:
                    value = value.copy()
                return jax.device_put(value, self.sharding)
        value = np.asarray(value)
        if not self.plain:
            value = self.hold(value)
        return jax.make_array_from_callback(
            self.held, self.sharding, lambda index: np.array(value[index], order="C")
        )

    def hold(self, value):
        """A whole array in the order of the devices' blocks."""
        for d, order in enumerate(self.order):
            if order is None:
                continue
            value = np.take(value, np.maximum(order, 0), axis=d)
            value[(slice(None),) * d + (order < 0,)] = 0
        if self.time_dim is None:
            return value
        d, n = self.time_dim, self.held[0]
        value = value.reshape(*value.shape[:d], n, -1, *value.shape[d + 1 :])
        return np.moveaxis(value, d, 0)

    def whole(self, array):
        """The whole array of a held one: JAX's own where that is plain, else numpy's."""
        if self.plain:
            return array
        if not array.is_fully_addressable and not array.is_fully_replicated:
            everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())
            array = jax.jit(lambda x: x, out_shardings=everywhere)(array)
        return self.unhold(np.asarray(array))

    def unhold(self, value):
        if self.time_dim is not None:
            d = self.time_dim
            value = np.moveaxis(value, 0, d)
            value = value.reshape(*value.shape[:d], -1, *value.shape[d + 2 :])
        for d, order in enumerate(self.order):
            if order is None:
                continue
            at = np.zeros(self.dims[d], np.int64)
            at[order[order >= 0]] = np.flatnonzero(order >= 0)
            value = np.take(value, at, axis=d)
        return value


class Piece:
    """A part of one of the user's arrays: the whole, or an index along some dimensions."""

    def __init__(self, part, dims, placements):
        left, index = list(range(len(dims))), [slice(None)] * len(dims)
        for dim, at in part:
            index[left.pop(dim)] = at
        self.index = tuple(index)
        self.is_whole = not part
        self.placements = placements

    def of(self, value):
        return value if self.is_whole else value[self.index]


class Form:
    """How the plan holds one of the user's arrays: pieces, each on one mesh or more."""

    def __init__(self, row, dtype, dims, pieces):
        self.path, self.key = row["path"], row.get("key")
        self.dtype, self.dims, self.pieces = np.dtype(dtype), tuple(dims), pieces
        self.placements = [p for piece in pieces for p in piece.placements]
        self.plain = len(self.placements) == 1 and pieces[0].is_whole and self.placements[0].plain

    def layouts(self):
        return [p.key() for p in self.placements]

    def text(self):
        return shape_text(self.dtype, self.dims)

    def holds(self, leaf):
        """Whether a leaf is held in this form already."""
        if not self.placements:
            return True
        if isinstance(leaf, Placed):
            return leaf.form is self or (
                leaf.form.layouts() == self.layouts() and leaf.form.dims == self.dims
            )
        return self.plain and self.placements[0].has(leaf)

    def arrays(self, leaf):
        """The held arrays of a leaf: the user's own array or a held one."""
        if not self.placements:
            return []
        if self.holds(leaf):
            return list(leaf.arrays) if isinstance(leaf, Placed) else [leaf]
        if isinstance(leaf, Placed):
            leaf = leaf.whole()
        value = jax.random.key_data(leaf) if is_key(leaf) else leaf
        if not isinstance(value, jax.Array) or not self.plain:
            value = to_host(value).astype(self.dtype, copy=False)
        if tuple(value.shape) != self.dims or value.dtype != self.dtype:
            raise PlanError(
                f"{self.path} is {shape_text(value.dtype, value.shape)}, "
                f"in the plan {self.text()}"
            )
        return [p.place(piece.of(value)) for piece in self.pieces for p in piece.placements]

    def leaf(self, arrays):
        """What the user holds."""
        if not self.plain:
            return Placed(arrays, self)
        return wrapped(arrays[0], self.key)

    def whole(self, arrays):
        """The user's own array again."""
        if self.plain or not self.placements:
            return arrays[0]
        found, at = np.zeros(self.dims, self.dtype), 0
        for piece in self.pieces:
            value = piece.placements[0].whole(arrays[at])
            at += len(piece.placements)
            if piece.is_whole:
                return wrapped(np.asarray(value), self.key)
            found[piece.index] = to_host(value)
        return wrapped(found, self.key)


def wrapped(array, key):
    return array if key is None else jax.random.wrap_key_data(array, impl=key)


def to_host(value):
    """A numpy array, of an array that other processes hold parts of, too."""
    if shared(value) or value.is_fully_replicated:
        return np.asarray(value)
    mesh = value.sharding.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(value))


@jax.tree_util.register_pytree_node_class
class Placed:
    """One of the user's arrays that the plan holds as several, or in another order.

    Its shape and dtype are the user's, and numpy.asarray gives the user's array.  As a pytree
    it has the held arrays as leaves.
    """

    def __init__(self, arrays, form):
        self.arrays, self.form = tuple(arrays), form

    @property
    def shape(self):
        return self.form.dims

    @property
    def ndim(self):
        return len(self.form.dims)

    @property
    def dtype(self):
        return self.form.dtype

    def whole(self):
        return self.form.whole(self.arrays)

    def __array__(self, dtype=None, copy=None):
        found = np.asarray(self.whole())
        return found if dtype is None else found.astype(dtype)

    def __repr__(self):
        return f"Placed({self.form.path}: {self.form.text()} in {len(self.arrays)} arrays)"

    def tree_flatten(self):
        return self.arrays, self.form

    @classmethod
    def tree_unflatten(cls, form, arrays):
        return cls(arrays, form)


def is_placed(leaf):
    return isinstance(leaf, Placed)
