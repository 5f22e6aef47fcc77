"""The example's Flax script under a plan, for tests/jax.bats: in one process, which starts JAX once.

    PYTHONPATH=PREFIX/share/autopar/python jax_flax.py BIN FOLDER

Exports the example's step, plans it for four devices, runs the script without a plan and with it, and
compares losses and checkpoints; then gives the plan steps and documents that are not its own.
"""
import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

bin_, folder = sys.argv[1], Path(sys.argv[2])
JAX = Path(__file__).resolve().parents[1] / "scripts" / "jax"
sys.path += [str(JAX), str(JAX / "examples")]  # behind PYTHONPATH, where autopar is
import export
from autopar import export as own

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
import autopar
import flax.serialization
import jax
import numpy as np

assert autopar.__file__.startswith(os.environ["PYTHONPATH"]), autopar.__file__


def script(name, *argv):
    """The losses that an example prints."""
    out = io.StringIO()
    sys.argv = [name, *map(str, argv)]
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(JAX / "examples" / f"{name}.py"), run_name="__main__")
    losses = [float(line.split()[3]) for line in out.getvalue().splitlines()]
    assert len(losses) == 8, losses
    return losses


def refused(words, function, *args):
    try:
        function(*args)
    except autopar.PlanError as error:
        assert words in str(error), error
        print("refused:", error)
    else:
        sys.exit(f"taken, to be refused with '{words}'")


module = str(JAX / "examples" / "flax_planned.py")
own.main(["--step", f"{module}:train_step", "--args", f"{module}:example_args", "--no-check", "-o", f"{folder}/step.hlo"])
pipe = f"{bin_}/ap-import --quiet {folder}/step.hlo | {bin_}/ap-shard --mesh 4 --algorithm zero3 | {bin_}/ap-rewrite"
planned = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], capture_output=True, check=True).stdout
(folder / "plan.json").write_bytes(planned)

plain = script("flax_train", folder / "plain.msgpack")
ours = script("flax_planned", folder / "plan.json", folder / "planned.msgpack")
np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-4)
trees = [flax.serialization.msgpack_restore((folder / f"{n}.msgpack").read_bytes()) for n in ("plain", "planned")]
assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
for a, b in zip(*map(jax.tree.leaves, trees)):
    assert np.shape(a) == np.shape(b) and np.allclose(a, b, atol=2e-3), (a, b)

import flax_planned as mine

plan = autopar.load(folder / "plan.json")
state, batch, key = mine.example_args()


def faster(state, batch, key):
    state, metrics = mine.train_step(state, batch, key)
    return state, {**metrics, "loss": 2 * metrics["loss"]}


refused("computes something else", plan.jit(faster), state, batch, key)
short = {**batch, "tokens": batch["tokens"][:8]}
refused("batch['tokens'] is s32[8", plan.jit(mine.train_step), state, short, key)
(folder / "none.json").write_text("{}")
refused("none.json: no document of autopar", autopar.load, folder / "none.json")
