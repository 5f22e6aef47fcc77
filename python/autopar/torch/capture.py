# SPDX-License-Identifier: Apache-2.0
"""A module's training step as PyTorch differentiates it: AOTAutograd's joint graph, with names.

A joint graph computes the loss, the gradient of every trained parameter, and the next value of
every buffer that the forward pass changes, in operators of ATen without side effects.  PyTorch's
own autograd made the backward part: gradients at kinks, of masked rows and of one's own
torch.autograd.Function are PyTorch's.  Its nodes keep the name of the module that they belong to.
"""
import collections
import contextlib
import copy
import dataclasses
import os
import sys
import traceback
import warnings
from collections.abc import Mapping

import torch
from torch import nn
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._decomp import decompositions as torch_decompositions
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd import descriptors
from torch._subclasses import FakeTensorMode, fake_tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..errors import StepError
from . import known
from .known import dense_gradients, patched


def fail(message):
    raise StepError(message)


@dataclasses.dataclass
class Tensor:
    """An argument of the step."""

    name: str
    role: str  # input, weight, state or constant
    value: torch.Tensor  # may be a fake one
    nodes: list  # placeholders of the graph, several of a tied parameter
    trained: bool = False


@dataclasses.dataclass
class Step:
    """The joint graph with what its ends mean."""

    name: str  # the module's class
    graph: torch.fx.Graph
    module: torch.fx.GraphModule  # has the graph's constants as attributes
    arguments: list  # of Tensor: inputs first, then in the module's order
    ones: list  # placeholders: the loss's own gradient
    loss: torch.fx.Node
    gradients: dict  # name of a trained parameter to the nodes that are summed
    states: dict  # name of a state to the node of its next value
    update: object = None  # update.Update: of the user's own optimizer

    def reached(self):
        """Names of the trained parameters that the loss depends on."""
        return [name for name, nodes in self.gradients.items() if nodes]

    def changed(self):
        """(number, argument) of what a step gives new values."""
        reached = self.reached()
        return [(k, t) for k, t in enumerate(self.arguments)
                if t.role == "state" or t.name in reached]


# ---- the loss ----


def leaves(result, path=()):
    """(path, value) of what lies in dictionaries, tuples and lists."""
    if isinstance(result, Mapping):
        for key, part in result.items():
            yield from leaves(part, (*path, str(key)))
    elif isinstance(result, (tuple, list)):
        for k, part in enumerate(result):
            yield from leaves(part, (*path, str(k)))
    else:
        yield path, result


def loss_in(result, say=False):
    """The loss among what the forward pass returns: what is called so, else the first scalar."""
    found = [(".".join(path), x) for path, x in leaves(result) if isinstance(x, torch.Tensor)]
    scalars = {name: x for name, x in found if x.dim() == 0 and x.is_floating_point()}
    if not scalars:
        shapes = ", ".join(f"'{name}' {list(x.shape)}" if name else f"{list(x.shape)}"
                           for name, x in found)
        fail("the forward pass returns no floating-point scalar that could be the loss (but "
             f"{shapes or 'nothing'}): give it the labels, or wrap the module in one that "
             "returns the loss")
    taken = "loss" if "loss" in scalars else next(iter(scalars))
    if say and len(scalars) > 1 and taken != "loss":
        print(f"export.py: {len(scalars)} results may be the loss ({', '.join(scalars)}): took "
              f"{taken}; one that is called loss would be taken", file=sys.stderr)
    return scalars[taken]


class Calls(TorchFunctionMode):
    """Tells the tracer which function the module calls, as PyTorch's graphs name it (linear, then
    linear_1): node.meta["custom"]["call"]."""

    def __init__(self):
        super().__init__()
        self.n = collections.Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, meta = getattr(func, "__name__", "").strip("_"), torch.fx.traceback.current_meta
        before = meta.get("custom", {})
        if name.isidentifier() and name != "get":  # not an attribute of a tensor
            meta["custom"] = before | {"call": f"{name}_{self.n[name]}" if self.n[name] else name}
            self.n[name] += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            meta["custom"] = before


class LossOf(nn.Module):
    """The module as a function of tensors by position that returns its loss alone."""

    def __init__(self, module, names):
        super().__init__()
        self.module, self.names = module, names
        self.real = dict(module.named_buffers())  # the traced ones take their place
        self.read, self.assigned = set(), {}  # buffers whose values are read; attributes that are assigned

    def forward(self, *inputs):
        buffers = [(name, x, self.real[name]) for name, x in self.module.named_buffers()]
        with unassigned(self.module, self.assigned), Calls(), known.Known(buffers) as values:
            loss = loss_in(self.module(**dict(zip(self.names, inputs))), say=True)
        for name, traced, _ in buffers:
            self.replaced(name, traced)
        self.read |= values.read
        return loss

    def replaced(self, name, traced):
        """A buffer that the forward pass assigns anew is changed, as AOTAutograd sees it."""
        path, _, own = name.rpartition(".")
        module = self.module.get_submodule(path)
        new, module._buffers[own] = module._buffers.get(own, traced), traced
        if new is traced:
            return
        if new is None or (new.shape, new.dtype) != (traced.shape, traced.dtype):
            self.assigned[name] = None
            return
        if new.requires_grad:
            fail(f"the forward pass assigns buffer '{name}' a tensor with a gradient, from which the next step cannot "
                 "start: detach() it")
        with torch.no_grad():
            traced.copy_(new)


# ---- what tracing needs ----


@contextlib.contextmanager
def named_scopes(model):
    """Tells the tracer, by hooks, which module of the model runs: node.meta["custom"]["scope"]."""
    outer, hooks, meta = [], [], torch.fx.traceback

    def enter(name):
        def hook(*_):
            outer.append(meta.current_meta.get("custom", {}))
            meta.current_meta["custom"] = outer[-1] | {"scope": name}

        return hook

    def leave(*_):
        meta.current_meta["custom"] = outer.pop()

    for name, module in model.named_modules():
        hooks += [module.register_forward_pre_hook(enter(name)),
                  module.register_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def held(value):
    """Which tensors an attribute has, itself or in containers."""
    return [id(x) for x in tree_leaves(value) if isinstance(x, torch.Tensor)]


def attributes(module):
    """Attributes by name, containers as they are now, with the tensors in them."""
    return {name: (copy.copy(value) if type(value) in (dict, list) else value, held(value))
            for name, value in vars(module).items() if not name.startswith("_")}


@contextlib.contextmanager
def unassigned(model, assigned):
    """Undoes what a forward pass keeps of its tensors and has no buffer for: attributes, entries of
    containers, new buffers. assigned: the attributes' names are added to it as keys."""
    before = {name: (module, attributes(module), {k for k, x in module._buffers.items() if x is not None})
              for name, module in model.named_modules()}
    yield
    for path, (module, own, buffers) in before.items():
        for name, (_, tensors) in attributes(module).items():
            old = own.get(name, (None, []))
            if tensors and tensors != old[1]:
                setattr(module, name, old[0]) if name in own else delattr(module, name)
                assigned[f"{path or 'self'}.{name}"] = None
        for name in [k for k, x in module._buffers.items() if x is not None and k not in buffers]:
            module._buffers[name] = None


def apply_without_memory(self, function, recurse=True):
    """nn.Module._apply (of to, half, ...) for tensors that cannot be swapped; ties are kept."""
    made = {}

    def changed(old):
        if id(old) not in made:
            new = function(old.detach())
            is_parameter = isinstance(old, nn.Parameter)
            made[id(old)] = old, nn.Parameter(new, old.requires_grad) if is_parameter else new
        return made[id(old)][1]

    for module in self.modules() if recurse else [self]:
        for own in (module._parameters, module._buffers):
            own.update({name: changed(t) for name, t in own.items() if t is not None})
    return self


@contextlib.contextmanager
def without_memory():
    """Tensors made in it have shapes and types, but no memory."""
    with FakeTensorMode(allow_non_fake_inputs=True), patched(nn.Module,
                                                             _apply=apply_without_memory):
        yield


def layer_by_layer(layers):
    """PyTorch's decomposition of recurrent layers, with the dropout between them, which it leaves out."""
    def run(x, hidden, params, biases, n, dropout, train, both_ways, batch_first, one):
        x, width, last = x.transpose(0, 1) if batch_first else x, len(hidden) // n, []
        for k in range(n):
            part = slice(k * width, (k + 1) * width)
            x, made = layers(x, hidden[part], params[part], biases, 1, 0.0, train, both_ways, False, one)
            last += made
            if dropout and train and k < n - 1:
                x = torch.dropout(x, dropout, True)
        return x.transpose(0, 1) if batch_first else x, last

    return run


def decompositions():
    """PyTorch's own of the operators that have no rule."""
    from .lower import has_rule  # which imports this file

    return {**{op: f for op, f in decomposition_table.items() if not has_rule(str(op))},
            **core_aten_decompositions()}


def joint_graph(model, inputs):
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # tensors that are neither parameters nor buffers are constants
        stack.enter_context(patched(fake_tensor.fake_tensor_tls, allow_non_fake_inputs_override=True))
        # transformers builds masks without looking at their values, and attention is made of
        # products and softmaxes, instead of kernels for CPUs
        stack.enter_context(patched(torch.compiler, _is_exporting_flag=True,
                                    _is_compiling_flag=True))
        stack.enter_context(patched(FunctionalTensor, tolist=known.tolist))
        stack.enter_context(patched(torch_decompositions, _rnn_helper=layer_by_layer(torch_decompositions._rnn_helper)))
        stack.enter_context(dense_gradients())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(named_scopes(model))
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        loss = LossOf(model, list(inputs))
        try:
            made = aot_autograd.aot_export_joint_with_descriptors(
                stack, loss, tuple(inputs.values()), decompositions=decompositions())
        except StepError:
            raise
        except Exception as e:  # whatever the module and PyTorch raise
            fail(f"{line_of(e)}{reason(e)}")
    if loss.assigned:
        print(f"export.py: the forward pass assigns {', '.join(loss.assigned)}: the next step does not see it, "
              "unless it is a buffer (register_buffer) of the same shape and type", file=sys.stderr)
    return made.graph_module, loss.read


def line_of(error):
    """The line of the module's code, or of a package that it uses, in which an error arose."""
    own = [os.path.dirname(torch.__file__), os.path.dirname(__file__)]
    lines = [f for f in traceback.extract_tb(error.__traceback__)
             if not f.filename.startswith((*own, "<"))]
    return f"{lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}: " if lines else ""


def reason(error):
    if isinstance(error, fake_tensor.DataDependentOutputException):
        return (f"the step depends on the value of a tensor ({error.func}) that inputs, weights or random numbers "
                "make: an exported step is one for all values")
    if isinstance(error, fake_tensor.DynamicOutputShapeException):
        return (f"the size of a result depends on the values of a tensor ({error.func}) that inputs or weights make, "
                "which is not supported")
    said = str(error).strip()
    return f"PyTorch cannot trace this module: {type(error).__name__}: {said}"


# ---- refusals ----


def check_module(model):
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if p.is_meta or isinstance(p, nn.parameter.UninitializedTensorMixin):
            fail(f"'{name}' has no values yet (lazy, or on the device meta): PyTorch gives no "
                 "gradients there; --shapes-only makes modules without memory")
    for name, p in model.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            fail(f"parameter '{name}' has a hook on its gradient, which is not supported")


def check_gradients(step):
    without = [name for name, nodes in step.gradients.items() if not nodes]
    if not step.reached():
        fail("no parameter that requires a gradient gets one from the loss")
    if without:
        more = f" and {len(without) - 8} more" if len(without) > 8 else ""
        print(f"export.py: the loss does not depend on {', '.join(without[:8])}{more}", file=sys.stderr)


# ---- the step ----


def first_names(model):
    """Each parameter's and buffer's name: the first of those that the same tensor has."""
    first, name_of = {}, {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            name_of[name] = first.setdefault(id(tensor), name)
    return name_of


def scope_of(node):
    return (node.meta.get("custom") or {}).get("scope", "")


def call_of(node):
    """The name of the call that a node of the forward pass belongs to, or ""."""
    forward = node.meta.get("partitioner_tag") == "is_forward"
    return (node.meta.get("custom") or {}).get("call", "") if forward else ""


def place_of(node):
    return f"module '{scope_of(node)}'" if scope_of(node) else "the outermost module"


def refuse_effects(token):
    """Of the operator that reads a token, which PyTorch keeps for its effect: torch.linalg.inv raises if singular."""
    node = next(iter(token.users))
    called = [x for x in node.args[2:] if isinstance(x, str)]
    fail(f"{' of '.join([str(node.args[1]), *called])} (in {place_of(node)}) stops the step, or has another effect, by "
         "the values of a tensor, which is not supported")


def collect(model, inputs, placeholders):
    """Tensors of the step by name, roles as if nothing changed, and the loss's own gradients."""
    name_of, tensors, ones = first_names(model), {}, []
    for name, value in inputs.items():
        tensors["input", name] = Tensor(name, "input", value, [])
    for node in placeholders:
        desc = node.meta["desc"]
        if isinstance(desc, descriptors.TangentAOTInput):
            ones.append(node)
        elif isinstance(desc, descriptors.ForwardTokenAOTInput):
            refuse_effects(node)
        elif isinstance(desc, descriptors.PlainAOTInput):
            tensors["input", list(inputs)[desc.idx]].nodes.append(node)
        else:
            name = name_of[desc.target.removeprefix("module.")]
            if name not in tensors:
                is_weight = isinstance(desc, descriptors.ParamAOTInput)
                value = (model.get_parameter if is_weight else model.get_buffer)(name)
                tensors[name] = Tensor(name, "weight" if is_weight else "constant",
                                       value.detach(), [], is_weight and value.requires_grad)
            tensors[name].nodes.append(node)
    return tensors, ones


def tensor_of(tensors, placeholders, desc):
    node = next(node for node in placeholders if node.meta["desc"] == desc)
    return next(t for t in tensors.values() if node in t.nodes)


def change(step, tensor, node):
    """The forward pass changes the tensor."""
    if tensor.role == "input":
        fail(f"the forward pass changes its input '{tensor.name}', which is not supported")
    if tensor.trained:
        fail(f"the forward pass changes '{tensor.name}' in place, which is supported for buffers "
             "and for parameters that require no gradient")
    tensor.role = "state"
    step.states[tensor.name] = node


def capture(model, inputs):
    """The Step of a module in training mode for example inputs by name."""
    check_module(model)
    module, read = joint_graph(model, inputs)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    output = next(n for n in module.graph.nodes if n.op == "output")
    tensors, ones = collect(model, inputs, placeholders)
    trained = [t.name for t in tensors.values() if t.trained]
    step = Step(type(model).__name__, module.graph, module, list(tensors.values()), ones, None,
                {name: [] for name in trained}, {})
    for node, desc in zip(output.args[0], output.meta["desc"]):
        if node is None or desc is None:
            continue
        if isinstance(desc, descriptors.GradAOTOutput):
            name = tensor_of(tensors, placeholders, desc.grad_of).name
            if name in step.gradients:  # not a buffer's
                step.gradients[name].append(node)
        elif isinstance(desc, descriptors.InputMutationAOTOutput):
            change(step, tensor_of(tensors, placeholders, desc.mutated_input), node)
        else:
            step.loss = node
    for name in sorted(read):
        if first_names(model)[name] in step.states:
            fail(f"the forward pass reads the value of the buffer '{name}', and changes it: an exported step is "
                 "the same for all values")
    check_gradients(step)
    return step
