# SPDX-License-Identifier: Apache-2.0
"""HLO text of a captured step: parameters and results named as the module names them.

The text is lowered and described as JAX's own steps are (../step.py). Parameters are
inputs, then the module's tensors in its own order, and the key of random numbers, if the step
draws some. Results are the loss, gradients of trained parameters, and the next values of states. With the
user's optimizer (update.py) its states are arguments, too, and the next values of parameters and states come
in the place of gradients.
"""
import re

import jax
import torch
from jax import numpy as jnp

from .. import step as jax_step
from . import rules
from .lower import CALL, Lowering

KEY = "random_key"  # name of the state that random numbers come from

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_traceback_in_locations_limit", 0)  # no lines of rules.py in the text


def draws(step):
    """Whether the step draws random numbers."""
    return any(rules.is_random(node) and node.users for node in step.graph.nodes)


def function_of(step):
    """The step as a function of arrays, in order of its arguments."""
    random = draws(step)
    nodes = [step.loss, *(n for of in step.gradients.values() for n in of), *step.states.values()]

    def run(*arrays):
        arrays, key, after = list(arrays), None, []
        if random:
            key, next_key = jax.random.split(jax.random.wrap_key_data(arrays.pop()))
            after = [jax.random.key_data(next_key)]
        of = {n: array for t, array in zip(step.arguments, arrays) for n in t.nodes}
        of |= {n: jnp.ones(tuple(n.meta["val"].shape), rules.dtype_of(n.meta["val"].dtype))
               for n in step.ones}
        loss, *made = Lowering(step.module, of, key).run(nodes)
        gradients = []
        for parts in step.gradients.values():
            own, made = made[:len(parts)], made[len(parts):]
            if own:
                gradients.append(sum(own[1:], own[0]))
        if step.update:
            values = {t.name: array for t, array in zip(step.arguments, arrays)}
            gradients = updated(step.update, values, gradients)
        return loss, gradients, made + after

    run.__name__ = step.name
    return run


def updated(update, values, gradients):
    """Arrays of the next values of the optimizer's parameters and states; values: by name."""
    given = [values[name] for name in update.names] + [gradients[k] for k in update.order]
    given += [values[t.name] for t in (*update.states, *update.rates)]
    ends = [n for n in update.module.graph.nodes if n.op == "placeholder"]
    results = next(n for n in update.module.graph.nodes if n.op == "output").args[0]
    return Lowering(update.module, dict(zip(ends, given))).run(list(results))


def named(text, names):
    """The text with these names for the parameters of its entry computation."""
    start = text.index("\nENTRY ")

    def name(match):
        return re.sub(r'op_name="[^"]*"', lambda _: f'op_name="{names[int(match[1])]}"', match[0])

    return text[:start] + re.sub(r"parameter\((\d+)\).*", name, text[start:])


def products_named(text):
    """The text with the first product of each call named as the call (linear, linear_1), as far as no other
    instruction has that name."""
    taken, name_of = set(re.findall(r"^ *(?:ROOT )?([\w.]+) = ", text, re.M)), {}
    product = rf'^ *(?:ROOT )?([\w.]+) = .* (?:dot|convolution)\(.*op_name="[^"]*?{CALL}(\w+)/'
    for old, name in re.findall(product, text, re.M):
        if name not in taken:
            taken.add(name)
            name_of[old] = name
    text = re.sub(rf"/{CALL}\w+|{CALL}\w+/?", "", text)
    if not name_of:
        return text
    stems = "|".join(sorted({old.split(".")[0] for old in name_of}))
    return re.sub(rf'(?<![\w./"])(?:{stems})[\w.]*', lambda m: name_of.get(m[0], m[0]), text)


def leaf(path, array, **more):
    return {"path": path, "shape": jax_step.shape_text(array), **more}


def section_of(lowered, step, arguments, results):
    """The section `step`: the arguments' roles, and what each result is."""
    place = {row["path"]: k for k, row in enumerate(arguments)}
    gradients = [] if step.update else step.reached()
    rows = [leaf("loss", results[0])]
    rows += [leaf(f"{name}.grad", array, gradient=place[name])
             for name, array in zip(gradients, results[1:])]
    states = [*step.states, *([KEY] if KEY in place else [])]
    if step.update:
        states = [*step.update.names, *(t.name for t in step.update.states), *states]
    rows += [leaf(name, array) for name, array in zip(states, results[1 + len(gradients):])]
    pairs = [(1 + len(gradients) + k, place[name]) for k, name in enumerate(states)]
    return {"framework": "torch", "version": torch.__version__,
            "hash": jax_step.canonical_hash(lowered), "arguments": arguments, "results": rows,
            "loss": {"result": 0, "guessed": False}}, pairs


def text_of(step):
    """HLO text with the step's description in its header."""
    arrays = [jax.ShapeDtypeStruct(tuple(t.value.shape), rules.dtype_of(t.value.dtype))
              for t in step.arguments]
    rows = [leaf(t.name, array, role=t.role) for t, array in zip(step.arguments, arrays)]
    if draws(step):
        arrays.append(jax.ShapeDtypeStruct((2,), jnp.uint32))
        rows.append(leaf(KEY, arrays[-1], role="state"))
    lowered = jax.jit(function_of(step), keep_unused=True).trace(*arrays).lower(
        lowering_platforms=("cpu",))
    text = products_named(named(jax_step.module_text(lowered), [row["path"] for row in rows]))
    results = jax.tree.leaves(lowered.out_info)
    return jax_step.with_header(text, *section_of(lowered, step, rows, results))
