"""From a module to an ONNX model by way of torch.export, for PyTorch 2.8 and newer.

The exported program's signature says what each tensor is, and the model carries that as
metadata "autopar.roles" (ap-import reads and checks it):

  {"weights": [NAME...], "states": {NAME: RESULT...}, "constants": [NAME...], "loss": RESULT}

NAMEs are initialisers, called as named_parameters() and named_buffers() of the module call
them. A weight that the module holds twice is there once, under its first name. A state is a
buffer, or a parameter that requires no gradient, that the forward pass changes; RESULT is its
next value. Constants are other buffers and such parameters, and lifted constants.

PyTorch's own lowering to ONNX gives an operator's inference meaning in places (batch norm) or
makes sequences of tensors (split); such operators are decomposed before (TABLE).
"""
import json
import logging
import operator
import re
import sys
import warnings

import torch

import tracing
from tracing import fail

aten = getattr(torch.ops, "aten")
pytree = getattr(torch.utils, "_pytree")


# ---- operators that are lowered here ----


def split(x, size, dim=0):
    return [x.narrow(dim, at, min(size, x.shape[dim] - at)) for at in range(0, x.shape[dim], size)]


def split_with_sizes(x, sizes, dim=0):
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [x.narrow(dim, at, size) for at, size in zip(starts, sizes)]


def chunk(x, chunks, dim=0):
    return split(x, -(-x.shape[dim] // chunks), dim)


def unbind(x, dim=0):
    return [x.select(dim, k) for k in range(x.shape[dim])]


def batch_norm(x, weight, bias, mean, var, training, momentum, eps):
    """As torch._decomp has it, with the unbiased variance among the statistics."""
    if not training:
        raise NotImplementedError("batch norm by running statistics")
    dims = [0, *range(2, x.dim())]
    now_var, now_mean = torch.var_mean(x, dim=dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(now_var + eps)
    y = (x - now_mean) * rstd
    shape = [1, -1] + [1] * (x.dim() - 2)
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    count = x.numel() / x.shape[1]
    mean = momentum * now_mean.reshape(-1) + (1 - momentum) * mean
    unbiased = now_var.reshape(-1) * (count / (count - 1))
    var = momentum * unbiased + (1 - momentum) * var
    return y, now_mean.reshape(-1), rstd.reshape(-1), mean, var


def stop_gradient(x):
    """ap-import's own operator: x, through which no gradient passes."""
    if not x.is_floating_point():
        return x.clone()
    return torch.onnx.ops.symbolic("autopar::StopGradient", [x], dtype=x.dtype,
                                   shape=x.shape, version=1)


def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """The row of padding_idx is never trained."""
    if scale_grad_by_freq:
        fail("an embedding with scale_grad_by_freq is not supported")
    if padding_idx < 0:
        return NotImplemented
    y = aten.embedding(weight, indices)
    return torch.where((indices == padding_idx).unsqueeze(-1), stop_gradient(y), y)


def cross_entropy(x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    """Smoothed labels, and probabilities as targets, which torch.onnx leaves out."""
    if not label_smoothing and not target.is_floating_point():
        return NotImplemented
    dim = 1 if x.dim() > 1 else 0
    logs, classes = x.log_softmax(dim), x.shape[dim]
    if target.is_floating_point():
        part = target * (1 - label_smoothing) + label_smoothing / classes
        scale = 1 if weight is None else weight.reshape([-1] + [1] * (x.dim() - 1 - dim))
        each = -(logs * part * scale).sum(dim)
        count = each.numel()
    else:
        known = target != ignore_index
        scale = torch.ones_like(logs) if weight is None else weight.reshape(
            [-1] + [1] * (x.dim() - 1 - dim)).expand_as(logs)
        index = torch.where(known, target, 0).unsqueeze(dim)
        at = torch.where(known, scale.gather(dim, index).squeeze(dim), 0)
        fit = -logs.gather(dim, index).squeeze(dim) * at
        spread = torch.where(known, -(logs * scale).sum(dim), 0)
        each = (1 - label_smoothing) * fit + label_smoothing / classes * spread
        count = at.sum()
    return [each, each.sum() / count, each.sum()][reduction]


def unrolled(name):
    """PyTorch's decomposition of a recurrent operator, one copy a time step."""
    from torch._decomp import decompositions

    return getattr(decompositions, name)


TABLE = {
    aten.cross_entropy_loss.default: cross_entropy,
    aten.lstm.input: unrolled("lstm_impl"),
    aten.gru.input: unrolled("gru_impl"),
    aten.rnn_tanh.input: unrolled("rnn_tanh_input"),
    aten.rnn_relu.input: unrolled("rnn_relu_input"),
    aten.detach.default: stop_gradient,
    aten.embedding.default: embedding,
    aten.split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.chunk.default: chunk,
    aten.unbind.int: unbind,
    aten._native_batch_norm_legit_functional.default: batch_norm,
}


# ---- what cannot be exported ----


def module_of(node):
    """The name of the module that a node was traced in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0] if stack and stack[-1][0] else "the module"


def refuse_random(graph):
    """Ends with a message where the forward pass draws random numbers."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        args = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        args |= dict(zip((a.name for a in schema.arguments), node.args)) | node.kwargs
        p = args.get("dropout_p", args.get("p") if "dropout" in schema.name else None)
        if isinstance(p, float) or p in (0, 1):
            if p and args.get("train", args.get("training", True)):
                fail(f"dropout with p={p} in {module_of(node)}: random numbers are not "
                     "supported: set p to 0 before exporting")
        elif torch.Tag.nondeterministic_seeded in node.target.tags and "lstm" not in schema.name:
            fail(f"{schema.name} in {module_of(node)} draws random numbers, which is not "
                 "supported: give them to the forward pass as an input")


# ---- the program ----


def free_strides(program):
    """
    Views become reshapes, and attention's result is made contiguous: strides are the kernels'
    own, and differ when torch.onnx decomposes the program again.
    """
    for node in list(program.graph.nodes):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        if node.target == aten.scaled_dot_product_attention.default:
            with program.graph.inserting_after(node):
                copy = program.graph.call_function(
                    aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
            copy.meta = dict(node.meta)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user, c=copy: user is not c)
    program.graph_module.recompile()
    return program


def program_of(model, inputs, batch):
    """torch.export's program of the forward pass, inputs by name; batch: a symbol's name."""
    dynamic = None
    if batch:
        size = torch.export.Dim(batch)
        dynamic = {name: {0: size} if x.dim() else None for name, x in inputs.items()}
    try:
        with tracing.watched(model):
            program = torch.export.export(model, (), inputs, dynamic_shapes=dynamic,
                                          strict=False)
    except Exception as e:  # whatever the module and torch.export raise
        fail(f"torch.export cannot trace this module: {type(e).__name__}: {e}")
    refuse_random(program.graph)
    tracing.carry_gradients(model, program)
    return free_strides(free_strides(program).run_decompositions(TABLE))


def return_states(program):
    """Makes the next values of buffers results that torch.onnx keeps; buffer to place."""
    kinds = torch.export.graph_signature.OutputKind
    states = {}
    for place, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind == kinds.USER_INPUT_MUTATION:
            fail(f"the forward pass changes its input {spec.target}, which is not supported")
        if spec.kind in (kinds.BUFFER_MUTATION, getattr(kinds, "PARAMETER_MUTATION", None)):
            states[spec.target] = place
            spec.kind, spec.target = kinds.USER_OUTPUT, None
    every = tuple(range(len(program.graph_signature.output_specs)))
    program.module_call_graph[0].signature.out_spec = pytree.tree_flatten(every)[1]
    return states


def loss_of(program):
    """The name of the result that is the loss: "loss", or the first scalar."""
    names = list(program.graph_signature.user_outputs)
    value = {n.name: n.meta.get("val") for n in program.graph.nodes}
    paths, _ = pytree.tree_flatten_with_path(
        pytree.tree_unflatten(names, program.call_spec.out_spec))
    found = {pytree.keystr(path): name for path, name in paths}
    scalars = {path: name for path, name in found.items()
               if isinstance(value.get(name), torch.Tensor)
               and value[name].dim() == 0 and value[name].is_floating_point()}
    keys = {path.strip("[].'\""): name for path, name in scalars.items()}
    if not scalars:
        shapes = ", ".join(f"{path.strip('.')} {list(value[name].shape)}"
                           for path, name in found.items()
                           if isinstance(value.get(name), torch.Tensor))
        fail("the forward pass returns no floating-point scalar that could be the loss (but "
             f"{shapes or 'nothing'}): give it the labels, or wrap the module in one that "
             "returns the loss")
    taken = "loss" if "loss" in keys else next(iter(keys))
    if len(keys) > 1 and taken != "loss":
        print(f"export.py: {len(keys)} results may be the loss ({', '.join(keys)}): "
              f"took {taken}; one that is called loss would be taken", file=sys.stderr)
    return keys[taken]


# ---- the model ----


def first_names(model):
    """Each parameter's and buffer's name: the first of those that the same tensor has."""
    first, name_of = {}, {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            name_of[name] = first.setdefault(id(tensor), name)
    return name_of


def join_tied(graph, name_of):
    """Initialisers that are one tensor of the module become one, under its first name."""
    groups = {first: [] for first in name_of.values()}
    for name in list(graph.initializers):
        groups.setdefault(name_of.get(name, name), []).append(name)
    groups = {first: names for first, names in groups.items() if names}
    for first, names in groups.items():
        values = [graph.initializers.pop(name) for name in names]
        for other in values[1:]:
            for node, k in list(other.uses()):
                node.replace_input_with(k, values[0])
        values[0].name = first
        values[0].const_value.name = first
        graph.initializers[first] = values[0]


def name_nodes(graph):
    """Nodes are named by the module that they are of; paths and traces go."""
    for node in graph.all_nodes():
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]")
        scope = ([""] + json.loads(scopes.replace("'", '"')))[-2:][0]
        node.name = f"/{scope.split('@')[0]}/{node.name}"
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            if value.name in graph.initializers:  # a buffer may be called like an operator
                value.name = f"/{value.name}.result"


def set_results(graph, states, loss):
    """The loss, then the states' next values, are the graph's results, each by its own name."""
    made = {value.name: value for value in graph.inputs} | dict(graph.initializers)
    made |= {value.name: value for node in graph for value in node.outputs}
    import onnx_ir

    graph.outputs.clear()
    for name in [loss, *states.values()]:
        value = made[name]
        if value.producer() is None or value in graph.outputs:
            node = onnx_ir.node("Identity", [value])
            graph.append(node)
            value = node.outputs[0]
            value.shape, value.type = made[name].shape, made[name].type
        graph.outputs.append(value)
    for name, value in zip(["loss", *(f"{state}.next" for state in states)], graph.outputs):
        value.name = name


def roles_of(model, graph, states):
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    names = list(graph.initializers)
    return {
        "weights": [n for n in names if n in trained],
        "states": {n: f"{n}.next" for n in states},
        "constants": [n for n in names if n not in trained and n not in states],
        "loss": "loss",
    }


def remove_unused(model):
    """What the results do not depend on; warns of parameters that the loss does not use."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    before = list(model.graph.initializers)
    RemoveUnusedNodesPass()(model)
    for name in before:
        if name in model.graph.initializers and not model.graph.initializers[name].uses():
            del model.graph.initializers[name]
    return [name for name in before if name not in model.graph.initializers]


def export(model, inputs, batch=None):
    """The ONNX model (onnx_ir) of a module's forward pass in training mode, with roles."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    name_of = first_names(model)
    program = program_of(model, inputs, batch)
    loss = loss_of(program)
    states = return_states(program)
    loss = list(program.graph_signature.user_outputs).index(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = torch.onnx.export(program, (), kwargs=inputs, dynamo=True, optimize=False,
                                     verbose=False, opset_version=20)
        except Exception as e:
            missing = re.search(r"No ONNX function found for <OpOverload\(op='([^']*)'", str(e))
            fail(f"torch.onnx has no operator for {missing[1]}: choose another implementation "
                 "in the module" if missing else f"torch.onnx cannot lower this module: {e}")
    results = list(made.exported_program.graph_signature.user_outputs)
    states = {name_of.get(name, name): results[place] for name, place in states.items()}
    join_tied(made.model.graph, name_of)
    set_results(made.model.graph, states, results[loss])
    unused = remove_unused(made.model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    if trained & set(unused):
        print("export.py: the loss does not depend on "
              f"{', '.join(n for n in unused if n in trained)}", file=sys.stderr)
    name_nodes(made.model.graph)
    made.model.metadata_props.clear()
    made.model.metadata_props["autopar.roles"] = json.dumps(
        roles_of(model, made.model.graph, states))
    return made.model
