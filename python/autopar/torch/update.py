# SPDX-License-Identifier: Apache-2.0
"""The user's own torch.optim object: its step() as a graph of ATen operators.

The optimizer's states are made as it makes them (_init_group), and become arguments of the step. Its
step() is traced with fake tensors, without side effects, in the form that PyTorch has for captured
steps (capturable, one tensor at a time). Numbers of the groups (lr, betas, weight decay) are
constants of the text; a learning rate that is a tensor is an input of the step, `lr` or `lr.K` of
group K. Counters of steps that are equal are one argument.
"""
import contextlib
import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import lr_scheduler

from ..errors import NotSupported
from .capture import Tensor, fail, patched

CAPTURED = {"capturable": True, "foreach": False, "fused": False, "differentiable": False}


def refuse(message):
    raise NotSupported(message)


@dataclasses.dataclass
class Update:
    """The graph of a step(): its placeholders are the trained tensors, their gradients, states and
    learning rates; its results the next values of tensors and states."""

    module: torch.fx.GraphModule
    names: list  # of the trained tensors
    order: list  # their gradients' numbers among those of the step
    states: list  # of Tensor: arguments of the step, behind the module's
    keys: list  # of each state: the name of a parameter, and the state's key
    rates: list  # of Tensor: learning rates that are inputs


def check(optimizer, model):
    """Refuses what is no optimizer whose step is a function of tensors."""
    if isinstance(optimizer, (tuple, list)) or isinstance(optimizer, lr_scheduler.LRScheduler):
        scheduler = next((s for s in (optimizer if isinstance(optimizer, (tuple, list)) else [optimizer])
                          if isinstance(s, lr_scheduler.LRScheduler)), None)
        if scheduler is not None:
            refuse(f"learning-rate schedulers are not supported ({type(scheduler).__name__}): return the "
                 "optimizer alone; with lr=torch.tensor(...) the rate is an input of each step")
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        fail(f"--optimizer: expected a torch.optim.Optimizer, got a {name}")
    if not hasattr(optimizer, "_init_group"):
        refuse(f"the optimizer {name} is not supported: its step is no function of one gradient")
    for group in optimizer.param_groups:
        if group.get("dampening") and group.get("momentum"):
            refuse(f"{name} with dampening is not supported: its first step is another than the rest")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        refuse(f"the optimizer {name} has hooks on its step, which are not supported")
    known = {id(p) for p in model.parameters()}
    if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
        fail("the optimizer has a parameter that the module has not")


def init_states(optimizer, reached):
    """Fills the optimizer's states for the parameters with a gradient, as its first step does."""
    lists = list(inspect.signature(optimizer._init_group).parameters)[1:]
    for p in reached:
        p.grad = torch.zeros_like(p)
    for group in optimizer.param_groups:
        optimizer._init_group(group, *([] for _ in lists))
        for p in group["params"] if group.get("momentum") and "momentum_buffer_list" in lists else ():
            if p.grad is not None and optimizer.state[p].get("momentum_buffer") is None:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)  # SGD's becomes the gradient
    for p in reached:
        p.grad = None


class States:
    """The tensors of an optimizer's states by (parameter's number, key), equal scalars once."""

    def __init__(self, optimizer, names, parameters):
        self.tensors, self.of = [], {}
        scalars = {}
        group_of = {id(p): k for k, g in enumerate(optimizer.param_groups) for p in g["params"]}
        for k, p in enumerate(parameters):
            for key, value in optimizer.state[p].items():
                if not isinstance(value, torch.Tensor):
                    continue
                shared = (key, "" if key == "step" else group_of[id(p)], value.item()) \
                    if value.dim() == 0 else None
                if shared in scalars:
                    self.of[k, key] = scalars[shared]
                    continue
                name = f"{names[k]}.{key}" if shared is None else (
                    key if key == "step" else f"{key}.{shared[1]}")
                taken = {t.name for t in self.tensors}
                name = name if name not in taken else f"{names[k]}.{key}"
                self.of[k, key] = len(self.tensors)
                self.tensors.append(Tensor(name, "state", value.detach().clone(), []))
                if shared is not None:
                    scalars[shared] = self.of[k, key]


def rebuilt(optimizer, parameters, tensors, gradients, states, values, rates):
    """A copy of the optimizer whose step() is about these tensors."""
    own = object.__new__(type(optimizer))  # copy.copy leaves out attributes of the user's own
    own.__dict__.update(vars(optimizer))
    own.state = defaultdict(dict)
    new = {id(p): t for p, t in zip(parameters, tensors)}
    for t, g in zip(tensors, gradients):
        t.grad = g
    for (k, key), at in states.of.items():
        own.state[tensors[k]][key] = values[at].clone()
    for k, p in enumerate(parameters):
        for key, value in optimizer.state[p].items():
            own.state[tensors[k]].setdefault(key, value)
    own.param_groups = []
    for k, group in enumerate(optimizer.param_groups):
        changes = {key: v for key, v in CAPTURED.items() if key in group}
        if k in rates:
            changes["lr"] = rates[k]
        own.param_groups.append({**group, **changes,
                                 "params": [new[id(p)] for p in group["params"] if id(p) in new]})
    return own


def python_values(optimizer, tensors):
    """What a step() may change beside tensors and their states, by name: numbers, words, flags, sets, and which
    tensors attributes and groups have, also in lists, tuples and dictionaries; objects are not looked into."""
    found = {}

    def walk(name, x):
        if isinstance(x, (int, float, complex, str, type(None))):
            found[name] = x
        elif isinstance(x, torch.Tensor):
            found[name] = (id(x), x._version)
        elif isinstance(x, (set, frozenset)):
            found[name] = frozenset(x)
        elif isinstance(x, (Mapping, list, tuple)):
            found[name] = len(x)
            for key, part in x.items() if isinstance(x, Mapping) else enumerate(x):
                walk(f"{name}[{key!r}]", part)

    for name, x in vars(optimizer).items():
        if name not in ("state", "param_groups", "defaults") and not name.startswith("_warned"):
            walk(f"self.{name}", x)
    for k, group in enumerate(optimizer.param_groups):
        walk(f"param_groups[{k}]", {key: x for key, x in group.items() if key != "params"})
    for t in tensors:
        walk("state", {key: x for key, x in optimizer.state[t].items() if not isinstance(x, torch.Tensor)})
    return found


def addcdiv_(self, a, b, *, value=1):
    """torch.Tensor.addcdiv_, which reads a value that is a tensor (Adagrad's)."""
    return self.add_(a / b * value)


ADD_ = torch.Tensor.add_


def add_(self, other, *, alpha=1):
    """torch.Tensor.add_, which reads an alpha that is a tensor (the learning rate of SGD)."""
    return ADD_(self, other * alpha) if isinstance(alpha, torch.Tensor) else ADD_(self, other, alpha=alpha)


@contextlib.contextmanager
def as_captured():
    """PyTorch takes its optimizers' tensors for those of a compiled step: no value is read."""
    with patched(torch.compiler, _is_compiling_flag=True, _is_exporting_flag=True), \
            patched(torch.Tensor, addcdiv_=addcdiv_, add_=add_):
        yield


def trace(optimizer, model, step):
    """The Update of an optimizer that the user made for the module, for a captured Step."""
    check(optimizer, model)
    name_of = {id(p): t.name for t in step.arguments if t.role == "weight"
               for p in [model.get_parameter(t.name)]}
    held = [p for g in optimizer.param_groups for p in g["params"]]
    reached = set(step.reached())
    parameters = [p for p in held if name_of.get(id(p)) in reached]
    names = [name_of[id(p)] for p in parameters]
    missing = [name for name in step.reached() if name not in names]
    if missing:
        refuse(f"the optimizer does not have {', '.join(missing)}: give it all parameters that require a "
             "gradient, or set requires_grad=False")
    init_states(optimizer, parameters)
    states = States(optimizer, names, parameters)
    rated = [k for k, g in enumerate(optimizer.param_groups) if isinstance(g["lr"], torch.Tensor)]
    rates = [Tensor("lr" if len(rated) == 1 else f"lr.{k}", "input",
                    optimizer.param_groups[k]["lr"].detach().clone(), []) for k in rated]
    first = [next((k for k, _ in states.of.items() if states.of[k] == at)) for at in range(len(states.tensors))]

    changed = []

    def run(tensors, gradients, values, lrs):
        own = rebuilt(optimizer, parameters, tensors, gradients, states, values, dict(zip(rated, lrs)))
        before = python_values(own, tensors)
        own.step()
        after = python_values(own, tensors)
        changed.extend(name for name in after if name not in before or before[name] != after[name])
        return list(tensors) + [own.state[tensors[k]][key] for k, key in first]

    given = ([p.detach().clone() for p in parameters], [torch.zeros_like(p) for p in parameters],
             [t.value for t in states.tensors], [t.value for t in rates])
    with as_captured():
        try:
            module = make_fx(torch.func.functionalize(run), tracing_mode="fake",
                             decomposition_table=core_aten_decompositions())(*given)
        except Exception as e:  # whatever the optimizer and PyTorch raise
            refuse(f"the optimizer {type(optimizer).__name__} is not supported: its step cannot be traced: "
                 f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
    if any(node.target is torch.ops.aten._local_scalar_dense.default for node in module.graph.nodes):
        refuse(f"the optimizer {type(optimizer).__name__} is not supported: its step reads the value of a tensor")
    ends = [node for node in module.graph.nodes if node.op == "placeholder"]
    written = {node.args[0] for node in module.graph.nodes if node.target is torch.ops.aten.copy_.default}
    changed += [f"the learning rate {t.name}" for t, end in zip(rates[::-1], ends[::-1]) if end in written]
    if changed:
        refuse(f"the optimizer {type(optimizer).__name__} is not supported: its step changes {changed[0]}, which "
             "would be a constant of every step: keep it as a tensor in optimizer.state[parameter]")
    order = [step.reached().index(name) for name in names]
    keys = [(names[k], key) for k, key in first]
    return Update(module, names, order, states.tensors, keys, rates)
