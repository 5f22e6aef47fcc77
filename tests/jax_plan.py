"""autopar.plan from a train step to a step that runs as planned, for tests/plan_call.bats.

The plan's losses are JAX's, its report and page are ap-plan's, a saved plan loads, and what is wrong is an
exception with the tool's words.
"""
import copy
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
import autopar
import jax
import jax.numpy as jnp
import numpy as np


def train_step(params, batch):
    def loss_of(p):
        return jnp.mean((jnp.tanh(batch["x"] @ p["w"]) @ p["o"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return loss, jax.tree.map(lambda a, d: a - 1e-3 * d, params, gradients)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def refused(kind, words, **options):
    try:
        autopar.plan(train_step, args, check=False, **{"cluster": "cpu-4", **options})
    except kind as error:
        assert words in str(error), error
    else:
        sys.exit(f"taken, to be refused with '{words}'")


args = {"w": normal(0, 64, 256), "o": normal(1, 256, 16)}, {"x": normal(2, 32, 64), "y": normal(3, 32, 16)}
before = jax.config.jax_traceback_in_locations_limit
plan = autopar.plan(train_step, args, cluster="cpu-4", donate=(0,), stages=1)
assert jax.config.jax_traceback_in_locations_limit == before
assert "\nstep " in plan.report() and repr(plan) == plan.report().splitlines()[0]
assert "ap-import step.hlo.gz |\n" in plan.commands and "--stages 1" in plan.commands, plan.commands
assert plan.page.startswith("<!DOCTYPE html>") and plan._repr_html_().startswith("<iframe srcdoc=\"&lt;!DOCTYPE")

want, (params, batch) = [], args
for _ in range(3):
    loss, params = train_step(params, batch)
    want.append(float(loss))
plan.save(sys.argv[1])
for run, loaded in ((plan, plan), (autopar.load(sys.argv[1]).jit(train_step), autopar.load(sys.argv[1]))):
    (params, batch), found = loaded.shard(args), []
    for _ in range(3):
        loss, params = run(params, batch)
        found.append(float(loss))
    np.testing.assert_allclose(found, want, rtol=1e-5)

assert isinstance(plan, autopar.Plan) and isinstance(loaded, autopar.Plan)
assert not hasattr(plan, "nosuch") and plan.unshard is not None
copied = copy.deepcopy(plan)  # which has run
assert copied.report() == plan.report() and abs(copied(*args)[0] - want[0]) < 1e-5 * abs(want[0])
try:
    autopar.plan(train_step, args[0], cluster="cpu-4")
except TypeError as error:
    assert "args: expected a tuple" in str(error), error
else:
    sys.exit("a dictionary is no tuple of arguments")
assert "\nstep " in autopar.plan(train_step, args, cluster="cpu-4", donate=0, stages=1).report()
refused(autopar.ToolError, "ap-fuse: nowhere: no such file", cluster="nowhere")
refused(autopar.ToolError, "ap-plan: unknown option '--speed'", speed=3)
refused(autopar.StepError, "--donate: there is no argument 7", donate=(7,))
refused(TypeError, "'html' is no option of plan()", html="page.html")
try:
    autopar.plan(train_step, args, cluster="cpu-4", memory=1000)
except autopar.ToolError as error:
    assert error.status == 3 and error.tool == "ap-plan", error
else:
    sys.exit("planned in 1000 bytes")

shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
large = autopar.plan(train_step, shapes, cluster="h100x8")  # of more devices than there are
assert not hasattr(large, "nosuch")
assert "of h100x8" in large.report()
try:
    large.shard(args)
except autopar.PlanError as error:
    assert "the plan is for 64 devices, and there are 4" in str(error), error
else:
    sys.exit("64 devices are there")
print("ok")
