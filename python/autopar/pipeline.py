# SPDX-License-Identifier: Apache-2.0
"""Plans with pipeline stages: section `pipeline`.

Every lane of devices has a list of instructions; they are followed here, lane by lane in turn,
and JAX runs what they start beside each other.  An instruction `run` is a jit of one range of
groups of the stage's program on the lane's mesh.  Between ranges, a value is an array
[rank, local dimensions]; a value of one microbatch is kept under the microbatch's number until
its last reader has run, so that slots say nothing here.
"""

import math
import warnings

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from .errors import PlanError
from .evaluate import Graph, Run, start_carried
from .layouts import Mesh
from .loader import Plan, device_mesh, part_of, placement_of
from .spmd import compiler_options
from .transfer import Transfer, share_spec

ONCE = -1  # in the place of a microbatch: a value of the whole step


class Stage:
    """One stage: its program, its devices, and where its parameters lie."""

    def __init__(self, number, section, devices):
        program = section["program"]
        (module,) = program["modules"]
        self.number, self.lane = number, section["lane"]
        self.cuts, self.params = section["cuts"], section["params"]
        self.results = section["results"]
        self.mesh = Mesh(program["mesh"])
        if len(devices) != self.mesh.n_devices:
            raise PlanError(
                f"stage {number} has a mesh of {self.mesh.n_devices} devices and a lane of "
                f"{len(devices)}"
            )
        self.device_mesh = device_mesh(self.mesh, devices)
        platform = self.device_mesh.devices.flat[0].platform
        self.graph = Graph(module["graph"], self.mesh, platform)
        self.placement = [
            placement_of(self.graph.nodes[self.graph.params[k]], self.mesh, self.device_mesh)
            for k in range(len(self.params))
        ]
        axes = tuple(self.device_mesh.axis_names)
        self.local_spec = PartitionSpec(axes)
        self.param_of = {i: k for k, i in self.graph.params.items()}

    def home(self, i, microbatch):
        """The microbatch that a node's value belongs to, or ONCE."""
        if i in self.param_of:
            k = self.param_of[i]
            is_share = self.placement[k].time_dim is not None
            return microbatch if is_share and self.params[k] < 0 else ONCE
        lo, hi = self.cuts[0], self.cuts[2]
        each = lo <= self.graph.nodes[i].get("group", 0) < hi
        return microbatch if each and not self.graph.carried(i) else ONCE

    def result_placement(self, k):
        """Of result k of the program: as the parameter that it becomes, or whole."""
        result = self.graph.results[k]
        if "alias" in result:
            return self.placement[self.param_of[result["alias"]]]
        whole = {"shape": self.graph.nodes[result["node"]]["shape"]}
        return placement_of(whole, self.mesh, self.device_mesh)


class Range:
    """Groups lo to hi - 1 of a stage: what they read, and what others read of them."""

    def __init__(self, stage, lo, hi, exports):
        """exports: node to [(name, placement)] of values that leave the stage."""
        graph = stage.graph
        own = graph.span(lo, hi)
        inside = set(own)
        outside = {
            k for i, n in enumerate(graph.nodes)
            if i not in inside and not graph.free[i] for k in n.get("in", [])
        }  # fmt: skip
        self.carried = [i for i in own if graph.carried(i)]
        self.leaves = [
            i for i in own if i in outside and i not in self.carried and not graph.free[i]
        ]
        self.exports = [
            (name, i, placement) for i in own for name, placement in exports.get(i, [])
        ]
        self.stage, self.groups = stage, (lo, hi)
        self.ids = graph.with_free(own) if any(not graph.free[i] for i in own) else []
        if self.exports and not self.ids:
            self.ids = graph.with_free(own)
        self.reads = graph.reads(self.ids)

    def operand_spec(self, i):
        """(spec, whether all microbatches' shares are in it) of a value that is read."""
        stage = self.stage
        if i not in stage.param_of:
            return stage.local_spec, False
        k = stage.param_of[i]
        placement = stage.placement[k]
        if placement.time_dim is None:
            return placement.spec, False
        return (placement.spec, True) if stage.params[k] >= 0 else (share_spec(placement), False)

    def function(self):
        """(microbatch, carried, read) -> (carried, values for later, values that leave)."""
        stage, graph = self.stage, self.stage.graph
        specs = [self.operand_spec(i) for i in self.reads]

        def local(microbatch, carried, read):
            run = Run(graph, microbatch)
            values = {i: opened(v) for i, v in zip(self.carried, carried)}
            for i, value, (_, stacked) in zip(self.reads, read, specs):
                if stacked:
                    value = lax.dynamic_index_in_dim(value, microbatch, 0, keepdims=False)
                values[i] = value if i in stage.param_of else opened(value)
            run.nodes(self.ids, values)
            return (
                tuple(ranked(values[i]) for i in self.carried),
                tuple(ranked(values[i]) for i in self.leaves),
                tuple(values[i] for _, i, _ in self.exports),
            )

        own = stage.local_spec
        return jax.shard_map(
            local, mesh=stage.device_mesh,
            in_specs=(PartitionSpec(), tuple(own for _ in self.carried), tuple(s for s, _ in specs)),
            out_specs=(
                tuple(own for _ in self.carried), tuple(own for _ in self.leaves),
                tuple(share_spec(p) for _, _, p in self.exports),
            ),
            check_vma=False,
        )  # fmt: skip


def ranked(value):
    """A device's value with a first dimension for the rank."""
    return jax.tree.map(lambda v: lax.expand_dims(v, (0,)), value)


def opened(value):
    return jax.tree.map(lambda v: lax.squeeze(v, (0,)), value)


class Executable:
    """A compiled range, and how often a step runs it."""

    def __init__(self, stage, groups, compiled):
        self.stage, self.groups, self.compiled, self.runs = stage, groups, compiled, 0


class StagedPlan(Plan):
    """A plan of stages."""

    def __init__(self, path, document, devices):
        super().__init__(path, document, devices)
        self.pipeline = section = document["pipeline"]
        if jax.process_count() > 1:
            raise PlanError(
                "a plan of pipeline stages runs in one process: JAX moves arrays between "
                "meshes of several processes on some platforms only"
            )
        found = self.take_devices(section["n_ranks"])
        self.microbatches = section["microbatches"]
        self.lanes = section["lanes"]
        self.stages = [
            Stage(s, stage, found[self.lanes[stage["lane"]]["ranks"]])
            for s, stage in enumerate(section["stages"])
        ]
        self.transfers = [Transfer(t, self.stages) for t in section["transfers"]]
        self.holders = {}  # parameter of the graph: [(stage, parameter of the stage)]
        self.makers = {}  # result of the graph: (stage, result of the stage)
        for stage in self.stages:
            for k, number in enumerate(stage.params):
                if number >= 0:
                    self.holders.setdefault(number, []).append((stage.number, k))
            for k, number in enumerate(stage.results):
                if number >= 0:
                    self.makers.setdefault(number, (stage.number, k))
        self.set_up(self.placements)

    def result_placement(self, number):
        """Of a result of the graph: where the stage that makes it has it."""
        if number not in self.makers:
            index, _ = part_of(self.graph["results"][number].get("result"), number)
            raise PlanError(
                f"{self.path}: no stage makes result {self.step['results'][index]['path']}"
            )
        s, k = self.makers[number]
        return self.stages[s].result_placement(k)

    def placements(self, number, dtype, dims):
        return [self.stages[s].placement[k] for s, k in self.holders.get(number, [])]

    def runner(self, donated):
        return StagedRunner(self, donated)


class StagedRunner:
    """One step of a staged plan: follows the lanes' instructions."""

    def __init__(self, plan, donated):
        self.plan, self.donated = plan, donated
        self.forms = [plan.form_of(i, row) for i, row in enumerate(plan.result_rows())]
        self.exports = [self.exports_of(stage) for stage in plan.stages]
        self.schedule = self.in_turn()
        self.ranges, self.executables, self.starts = {}, {}, {}
        self.steps, self.peak_bytes = 0, [0] * len(plan.lanes)
        self.plan_lives()

    # ---- results ----

    def exports_of(self, stage):
        """node: [(name, placement)] of what leaves a stage: messages and results."""
        found = {}
        for t, transfer in enumerate(self.plan.transfers):
            if transfer.source is stage:
                found.setdefault(transfer.node, []).append((("send", t), transfer.side))
        for k, number in enumerate(stage.results):
            if number >= 0:
                node = stage.graph.results[k]["node"]
                found.setdefault(node, []).append((("result", number), stage.result_placement(k)))
        return found

    # ---- the order of instructions ----

    def in_turn(self):
        """[(lane, instruction)]: one of each lane in turn, none before the message it needs."""
        lists = [lane["instructions"] for lane in self.plan.lanes]
        at, sent, found = [0] * len(lists), set(), []
        while any(i < len(lane) for i, lane in zip(at, lists)):
            before = len(found)
            for lane, instructions in enumerate(lists):
                if at[lane] == len(instructions):
                    continue
                x = instructions[at[lane]]
                if "receive" in x and (x["receive"], x["message"]) not in sent:
                    continue
                if "send" in x:
                    sent.add((x["send"], x["message"]))
                found.append(x)
                at[lane] += 1
            if len(found) == before:
                raise PlanError(f"{self.plan.path}: the lanes wait for each other")
        return found

    def range_of(self, x):
        key = (x["run"], *x["groups"])
        if key not in self.ranges:
            stage = self.plan.stages[x["run"]]
            self.ranges[key] = Range(stage, *x["groups"], self.exports[x["run"]])
        return self.ranges[key]

    def reads(self, x):
        """Keys of the values that an instruction reads: (stage, node or name, microbatch)."""
        if "run" in x:
            r, s, m = self.range_of(x), x["run"], x["microbatch"]
            return [(s, i, r.stage.home(i, m)) for i in r.reads]
        if "send" in x:
            return [self.sent_key(x)]
        return []

    def sent_key(self, x):
        transfer = self.plan.transfers[x["send"]]
        stage = transfer.source
        if transfer.node in stage.param_of:  # a parameter that is passed on as it is
            return (stage.number, transfer.node, stage.home(transfer.node, x["message"]))
        home = stage.home(transfer.node, x["message"] if transfer.shares else ONCE)
        return (stage.number, ("send", x["send"]), home)

    def plan_lives(self):
        """Per instruction: the values that nothing reads after it."""
        last = {}
        for at, x in enumerate(self.schedule):
            for key in self.reads(x):
                last[key] = at
        kept = set()
        for number, (s, k) in self.plan.makers.items():
            kept.add((s, self.plan.stages[s].graph.results[k]["node"], ONCE))
        self.ends = [[] for _ in self.schedule]
        for key, at in last.items():
            if key not in kept:
                self.ends[at].append(key)

    # ---- running ----

    def executable(self, r, gone, operands):
        """The compiled range; gone: which of its reads may be given away."""
        key = (id(r), gone)
        if key not in self.executables:
            n = len(r.reads)
            kept = [k for k in range(n) if k not in gone]
            inner = r.function()

            def function(microbatch, carried, given, others):
                read = [None] * n
                for k, value in (*zip(gone, given), *zip(kept, others)):
                    read[k] = value
                return inner(microbatch, carried, tuple(read))

            options = compiler_options(r.stage.device_mesh.devices)
            made = jax.jit(function, donate_argnums=(1, 2), compiler_options=options)
            found = made.lower(*operands).compile()
            self.executables[key] = Executable(r.stage.number, r.groups, found)
        return self.executables[key]

    def run(self, at, x, values):
        r, s, m = self.range_of(x), x["run"], x["microbatch"]
        if not r.ids:
            return
        stage = r.stage
        keys = [(s, i, stage.home(i, m)) for i in r.reads]
        ends = set(self.ends[at])
        gone = tuple(k for k, key in enumerate(keys) if key in ends and self.may_give(key))
        carried = self.sums_so_far(r, values)
        given = tuple(values[keys[k]] for k in gone)
        others = tuple(values[key] for k, key in enumerate(keys) if k not in gone)
        operands = (np.int32(m), carried, given, others)
        executable = self.executable(r, gone, operands)
        self.measure(executable, stage, values)
        found = executable.compiled(*operands)
        for i, value in zip(r.carried, found[0]):
            values[s, i, ONCE] = value
        for i, value in zip(r.leaves, found[1]):
            values[s, i, stage.home(i, m)] = value
        for (name, i, _), value in zip(r.exports, found[2]):
            values[s, name, stage.home(i, m)] = value

    def measure(self, executable, stage, values):
        """Notes, in the first step, how often a range runs and what a device holds then."""
        if self.steps:
            return
        executable.runs += 1
        alive = sum(
            leaf.nbytes // leaf.size * math.prod(leaf.sharding.shard_shape(leaf.shape))
            for (s, _, _), value in values.items() if self.plan.stages[s].lane == stage.lane
            for leaf in jax.tree.leaves(value) if leaf.size
        )  # fmt: skip
        need = executable.compiled.memory_analysis()
        own = need.temp_size_in_bytes + need.output_size_in_bytes - need.alias_size_in_bytes
        self.peak_bytes[stage.lane] = max(self.peak_bytes[stage.lane], alive + own)

    def may_give(self, key):
        """Whether the buffer of a parameter is the step's to use again."""
        s, i, _ = key
        stage = self.plan.stages[s]
        if i not in stage.param_of:
            return False  # freed when its last reader has run
        number = stage.params[stage.param_of[i]]
        return number >= 0 and self.donated[self.plan.argument_of[number]]

    def sums_so_far(self, r, values):
        """What a range collects over microbatches, as far as it came."""
        stage = r.stage
        old = [values.get((stage.number, i, ONCE)) for i in r.carried]
        if all(v is not None for v in old):
            return tuple(old)

        def local():
            run, found = Run(stage.graph, 0), {}
            start_carried(run, r.carried, found)
            return tuple(ranked(found[i]) for i in r.carried)

        if id(r) not in self.starts:
            self.starts[id(r)] = jax.jit(jax.shard_map(
                local, mesh=stage.device_mesh, in_specs=(), check_vma=False,
                out_specs=tuple(stage.local_spec for _ in r.carried),
            ))  # fmt: skip
        fresh = self.starts[id(r)]()
        return tuple(f if v is None else v for f, v in zip(fresh, old))

    def compiled(self):
        """An Executable for each stage and range."""
        return list(self.executables.values())

    def __call__(self, held, leaves):
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            found = self.results(*self.play(held))
        self.steps += 1
        return found

    def play(self, held):
        """Follows the instructions; the values that are left, and new values of parameters."""
        plan, values, new, messages = self.plan, {}, {}, {}
        for index, numbers in enumerate(plan.numbers):
            at = 0
            for number in numbers:
                for s, k in plan.holders[number]:
                    values[s, plan.stages[s].graph.params[k], ONCE] = held[index][at]
                    at += 1
        for at, x in enumerate(self.schedule):
            if "run" in x:
                self.run(at, x, values)
            elif "send" in x:
                t = x["send"]
                value = values[self.sent_key(x)]
                messages[t, x["message"]] = plan.transfers[t].send(value, x["message"])
            elif "receive" in x:
                t, m = x["receive"], x["message"]
                transfer = plan.transfers[t]
                value = transfer.receive(messages.pop((t, m)), m)
                if value is None:
                    continue  # a part of one that is whole with its last message
                stage = transfer.target
                if stage.params[transfer.param] >= 0:
                    new[stage.number, transfer.param] = value
                else:
                    node = stage.graph.params[transfer.param]
                    values[stage.number, node, stage.home(node, m)] = value
            for key in self.ends[at]:
                values.pop(key, None)
        return values, new

    def results(self, values, new):
        plan, found = self.plan, []
        for form, row in zip(self.forms, plan.result_rows()):
            arrays = []
            for number, _ in row:
                alias = plan.alias_of(number)
                if form in plan.forms and alias is not None:
                    arrays += self.new_values(number, alias, values, new)
                else:
                    arrays.append(self.made(number, values))
            found.append(form.leaf(arrays))
        return found

    def made(self, number, values):
        s, k = self.plan.makers[number]
        stage = self.plan.stages[s]
        node = stage.graph.results[k]["node"]
        if node in stage.param_of:
            return values[s, node, ONCE]
        for home in (ONCE, self.plan.microbatches - 1):
            if (s, ("result", number), home) in values:
                return values[s, ("result", number), home]
        raise PlanError(f"{self.plan.path}: result {number} is not made")

    def new_values(self, number, alias, values, new):
        """The next value of a parameter on every stage that holds it."""
        plan, found = self.plan, []
        maker = plan.makers.get(number)
        for s, k in plan.holders[alias]:
            if (s, k) in new:
                found.append(new[s, k])
            elif maker is not None and maker[0] == s:
                found.append(self.made(number, values))
            elif maker is None:
                found.append(values[s, plan.stages[s].graph.params[k], ONCE])
            else:
                raise PlanError(
                    f"{plan.path}: stage {s} is not sent the new value of parameter {alias}"
                )
        return found
