"""What torch.export leaves out of a forward pass: how gradients go through it.

A traced program has the values only. Regions without gradients are carried: the results of
`torch.no_grad()` and `torch.inference_mode()` get a detach. What changes gradients otherwise
is refused: gradients of one's own (torch.autograd.Function), hooks, and weights that the
forward pass itself changes; buffers and parameters that do not require gradients may change.
"""
import contextlib
import operator
import os
import re
import sys
import warnings

import torch

aten = getattr(torch.ops, "aten")


def fail(message):
    sys.exit(f"export.py: {message}")


def source_of(depth=2):
    """FILE:LINE of the nearest caller that is no code of PyTorch's."""
    frame = sys._getframe(depth)
    while frame and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "the module"


def refuse_hooks(model):
    for name, p in model.named_parameters():
        if p._backward_hooks:
            fail(f"parameter '{name}' has a hook on its gradient, which is not supported")
    for name, module in model.named_modules():
        if module._backward_hooks or getattr(module, "_backward_pre_hooks", None):
            fail(f"module '{name}' has a backward hook, which is not supported")


@contextlib.contextmanager
def patched(owner, **values):
    old = {name: owner.__dict__[name] for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            setattr(owner, name, value)


def own_gradient(apply):
    def check(cls, *args, **kwargs):
        if not cls.__module__.startswith("torch."):
            fail(f"{source_of()}: the gradient of {cls.__name__} (torch.autograd.Function) is "
                 "its own, which is not supported: write it with detach()")
        return apply.__get__(None, cls)(*args, **kwargs)

    return classmethod(check)


def hook(*_, **__):
    fail(f"{source_of()}: a hook on a gradient is not supported")


def refuse_autocast(enter):
    """torch's own code enters it as well, where nothing is trained."""
    own = os.path.dirname(torch.__file__) + os.sep

    def check(self):
        caller = sys._getframe(1).f_code.co_filename
        if torch.is_autocast_enabled("cpu") and not caller.startswith(own):
            fail(f"{source_of()}: torch.export loses torch.no_grad() inside of autocast, and would "
                 "train weights used there: use detach()")
        return enter(self)

    return check


def enter_inference(self):
    self.no_grad = torch.no_grad()
    self.no_grad.__enter__()


def exit_inference(self, *what):
    self.no_grad.__exit__(*what)


@contextlib.contextmanager
def watched(model):
    """While the module is traced: refuses, and makes inference_mode a no_grad."""
    refuse_hooks(model)
    function = torch.autograd.Function
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(patched(function, apply=own_gradient(
            function.__dict__["apply"])))
        stack.enter_context(patched(torch.Tensor, register_hook=hook))
        stack.enter_context(patched(torch.no_grad, __enter__=refuse_autocast(
            torch.no_grad.__enter__)))
        stack.enter_context(patched(torch.inference_mode, __enter__=enter_inference,
                                    __exit__=exit_inference))
        yield
    for warning in said:
        found = re.match(r"The tensor attributes? (.*?) (was|were) assigned during export",
                         str(warning.message))
        names = re.findall(r"[\w.]+(?:\[\d+\])?", found[1]) if found else []
        names = [name for name in names if "._flat_weights[" not in name]
        if names:
            print(f"export.py: the forward pass assigns {', '.join(names)}: the next step does "
                  "not see it, unless it is a buffer (register_buffer)", file=sys.stderr)


def is_view(node):
    """Whether a node's result shares memory with its first operand."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or not node.args:
        return False
    return node.target is operator.getitem or (
        schema is not None and schema.arguments[0].alias_info is not None)


def changed(graph):
    """(operator, placeholder) of what the operators of a graph change in place."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for k, a in enumerate(schema.arguments):
            if a.alias_info is None or not a.alias_info.is_write:
                continue
            at = node.args[k] if k < len(node.args) else node.kwargs.get(a.name)
            while isinstance(at, torch.fx.Node) and is_view(at):
                at = at.args[0]
            if isinstance(at, torch.fx.Node) and at.op == "placeholder":
                yield schema.name, at


def stop_regions(module, name_of, kept):
    """
    Results of regions without gradients get a detach, in this module and those in it.
    name_of: placeholders to the names of parameters and buffers; kept: those names that may
    change there.
    """
    for node in list(module.graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op != "call_function" or not name.startswith("wrap_with_"):
            continue
        at = next(k for k, a in enumerate(node.args)
                  if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        inner, operands = getattr(module, node.args[at].target), node.args[at + 1:]
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        inside = {p: name_of.get(outer, str(outer)) for p, outer in zip(places, operands)}
        if name != "wrap_with_set_grad_enabled" or node.args[0]:
            stop_regions(inner, inside, kept)
            continue
        for what, place in changed(inner.graph):
            if inside[place] not in kept:
                fail(f"{what} under torch.no_grad() changes '{inside[place]}' in place, which is "
                     "supported for buffers and for parameters that require no gradient")
        for result in list(node.users):
            with module.graph.inserting_after(result):
                stop = module.graph.call_function(aten.detach.default, (result,))
            stop.meta = dict(result.meta)
            result.replace_all_uses_with(stop, delete_user_cb=lambda user, s=stop: user is not s)
    module.recompile()


def carry_gradients(model, program):
    """Of torch.export's program, before its regions are decomposed."""
    signature = program.graph_signature
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    name_of = {n: names[n.name] for n in program.graph.nodes
               if n.op == "placeholder" and n.name in names}
    for what, place in changed(program.graph):
        if name_of.get(place) in trained:
            fail(f"{what} changes the weight '{name_of[place]}' in the forward pass, which is "
                 "not supported")
    stop_regions(program.graph_module, name_of, set(names.values()) - trained)
