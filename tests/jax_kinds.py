"""Steps of kinds that exporters read wrongly, for tests/jax_export.bats: each exported, checked by
ap-exec, planned for four devices, run by plan.jit beside plain JAX; or refused.

    jax_kinds.py BIN FOLDER [NAME...]

A line a step: "NAME ok", or "NAME refused: WHY"; in one process, which starts JAX once. A step is
@taken(the loss's path, {result: argument}, options of own.export), or @refused(words of the message).
"""
import collections
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    "--xla_allow_excess_precision=false --xla_force_host_platform_device_count=4 "
    "--xla_backend_optimization_level=0"  # less to compile
)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from autopar import export as own  # before names of jax.grad are kept
import jax
import jax.numpy as jnp
import numpy as np
from jax import value_and_grad

import autopar
from autopar import check
from autopar import step as steps
from autopar.arrays import is_placed

KINDS = {}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net():
    return {"w": normal(0, 6, 8), "o": normal(1, 8, 2)}


def batch():
    return {"x": normal(2, 8, 6), "y": normal(3, 8, 2)}


def error(p, b):
    return jnp.mean((jnp.tanh(b["x"] @ p["w"]) @ p["o"] - b["y"]) ** 2)


def descend(p, g, rate=0.1):
    return jax.tree.map(lambda a, d: a - rate * d, p, g)


def taken(loss, pairs=(), **options):
    """A function that returns (step, arguments)."""

    def keep(make):
        KINDS[make.__name__] = (make, loss, dict(pairs), options, None)
        return make

    return keep


def refused(words, **options):
    def keep(make):
        KINDS[make.__name__] = (make, None, None, options, words)
        return make

    return keep


# ---- which result replaces which argument ----


@taken("[0]", {"[1]['o']": "params['o']", "[1]['w']": "params['w']", "[2]": "scale"}, donate=(0, 1))
def scale_beside_the_loss():
    def step(params, scale, batch):
        scaled, g = value_and_grad(lambda p: error(p, batch) * scale)(params)
        return scaled / scale, descend(params, g, 0.1 / scale), scale * 2

    return step, (net(), np.float32(1024), batch())


@taken("[2]", {"[0]": "lr", "[1]['o']": "params['o']", "[1]['w']": "params['w']"}, donate=(0, 1))
def scale_before_the_loss():
    def step(lr, params, batch):
        loss, g = value_and_grad(error)(params, batch)
        return lr * 0.5, descend(params, g, lr), loss

    return step, (np.float32(0.1), net(), batch())


@taken("['loss']", {"['ema']['w']": "ema['w']", "['params']['w']": "params['w']"}, donate=(0, 1))
def average_sorted_before_weights():
    def step(params, ema, batch):
        loss, g = value_and_grad(lambda p: error(p, batch) + sum(jnp.sum((p[k] - ema[k]) ** 2) for k in p))(params)
        params = descend(params, g, 0.01)
        ema = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, ema, params)
        return {"loss": loss, "params": params, "ema": ema}

    return step, (net(), net(), batch())


@taken("[0]", {"[1]['w']": "ema['w']", "[2]['w']": "params['w']"}, donate=(0, 1))
def average_returned_before_weights():
    def step(params, ema, batch):
        loss, g = value_and_grad(error)(params, batch)
        params = descend(params, g)
        return loss, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, ema, params), params

    params = jax.tree.map(jnp.asarray, net())
    return step, (params, dict(params), batch())  # which start as the same arrays


@taken("[3]", {"[0]": "nu", "[1]": "w", "[2]": "mu"}, donate=(0, 1, 2))
def moments_in_another_order():
    def step(w, mu, nu, x):
        loss, g = value_and_grad(lambda w: jnp.mean(jnp.square(x @ w)))(w)
        mu, nu = 0.9 * mu + 0.1 * g, 0.99 * nu + 0.01 * g * g
        return nu, w - 0.1 * mu / (jnp.sqrt(nu) + 1e-3), mu, loss

    return step, (normal(0, 6, 6), np.zeros((6, 6), np.float32), np.ones((6, 6), np.float32), normal(1, 8, 6))


@taken("[2]", {"[0]": "noise", "[1]": "key"}, donate=(1, 2))
def keys_by_what_they_are_made_of():
    def step(w, key, noise, x):
        loss = jnp.mean(jnp.square(x @ w + jax.random.normal(noise, (8, 4)) + jax.random.normal(key, (8, 4))))
        return jax.random.split(noise)[0], jax.random.split(key)[0], loss

    return step, (normal(0, 6, 4), jax.random.key(1), jax.random.key(2), normal(1, 8, 6))


@taken("[1]", {"[0].params['w']": "state.params['w']", "[0].count": "state.count"}, donate=(0,))
def a_state_as_named_tuple():
    State = collections.namedtuple("State", "params count")

    def step(state, batch):
        loss, g = value_and_grad(error)(state.params, batch)
        return State(descend(state.params, g), state.count + 1), loss

    return step, (State(net(), np.int32(0)), batch())


def symmetric():
    def step(a, b, x):
        loss, (g, h) = value_and_grad(lambda w: jnp.mean((x @ w[0] @ w[1]) ** 2))((a, b))
        return loss, a + b - g, a + b - h

    return step, (normal(0, 6, 6), normal(1, 6, 6), normal(2, 8, 6))


@refused("several results may replace donated arguments: a by [1] or [2]; b by [1] or [2]: say which, --pair",
         donate=(0, 1))  # fmt: skip
def symmetric_results():
    return symmetric()


@taken("[0]", {"[1]": "b", "[2]": "a"}, donate=(0, 1), pair=("a=[2]", "b=[1]"))
def symmetric_results_that_are_named():
    return symmetric()


@refused("--pair a=[0]: they have not the same arrays", donate=(0,), pair=("a=[0]",))
def a_pair_of_other_shapes():
    return symmetric()


@refused("a by [1] or [2]; b by [1] or [2]", donate=(0, 1))
def weights_of_the_step_before():
    def step(a, b, x):
        loss, g = value_and_grad(lambda w: jnp.mean((x @ w + b) ** 2))(a)
        return loss, a - 0.1 * g, a

    return step, (normal(0, 6, 6), normal(1, 6, 6), normal(2, 6, 6))


# ---- which scalar is the loss ----


@taken("[2]['outer']", donate=(0,))
def the_loss_behind_an_inner_step():
    def step(params, momentum, batch):
        def loss_of(p):
            inner, g = value_and_grad(error)(p, batch)
            return error(descend(p, g, 0.05), batch), inner

        (outer, inner), g = value_and_grad(loss_of, has_aux=True)(params)
        return descend(params, g), momentum, {"inner": inner, "outer": outer}

    return step, (net(), np.float32(0), batch())


@taken("[1]")
def a_loss_by_vjp_without_donations():
    def step(params, batch):
        loss, back = jax.vjp(lambda p: error(p, batch), params)
        return 2 * loss, loss, descend(params, *back(jnp.ones(())))

    return step, (net(), batch())


@taken("[1][2]", {"[0]['w']": "params['w']"}, donate=(0,))
def parts_before_their_sum():
    def step(params, batch):
        def loss_of(p):
            a, b = error(p, batch), 1e-2 * sum(jnp.sum(v**2) for v in p.values())
            return a + b, (a, b)

        (total, (a, b)), g = value_and_grad(loss_of, has_aux=True)(params)
        return descend(params, g), (a, b, total, jnp.exp(total))

    return step, (net(), batch())


@taken("[0]['objective']", donate=(0,))
def a_part_that_is_called_loss():
    def step(params, batch):
        def loss_of(p):
            part = error(p, batch)
            return part + 0.1 * jnp.sum(jnp.abs(p["w"])), part

        (objective, part), g = jax.jit(value_and_grad(loss_of, has_aux=True))(params)
        return {"loss": part, "objective": objective}, descend(params, g)

    return step, (net(), batch())


@taken("[1]", donate=(0,))
def mean_over_microbatches():
    def step(params, batch):
        parts = jax.tree.map(lambda a: a.reshape(2, 4, *a.shape[1:]), batch)

        def one(g, part):
            loss, more = value_and_grad(error)(params, part)
            return jax.tree.map(jnp.add, g, more), loss

        g, losses = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), parts)
        return jnp.sqrt(sum(jnp.sum(x**2) for x in g.values())), jnp.mean(losses), descend(params, g, 0.05)

    return step, (net(), batch())


@taken("[1]", donate=(0,))
def gradients_of_each_row():
    def step(params, batch):
        one = lambda p, x, y: error(p, {"x": x[None], "y": y[None]})
        losses, g = jax.vmap(value_and_grad(one), (None, 0, 0))(params, batch["x"], batch["y"])
        g = jax.tree.map(lambda v: v.mean(0), g)
        return jnp.max(losses**2), jnp.mean(losses), descend(params, g)

    return step, (net(), batch())


# ---- containers ----


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A container without paths of its own."""

    def __init__(self, *parts):
        self.parts = parts

    def tree_flatten(self):
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


@taken("[0]", donate=(0,))
def containers_without_paths():
    def step(model, batch):
        loss, g = value_and_grad(lambda m: error(dict(zip("wo", m.parts)), batch))(model)
        return loss, descend(model, g)

    return step, (Opaque(*(net()[k] for k in "wo")), batch())


@taken("[0]", donate=(0,))
def functions_among_the_weights():
    def step(model, batch):
        def loss_of(p):
            return jnp.mean((model["act"](batch["x"] @ p["w"]) @ p["o"] - batch["y"]) ** 2)

        p = {k: v for k, v in model.items() if k != "act"}
        loss, g = value_and_grad(loss_of)(p)
        return loss, {**descend(p, g), "act": model["act"]}

    return step, ({**net(), "act": jnp.tanh}, batch())


@taken("[0]", donate=(0, 1))
def a_named_tuple_as_argument():
    import optax

    optimizer = optax.MultiSteps(optax.adam(1e-2), 2)

    def step(params, opt_state, batch):
        loss, g = value_and_grad(error)(params, batch)
        updates, opt_state = optimizer.update(g, opt_state, params)
        return loss, optax.apply_updates(params, updates), opt_state

    return step, (net(), optimizer.init(net()), batch())


# ---- steps that change their arguments ----


def nnx_step(*shared):
    from flax import nnx
    import optax

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.a, self.norm, self.b = nnx.Linear(6, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return self.b(self.drop(jnp.tanh(self.norm(self.a(x)))))

    def step(model, optimizer, batch):
        loss, g = nnx.value_and_grad(lambda m: jnp.mean((m(batch["x"]) - batch["y"]) ** 2))(model)
        optimizer.update(model, g)
        return loss

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    return nnx.jit(step), (model, optimizer, batch())


@taken("[0]", {"[1][0]": "model.a.bias.value"})
def variables_of_nnx():
    return nnx_step()


@refused("a variable of flax.nnx is in two places of the arguments")
def variables_that_are_shared():
    step, (model, optimizer, data) = nnx_step()
    return (lambda a, b, o, d: step(a, o, d)), (model, model, optimizer, data)


@refused("the step changes its argument [0]['w'] in place, which jax.jit does not see: return the new value")
def dictionaries_changed_in_place():
    def step(params, batch):
        loss, g = value_and_grad(error)(dict(params), batch)
        params["w"] = params["w"] - 0.1 * g["w"]
        return loss

    return step, (net(), batch())


@taken("[0]", {"[1].layers[0].weight": "model.layers[0].weight"})
def equinox_filter_jit():
    import equinox as eqx

    @eqx.filter_jit(donate="all-except-first")
    def step(batch, model, rate):
        loss, g = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(batch["x"]) - batch["y"]) ** 2))(model)
        return loss, eqx.apply_updates(model, jax.tree.map(lambda d: -rate * d, g))

    return step, (batch(), eqx.nn.MLP(6, 2, 8, 1, key=jax.random.key(0)), 0.1)


# ---- calls back into Python ----


def calling(call):
    def step(w, x):
        loss, g = value_and_grad(lambda w: jnp.mean(call(x @ w) ** 2))(w)
        return loss, w - 0.1 * g

    return step, (normal(0, 6, 4), normal(1, 8, 6))


@refused(r"jax_kinds.py:\d+: a call back into Python \(pure_callback\)", donate=(0,))
def pure_callback():
    def twice(y):
        return y + jax.lax.stop_gradient(jax.pure_callback(lambda a: a, y, jax.lax.stop_gradient(y)))

    return calling(twice)


@refused(r"jax_kinds.py:\d+: a call back into Python \(debug_\w+\)", donate=(0,))
def print_in_a_jitted_loop():
    @jax.jit
    def loop(y):
        return jax.lax.fori_loop(0, 3, lambda i, y: (jax.debug.print("{}", i), y * 0.9)[1], y)

    return calling(loop)


# ---- operators of plan.jit ----

RAMP = (np.arange(6) + 1j).astype(np.complex64)


@taken("[0]", donate=(0,))
def transforms_and_complex_constants():
    def loss_of(w, x):
        y = x @ w
        z = jnp.fft.rfft(y, axis=-1) * (0.5 + 2j) * RAMP[:4] + 1j
        back = jnp.fft.irfft(z, n=6, axis=-1)
        return jnp.mean(back**2) + jnp.mean(jnp.abs(jnp.fft.ifft(y, axis=1) * RAMP) ** 2) + jnp.mean(jnp.fft.fft2(y).imag ** 2)

    def step(w, x):
        loss, g = value_and_grad(loss_of)(w, x)
        return loss, w - 0.01 * g

    return step, (normal(0, 6, 6), normal(1, 8, 10, 6))


@taken("[0]", donate=(0,))
def products_of_ragged_groups():
    def step(w, x, sizes):
        loss, g = value_and_grad(lambda w: jnp.mean(jax.lax.ragged_dot(x, w, sizes) ** 2))(w)
        return loss, w - 0.1 * g

    return step, (normal(0, 4, 6, 5), normal(1, 32, 6), np.array([8, 4, 12, 8], np.int32))


@taken("[0]", donate=(0,))
def rows_that_are_counted():
    def loss_of(p, x, y):
        logp = jax.nn.log_softmax(jnp.tanh(x @ p["w"]) @ p["o"])
        one = logp[np.arange(8), 0, y[:, 0]].mean()
        each = logp[jnp.arange(8)[:, None], jnp.arange(4), y].mean()
        return -0.9 * each - 0.1 * logp.mean() - one  # labels that are smoothed

    def step(p, x, y):
        loss, g = value_and_grad(loss_of)(p, x, y)
        return loss, descend(p, g)

    labels = np.random.default_rng(4).integers(3, size=(8, 4), dtype=np.int32)
    return step, ({"w": normal(0, 6, 8), "o": normal(1, 8, 3)}, normal(2, 8, 4, 6), labels)


# ---- StableHLO ----


def stablehlo_of_a_step(bin_, folder):
    """Text and bytecode become the same graph; what is for two devices or sizes is refused."""
    from autopar import stablehlo
    from jax import export

    def step(params, b):
        loss, g = value_and_grad(error)(params, b)
        return {"aux": jnp.sqrt(loss), "loss": loss}, descend(params, g)

    made = export.export(jax.jit(step, donate_argnums=0))(net(), batch())
    files = {"text": made.mlir_module().encode(), "bytes": made.mlir_module_serialized,
             "two": made.mlir_module().replace("num_partitions = 1", "num_partitions = 2").encode(),
             "open": made.mlir_module().replace("tensor<8x6xf32>", "tensor<?x6xf32>").encode(), "none": b"text"}
    said, graphs = {}, []
    for name, data in files.items():
        path, hlo = folder / f"stablehlo.{name}", folder / f"stablehlo.{name}.hlo"
        path.write_bytes(data)
        try:
            section, pairs = stablehlo.export(path, hlo, "loss")
        except autopar.StepError as why:
            said[name] = str(why)
            continue
        assert pairs == {2: 0, 3: 1} and section["loss"] == {"result": 1, "guessed": False}, section
        assert [row["path"] for row in section["arguments"]][:2] == ["params['o']", "params['w']"]
        done = subprocess.run([f"{bin_}/ap-import", "--no-history", hlo], capture_output=True, check=True)
        graphs.append([(n["op"], n["shape"], n.get("role")) for n in json.loads(done.stdout)["graph"]["nodes"]])
    assert len(graphs) == 2 and graphs[0] == graphs[1] and ("parameter", "f32[6,8]", "weight") in graphs[0]
    for name, words in (("two", "made for 2 devices"), ("open", "a shape is not fixed"), ("none", "neither StableHLO")):
        assert words in said[name] or "flatbuffers" in said[name], said
    return "ok"


# ---- running them ----


def plan(bin_, folder, name):
    """plan.json of a step for four devices."""
    pipe = f"{bin_}/ap-import --quiet {folder}/{name}.hlo | {bin_}/ap-shard --quiet --mesh 4 | {bin_}/ap-rewrite --quiet"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr.decode())
    (folder / f"{name}.json").write_bytes(done.stdout)
    return autopar.load(folder / f"{name}.json")


def paths(section, pairs):
    return {section["results"][r]["path"]: section["arguments"][a]["path"] for r, a in pairs.items()}


def export_kind(step, args, hlo, data, options):
    """own.export, and what it says on the way."""
    with contextlib.redirect_stderr(io.StringIO()) as err:
        found = own.export(step, args, hlo, checked=True, data=data, **options)
    return *found, err.getvalue()


def try_kind(bin_, folder, name):
    make, loss, pairs, options, words = KINDS[name]
    data = folder / name
    try:
        step, args = make()
        section, found, said, err = export_kind(step, args, folder / f"{name}.hlo", data, options)
    except (autopar.StepError, autopar.ToolError) as why:
        if words and (words in str(why) or re.search(words, str(why))):
            return f"refused: {why}"
        raise
    assert words is None, "taken, to be refused"
    assert said.startswith("checked: "), said
    ragged = re.search(r"jax_kinds.py:\d+: ragged_dot becomes a product of all groups", err)
    assert bool(ragged) == name.endswith("ragged_groups"), err
    assert section["results"][section["loss"]["result"]]["path"] == loss, section["loss"]
    named = paths(section, found)
    assert all(named.get(r) == a for r, a in pairs.items()), named
    planned = plan(bin_, folder, name)
    assert planned.shard(()) == ()
    args = planned.shard(tuple(planned.shard(a, argument=i) for i, a in enumerate(args)))
    ours = planned.jit(step, options.get("donate"))(*args)
    ours = [x for x in jax.tree.leaves(ours, is_leaf=is_placed) if hasattr(x, "dtype")]
    close(ours[section["loss"]["result"]], np.load(data / "losses.npy")[0])
    after = jax.tree.leaves(args, is_leaf=is_placed)
    for result, argument in found.items():
        new = ours[result] if result < len(ours) else after[argument]
        close(new, np.load(data / "out" / f"{argument}.npy"))
    return "ok"


def close(a, b):
    np.testing.assert_allclose(check.plain(a), b, rtol=2e-5, atol=1e-5)


def main():
    bin_, folder, *names = sys.argv[1:]
    failed = 0
    for name in names or KINDS:
        try:
            print(name, try_kind(bin_, Path(folder), name), flush=True)
        except Exception as why:
            failed += 1
            print(name, "FAILED", f"{type(why).__name__}: {why}", flush=True)
            if names:
                raise
    if not names:
        print("stablehlo", stablehlo_of_a_step(bin_, Path(folder)))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
