# SPDX-License-Identifier: Apache-2.0
"""Meshes and layouts: which elements of an array a device of the mesh holds.

A dimension of size L under a layout is a nest of factors, major to minor; each factor is split
by some mesh axes, the first axis outermost, in blocks of ceil(size / axis).  Blocks at the end
may lie in the padding.  The functions here follow libcommon/layout (layout.c, nested_split.c).
The first axis of a mesh may be the microbatch axis: time, not devices.
"""

import math
import re

import jax.numpy as jnp
import numpy as np

from .errors import PlanError

DTYPES = {
    "pred": "bool",
    **{f"s{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def parse_shape(text):
    """(dtype, dims) of "f32[8,4]"; a list of those for a tuple."""
    arrays = [
        (jnp.dtype(DTYPES[dtype]), tuple(int(d) for d in dims.split(",") if d))
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", text)
    ]
    return arrays if text.startswith("(") else arrays[0]


def shape_text(dtype, dims):
    """ "f32[8,4]" """
    return f"{NAMES.get(str(jnp.dtype(dtype)), dtype)}[{','.join(map(str, dims))}]"


class Mesh:
    """The plan's mesh: names and sizes of its axes; axis 0 may be the microbatch axis."""

    def __init__(self, section):
        self.names = tuple(section["axes"])
        self.sizes = tuple(section["shape"])
        self.timed = section.get("time") is not None
        first = 1 if self.timed else 0
        self.device_axes = tuple(range(first, len(self.sizes)))
        self.microbatches = self.sizes[0] if self.timed else 1
        self.n_devices = math.prod(self.sizes[a] for a in self.device_axes)

    def is_time(self, axis):
        return self.timed and axis == 0


def blocks(size, axes, mesh):
    """Extents before and after each axis has split a factor."""
    found = [size]
    for axis in axes:
        found.append(-(-found[-1] // mesh.sizes[axis]))
    return found


class Layout:
    """Placements of an array of `dims`, one per mesh axis: "R", "S0", "S1/64", "P"."""

    def __init__(self, mesh, dims, placements):
        self.mesh, self.dims = mesh, tuple(dims)
        self.placements = list(placements) + ["R"] * (len(mesh.sizes) - len(placements))
        splits = {}
        for axis, text in enumerate(self.placements):
            match = re.fullmatch(r"S(\d+)(?:/(\d+))?", text)
            if match:
                d = int(match[1])
                splits.setdefault(d, []).append((int(match[2] or 0) or self.dims[d], axis))
        self.axes = {d: [axis for _, axis in found] for d, found in splits.items()}
        self.factors = {d: self.nest(d, found) for d, found in splits.items()}

    def nest(self, d, splits):
        """[(size, axes)] of a split dimension, major to minor."""
        size = self.dims[d]
        strides = sorted({stride for stride, _ in splits} | {size}, reverse=True)
        found = []
        for i, stride in enumerate(strides):
            minor = strides[i + 1] if i + 1 < len(strides) else 1
            if minor == 0 or stride % minor:
                raise PlanError(f"layout {self.placements} does not fit {self.dims}")
            found.append((stride // minor, [a for s, a in splits if s == stride]))
        return found

    def is_partial(self):
        return any(p.startswith("P") for p in self.placements)

    def per_microbatch(self):
        """Whether a device holds one microbatch's share at a time."""
        return self.mesh.timed and self.placements[0].startswith("S")

    def local(self, d):
        """A device's extent of dimension d."""
        if d not in self.factors:
            return self.dims[d]
        return math.prod(blocks(n, axes, self.mesh)[-1] for n, axes in self.factors[d])

    def local_dims(self):
        return tuple(self.local(d) for d in range(len(self.dims)))

    def own_index(self, d, coords, xp=jnp):
        """Place in the whole array of each element of a device's dimension d; -1: padding.

        coords: the device's coordinates by axis, numbers or traced.  None: not split.
        """
        if d not in self.factors:
            return None
        found = xp.zeros(1, "int32")
        for size, axes in self.factors[d]:
            extent = blocks(size, axes, self.mesh)
            at, inside = xp.arange(extent[-1], dtype="int32"), True
            for k in range(len(axes), 0, -1):
                at = at + xp.asarray(coords[axes[k - 1]], "int32") * extent[k]
                inside = inside & (at < extent[k - 1])
            up = found[:, None]
            both = xp.where((up >= 0) & inside & (at >= 0), up * size + at[None, :], -1)
            found = both.reshape(-1)
        return found.astype("int32")

    def local_index(self, d, index, coords):
        """Where a device holds element `index` of dimension d; -1: another device does."""
        here, place = True, 0
        minor = self.dims[d]
        for size, axes in self.factors[d]:
            minor //= size
            digit = index // minor % size
            extent = blocks(size, axes, self.mesh)
            for k, axis in enumerate(axes):
                here = here & (digit // extent[k + 1] == coords[axis])
                digit = digit % extent[k + 1]
            place = place * extent[-1] + digit
        return jnp.where(here, place, -1)

    def order(self, d, microbatch=0):
        """Place in the whole array of each element of dimension d of the devices' blocks
        one after the other, axis by axis; -1: padding.  None: not split over devices."""
        axes = [a for a in self.axes.get(d, []) if not self.mesh.is_time(a)]
        if d not in self.factors:
            return None
        found, coords = [], [microbatch] + [0] * len(self.mesh.sizes)
        for place in np.ndindex(*(self.mesh.sizes[a] for a in axes)):
            for axis, at in zip(axes, place):
                coords[axis] = at
            if self.mesh.timed:
                coords[0] = microbatch
            found.append(self.own_index(d, coords, np))
        return np.concatenate(found)
