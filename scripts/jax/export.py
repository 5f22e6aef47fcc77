#!/usr/bin/env python3
"""Write a model's train step as unoptimised HLO text, and what JAX computes with it.

    export.py gpt --layers 2 --hidden 64 -o DIR        a graph with inputs and goldens
    export.py gpt --layers 12 --shapes-only -o F.hlo   a graph alone, of any size
    export.py gpt --forward -o DIR                     the loss alone, and its gradients
    export.py --step FILE.py:STEP --args FILE.py:ARGS -o F.hlo   a step of yours, see autopar/export.py

The step is step(params, opt_state, batch) -> (loss, new params, new opt_state).  DIR gets
DIR.hlo (or .hlo.gz), in/K.npy and out/K.npy for parameter K, losses.npy and meta.json.
With --forward it is loss(params, stats, batch) -> (loss, new stats); DIR gets DIR.hlo.gz,
grad/K.npy for weight K and meta.json: each parameter's number in the step of those sizes.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import gzip
import json
import os
import re
import shlex
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_allow_excess_precision=false"

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib import _hlo

from layers import Spec
from models import MODELS
from optimizers import OPTIMIZERS

N_STEPS = 5
MARGIN = 1e-3
GZIP_ABOVE = 300_000
DONATED = (0, 1)

SWITCHES = {
    "untied": "give the head its own weight (gpt, moe)",
    "bf16": "compute in bf16 from f32 weights (gpt, moe)",
}
SIZES = {
    "layers": "layers (per stage or side)",
    "hidden": "width",
    "heads": "attention heads",
    "ffn": "width of the MLP (0: four times hidden)",
    "vocab": "vocabulary",
    "seq": "sequence length",
    "target_seq": "sequence length of the decoder",
    "buckets": "relative position buckets",
    "max_distance": "distance where the buckets end",
    "experts": "experts of a mixture",
    "features": "width of the input",
    "classes": "classes of a classifier",
    "image": "height and width of an image",
    "stages": "stages of a ResNet",
    "batch": "batch size",
}


def parse_options(argv):
    """The command line; sizes that are not given come from the model."""
    from autopar import export as own  # whose options are a part of --help

    parser = argparse.ArgumentParser(
        description=own.ABOUT, epilog=own.help_text(), formatter_class=own.FORMAT
    )
    parser.add_argument("model", choices=MODELS)
    for name, text in SIZES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, metavar="N", help=text
        )
    for name, text in SWITCHES.items():
        parser.add_argument(f"--{name}", action="store_true", default=None, help=text)
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batch")
    parser.add_argument("--donate", action="store_true", help="alias weights and state")
    parser.add_argument("--frames", action="store_true", help="keep stack frames")
    parser.add_argument("--shapes-only", action="store_true", help="the graph alone")
    parser.add_argument("--forward", action="store_true", help="the loss and its gradients")
    parser.add_argument(
        "--order-tolerance", type=float, default=2e-5, metavar="X",
        help="relative change allowed when the batch is permuted",
    )  # fmt: skip
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="PATH")

    options = parser.parse_args(argv)
    defaults = MODELS[options.model].defaults
    for name in (*SIZES, *SWITCHES):
        given = getattr(options, name)
        if given is not None and name not in defaults:
            parser.error(f"{options.model} has no --{name.replace('_', '-')}")
        setattr(options, name, defaults.get(name) if given is None else given)
    if options.forward and MODELS[options.model].local:
        parser.error(f"{options.model} has no loss whose gradient is the step's")
    return options


def specs_of(model):
    """Specs of the step's arguments: params, opt_state, batch."""
    params = model.params()
    state_of, _ = OPTIMIZERS[model.optimizer]
    opt_state = state_of(params)
    stats = model.stats()
    if stats:
        opt_state["stats"] = stats
    return params, opt_state, model.batch()


def make_step(model, options):
    """The jitted train step."""
    _, update = OPTIMIZERS[model.optimizer]

    def step(params, opt_state, batch):
        def loss_of(params):
            loss, (stats, _) = model.loss(params, opt_state.get("stats", {}), batch)
            return loss, stats

        (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        new_params, new_state = update(params, grads, opt_state, options.lr)
        if stats:
            new_state["stats"] = stats
        return loss, new_params, new_state

    donated = DONATED if options.donate else ()
    return jax.jit(step, donate_argnums=donated, keep_unused=True)


def make_local_step(model, options):
    """The jitted train step of a model whose layers learn on their own."""
    _, update = OPTIMIZERS[model.optimizer]

    def step(params, opt_state, batch):
        return model.local_step(
            params, opt_state, batch, lambda p, g, s: update(p, g, s, options.lr)
        )

    donated = DONATED if options.donate else ()
    return jax.jit(step, donate_argnums=donated, keep_unused=True)


def make_forward(model):
    """The jitted loss, which also gives new running statistics if there are any."""

    def forward(params, opt_state, batch):
        loss, (stats, _) = model.loss(params, opt_state.get("stats", {}), batch)
        return (loss, stats) if stats else loss

    return jax.jit(forward, keep_unused=True)


def is_spec(leaf):
    return isinstance(leaf, Spec)


def shapes_of(specs):
    """Shape structs in place of specs."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), specs, is_leaf=is_spec
    )


def arrays_of(specs, seed):
    """Numpy arrays in place of specs, in tree order."""
    rng = np.random.default_rng(seed)

    def make(spec):
        if spec.high:
            return rng.integers(0, spec.high, spec.shape, dtype=np.int32)
        return (spec.mean + spec.std * rng.standard_normal(spec.shape)).astype(np.float32)

    return jax.tree.map(make, specs, is_leaf=is_spec)


def names_of(specs):
    """The leaves' names: (as in the HLO metadata, as in meta.json)."""
    names = []
    for path, _ in jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec):
        root = ("params", "opt_state", "batch")[path[0].idx]
        names.append((
            root + jax.tree_util.keystr(path[1:]),
            "/".join([root] + [key.key for key in path[1:]]),
        ))  # fmt: skip
    return names


def shape_text(leaf):
    prefix = {"int32": "s32", "float32": "f32"}[str(leaf.dtype)]
    return f"{prefix}[{','.join(map(str, leaf.shape))}]"


def hlo_text(step, specs, frames, loops):
    """Unoptimised HLO text with metadata and whole constants."""
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    jax.config.update("jax_traceback_in_locations_limit", 1 if frames else 0)
    module = step.lower(*shapes_of(specs)).compiler_ir("hlo").as_hlo_module()
    printing = _hlo.HloPrintOptions()
    printing.print_percent = False
    printing.print_program_shape = False
    printing.print_large_constants = True
    text = module.to_string(printing)
    check_text(text, specs, loops)
    return text


def check_text(text, specs, loops):
    """Parameter K must be leaf K; no custom calls or elided constants, loops if said."""
    entry = text[text.index("\nENTRY ") :]
    found = {}
    for line in entry.splitlines():
        match = re.search(r"= (\S+) parameter\((\d+)\).*op_name=\"([^\"]*)\"", line)
        if match:
            shape = re.sub(r"\{.*", "", match[1])
            found[int(match[2])] = (shape, match[3].replace("\\'", "'"))
    leaves = jax.tree.leaves(shapes_of(specs))
    expected = [
        (shape_text(leaf), name) for leaf, (name, _) in zip(leaves, names_of(specs))
    ]
    assert [
        found.get(i) for i in range(len(found))
    ] == expected, "parameters do not match"
    assert (" while(" in text) == loops, "loops, or none"
    for word in (" custom-call(", "{...}"):
        assert word not in text, f"unexpected{word} in the text"


def write_text(path, text):
    """Plain text, or gzip without a time stamp if the name says so."""
    data = text.encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def run(step, arrays):
    """Losses and final (params, opt_state) after N_STEPS steps on one batch."""
    params, opt_state, batch = jax.tree.map(jnp.array, arrays)
    losses = []
    for _ in range(N_STEPS):
        loss, params, opt_state = step(params, opt_state, batch)
        losses.append(np.float32(loss))
    return np.array(losses), jax.tree.map(np.asarray, (params, opt_state))


def order_error(step, arrays, final):
    """Largest relative change of a weight, in norm, when the batch is reversed."""
    params, opt_state, batch = arrays
    reverse = {name: value[::-1] for name, value in batch.items()}
    with jax.default_matmul_precision("highest"):
        _, other = run(step, (params, opt_state, reverse))
    pairs = zip(jax.tree.leaves(final[0]), jax.tree.leaves(other[0]))
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs)


def router_margin(model, step, arrays):
    """Smallest gap among a token's three largest router logits over all steps."""
    params, opt_state, batch = jax.tree.map(jnp.array, arrays)
    route = jax.jit(lambda params: model.loss(params, {}, batch)[1][1])
    margin = np.inf
    for _ in range(N_STEPS):
        for logits in route(params):
            best = -np.sort(-np.asarray(logits), axis=-1)[..., :3]
            margin = min(margin, float(np.min(best[..., :-1] - best[..., 1:])))
        _, params, opt_state = step(params, opt_state, batch)
    return margin


def smallest_gradient(model, arrays):
    """Smallest gradient, as the largest element of a weight's, over all weights."""
    params, opt_state, batch = arrays
    stats = opt_state.get("stats", {})
    grads = jax.grad(lambda p: model.loss(p, stats, batch)[0])(params)
    return min(float(np.max(np.abs(g))) for g in grads.values())


def write_arrays(folder, leaves):
    """K.npy for each (K, array)."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npy"):
        old.unlink()
    for index, leaf in leaves:
        np.save(folder / f"{index}.npy", np.asarray(leaf, order="C"))


def split_layers(model, names, leaves):
    """Leaves and names as ap-import splits them: one per layer of a stacked weight."""
    rows = []
    for name, leaf in zip(names, leaves):
        path = next((p for p in model.stacked if name.endswith(f"/{p}")), None)
        if path is None:
            rows.append((name, leaf))
            continue
        before, after = name.split("/layers/")
        for layer, part in enumerate(np.moveaxis(leaf, model.stacked[path], 0)):
            rows.append((f"{before}/layers/{layer}/{after}", part))
    return rows


def write_folder(options, model, step, specs, text):
    """The graph with inputs, goldens and meta.json."""
    arrays = arrays_of(specs, options.seed)
    losses, final = run(step, arrays)
    meta = {
        "model": options.output.name,
        "command": "export.py " + shlex.join(sys.argv[1:]),
        "steps": N_STEPS,
        "loss_result": 0,
        "batch_order_error": order_error(step, arrays, final),
        "smallest_gradient": smallest_gradient(model, arrays),
    }
    assert losses[-1] < 0.95 * losses[0], f"the loss hardly falls: {losses}"
    assert meta["batch_order_error"] < options.order_tolerance, meta["batch_order_error"]
    assert meta["smallest_gradient"] > 1e-4, meta["smallest_gradient"]
    if options.model == "moe":
        meta["router_margin"] = router_margin(model, step, arrays)
        assert meta["router_margin"] > MARGIN, meta["router_margin"]

    names = [name for _, name in names_of(specs)]
    rows = split_layers(model, names, jax.tree.leaves(arrays))
    leaves = [leaf for _, leaf in rows]
    results = [leaf for _, leaf in split_layers(model, names, jax.tree.leaves(final))]
    n_weights = sum(name.startswith("params/") for name, _ in rows)
    params = []
    for index, (name, leaf) in enumerate(rows):
        role = (
            "weight"
            if index < n_weights
            else "state" if index < len(results) else "input"
        )
        row = {"index": index, "name": name, "role": role, "shape": shape_text(leaf)}
        params.append(row if leaf.any() else {**row, "zero": True})
    given = [(row["index"], leaves[row["index"]]) for row in params if "zero" not in row]

    folder = options.output
    write_arrays(folder / "in", given)
    write_arrays(folder / "out", enumerate(results))
    np.save(folder / "losses.npy", losses)
    for old in folder.glob("*.hlo*"):
        old.unlink()
    suffix = ".hlo.gz" if len(text) > GZIP_ABOVE else ".hlo"
    write_text(folder / f"{folder.name}{suffix}", text)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in params)
    head = json.dumps(meta, indent=2)[:-2]
    (folder / "meta.json").write_text(f'{head},\n  "params": [\n{rows}\n  ]\n}}\n')
    print(f"{folder.name}: losses {losses}, order error {meta['batch_order_error']:.2g}")


def write_forward(options, model):
    """The loss-only graph, its gradients and meta.json."""
    params, opt_state, batch = specs_of(model)
    kept = {name: value for name, value in opt_state.items() if name == "stats"}
    specs = (params, kept, batch)
    text = hlo_text(make_forward(model), specs, options.frames, model.loops)
    all_names = [name for _, name in names_of((params, opt_state, batch))]
    arrays = arrays_of((params, opt_state, batch), options.seed)
    stats = arrays[1].get("stats", {})
    loss, grads = jax.value_and_grad(
        lambda p: model.loss(p, stats, jax.tree.map(jnp.array, arrays[2]))[0]
    )(jax.tree.map(jnp.array, arrays[0]))

    folder = options.output
    write_arrays(folder / "grad", enumerate(jax.tree.leaves(grads)))
    write_text(folder / f"{folder.name}.hlo.gz", text)
    meta = {
        "model": folder.name,
        "command": "export.py " + shlex.join(sys.argv[1:]),
        "loss": float(loss),
        "params": [
            {"index": index, "name": name, "step_index": all_names.index(name)}
            for index, (_, name) in enumerate(names_of(specs))
        ],
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(f"{folder.name}: loss {loss}")


def main():
    # here: lines above are in the text that --frames writes
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    from autopar import export as own

    if own.is_own(sys.argv[1:]):
        own.main(sys.argv[1:])
        return
    options = parse_options(sys.argv[1:])
    model = MODELS[options.model](options)
    if options.forward:
        write_forward(options, model)
        return
    step = (make_local_step if model.local else make_step)(model, options)
    specs = specs_of(model)
    text = hlo_text(step, specs, options.frames, model.loops)
    if options.shapes_only:
        write_text(options.output, text)
    else:
        write_folder(options, model, step, specs, text)


if __name__ == "__main__":
    main()
