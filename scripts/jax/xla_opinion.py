# SPDX-License-Identifier: Apache-2.0
"""What XLA's partitioner makes of our plans, beside what ap-rewrite makes of them.

    xla_opinion.py [--models 'mlp gpt2l'] [--meshes '8 2x4'] [--algorithms 'data ilp']
                   [--dialect gspmd|shardy] [--bin build/bin] [--top 3]

For each golden model, mesh and algorithm: the plan as annotated HLO is compiled by XLA for
as many virtual CPU devices, and run for five steps on the model's inputs.  Printed: the
largest relative difference of the losses from JAX's on one device; count and bytes of the
collectives, XLA's beside the program's; and, where the two differ, the operators whose
collectives make the difference.  Bytes are of the full tensor on the step's axes, per
group, as in the program: what an all-gather gives, what the others take, of an all-to-all
what a group takes.  A collective of XLA's on several tensors counts once for each.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

N_DEVICES = 8
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={N_DEVICES} "
    "--xla_allow_excess_precision=false "
    "--xla_disable_hlo_passes=cpu-all-reduce-combiner"
)

import jax
import numpy as np
from jax._src.lib import xla_client as xc
from jax._src.sharding_impls import GSPMDSharding
from jaxlib import _hlo

from compiled import KINDS, collectives, path_of, totals

TOP = Path(__file__).resolve().parents[2]
MODELS = TOP / "testdata" / "models"
N_STEPS = 5


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="mlp gpt2l resnet moe t5 bert ff scan_gpt lstm")
    parser.add_argument("--meshes", default="8 2x4")
    parser.add_argument("--algorithms", default="data megatron zero2 zero3 ilp")
    parser.add_argument("--dialect", default="gspmd", choices=["gspmd", "shardy"])
    parser.add_argument("--bin", default=str(TOP / "build" / "bin"))
    parser.add_argument("--top", type=int, default=3, help="operators a difference names")
    return parser.parse_args()


# ---- our side ----


class Refused(Exception):
    """A tool ended with an error: there is no such plan."""


def tool(options, name, *args):
    """Standard output of one of our tools."""
    command = [os.path.join(options.bin, name), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    if done.returncode:
        raise Refused(done.stderr.strip())
    return done.stdout, done.stderr.strip()


def plan(options, model, mesh, algorithm, folder):
    """The plan's document, its graph as annotated HLO, and what that could not say."""
    hlo = next(MODELS.joinpath(model).glob(f"{model}.hlo*"))
    paths = [folder / name for name in ("graph.json", "plan.json")]
    paths[0].write_text(tool(options, "ap-import", "--quiet", hlo)[0])
    args = ["--mesh", mesh, "--algorithm", algorithm, "--cluster", "cpu-8", paths[0]]
    paths[1].write_text(tool(options, "ap-shard", *args)[0])
    form = ["--to", "hlo", "--dialect", options.dialect, paths[1]]
    return json.loads(paths[1].read_text()), *tool(options, "ap-rewrite", *form)


def scope_of(node):
    """Where a node stands, without the numbers that tell layers apart."""
    scope = re.sub(r"[\d]+", "*", node.get("scope", ""))
    return f"{node['phase']} {scope} {node['op']}"


def ours(document):
    """(kind, place) -> [count, bytes] of the plan's conversions."""
    found = collections.defaultdict(lambda: [0, 0])
    nodes = document["graph"]["nodes"]
    for conversion in document["sharding"]["conversions"]:
        for step in conversion["steps"]:
            if step["op"] not in KINDS:
                continue
            row = found[step["op"], scope_of(nodes[conversion["node"]])]
            row[0] += 1
            row[1] += step["bytes"]
    return found


# ---- XLA's side ----


def compile_hlo(text, shardy):
    """The executable of HLO text on all devices."""
    module = _hlo.hlo_module_from_text(text)
    computation = _hlo.XlaComputation(module.as_serialized_hlo_module_proto())
    mlir = xc._xla.mlir.xla_computation_to_mlir_module(computation)
    options = xc.CompileOptions()
    options.num_replicas = 1
    options.num_partitions = N_DEVICES
    build = options.executable_build_options
    build.num_replicas = 1
    build.num_partitions = N_DEVICES
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = shardy
    build.device_assignment = xc.DeviceAssignment.create(
        np.arange(N_DEVICES).reshape(1, N_DEVICES)
    )
    devices = xc.DeviceList(tuple(jax.devices()))
    return jax.devices()[0].client.compile_and_load(mlir, devices, options)


def place_of(line):
    """As scope_of, from the path in an instruction's metadata."""
    path = path_of(line)
    if path is None:
        return "(no metadata)"
    path = path.split("jit(step)/")[-1]
    phase = "update"
    for prefix, name in (("transpose(jvp(", "backward"), ("jvp(", "forward")):
        if path.startswith(prefix):
            phase, path = name, path[len(prefix) :].replace(")", "", 2)
            break
    scope, _, op = path.rpartition("/")
    if "[" in path:  # a parameter's own name
        return "parameter " + re.sub(r"\d+", "*", path)
    return f"{phase} {re.sub(r'[0-9]+', '*', scope)} {op}"


def theirs(executable):
    """(kind, place) -> [count, bytes] of the collectives in the compiled module."""
    (module,) = executable.hlo_modules()
    return collectives(module.to_string(), N_DEVICES, place_of)


# ---- running ----


def shard(value, sharding):
    """A value as the executable takes it; padded where its size does not divide."""
    sharding = GSPMDSharding(tuple(jax.devices()), sharding)
    try:
        local = sharding.shard_shape(value.shape)
    except ValueError:
        tiles = sharding._hlo_sharding.tile_assignment_dimensions()
        local = [-(-d // t) for d, t in zip(value.shape, tiles)]
        pad = [(0, l * t - d) for d, t, l in zip(value.shape, tiles, local)]
        value = np.pad(value, pad)
    return jax.device_put(value, sharding), sharding


def padded(part, local):
    """A device's part of a result, of which XLA hides what is padding."""
    if part.shape == tuple(local):
        return part
    value, whole = np.asarray(part), np.zeros(local, part.dtype)
    if all(d <= size for d, size in zip(value.shape, local)):
        whole[tuple(slice(d) for d in value.shape)] = value
    return jax.device_put(whole, next(iter(part.devices())))


def inputs_of(model, executable, document):
    """The golden inputs as sharded arrays, and their shardings."""
    meta = json.loads((MODELS / model / "meta.json").read_text())
    graph = document["graph"]
    shapes = [n["shape"] for n in graph["nodes"] if n["op"] == "parameter"]
    arrays, shardings = [], []
    for k, op_sharding in enumerate(executable.get_parameter_shardings()):
        path = MODELS / model / "in" / f"{k}.npy"
        dtype, dims = re.match(r"(\w+)\[([\d,]*)\]", shapes[k]).groups()
        kind = {"f32": "f4", "s32": "i4", "f64": "f8", "u32": "u4"}[dtype]
        assert path.exists() or meta["params"][k].get("zero"), path
        value = (
            np.load(path)
            if path.exists()
            else np.zeros([int(d) for d in dims.split(",") if d], kind)
        )
        array, sharding = shard(value, op_sharding)
        arrays.append(array)
        shardings.append(sharding)
    return arrays, shardings


def losses_of(model, executable, document):
    """Losses of five steps."""
    arrays, shardings = inputs_of(model, executable, document)
    shapes = [a.shape for a in arrays]
    nodes, losses = document["graph"]["nodes"], []
    for _ in range(N_STEPS):
        out = executable.execute_sharded(arrays)
        parts = out.disassemble_into_single_device_arrays()
        for r, result in enumerate(document["graph"]["results"]):
            if result["role"] == "loss":
                losses.append(float(np.asarray(parts[r][0])))
            if "alias" not in result:
                continue
            k = nodes[result["alias"]]["param"]
            local = shardings[k].shard_shape(shapes[k])
            arrays[k] = jax.make_array_from_single_device_arrays(
                shapes[k], shardings[k], [padded(part, local) for part in parts[r]]
            )
    return np.array(losses)


# ---- the report ----


def explain(mine, xla, kind, top):
    """Prints the places where the bytes of one kind differ most."""
    places = {p for k, p in [*mine, *xla] if k == kind}
    rows = []
    for place in places:
        a, b = mine.get((kind, place), [0, 0]), xla.get((kind, place), [0, 0])
        if a != b:
            rows.append((-abs(a[1] - b[1]), place, a, b))
    for _, place, a, b in sorted(rows)[:top]:
        print(f"        {kind}: {place}: {a[0]} of {a[1]} B; XLA {b[0]} of {b[1]} B")


def notes(document, mine, xla):
    """What the two are known to do differently, with how often."""
    conversions = document["sharding"]["conversions"]
    steps = again = 0
    seen = set()
    for conversion in conversions:
        kinds = [s["op"] for s in conversion["steps"] if s["op"] in KINDS]
        steps += len(kinds) - len(set(kinds))
        key = conversion["node"], conversion["to"]
        again += len(kinds) if key in seen else 0
        seen.add(key)
    found = []
    if steps:
        found.append(f"{steps} steps go along a second axis; XLA takes one step for both")
    if again:
        found.append(
            f"{again} conversions run again in a later phase; XLA finds that they "
            "are the same and keeps the first"
        )
    layouts, nodes = document["sharding"]["layouts"], document["graph"]["nodes"]
    sums = sum("P" in l and n["op"] == "add" for l, n in zip(layouts, nodes))
    if sums:
        found.append(f"{sums} sums of partial values: XLA reduces their terms before")
    scatters = totals(mine, "reduce-scatter")[0]
    if scatters and not totals(xla, "reduce-scatter")[0]:
        found.append(
            f"{scatters} reduce-scatters: XLA for CPUs has no pass that makes one of an "
            "all-reduce and a slice"
        )
    wider = sum(n == xla[key][0] and b < xla[key][1] for key, (n, b) in mine.items())
    if wider:
        found.append(
            f"at {wider} places XLA's as many collectives have more bytes: it moves the "
            "padding of what does not divide, and takes axes in another order"
        )
    if any(k == "all-gather" and p.endswith(" topk") for k, p in set(xla) - set(mine)):
        found.append("XLA does not split topk: it gathers the operand")
    return found


def run(options, model, mesh, algorithm):
    """One row of the table, and its explanation; False if the losses differ."""
    with tempfile.TemporaryDirectory() as folder:
        document, text, lost = plan(options, model, mesh, algorithm, Path(folder))
    executable = compile_hlo(text, options.dialect == "shardy")
    losses = losses_of(model, executable, document)
    golden = np.load(MODELS / model / "losses.npy")
    error = float(np.max(np.abs(losses - golden) / np.abs(golden)))
    mine, xla = ours(document), theirs(executable)
    print(f"{model} {mesh} {algorithm}: losses differ by {error:.1e}")
    sums = [0, 0]
    for kind in KINDS:
        a, b = totals(mine, kind), totals(xla, kind)
        if a == b == (0, 0):
            continue
        sums[0] += a[1]
        sums[1] += b[1]
        print(f"    {kind:20} {a[0]:5} {a[1]:11} B   XLA {b[0]:5} {b[1]:11} B")
        if a != b:
            explain(mine, xla, kind, options.top)
    print(f"    {'all bytes':20} {'':5} {sums[0]:11} B   XLA {'':5} {sums[1]:11} B")
    for note in notes(document, mine, xla):
        print(f"    note: {note}")
    if lost:
        print(f"    note: {lost}")
    sys.stdout.flush()
    return error < (2e-2 if "bf16" in model else 1e-4)


def main():
    """Prints the table; fails if a loss does."""
    options = parse_options()
    failed = 0
    for model in options.models.split():
        for mesh in options.meshes.split():
            for algorithm in options.algorithms.split():
                try:
                    failed += not run(options, model, mesh, algorithm)
                except Refused as refused:
                    print(f"{model} {mesh} {algorithm}: {refused}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
