# SPDX-License-Identifier: Apache-2.0
"""Plans of one program, which all devices run: one jit of one shard_map."""

import os
import re

import jax
from jax.sharding import PartitionSpec

from .evaluate import Graph, evaluate
from .layouts import Mesh
from .loader import Plan, device_mesh, placement_of

def compiler_options(devices):
    """Options of the compiler for these devices.

    XLA's compiler for CPUs drops optimization barriers before it merges equal instructions,
    and so would undo what the plan repeats on purpose: the pass that does it stays off, with
    those that XLA_FLAGS turns off.
    """
    if devices.flat[0].platform != "cpu":
        return {}
    found = re.findall(r"--xla_disable_hlo_passes=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return {"xla_disable_hlo_passes": ",".join([*found[-1:], "cse_barrier_expander"])}


class ProgramPlan(Plan):
    """A sharding plan: section `program`."""

    def __init__(self, path, document, devices):
        super().__init__(path, document, devices)
        self.program = document["program"]
        self.mesh = Mesh(self.program["mesh"])
        self.device_mesh = device_mesh(self.mesh, self.take_devices(self.mesh.n_devices))
        (module,) = self.program["modules"]
        each = self.program.get("each_microbatch", {}).get("groups")
        platform = self.device_mesh.devices.flat[0].platform
        self.local = Graph(module["graph"], self.mesh, platform, each)
        self.placement = {
            number: placement_of(self.local.nodes[i], self.mesh, self.device_mesh)
            for number, i in self.local.params.items()
        }
        self.set_up(lambda number, dtype, dims: [self.placement[number]])

    def result_placement(self, number):
        """Of a result of the graph: its parameter's, or whole on every device."""
        alias = self.alias_of(number)
        if alias is not None:
            return self.placement[alias]
        node = self.local.nodes[self.local.results[number]["node"]]
        whole = {"shape": node["shape"]}
        return placement_of(whole, self.mesh, self.device_mesh)

    def runner(self, donated):
        return ProgramRunner(self, donated)


class ProgramRunner:
    """The compiled program, between held arrays and the user's leaves."""

    def __init__(self, plan, donated):
        self.plan = plan
        self.order = [n for numbers in plan.numbers for n in numbers]
        rows = plan.result_rows()
        results = [number for row in rows for number, _ in row]
        # in the order of the parameters that they become: JAX pairs donations so
        self.results = sorted(
            results, key=lambda r: (plan.alias_of(r) is None, plan.alias_of(r) or 0, r)
        )
        self.forms = [plan.form_of(i, row) for i, row in enumerate(rows)]
        donate = [i for i, n in enumerate(self.order) if donated[plan.argument_of[n]]]
        self.executable = self.compile(donate)

    def compile(self, donate):
        plan, order, results = self.plan, self.order, self.results

        def local(*held):
            found = evaluate(plan.local, dict(zip(order, held)))
            return tuple(found[r] for r in results)

        placed = [plan.placement[n] for n in order]
        whole = [plan.result_placement(r) for r in results]
        function = jax.shard_map(
            local, mesh=plan.device_mesh, in_specs=tuple(p.spec for p in placed),
            out_specs=tuple(p.spec if p else PartitionSpec() for p in whole), check_vma=False,
        )  # fmt: skip
        shapes = [jax.ShapeDtypeStruct(p.held, p.dtype, sharding=p.sharding) for p in placed]
        options = compiler_options(plan.device_mesh.devices)
        with jax.enable_x64(True):
            jitted = jax.jit(function, donate_argnums=tuple(donate), compiler_options=options)
            self.lowered = jitted.lower(*shapes)
            return self.lowered.compile()

    def compiled(self):
        return self.executable

    def __call__(self, held, leaves):
        found = self.executable(*[a for arrays in held for a in arrays])
        by_number = dict(zip(self.results, found))
        rows = self.plan.result_rows()
        return [
            form.leaf([by_number[number] for number, _ in row])
            for form, row in zip(self.forms, rows)
        ]
