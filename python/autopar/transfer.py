# SPDX-License-Identifier: Apache-2.0
"""Values on their way from one stage's mesh to another's.

A message is the whole value, or the share of one microbatch.  Both sides hold the elements in
an order of their own (arrays.Placement); where the orders are the same the array goes as it is,
else by way of the natural order.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .arrays import Placement
from .layouts import Layout, parse_shape


def share_spec(placement):
    """The spec of one microbatch's share, or of a value that has none."""
    if placement.time_dim is None:
        return placement.spec
    return PartitionSpec(*placement.spec[1:])


def share_order(placement, microbatch):
    """Per dimension: the global index of every element of the array that a message is; -1 is
    padding."""
    layout = placement.layout
    return [
        np.arange(n) if (o := layout.order(d, microbatch)) is None else o
        for d, n in enumerate(layout.dims)
    ]


def taken(array, orders):
    """Elements by position along every dimension; -1: zero."""
    for d, order in enumerate(orders):
        if len(order) != array.shape[d] or not np.array_equal(order, np.arange(len(order))):
            array = jnp.take(array, order, axis=d, mode="fill", fill_value=0)
    return array


class Transfer:
    """One transfer of the section `pipeline`: a result of a stage as a parameter of another."""

    def __init__(self, section, stages):
        self.source, self.target = stages[section["from"]], stages[section["to"]]
        self.param, self.n_messages = section["param"], section["messages"]
        self.node = self.source.graph.results[section["result"]]["node"]
        dtype, dims = parse_shape(section["shape"])
        layout = Layout(self.source.mesh, dims, section["layout"].split(","))
        self.side = Placement(self.source.device_mesh, layout, dtype)
        self.other = self.target.placement[self.param]
        self.shares = self.side.time_dim is not None
        self.takes_shares = self.other.time_dim is not None
        self.sharding = NamedSharding(self.target.device_mesh, share_spec(self.other))
        self.everywhere = NamedSharding(self.target.device_mesh, PartitionSpec())
        self.waiting = {}
        self.jits = {}
        same = self.shares == self.takes_shares
        self.direct = same and all(
            np.array_equal(a, b)
            for m in range(self.n_messages)
            for a, b in zip(share_order(self.side, m), share_order(self.other, m))
        )

    def jit(self, name, make, **options):
        if name not in self.jits:
            self.jits[name] = jax.jit(make, **options)
        return self.jits[name]

    def send(self, value, message):
        """The message: as it is, or in natural order on all devices of the sender."""
        if self.direct:
            return value
        m = message if self.shares else 0
        order = share_order(self.side, m)
        places = []
        for o in order:
            index = np.sort(o[o >= 0])
            at = np.full(index[-1] + 1 if len(index) else 0, -1)
            at[o[o >= 0]] = np.flatnonzero(o >= 0)
            places.append(at[index])
        everywhere = NamedSharding(self.source.device_mesh, PartitionSpec())
        function = self.jit(
            ("send", m), lambda x: taken(x, places), out_shardings=everywhere
        )
        return function(value)

    def receive(self, message, number):
        """The parameter's value, or None where it is not whole yet."""
        if self.direct:
            return jax.device_put(message, self.sharding)
        message = jax.device_put(message, self.everywhere)
        if self.shares and not self.takes_shares:
            self.waiting[number] = message
            if len(self.waiting) < self.n_messages:
                return None
            parts = [self.waiting.pop(m) for m in range(self.n_messages)]
            return self.jit("join", self.join, out_shardings=self.sharding)(parts)
        order = share_order(self.other, number if self.takes_shares else 0)
        if self.shares:  # places within the share
            order = [within(o) for o in order]
        function = self.jit(
            ("receive", number), lambda x: taken(x, order), out_shardings=self.sharding
        )
        return function(message)

    def join(self, parts):
        """Shares of all microbatches as one value in the receiver's order."""
        whole = jnp.zeros(self.side.dims, self.side.dtype)
        for m, part in enumerate(parts):
            index = [np.sort(o[o >= 0]) for o in share_order(self.side, m)]
            whole = whole.at[np.ix_(*index)].set(part)
        return taken(whole, share_order(self.other, 0))


def within(order):
    """Global indices as positions in their sorted list; -1 stays."""
    index = np.sort(order[order >= 0])
    return np.where(order >= 0, np.searchsorted(index, order), -1)
