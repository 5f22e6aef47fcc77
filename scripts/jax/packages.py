# SPDX-License-Identifier: Apache-2.0
"""Train steps of public packages, as their documentation writes them: what zoo-table --zoo packages
exports, checks, plans and runs (packages.txt has the versions).

Each is a function that returns (step, arguments, options of own.export), or with a message in place
of the options what the export has to be refused with.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax

ZOO = {}


def entry(function):
    ZOO[function.__name__] = function
    return function


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def labels(seed, high, *shape):
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.int32)


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


IMAGES = (normal(1, 8, 8, 8, 3), labels(2, 10, 8))
ROWS = (normal(3, 16, 12), labels(4, 5, 16))
WORDS = (labels(5, 32, 8, 16), labels(6, 32, 8, 16))
KEY = jax.random.key(0)


# ---- equinox ----


def equinox_step(loss_of, model, *batch, state=None, optimizer=optax.adam(1e-3)):
    import equinox as eqx

    if state is None:

        @eqx.filter_jit(donate="all-except-first")
        def step(batch, model, opt_state):
            loss, grads = eqx.filter_value_and_grad(loss_of)(model, *batch)
            updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
            return eqx.apply_updates(model, updates), opt_state, loss

        return step, (batch, model, optimizer.init(eqx.filter(model, eqx.is_array))), {}

    @eqx.filter_jit(donate="all-except-first")
    def step_with_state(batch, model, state, opt_state):
        (loss, state), grads = eqx.filter_value_and_grad(loss_of, has_aux=True)(model, state, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, opt_state, loss

    return step_with_state, (batch, model, state, optimizer.init(eqx.filter(model, eqx.is_array))), {}


@entry
def equinox_mlp():
    import equinox as eqx

    model = eqx.nn.MLP(12, 5, 32, 2, key=KEY)
    return equinox_step(lambda m, x, y: cross_entropy(jax.vmap(m)(x), y), model, *ROWS)


@entry
def equinox_cnn_batchnorm():
    import equinox as eqx

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.BatchNorm
        head: eqx.nn.Linear

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(3, 8, 3, key=a)
            self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
            self.head = eqx.nn.Linear(8, 10, key=b)

        def __call__(self, x, state):
            x, state = self.norm(self.conv(x), state)
            return self.head(jax.nn.relu(x).mean((1, 2))), state

    def loss_of(model, state, x, y):
        run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        logits, state = run(jnp.moveaxis(x, -1, 1), state)
        return cross_entropy(logits, y), state

    model, state = eqx.nn.make_with_state(Net)(KEY)
    return equinox_step(loss_of, model, *IMAGES, state=state)


@entry
def equinox_gru():
    import equinox as eqx

    class Net(eqx.Module):
        cell: eqx.nn.GRUCell
        head: eqx.nn.Linear

        def __call__(self, xs):
            h, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(16), xs)
            return self.head(h)

    a, b = jax.random.split(KEY)
    model = Net(eqx.nn.GRUCell(4, 16, key=a), eqx.nn.Linear(16, 5, key=b))
    return equinox_step(lambda m, x, y: cross_entropy(jax.vmap(m)(x), y), model, normal(1, 8, 6, 4), labels(2, 5, 8))


@entry
def equinox_attention_dropout():
    import equinox as eqx

    class Net(eqx.Module):
        embed: eqx.nn.Embedding
        norm: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        drop: eqx.nn.Dropout
        head: eqx.nn.Linear

        def __init__(self, key):
            a, b, c = jax.random.split(key, 3)
            self.embed, self.norm = eqx.nn.Embedding(32, 16, key=a), eqx.nn.LayerNorm(16)
            self.attention = eqx.nn.MultiheadAttention(2, 16, key=b)
            self.drop, self.head = eqx.nn.Dropout(0.1), eqx.nn.Linear(16, 32, key=c)

        def __call__(self, x, key):
            h = jax.vmap(self.embed)(x)
            n = jax.vmap(self.norm)(h)
            mask = jnp.tril(jnp.ones((16, 16), bool))
            return jax.vmap(self.head)(self.drop(h + self.attention(n, n, n, mask=mask), key=key))

    def loss_of(model, x, y, key):
        return cross_entropy(jax.vmap(model)(x, jax.random.split(key, 8)), y)

    return equinox_step(loss_of, Net(KEY), *WORDS, jax.random.key(7))


# ---- haiku ----


def haiku_step(forward, *batch, rate=1e-3):
    import haiku as hk

    net, optimizer = hk.transform_with_state(forward), optax.adam(rate)
    params, state = net.init(jax.random.PRNGKey(0), *batch)

    def step(params, state, opt_state, key, batch):
        def loss_of(params):
            return net.apply(params, state, key, *batch)

        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return loss, optax.apply_updates(params, updates), new, opt_state

    args = (params, state, optimizer.init(params), jax.random.PRNGKey(1), batch)
    return step, args, {"donate": (0, 1, 2)}


@entry
def haiku_mlp():
    import haiku as hk

    return haiku_step(lambda x, y: cross_entropy(hk.nets.MLP([32, 32, 5])(x), y), *ROWS)


@entry
def haiku_resnet():
    import haiku as hk

    def forward(x, y):
        net = hk.nets.ResNet((1, 1, 1, 1), 10, bottleneck=False, channels_per_group=(8, 8, 8, 8), resnet_v2=True)
        return cross_entropy(net(x, is_training=True), y)

    return haiku_step(forward, normal(1, 8, 16, 16, 3), labels(2, 10, 8))


@entry
def haiku_lstm():
    import haiku as hk

    def forward(x, y):
        core = hk.LSTM(16)
        out, _ = hk.dynamic_unroll(core, hk.Embed(32, 8)(x.T), core.initial_state(8))
        return cross_entropy(hk.Linear(32)(out), y.T)

    return haiku_step(forward, *WORDS)


@entry
def haiku_transformer():
    import haiku as hk

    def forward(x, y):
        h = hk.Embed(32, 16)(x)
        init = hk.initializers.VarianceScaling(1.0)
        n = hk.LayerNorm(-1, True, True)(h)
        h = h + hk.MultiHeadAttention(2, 8, w_init=init)(n, n, n, mask=jnp.tril(jnp.ones((1, 1, 16, 16))))
        h = hk.dropout(hk.next_rng_key(), 0.1, h)
        return cross_entropy(hk.Linear(32)(jax.nn.gelu(h)), y)

    return haiku_step(forward, *WORDS)


# ---- keras ----


def keras_step(model, batch, rate=1e-3, optimizer="Adam"):
    import keras

    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = getattr(keras.optimizers, optimizer)(rate)
    optimizer.build(model.trainable_variables)

    def step(params, stats, opt_state, batch):
        def loss_of(params, stats):
            logits, stats = model.stateless_call(params, stats, batch[0], training=True)
            return loss_fn(batch[1], logits), stats

        (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(params, stats)
        params, opt_state = optimizer.stateless_apply(opt_state, grads, params)
        return loss, params, stats, opt_state

    values = lambda variables: [v.value for v in variables]
    args = (values(model.trainable_variables), values(model.non_trainable_variables), values(optimizer.variables), batch)
    return step, args, {"donate": (0, 1, 2)}


def keras_model(build, shape, dtype="float32"):
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape, dtype=dtype)
    return keras.Model(inputs, build(keras.layers, inputs))


@entry
def keras_mlp():
    build = lambda k, x: k.Dense(5)(k.Dense(32, activation="relu")(k.Dense(32, activation="gelu")(x)))
    return keras_step(keras_model(build, (12,)), ROWS)


@entry
def keras_cnn():
    def build(k, x):
        x = k.ReLU()(k.BatchNormalization()(k.Conv2D(8, 3, padding="same")(x)))
        x = k.MaxPooling2D()(x)
        return k.Dense(10)(k.Dropout(0.2, seed=1)(k.GlobalAveragePooling2D()(x)))

    return keras_step(keras_model(build, (8, 8, 3)), IMAGES, optimizer="SGD")


@entry
def keras_transformer():
    def build(k, x):
        h = k.Embedding(32, 16)(x)
        h = k.LayerNormalization()(h + k.MultiHeadAttention(2, 8)(h, h, use_causal_mask=True))
        return k.Dense(32)(k.Dense(32, activation="silu")(h))

    return keras_step(keras_model(build, (16,), "int32"), WORDS, optimizer="AdamW")


@entry
def keras_gru():
    build = lambda k, x: k.Dense(5)(k.GRU(16)(x))
    return keras_step(keras_model(build, (6, 4)), (normal(1, 8, 6, 4), labels(2, 5, 8)), optimizer="RMSprop")


# ---- flax.nnx ----


def nnx_step(make, batch, optimizer=optax.adam(1e-3)):
    from flax import nnx

    model = make(nnx, nnx.Rngs(0))

    @nnx.jit
    def step(model, optimizer, x, y):
        loss, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
        optimizer.update(model, grads)
        return loss

    return step, (model, nnx.Optimizer(model, optimizer, wrt=nnx.Param), *batch), {}


@entry
def nnx_mlp():
    def make(nnx, rngs):
        return nnx.Sequential(nnx.Linear(12, 32, rngs=rngs), nnx.relu, nnx.LayerNorm(32, rngs=rngs), nnx.Linear(32, 5, rngs=rngs))

    return nnx_step(make, ROWS)


@entry
def nnx_cnn_dropout():
    def make(nnx, rngs):
        class Net(nnx.Module):
            def __init__(self):
                self.conv, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
                self.drop, self.head = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(8, 10, rngs=rngs)

            def __call__(self, x):
                return self.head(self.drop(nnx.relu(self.norm(self.conv(x))).mean((1, 2))))

        return Net()

    return nnx_step(make, IMAGES)


@entry
def nnx_transformer():
    def make(nnx, rngs):
        class Net(nnx.Module):
            def __init__(self):
                self.embed, self.norm = nnx.Embed(32, 16, rngs=rngs), nnx.RMSNorm(16, rngs=rngs)
                self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=rngs)
                self.head = nnx.Linear(16, 32, rngs=rngs)

            def __call__(self, x):
                h = self.embed(x)
                return self.head(h + self.attention(self.norm(h), mask=nnx.make_causal_mask(x)))

        return Net()

    return nnx_step(make, WORDS)


@entry
def nnx_split_and_merged():
    from flax import nnx

    model = nnx.Sequential(nnx.Linear(12, 32, rngs=nnx.Rngs(0)), nnx.gelu, nnx.Linear(32, 5, rngs=nnx.Rngs(1)))
    graph, state = nnx.split(model)
    optimizer = optax.sgd(0.1, momentum=0.9)

    @jax.jit
    def step(state, opt_state, x, y):
        def loss_of(state):
            return cross_entropy(nnx.merge(graph, state)(x), y)

        loss, grads = jax.value_and_grad(loss_of)(state)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(state, updates), opt_state, loss

    return jax.jit(step.__wrapped__, donate_argnums=(0, 1)), (state, optimizer.init(state), *ROWS), {}


# ---- penzai ----


@entry
def penzai_mlp():
    from penzai import pz
    from penzai.models import simple_mlp

    mlp = simple_mlp.MLP.from_config(jax.random.key(1), [12, 32, 5])
    mlp, variables = pz.unbind_params(mlp)
    params = [variable.freeze() for variable in variables]
    optimizer = optax.adam(1e-3)

    def step(params, opt_state, x, y):
        def loss_of(params):
            run = pz.bind_variables(mlp, [value.unfreeze_as_copy() for value in params])
            return cross_entropy(run(pz.nx.wrap(x, "batch", "features")).unwrap("batch", "features"), y)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return loss, optax.apply_updates(params, updates), opt_state

    return step, (params, optimizer.init(params), *ROWS), {"donate": (0, 1)}


# ---- optax ----


def optax_step(optimizer, extra=False):
    params = {"a": normal(1, 12, 24) / 4, "b": np.zeros(24, np.float32), "c": normal(2, 24, 5) / 5}

    def step(params, opt_state, x, y):
        def loss_of(p):
            return cross_entropy(jnp.tanh(x @ p["a"] + p["b"]) @ p["c"], y)

        loss, grads = jax.value_and_grad(loss_of)(params)
        more = {"value": loss, "grad": grads, "value_fn": loss_of} if extra else {}
        updates, opt_state = optimizer.update(grads, opt_state, params, **more)
        return loss, optax.apply_updates(params, updates), opt_state

    return step, (params, optimizer.init(params), *ROWS), {"donate": (0, 1)}


@entry
def optax_adafactor():
    return optax_step(optax.adafactor(1e-2, min_dim_size_to_factor=4))


@entry
def optax_schedule_free():
    return optax_step(optax.contrib.schedule_free(optax.adamw(1e-2, b1=0.0), 1e-2))


@entry
def optax_prodigy():
    return optax_step(optax.contrib.prodigy(1.0))


@entry
def optax_multisteps_if_finite():
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3))
    return optax_step(optax.MultiSteps(optax.apply_if_finite(chain, 3), 2))


@entry
def optax_muon():
    return optax_step(optax.contrib.muon(1e-2))


@entry
def optax_lookahead():
    optimizer = optax.lookahead(optax.sgd(0.1), 3, 0.5)

    def step(params, opt_state, x, y):
        def loss_of(p):
            return cross_entropy(x @ p["w"] + p["b"], y)

        loss, grads = jax.value_and_grad(loss_of)(params.fast)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return loss, optax.apply_updates(params, updates), opt_state

    params = optax.LookaheadParams.init_synced({"w": normal(1, 12, 5), "b": np.zeros(5, np.float32)})
    return step, (params, optimizer.init(params), *ROWS), {"donate": (0, 1)}


@entry
def optax_lbfgs():
    return *optax_step(optax.lbfgs(), extra=True)[:2], "unknown trip count"


# ---- rlax, distrax, diffrax ----


@entry
def rlax_double_q():
    import rlax

    def q(p, s):
        return jax.nn.relu(s @ p["a"]) @ p["b"]

    def step(params, target, opt_state, s, a, r, s2):
        def loss_of(p):
            td = jax.vmap(rlax.double_q_learning)(q(p, s), a, r, jnp.full_like(r, 0.99), q(target, s2), q(p, s2))
            return rlax.huber_loss(td).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, target, 0.05), opt_state, loss

    optimizer = optax.rmsprop(1e-2)
    params = {"a": normal(1, 6, 24), "b": normal(2, 24, 4)}
    target = {"a": normal(3, 6, 24), "b": normal(4, 24, 4)}
    batch = (normal(5, 16, 6), labels(6, 4, 16), normal(7, 16), normal(8, 16, 6))
    return step, (params, target, optimizer.init(params), *batch), {"donate": (0, 1, 2)}


@entry
def rlax_vtrace():
    import rlax

    def step(params, obs, actions, rewards, behaviour):
        def loss_of(p):
            h = jnp.tanh(obs @ p["w"])
            logits, values = h @ p["pi"], (h @ p["v"])[..., 0]
            rho = rlax.categorical_importance_sampling_ratios(logits[:-1], behaviour, actions)
            discounts = jnp.full(rewards.shape, 0.9)
            run = jax.vmap(rlax.vtrace_td_error_and_advantage, in_axes=1, out_axes=1)
            out = run(values[:-1], values[1:], rewards, discounts, rho)
            policy = rlax.policy_gradient_loss(logits[:-1].reshape(-1, 4), actions.reshape(-1), out.pg_advantage.reshape(-1), jnp.ones(actions.size))
            return policy + 0.5 * jnp.mean(out.errors**2), (policy, rlax.entropy_loss(logits[:-1].reshape(-1, 4), jnp.ones(actions.size)))

        (total, (policy, entropy)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return {"policy": policy, "entropy": entropy, "total": total}, jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)

    params = {"w": normal(1, 6, 16), "pi": normal(2, 16, 4), "v": normal(3, 16, 1)}
    batch = normal(4, 6, 8, 6), labels(5, 4, 5, 8), normal(6, 5, 8), normal(7, 5, 8, 4)
    return step, (params, *batch), {"donate": (0,)}


@entry
def distrax_flow():
    import distrax

    def step(params, opt_state, x):
        def loss_of(p):
            bijector = distrax.MaskedCoupling(
                mask=jnp.arange(6) % 2 == 0,
                conditioner=lambda h: (jnp.tanh(h @ p["a"]) @ p["b"]).reshape(*h.shape, 2),
                bijector=lambda q: distrax.ScalarAffine(shift=q[..., 0], log_scale=jnp.tanh(q[..., 1])),
            )
            base = distrax.MultivariateNormalDiag(jnp.zeros(6), jnp.ones(6))
            return -distrax.Transformed(base, bijector).log_prob(x).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return loss, optax.apply_updates(params, updates), opt_state

    optimizer = optax.adam(1e-2)
    params = {"a": normal(1, 6, 16), "b": 0.1 * normal(2, 16, 12)}
    return step, (params, optimizer.init(params), normal(3, 16, 6)), {"donate": (0, 1)}


@entry
def diffrax_fixed_steps():
    return diffrax_step(lambda d: d.ConstantStepSize(), lambda d: d.DirectAdjoint())


@entry
def diffrax_adaptive_steps():
    controller = lambda d: d.PIDController(rtol=1e-3, atol=1e-3)
    return *diffrax_step(controller, lambda d: d.RecursiveCheckpointAdjoint())[:2], "unknown trip count"


def diffrax_step(controller, adjoint):
    import diffrax
    import equinox as eqx

    func = eqx.nn.MLP(4, 4, 16, 1, key=KEY)

    def loss_of(func, x, y):
        def solve(y0):
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, args: func(y)), diffrax.Heun(), 0.0, 1.0, 0.25, y0,
                stepsize_controller=controller(diffrax), adjoint=adjoint(diffrax), max_steps=16, throw=False,
            ).ys[0]

        return jnp.mean((jax.vmap(solve)(x) - y) ** 2)

    return equinox_step(loss_of, func, normal(1, 8, 4), normal(2, 8, 4))
