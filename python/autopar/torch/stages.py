# SPDX-License-Identifier: Apache-2.0
"""Runs a PyTorch module as a plan with stages says; autopar.torch.load makes it.

    plan = autopar.torch.load("plan.json")
    model = plan.parallelize(model, batch)          # this process's stages of it
    optimizer = torch.optim.Adam(model.parameters())
    loss = plan.step(model, batch)                  # forward and backward of the whole batch
    optimizer.step()

torch.distributed.pipelining cuts the module where the plan's stages begin: pipeline() traces
it with torch.export, so that each stage keeps the modules and the names of parameters that it
had. Each stage lies on its own processes as a plan without stages does on all of them, and
PyTorch's schedules (GPipe, 1F1B, interleaved 1F1B) run the stages. Process r is the device
plan.devices[r].

Processes of two stages send each other their local parts of tensors: what the next stage takes
split is sent split, where both stages' meshes have the same shape, all else whole. A parameter
of several stages (tied weights) is in each of them; their gradients are summed after the step.
"""
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.checkpoint import checkpoint

from .. import planned
from .loader import Plan, check_processes, loss_in, placements, unit_names

SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B,
             "interleaved-1f1b": pipelining.ScheduleInterleaved1F1B}


class Part(Plan):
    """The plan of one stage, on its own processes."""

    def __init__(self, plan, k, ranks):
        stage = plan.document["stages"][k]
        super().__init__({**stage, "microbatches": plan.microbatches, "differences": []}, ranks)
        self.k, self.recompute = k, stage["recompute"] == "all"

    def depart(self, text):
        super().depart(f"stage {self.k}: {text}")

    def lack(self, text):  # PyTorch runs it in another stage
        self.depart(text)

    def name_parameters(self, module, first):
        """Calls planned parameters as the stage's module does: tied ones have other names there."""
        called = {first[name]: name for name, _ in module.named_parameters() if name in first}
        self.document["parameters"] = [
            {**item, "name": called.get(first.get(item["name"]), item["name"])}
            for item in self.document["parameters"]]


# ---- stages of a module ----


class Value:
    """A tensor that goes from stage to stage: global shape, and placements on its way."""

    def __init__(self, name, like):
        if not isinstance(like, torch.Tensor):
            raise ValueError(f"stages send tensors only, and '{name}' is a {type(like).__name__}")
        self.shape, self.dtype = tuple(like.shape), like.dtype
        self.requires_grad = like.requires_grad

    def placements(self, part, before):
        """As the stage takes it, if the stage before it can send it so; else whole."""
        at = [placements(item["placements"]) for item in part.document["receives"]
              if tuple(item["shape"]) == self.shape]
        if (len(at) == 1 and part.shape == before.shape and self.local_shape(part, at[0])
                and all(type(p) in (Shard, Replicate) for p in at[0])):
            return at[0]
        return (Replicate(),) * part.mesh.ndim

    def local_shape(self, part, at):
        """None: it is not split evenly."""
        shape = list(self.shape)
        for p, n in zip(at, part.shape):
            if p.is_shard():
                if shape[p.dim] % n:
                    return None
                shape[p.dim] //= n
        return shape

    def local(self, part, at):
        """A tensor without data like the local one."""
        x = torch.empty(self.local_shape(part, at), dtype=self.dtype, device="meta")
        return x.requires_grad_(self.requires_grad)


class Call:
    """How the whole calls a stage: names of what it takes and gives."""

    def __init__(self, node, module):
        self.module, self.takes = module, [x.name for x in node.args]
        self.gives = {0: node.name}
        if any(user.op == "call_function" for user in node.users):
            self.gives = {user.args[1]: user.name for user in node.users}

    def __call__(self, values):
        results = self.module(*(values[name] for name in self.takes))
        results = results if isinstance(results, (tuple, list)) else (results,)
        return {name: results[k] for k, name in self.gives.items()}


def cut(model, batch, begins):
    """The calls of the module's stages, and the names of the batch's tensors."""
    forward = model.forward

    @functools.wraps(forward)
    def loss(*args, **kwargs):
        return loss_in(forward(*args, **kwargs))

    model.forward = loss
    try:
        pipe = pipelining.pipeline(model, (), batch, split_spec={
            name: pipelining.SplitPoint.BEGINNING for name in begins})
    finally:
        del model.forward
    for stage in pipe.split_gm.children():
        tidy(stage)
    nodes = pipe.split_gm.graph.nodes
    calls = [Call(node, pipe.split_gm.get_submodule(node.target))
             for node in nodes if node.op == "call_module"]
    if len(calls) != len(begins) + 1:
        raise ValueError(f"the module has {len(calls)} stages, and not {len(begins) + 1}, when it "
                         f"is cut at {', '.join(begins)}: a module runs twice, or not at all")
    for k, name in enumerate(begins):
        if name not in dict(calls[k + 1].module.named_modules()):
            raise ValueError(f"stage {k + 1} begins with module '{name}' in the plan: the module "
                             "runs its modules in another order")
    return calls, [node.name for node in nodes if node.op == "placeholder"]


def tidy(stage):
    """Removes assertions of dtypes, for which DTensor has no rule, and what no node reads."""
    read = set()
    for scope, module in stage.named_modules():
        graph = getattr(module, "graph", None)
        for node in list(graph.nodes if graph is not None else []):
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                graph.erase_node(node)
            elif node.op == "get_attr":
                read.add(f"{scope}.{node.target}".lstrip("."))
        if isinstance(module, torch.fx.GraphModule):
            module.recompile()
        elif graph is not None:
            module.finalize()
    for name, _ in list(stage.named_parameters(remove_duplicate=False)):
        if name not in read:
            scope, _, own = name.rpartition(".")
            delattr(stage.get_submodule(scope), own)


def values_between(calls, inputs, batch):
    """By name, what a stage gives to others; sent[k]: names of what stage k gets sent."""
    values, sent = dict(batch), [[] for _ in calls]
    with FakeTensorMode(allow_non_fake_inputs=True):
        for call in calls:
            values.update((name, x.detach().requires_grad_(x.requires_grad)
                           if isinstance(x, torch.Tensor) else x)
                          for name, x in call(values).items())
    born = {name: k for k, call in enumerate(calls) for name in call.gives.values()}
    for k, call in enumerate(calls):
        for name in call.takes:
            for stage in range(born.get(name, k) + 1, k + 1):
                if name not in sent[stage]:
                    sent[stage].append(name)
    return {name: Value(name, values[name]) for names in sent for name in names}, sent


class Stage(nn.Module):
    """A stage for torch.distributed.pipelining: local tensors in and out, DTensors within."""

    def __init__(self, call, part, received, sent):
        super().__init__()
        self.module, self.call, self.part = call.module, call, part
        self.received, self.sent = received, sent  # {name: (value, placements)}

    def forward(self, *received, **batch):
        mesh, planned = self.part.mesh, {x["name"]: x for x in self.part.document["inputs"]}
        values = {name: DTensor.from_local(x, mesh, at)
                  for x, (name, (_, at)) in zip(received, self.received.items())}
        values |= {name: self.part.shard_one(name, batch[name], planned.get(name), False)
                   for name in self.call.takes if name not in values}
        run = functools.partial(checkpoint, self.call, use_reentrant=False)
        values |= (run if self.part.recompute else self.call)(values)
        if self.sent is None:  # the last: the loss
            return self.as_sent(next(iter(reversed(values.values()))), (Replicate(),)).reshape(1)
        return tuple(self.as_sent(values[name], at) for name, (_, at) in self.sent.items())

    def as_sent(self, x, at):
        mesh = self.part.mesh
        if not isinstance(x, DTensor):  # the same on every process
            x = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
        at = at if len(at) == mesh.ndim else at * mesh.ndim
        return x.redistribute(mesh, at).to_local().contiguous()


# ---- plans ----


class StagedPlan(planned.Plan):
    """A plan with stages: see the head of this file."""

    def __init__(self, document):
        stages = document["stages"]
        self.document = document
        self.microbatches = document["microbatches"]
        self.differences = document["differences"]
        self.n = len(stages)
        self.columns = self.n // document["chunks"]  # sets of processes
        self.devices = [device for stage in stages[:self.columns] for device in stage["devices"]]
        self.n_processes = len(self.devices)
        self.each = len(stages[0]["devices"])
        self.parts = [Part(self, k, self.ranks(k)) for k in range(self.n)]
        self.schedule, self.mine, self.shared = None, [], {}

    def ranks(self, k):
        first = k % self.columns * self.each
        return range(first, first + self.each)

    @property
    def departures(self):
        return [text for part in self.parts for text in part.departures]

    def parallelize(self, model, batch, fsdp=True):
        """
        This process's stages of the module, a list of modules. The batch, a dictionary by
        the forward pass's argument names, is an example: only its shapes are used.
        """
        check_processes(self.n_processes)
        rank = dist.get_rank()
        for part in self.parts:  # every process makes all groups
            part.mesh = part.make_mesh()
        first = first_names(model)
        units = unit_names(model)
        example = {name: x.chunk(self.microbatches)[0] for name, x in batch.items()}
        calls, inputs = cut(model, example, [s["begins"] for s in self.document["stages"][1:]])
        values, sent = values_between(calls, inputs, example)
        group = self.column_group(range(self.columns), rank % self.each)
        self.mine = [k for k in range(self.n) if rank in self.ranks(k)]
        self.share(calls, first, rank)
        stages = []
        for k in self.mine:
            call, part = calls[k], self.parts[k]
            part.name_parameters(call.module, first)
            part.units = units
            part.parallelize(call.module, mesh=part.mesh, fsdp=fsdp)
            ways = [{name: (values[name], values[name].placements(self.parts[at], self.parts[at - 1]))
                     for name in sent[at]} if 0 < at < self.n else None for at in (k, k + 1)]
            stages.append(self.pipeline_stage(k, Stage(call, part, ways[0] or {}, ways[1]), group))
        self.make_schedule(stages)
        return nn.ModuleList(calls[k].module for k in self.mine)

    def column_group(self, columns, i):
        """The processes that are the i-th of these columns; made on every process."""
        groups = [dist.new_group([c * self.each + j for c in columns]) for j in range(self.each)]
        return groups[i]

    def pipeline_stage(self, k, stage, group):
        part = stage.part
        takes = tuple(v.local(part, at) for v, at in stage.received.values())
        if stage.sent is None:
            gives = (torch.empty(1, device="meta", requires_grad=True),)
        else:
            gives = tuple(v.local(part, at) for v, at in stage.sent.values())
        return pipelining.PipelineStage(stage, k, self.n, torch.device(part.mesh.device_type),
                                        input_args=takes, output_args=gives, group=group)

    def make_schedule(self, stages):
        made = SCHEDULES[self.document["schedule"]]
        several = made is pipelining.ScheduleInterleaved1F1B
        self.schedule = made(stages if several else stages[0], self.microbatches,
                             loss_fn=lambda loss, _: loss.sum() / self.microbatches,
                             scale_grads=False)

    # ---- tied weights ----

    def share(self, calls, first, rank):
        """Notes which of this process's parameters other stages have, too; gives them one value."""
        stages = {}
        for k, call in enumerate(calls):
            for name, _ in call.module.named_parameters():
                stages.setdefault(first.get(name, name), []).append((k, name))
        for name, where in sorted(stages.items()):
            columns = sorted({k % self.columns for k, _ in where})
            if len(where) > 1:
                group = self.column_group(columns, rank % self.each)
                own = [(calls[k].module, other) for k, other in where if k in self.mine]
                if own:
                    self.shared[name] = group, own
                    value = own[0][0].get_parameter(own[0][1]).data
                    dist.broadcast(value, columns[0] * self.each + rank % self.each, group=group)
                    for module, other in own[1:]:
                        module.get_parameter(other).data.copy_(value)

    def held(self):
        """Of each shared parameter: the processes that have it, and this one's copies."""
        return [(group, [dict(module.named_parameters(remove_duplicate=False))[name]
                         for module, name in own])
                for group, own in self.shared.values()]

    def sum_shared(self):
        for group, held in self.held():
            total = sum(p.grad.full_tensor() for p in held)
            dist.all_reduce(total, group=group)
            for p in held:
                whole = [Replicate()] * p.device_mesh.ndim
                p.grad = DTensor.from_local(total, p.device_mesh, whole).redistribute(
                    placements=p.placements)

    # ---- running ----

    def context(self):
        return self.parts[self.mine[0]].context()

    def step(self, model, batch):
        """
        Forward and backward of the whole batch, which every process gives; the loss as a
        number. Gradients are added to those that the parameters have.
        """
        del model  # the schedule has it
        last, losses = self.n - 1 in self.mine, []
        before = [(p, p.grad) for _, held in self.held() for p in held]
        for p, _ in before:
            p.grad = None
        targets = torch.zeros(self.microbatches) if last else None  # the batch has the labels
        with self.context():
            self.schedule.step(target=targets, losses=losses, **batch)
        self.sum_shared()
        for p, grad in before:
            p.grad = p.grad if grad is None else p.grad + grad
        device = self.parts[0].mesh.device_type
        loss = sum(x.detach().double() for x in losses) if last else torch.zeros(
            (), dtype=torch.float64, device=device)
        dist.broadcast(loss, self.ranks(self.n - 1)[0])
        return loss.item()

    def check(self, model):
        """Parameters of this process that do not lie as planned: a sentence each."""
        return [f"stage {k}: {text}" for k, module in zip(self.mine, model)
                for text in self.parts[k].check(module)]


def first_names(model):
    """Each parameter's first name, by all its names."""
    first, found = {}, {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first[name] = found.setdefault(id(parameter), name)
    return first
