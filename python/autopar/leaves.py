# SPDX-License-Identifier: Apache-2.0
"""Leaves of a step's arguments and results: their shapes as HLO spells them, keys, what is no array."""

import jax

from .arrays import is_key, is_placed

ELEMENT_TYPES = {
    "bool": "pred", "bfloat16": "bf16",
    "int4": "s4", "int8": "s8", "int16": "s16", "int32": "s32", "int64": "s64",
    "uint4": "u4", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "f16", "float32": "f32", "float64": "f64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def key_name(leaf):
    """The name of the generator that a typed random key is for: "threefry2x32"."""
    impl = getattr(leaf.dtype, "_impl", None)
    return getattr(impl, "name", None) or str(leaf.dtype)


def data_of(leaf):
    """Shape and dtype of the array that a leaf is for XLA."""
    if is_key(leaf):
        leaf = jax.eval_shape(
            jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        )
    return leaf.shape, leaf.dtype


def shape_text(leaf):
    """ "f32[8,4]", as HLO spells it."""
    shape, dtype = data_of(leaf)
    name = str(dtype)
    if name.startswith("float8_") or name.startswith("float4_"):
        name = name.replace("float", "f", 1).replace("_", "", 1)
    return f"{ELEMENT_TYPES.get(name, name)}[{','.join(map(str, shape))}]"


class Split:
    """A tree of which the arrays are apart from the rest: functions, words and None.

    filtered: as equinox.filter_jit sees it: Python's numbers belong to the rest, too.
    """

    def __init__(self, tree, filtered=False):
        leaves, self.structure = jax.tree.flatten(tree, is_leaf=is_placed)
        is_array = lambda x: (hasattr(x, "shape") and hasattr(x, "dtype")) or (
            not filtered and isinstance(x, (bool, int, float, complex))
        )
        self.n = len(leaves)
        self.arrays = [leaf for leaf in leaves if is_array(leaf)]
        self.rest = {i: leaf for i, leaf in enumerate(leaves) if not is_array(leaf)}

    def joined(self, arrays):
        """The tree with these arrays."""
        given = iter(arrays)
        return self.structure.unflatten(
            self.rest[i] if i in self.rest else next(given) for i in range(self.n)
        )

    def without_rest(self, arrays=None):
        """The tree with None for what is no array, so that all paths stay."""
        given = iter(self.arrays if arrays is None else arrays)
        return self.structure.unflatten(
            None if i in self.rest else next(given) for i in range(self.n)
        )

    def key(self):
        """Equal for trees that differ in their arrays alone."""
        return self.structure, tuple((i, same(value)) for i, value in self.rest.items())


def same(value):
    """The value, or where it cannot be hashed, its place in memory."""
    try:
        hash(value)
        return value
    except TypeError:
        return id(value)
