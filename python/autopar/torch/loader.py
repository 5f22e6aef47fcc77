# SPDX-License-Identifier: Apache-2.0
"""Runs a PyTorch module as an autopar plan says, with DTensor and FSDP2.

    import autopar.torch
    plan = autopar.torch.load("plan.json")          # of ap-rewrite --to torch
    model = plan.parallelize(model, batch)          # on every process, of torchrun say
    with plan.context():
        loss = model(**plan.shard(batch)).loss      # the whole batch, on every process
        loss.backward()
    optimizer.step()                                # made after parallelize

Parameters become DTensors with the plan's placements on its mesh; where the plan splits a
parameter that its uses have whole, FSDP2 gathers it (fully_shard), or DTensor does. Hooks
bring the inputs and outputs of modules to the plan's placements; what lies between them
DTensor propagates. The loss is the whole batch's. What is otherwise than planned is said:
plan.differences is what PyTorch cannot express of the plan, plan.departures what was found
while the module ran.

Plans with stages are run by stages.py. Tried with PyTorch 2.15. Where
fully_shard has no dp_mesh_dims, DTensor gathers what FSDP2 would, and a warning says so.
"""
import contextlib
import inspect
import json
import math
import re
import warnings

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import planned
from .gather import Gathers, Places, evened
from .known import dense_gradients
from .ops import Rules

VERSION = 1
RANDOM_KEY = "random_key"  # the exporter's name of its random numbers' state: PyTorch has its own
MESHES = {}  # DTensor takes equal meshes for one, FSDP2 does not: there is one of each


def load(path):
    """The plan in a file that ap-rewrite --to torch wrote; ValueError with the place in it."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except json.JSONDecodeError as e:
        raise ValueError(f"{path}:{e.lineno}:{e.colno}: the file ends early or is no JSON: "
                         f"{e.msg}") from None
    except UnicodeDecodeError as e:
        raise ValueError(f"{path}: the file is no text: {e}") from None
    try:
        return plan_of(document)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None


def plan_of(document):
    """The plan in a document; ValueError with the place in it."""
    check_document(document)
    if "stages" not in document:
        return Plan(document)
    from .stages import StagedPlan
    return StagedPlan(document)


# ---- documents ----

# Forms of values: members of a dictionary (with ? where they may lack), a list of one form, a
# type, or the values that there are. schemas/torch.json says what they mean.
PLACEMENTS, DIMS, NAMES = ["placement"], [int], [str]
PLAN = {
    "mesh": {"axes": NAMES, "shape": DIMS},
    "fsdp?": {"shard": NAMES, "replicate": NAMES, "reshard_after_forward": bool},
    "inputs": [{"name": str, "shape": DIMS, "placements": PLACEMENTS}],
    "parameters": [{"name": str, "shape": DIMS, "local": DIMS, "placements": PLACEMENTS,
                    "use?": PLACEMENTS, "gradient": PLACEMENTS, "fsdp?": bool}],
    "buffers": NAMES,
    "activations": [{"module": str, "shape": DIMS, "placements": PLACEMENTS,
                     "computed?": PLACEMENTS}],
    "collectives": [{"op": str, "axes": NAMES, "count": int, "bytes": int}],
}
STAGE = {"begins": str, "devices": [int], "recompute": ("none", "all", "selected"),
         "receives": [{"shape": DIMS, "placements": PLACEMENTS}], **PLAN}
STAGES = {"schedule": ("gpipe", "1f1b", "interleaved-1f1b"), "chunks": int, "stages": [STAGE]}


def check_form(value, form, where):
    """Raises ValueError where a value has not its form."""
    def refuse(text):
        raise ValueError(f"{where or '/'}: {text}")

    if form == "placement":
        try:
            placement(value)
        except (TypeError, ValueError):
            refuse(f"expected a placement, not {value!r}")
    elif isinstance(form, tuple):
        if value not in form:
            refuse(f"expected one of {', '.join(form)}, not {value!r}")
    elif isinstance(form, type):
        if type(value) is not form or form is int and value < 0:
            refuse(f"expected {form.__name__}, not {value!r}")
    elif type(value) is not type(form):
        refuse(f"expected a {'list' if isinstance(form, list) else 'dictionary'}, not {value!r}")
    elif isinstance(form, list):
        for k, item in enumerate(value):
            check_form(item, form[0], f"{where}/{k}")
    else:
        for key, part in form.items():
            name = key.rstrip("?")
            if value.get(name) is not None:
                check_form(value[name], part, f"{where}/{name}")
            elif name == key:
                refuse(f"lacks '{name}'")


def check_plan(plan, where):
    """A placement for each mesh axis, of dimensions that there are."""
    axes, shape = plan["mesh"]["axes"], plan["mesh"]["shape"]
    if len(axes) != len(shape) or not shape or 0 in shape:
        raise ValueError(f"{where}/mesh: {len(axes)} axes of sizes {shape}")
    for key in ("inputs", "parameters", "activations", "receives"):
        for k, item in enumerate(plan.get(key, [])):
            for way in ("placements", "use", "gradient", "computed"):
                texts = item.get(way, ["Replicate"] * len(axes))
                here = f"{where}/{key}/{k}/{way}"
                if len(texts) != len(axes):
                    raise ValueError(f"{here}: {len(texts)} placements on {len(axes)} mesh axes")
                for at in placements(texts):
                    if getattr(at, "dim", -1) >= len(item["shape"]):
                        raise ValueError(f"{here}: {at} of a tensor of shape {item['shape']}")
    for k, item in enumerate(plan["collectives"]):
        for axis in set(item["axes"]) - set(axes):
            raise ValueError(f"{where}/collectives/{k}/axes: the mesh has no axis '{axis}'")
    fsdp = plan.get("fsdp") or {"shard": axes, "replicate": []}
    if not fsdp["shard"] or set(fsdp["shard"] + fsdp["replicate"]) - set(axes):
        raise ValueError(f"{where}/fsdp: axes of the mesh are {', '.join(axes)}")


def check_document(document):
    """Raises ValueError with the place (a JSON pointer) of what is wrong."""
    if not isinstance(document, dict) or document.get("autopar_torch") != VERSION:
        version = isinstance(document, dict) and document.get("autopar_torch")
        raise ValueError(f"/autopar_torch: expected version {VERSION} of a plan for PyTorch, not "
                         f"{version or 'another document'}: make it with ap-rewrite --to torch")
    staged = "stages" in document
    check_form(document, {"microbatches": int, "differences": NAMES, **(STAGES if staged else PLAN)},
               "")
    if document["microbatches"] < 1:
        raise ValueError("/microbatches: expected 1 or more, not 0")
    for k, plan in enumerate(document["stages"] if staged else [document]):
        check_plan(plan, f"/stages/{k}" if staged else "")
    if staged:
        check_stages(document)


def check_stages(document):
    """The same number of devices for each stage; stages of other chunks on the same ones."""
    stages, chunks = document["stages"], document["chunks"]
    if not stages or not chunks or len(stages) % chunks:
        raise ValueError(f"/chunks: {len(stages)} stages, {chunks} for each set of devices")
    columns = len(stages) // chunks
    taken = [device for stage in stages[:columns] for device in stage["devices"]]
    if len(set(taken)) != len(taken):
        raise ValueError("/stages: two stages of one chunk have the same device")
    for k, stage in enumerate(stages):
        devices, here = stage["devices"], f"/stages/{k}/devices"
        if len(devices) != math.prod(stage["mesh"]["shape"]):
            raise ValueError(f"{here}: {len(devices)} devices, a mesh of {stage['mesh']['shape']}")
        if len(devices) != len(stages[0]["devices"]):
            raise ValueError(f"{here}: {len(devices)} devices, stage 0 has "
                             f"{len(stages[0]['devices'])}: PyTorch's stages have as many each")
        if devices != stages[k % columns]["devices"]:
            raise ValueError(f"{here}: other devices than stage {k % columns}'s, of the same place")


def check_processes(n):
    """Raises unless as many processes run as the plan is for."""
    if not torch.distributed.is_initialized():
        raise RuntimeError("torch.distributed.init_process_group() comes before parallelize()")
    if torch.distributed.get_world_size() != n:
        raise ValueError(f"the plan is for {n} processes, and "
                         f"{torch.distributed.get_world_size()} run")


# ---- placements ----


def placement(text):
    """A placement by the name that the plan has for it."""
    match = re.fullmatch(r"(\w+)(?:\((\w+)(?:, (\d+))?\))?", text)
    kind, first, second = match.groups() if match else (None, None, None)
    if kind == "Replicate":
        return Replicate()
    if kind == "Shard":
        return Shard(int(first))
    if kind == "Partial":
        return Partial({"prod": "product"}.get(first, first))
    if kind == "StridedShard":
        from torch.distributed.tensor.placement_types import _StridedShard
        return _StridedShard(int(first), split_factor=int(second))
    raise ValueError(f"unknown placement '{text}'")


def placements(texts):
    return tuple(placement(text) for text in texts)


def same(a, b):
    """Whether placements are equal; partial sums over a mask (embeddings) are partial sums."""
    def plain(p):
        return ("Partial", p.reduce_op) if isinstance(p, Partial) else p
    return [plain(p) for p in a] == [plain(p) for p in b]


def bring(x, target):
    """
    x in these placements; partial sums only where x is partial already, and not under an
    embedding's mask, which DTensor loses when it splits x further.
    """
    target = tuple((at if type(at) is Partial else Replicate()) if isinstance(to, Partial) else to
                   for at, to in zip(x.placements, target))
    return x.redistribute(x.device_mesh, evened(target, x.shape, x.device_mesh.shape))


# ---- modules ----


def owners(model):
    """Each parameter's modules and its names there; tied parameters have several."""
    found = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), []).append((module, name))
    return found


def read_as(module, name, change):
    """Reading the module's parameter gives change(parameter); its gradient returns."""
    cls = type(module)
    if not cls.__dict__.get("_autopar_reads"):
        cls = type(cls.__name__, (cls,), {"_autopar_reads": True, "__module__": cls.__module__})
        module.__class__ = cls
    setattr(cls, name, property(lambda self: change(self._parameters[name])))


def summed_over(grad, axes):
    """The gradient as sums over these mesh axes, which FSDP2 takes it for."""
    for axis in axes:
        at = list(grad.placements)
        if isinstance(at[axis], Partial):
            continue
        at[axis] = Replicate()
        local = grad.redistribute(placements=at).to_local() / grad.device_mesh.size(axis)
        at[axis] = Partial()
        grad = DTensor.from_local(local, grad.device_mesh, at, run_check=False,
                                  shape=grad.shape, stride=grad.stride())
    return grad


def tensors(value):
    """Tensors in arguments or results: the value, or items of tuples, lists, dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def replaced(value, old, new):
    """The value with one tensor replaced."""
    if value is old:
        return new
    if isinstance(value, dict):
        for key, item in value.items():
            if any(x is old for x in tensors(item)):
                value[key] = replaced(item, old, new)
        return value
    if isinstance(value, (tuple, list)) and any(x is old for x in tensors(value)):
        items = [replaced(item, old, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def loss_in(result):
    """The loss among what the forward pass returns: what is called so, else the first scalar."""
    if isinstance(result, dict) and isinstance(result.get("loss"), torch.Tensor):
        return result["loss"]
    for x in tensors(result):
        if x.dim() == 0 and x.is_floating_point():
            return x
    raise ValueError("the forward pass returns no floating-point scalar that could be the loss")


# ---- plans ----


class Plan(planned.Plan):
    """A plan without stages: see the head of this file."""

    def __init__(self, document, ranks=None):
        """ranks: the processes that it is for; None: all."""
        self.document = document
        self.ranks = ranks
        self.axes = tuple(document["mesh"]["axes"])
        self.shape = tuple(document["mesh"]["shape"])
        self.n_processes = math.prod(self.shape)
        self.microbatches = document["microbatches"]
        self.differences = document["differences"]
        self.departures = []
        self.mesh = None
        self.places = Places()
        self.units = []  # names of modules that FSDP2 gathers one after the other

    def depart(self, text):
        if text not in self.departures:
            self.departures.append(text)

    def lack(self, text):
        """The module has not what the plan names."""
        raise ValueError(text)

    # ---- the mesh ----

    def make_mesh(self, device_type=None):
        """The plan's mesh over its processes."""
        ranks = self.ranks or range(self.n_processes)
        if self.ranks is None:
            check_processes(self.n_processes)
        if device_type is None:
            accelerator = torch.accelerator.current_accelerator(check_available=True)
            nccl = "gloo" not in torch.distributed.get_backend()
            device_type = accelerator.type if accelerator is not None and nccl else "cpu"
        key = device_type, ranks, self.shape, self.axes
        if key not in MESHES:
            mesh = DeviceMesh(device_type, torch.tensor(ranks).view(self.shape),
                              mesh_dim_names=self.axes)
            MESHES[key] = mesh, set()
        mesh, joined = MESHES[key]
        for joint in sorted({tuple(c["axes"]) for c in self.document["collectives"]} - joined):
            if len(joint) > 1:  # one collective over several axes
                mesh[joint]._flatten("_".join(joint))
                joined.add(joint)
        return mesh

    def take_mesh(self, mesh):
        if mesh is None:
            return self.make_mesh()
        if not isinstance(mesh, DeviceMesh) or tuple(mesh.shape) != self.shape:
            raise ValueError(f"the plan's mesh is {dict(zip(self.axes, self.shape))}, not {mesh}")
        return mesh

    # ---- the batch ----

    def shard(self, batch, local=False):
        """
        The batch as DTensors in the plan's placements: a dictionary by the forward pass's
        argument names, or a list in their order. Every process gives the whole batch; with
        local, its own part.
        """
        planned = {item["name"]: item for item in self.document["inputs"]}
        if not isinstance(batch, dict):
            names = list(planned)
            return type(batch)(self.shard(dict(zip(names, batch)), local).values())
        for name in planned:
            if name not in batch:
                raise ValueError(f"the batch lacks the planned input '{name}'")
        return {name: self.shard_one(name, x, planned.get(name), local)
                for name, x in batch.items()}

    def shard_one(self, name, x, item, local):
        if not isinstance(x, torch.Tensor):
            return x
        if item is None:  # the loss does not depend on it
            return DTensor.from_local(x, self.mesh, [Replicate()] * self.mesh.ndim)
        shape = list(item["shape"])
        at = evened(placements(item["placements"]), shape, self.shape)
        if self.microbatches > 1:
            shape[0] //= self.microbatches
        if local:
            x = DTensor.from_local(x, self.mesh, at)
        if list(x.shape) != shape:
            raise ValueError(f"input '{name}' is planned with shape {shape}, not {list(x.shape)}")
        return x if local else distribute_tensor(x, self.mesh, at, src_data_rank=None)

    def split(self, batch):
        """The batch's microbatches: their gradients add up; divide each mean loss by their
        number."""
        parts = {name: x.chunk(self.microbatches) for name, x in batch.items()}
        for k in range(self.microbatches):
            yield {name: part[k] for name, part in parts.items()}

    # ---- the module ----

    def parallelize(self, model, batch=None, mesh=None, fsdp=True):
        """
        The module, changed in place: parameters distributed, hooks registered. Optimizers
        are made after it. fsdp=False: DTensor gathers what FSDP2 would. Plans with stages
        need an example batch, others do not.
        """
        del batch
        self.mesh = self.take_mesh(mesh)
        self.units = self.units or unit_names(model)
        by_fsdp = self.distribute(model, fsdp and self.has_fsdp())
        self.distribute_buffers(model)
        self.pin(model)
        self.places.watch(model)
        if by_fsdp:
            self.fully_shard(model, by_fsdp)
        return model

    def has_fsdp(self):
        if self.document["fsdp"] is None:
            return False
        if "dp_mesh_dims" in inspect.signature(fully_shard).parameters:
            return True
        self.depart("this PyTorch's fully_shard has no dp_mesh_dims: DTensor gathers parameters")
        warnings.warn(self.departures[-1])
        return False

    def distribute(self, model, fsdp):
        """Parameters as DTensors; returns those that FSDP2 is to hold."""
        named = dict(model.named_parameters())
        planned = {item["name"]: item for item in self.document["parameters"]}
        for name, item in planned.items():
            if name not in named:
                self.lack(f"the module has no parameter '{name}' of the plan")
            elif list(named[name].shape) != item["shape"]:
                raise ValueError(f"parameter '{name}' is planned with shape {item['shape']}, "
                                 f"not {list(named[name].shape)}")
        by_fsdp, where = {}, owners(model)
        for name, parameter in named.items():
            item = planned.get(name)
            held = by_use = (Replicate(),) * self.mesh.ndim
            if item:
                held = evened(placements(item["placements"]), item["shape"], self.shape)
                by_use = placements(item.get("use", item["placements"]))
                by_use = evened(by_use, item["shape"], self.shape)
            elif parameter.requires_grad:
                self.depart(f"parameter '{name}' is not in the plan: it is replicated")
            gathers = item is not None and fsdp and item.get("fsdp", False)
            new = nn.Parameter(distribute_tensor(parameter.data, self.mesh,
                                                 by_use if gathers else held),
                               requires_grad=parameter.requires_grad)
            for module, own in where[id(parameter)]:
                module.register_parameter(own, new)
                if gathers:
                    read_as(module, own, self.with_sums(name, item, by_use))
                elif held != by_use:
                    read_as(module, own, lambda p, use=by_use: p.redistribute(p.device_mesh, use))
            if gathers:
                by_fsdp[new] = item
            elif new.requires_grad:
                new.register_hook(self.gradient_hook(name, item, held))
        return by_fsdp

    def check_gradient(self, name, item, grad):
        made = placements(item["gradient"])
        if not same(grad.placements, made):
            self.depart(f"gradient of {name}: made as {grad.placements}, planned {made}")

    def gradient_hook(self, name, item, held):
        def hook(grad):
            if item and held == placements(item.get("use", item["placements"])):
                self.check_gradient(name, item, grad)
            return grad if grad.placements == held else bring(grad, held)
        return hook

    def with_sums(self, name, item, use):
        """For read_as: a parameter of FSDP2, which sums gradients over its axes unseen."""
        plan = self.document["fsdp"]
        axes = [self.axes.index(axis) for axis in plan["shard"] + plan["replicate"]]

        def hook(grad):
            self.check_gradient(name, item, grad)
            return summed_over(grad, axes)

        def change(p):
            gathered = isinstance(p, DTensor) and p.placements == use
            if gathered and p.requires_grad and not hasattr(p, "_autopar_sums"):
                p._autopar_sums = p.register_hook(hook)
            return p
        return change

    def distribute_buffers(self, model):
        """Buffers, and parameters without a gradient, that the forward pass changes are replicated DTensors."""
        for name in self.document["buffers"]:
            if name == RANDOM_KEY:
                continue
            path, _, own = name.rpartition(".")
            module = self.submodule(model, path)
            held = module and next((h for h in (module._buffers, module._parameters) if own in h), None)
            if held is None:
                self.lack(f"the module has no buffer '{name}' of the plan")
                continue
            whole = distribute_tensor(held[own].detach(), self.mesh, [Replicate()] * self.mesh.ndim)
            held[own] = nn.Parameter(whole, False) if isinstance(held[own], nn.Parameter) else whole

    # ---- activations ----

    def submodule(self, model, name):
        try:
            return model.get_submodule(name)
        except AttributeError:
            return self.lack(f"the module has no module '{name}' of the plan")

    def pin(self, model):
        for item in self.document["activations"]:
            module = self.submodule(model, item["module"])
            if module is None:
                continue
            if "input" in item:
                module.register_forward_pre_hook(self.input_hook(item), with_kwargs=True)
            else:
                module.register_forward_hook(self.output_hook(item))
        for module in model.modules():
            if is_embedding(module):
                module.register_forward_hook(sum_masked)
        model.register_forward_hook(sum_scalars)

    def find(self, item, value, what, passed=()):
        """The one tensor of the planned shape, and that is not passed through, if there are
        several."""
        found = {id(x): x for x in tensors(value)
                 if isinstance(x, DTensor) and list(x.shape) == item["shape"]}
        for x in tensors(passed):
            if len(found) > 1:
                found.pop(id(x), None)
        if len(found) == 1:
            return next(iter(found.values()))
        self.depart(f"{item['module']}: {len(found)} {what}s of shape {item['shape']}: not pinned")
        return None

    @staticmethod
    def brought(item, x, target):
        try:
            return bring(x, target)
        except Exception as e:  # whatever DTensor raises
            raise RuntimeError(f"{item['module']}: cannot bring {list(x.shape)} from {x.placements} "
                               f"to the plan's {target}: {e}") from None

    def input_hook(self, item):
        target = placements(item["placements"])

        def hook(_, args, kwargs):
            x = self.find(item, (args, kwargs), "input")
            if x is None or x.placements == target:
                return None
            y = self.brought(item, x, target)
            return replaced(args, x, y), replaced(dict(kwargs), x, y)
        return hook

    def output_hook(self, item):
        target, made = placements(item["placements"]), placements(item["computed"])

        def hook(module, args, result):
            x = self.find(item, result, "output", args)
            if x is None:
                return None
            if not same(x.placements, made):
                self.depart(f"{item['module']}: DTensor computes {x.placements}, planned {made}")
            return replaced(result, x, self.brought(item, x, target))  # gradients come back as x was
        return hook

    # ---- FSDP2 ----

    def fully_shard(self, model, by_fsdp):
        """FSDP2 on the modules of each list of modules, then on the whole."""
        from torch.distributed.fsdp import DataParallelMeshDims

        plan = self.document["fsdp"]
        dims = DataParallelMeshDims(shard=tuple(plan["shard"]),
                                    replicate=tuple(plan["replicate"]) or None)
        dim_of = {p: placements(item["placements"]) for p, item in by_fsdp.items()}
        axis = self.axes.index(plan["shard"][0])
        modules = dict(model.named_modules())
        units = [modules[name] for name in self.units if name in modules]
        for unit in reversed([model, *units]):
            if not any(p in dim_of for p in unit.parameters()):
                continue
            fully_shard(unit, mesh=self.mesh, dp_mesh_dims=dims,
                        reshard_after_forward=plan["reshard_after_forward"],
                        shard_placement_fn=lambda p: Shard(dim_of[p][axis].dim),
                        ignored_params={p for p in unit.parameters() if p not in dim_of})
            unit.set_gradient_divide_factor(1.0)  # the loss is the whole batch's
            unit.set_force_sum_reduction_for_comms(True)

    # ---- running ----

    @contextlib.contextmanager
    def context(self):
        """
        Around forward and backward: plain tensors that meet DTensors are replicated.
        Attention on CPUs, for which DTensor has no rule, is products and a softmax.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(implicit_replication())
            stack.enter_context(dense_gradients())
            stack.enter_context(Rules())
            stack.enter_context(Gathers(self.places, self.depart))
            self.places.start()
            if self.mesh.device_type == "cpu":
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            yield

    def step(self, model, batch):
        """
        Forward and backward of the whole batch, which every process gives; the loss as a
        number. Gradients are added to those that the parameters have.
        """
        total = 0
        for part in self.split(batch):
            with self.context():
                loss = loss_in(model(**self.shard(part))) / self.microbatches
                loss.backward()
            total += self.loss(loss)
        return total

    def loss(self, loss):
        """The loss as a number, the same on every process."""
        return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()

    def check(self, model):
        """Parameters that do not lie as planned: a sentence each."""
        wrong, named = [], dict(model.named_parameters())
        joined = (self.document["fsdp"] or {"shard": []})["shard"][1:]
        for item in self.document["parameters"]:
            if item["name"] not in named:
                continue
            p, held = named[item["name"]], placements(item["placements"])
            held = held if item.get("fsdp") else evened(held, item["shape"], self.shape)
            if p.device_mesh.ndim < self.mesh.ndim:  # FSDP2 makes its axes one
                held = tuple(h for h, axis in zip(held, self.axes) if axis not in joined)
            local = p.to_local().shape
            if p.placements != held:
                wrong.append(f"{item['name']}: {p.placements}, planned {held}")
            elif any(have > plan for have, plan in zip(local, item["local"])):
                wrong.append(f"{item['name']}: local shape {list(local)}, planned {item['local']}")
        return wrong


def unit_names(model):
    """Names of the modules of all lists of modules: layers."""
    return [f"{name}.{k}" if name else str(k) for name, parent in model.named_modules()
            if isinstance(parent, nn.ModuleList) for k in range(len(parent))]


def is_embedding(module):
    """Also of a module that torch.export traced."""
    graph = getattr(module, "graph", None)
    return isinstance(module, nn.Embedding) or graph is not None and any(
        node.target is torch.ops.aten.embedding.default for node in graph.nodes)


def sum_masked(module, args, result):
    """Makes the sums of an embedding whose rows are split (see bring)."""
    if isinstance(result, DTensor):
        return bring(result, result.placements)
    return None


def sum_scalars(module, args, result):
    """Makes the sums of scalars among the results: the loss."""
    for x in list(tensors(result)):
        if isinstance(x, DTensor) and x.dim() == 0 and any(
                isinstance(p, Partial) for p in x.placements):
            result = replaced(result, x, bring(x, (Replicate(),) * x.device_mesh.ndim))
    return result
