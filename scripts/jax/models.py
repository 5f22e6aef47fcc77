"""The models: parameters, batches and losses, in plain JAX.

Each model class is built from the command line's options and has
    params()  specs of the weights, by path
    stats()   specs of the running statistics (empty for most)
    batch()   specs of one batch
    loss(params, stats, batch) -> (loss, (new stats, router logits))
    stacked   weights with an axis for the layers: path to that axis (empty for most)
    loops     the graph has while loops: over layers where weights are stacked, over time
              in the recurrent model; other loops are Python's
    local     layers have losses and updates of their own: there is a local_step
No parameter has a gradient that is zero by construction.
"""
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from layers import (
    Spec,
    attention,
    attention_spec,
    cross_entropy,
    cross_entropy_one_hot,
    dense,
    dense_spec,
    embed,
    layer_norm,
    layer_norm_spec,
    rms_norm,
    rms_norm_spec,
)


class Model:
    """Defaults: no running statistics, Adam, no loops, one loss."""

    optimizer = "adam"
    stacked = {}
    loops = False
    local = False

    def __init__(self, options):
        self.o = options

    def stats(self):
        return {}


class Mlp(Model):
    """A classifier of vectors: dense layers with relu."""

    defaults = dict(layers=3, hidden=64, features=32, classes=10, batch=8)

    def widths(self):
        o = self.o
        return [o.features] + [o.hidden] * (o.layers - 1) + [o.classes]

    def params(self):
        specs = {}
        widths = self.widths()
        for i in range(self.o.layers):
            specs.update(dense_spec(f"mlp/fc_{i}", widths[i], widths[i + 1]))
        return specs

    def batch(self):
        o = self.o
        return {
            "x": Spec((o.batch, o.features), std=1.0),
            "y": Spec((o.batch,), high=o.classes),
        }

    def loss(self, p, stats, batch):
        x = batch["x"]
        for i in range(self.o.layers):
            x = dense(p, f"mlp/fc_{i}", x)
            if i + 1 < self.o.layers:
                with jax.named_scope(f"mlp/act_{i}"):
                    x = jax.nn.relu(x)
        return cross_entropy(x, batch["y"]), (stats, [])


class Gpt(Model):
    """GPT-2: pre-norm decoder, learned positions, tanh gelu, tied or untied head."""

    root = "gpt"
    defaults = dict(
        layers=2,
        hidden=64,
        heads=4,
        ffn=0,
        vocab=257,
        seq=32,
        batch=8,
        untied=False,
        bf16=False,
    )

    def ffn(self):
        return self.o.ffn or 4 * self.o.hidden

    def mlp_spec(self, path, layer):
        return {
            **dense_spec(f"{path}/mlp/fc", self.o.hidden, self.ffn()),
            **dense_spec(f"{path}/mlp/proj", self.ffn(), self.o.hidden),
        }

    def params(self):
        o, root = self.o, self.root
        specs = {
            f"{root}/wte": Spec((o.vocab, o.hidden), std=o.hidden**-0.5),
            f"{root}/wpe": Spec((o.seq, o.hidden), std=o.hidden**-0.5),
            **layer_norm_spec(f"{root}/ln_f", o.hidden),
        }
        for i in range(o.layers):
            path = f"{root}/h_{i}"
            specs.update(layer_norm_spec(f"{path}/ln_1", o.hidden))
            specs.update(attention_spec(f"{path}/attn", o.hidden, bias=True))
            specs.update(layer_norm_spec(f"{path}/ln_2", o.hidden))
            specs.update(self.mlp_spec(path, i))
        if o.untied:
            specs.update(dense_spec(f"{root}/head", o.hidden, o.vocab, bias=False))
        return specs

    def batch(self):
        shape = (self.o.batch, self.o.seq)
        return {
            "tokens": Spec(shape, high=self.o.vocab),
            "labels": Spec(shape, high=self.o.vocab),
        }

    def mlp(self, p, path, layer, x):
        """The feed-forward half of a layer; returns also its part of the loss and logits."""
        x = dense(p, f"{path}/mlp/fc", x)
        with jax.named_scope(f"{path}/mlp/act"):
            x = jax.nn.gelu(x, approximate=True)
        return dense(p, f"{path}/mlp/proj", x), None, None

    def head(self, p, x):
        root = self.root
        if self.o.untied:
            return dense(p, f"{root}/head", x)
        with jax.named_scope(f"{root}/head"):
            return x @ p[f"{root}/wte"].astype(x.dtype).T

    def block(self, p, path, layer, x):
        """One layer; returns also its part of the loss and router logits."""
        o = self.o
        y = layer_norm(p, f"{path}/ln_1", x)
        scale = (o.hidden // o.heads) ** -0.5
        y = attention(p, f"{path}/attn", y, y, o.heads, scale, causal=True)
        with jax.named_scope(path):
            x = x + y
        y, loss, logits = self.mlp(p, path, layer, layer_norm(p, f"{path}/ln_2", x))
        with jax.named_scope(path):
            return x + y, loss, logits

    def blocks(self, p, x):
        """All layers; returns also their parts of the loss and router logits."""
        extra, routers = [], []
        for i in range(self.o.layers):
            x, loss, logits = self.block(p, f"{self.root}/h_{i}", i, x)
            if loss is not None:
                extra.append(loss)
                routers.append(logits)
        return x, extra, routers

    def loss(self, p, stats, batch):
        root = self.root
        dtype = jnp.bfloat16 if self.o.bf16 else jnp.float32
        x = embed(p, f"{root}/wte", batch["tokens"], dtype)
        with jax.named_scope(f"{root}/wpe"):
            x = x + p[f"{root}/wpe"].astype(dtype)
        x, extra, routers = self.blocks(p, x)
        x = layer_norm(p, f"{root}/ln_f", x)
        loss = cross_entropy(self.head(p, x), batch["labels"])
        for term in extra:
            loss = loss + 0.01 * term
        return loss, (stats, routers)


class Moe(Gpt):
    """GPT whose odd layers are mixtures of experts after GShard: top-2 routing, dispatch and
    combine by einsum with one-hot masks, no capacity limit, and a load-balancing loss."""

    root = "moe"
    defaults = dict(
        layers=2, hidden=32, heads=4, ffn=48, experts=8, vocab=64, seq=16, batch=8,
        untied=True, bf16=False,
    )  # fmt: skip

    def mlp_spec(self, path, layer):
        if layer % 2 == 0:
            return super().mlp_spec(path, layer)
        o = self.o
        fc, proj = (o.experts, o.hidden, self.ffn()), (o.experts, self.ffn(), o.hidden)
        return {
            f"{path}/moe/router/w": Spec((o.hidden, o.experts), std=0.5),
            f"{path}/moe/fc/w": Spec(fc, std=o.hidden**-0.5),
            f"{path}/moe/proj/w": Spec(proj, std=self.ffn() ** -0.5),
        }

    def mlp(self, p, path, layer, x):
        if layer % 2 == 0:
            return super().mlp(p, path, layer, x)
        path = f"{path}/moe"
        experts = self.o.experts
        logits = dense(p, f"{path}/router", x.astype(jnp.float32))
        with jax.named_scope(f"{path}/route"):
            probs = jax.nn.softmax(logits, axis=-1)
            _, chosen = jax.lax.top_k(logits, 2)
            dispatch = jnp.sum(jax.nn.one_hot(chosen, experts), axis=-2)
            gates = probs * dispatch
            combine = gates / jnp.sum(gates, axis=-1, keepdims=True)
        with jax.named_scope(f"{path}/balance"):
            first = jax.nn.one_hot(jnp.argmax(logits, axis=-1), experts)
            share = jnp.mean(first, axis=(0, 1)) * jnp.mean(probs, axis=(0, 1))
            balance = experts * jnp.sum(share)
        with jax.named_scope(f"{path}/dispatch"):
            y = jnp.einsum("bse,bsd->ebsd", dispatch.astype(x.dtype), x)
        with jax.named_scope(f"{path}/fc"):
            y = jnp.einsum("ebsd,edf->ebsf", y, p[f"{path}/fc/w"].astype(x.dtype))
        with jax.named_scope(f"{path}/act"):
            y = jax.nn.gelu(y, approximate=True)
        with jax.named_scope(f"{path}/proj"):
            y = jnp.einsum("ebsf,efd->ebsd", y, p[f"{path}/proj/w"].astype(x.dtype))
        with jax.named_scope(f"{path}/combine"):
            y = jnp.einsum("bse,ebsd->bsd", combine.astype(x.dtype), y)
        return y, balance, logits


class Bert(Model):
    """BERT: encoder with norms behind the sums; losses of the masked tokens and of the
    sentences' order."""

    defaults = dict(layers=2, hidden=32, heads=4, ffn=0, vocab=64, seq=16, batch=8)

    def params(self):
        o = self.o
        tables = {"word": o.vocab, "position": o.seq, "token_type": 2}
        specs = {
            f"bert/embeddings/{name}": Spec((n, o.hidden), std=o.hidden**-0.5)
            for name, n in tables.items()
        }
        specs.update(layer_norm_spec("bert/embeddings/ln", o.hidden))
        for i in range(o.layers):
            path = f"bert/encoder/layer_{i}"
            specs.update(attention_spec(f"{path}/attn", o.hidden, bias=True))
            specs.update(layer_norm_spec(f"{path}/ln_1", o.hidden))
            specs.update(dense_spec(f"{path}/mlp/fc", o.hidden, o.ffn or 4 * o.hidden))
            specs.update(dense_spec(f"{path}/mlp/proj", o.ffn or 4 * o.hidden, o.hidden))
            specs.update(layer_norm_spec(f"{path}/ln_2", o.hidden))
        specs.update(dense_spec("bert/pooler", o.hidden, o.hidden))
        specs.update(dense_spec("bert/cls/transform", o.hidden, o.hidden))
        specs.update(layer_norm_spec("bert/cls/ln", o.hidden))
        specs["bert/cls/decoder/b"] = Spec((o.vocab,), std=0.02)
        specs.update(dense_spec("bert/cls/next_sentence", o.hidden, 2))
        return specs

    def batch(self):
        o = self.o
        shape = (o.batch, o.seq)
        return {
            "labels": Spec(shape, high=o.vocab),
            "mask": Spec(shape, high=2),
            "next_sentence": Spec((o.batch,), high=2),
            "segments": Spec(shape, high=2),
            "tokens": Spec(shape, high=o.vocab),
        }

    def loss(self, p, stats, batch):
        o = self.o
        x = embed(p, "bert/embeddings/word", batch["tokens"])
        x = x + embed(p, "bert/embeddings/token_type", batch["segments"])
        with jax.named_scope("bert/embeddings/position"):
            x = x + p["bert/embeddings/position"]
        x = layer_norm(p, "bert/embeddings/ln", x)
        for i in range(o.layers):
            path = f"bert/encoder/layer_{i}"
            y = attention(p, f"{path}/attn", x, x, o.heads, (o.hidden // o.heads) ** -0.5)
            x = layer_norm(p, f"{path}/ln_1", x + y)
            y = jax.nn.gelu(dense(p, f"{path}/mlp/fc", x), approximate=True)
            x = layer_norm(p, f"{path}/ln_2", x + dense(p, f"{path}/mlp/proj", y))
        pooled = jnp.tanh(dense(p, "bert/pooler", x[:, 0, :]))
        order = cross_entropy(
            dense(p, "bert/cls/next_sentence", pooled), batch["next_sentence"]
        )
        y = jax.nn.gelu(dense(p, "bert/cls/transform", x), approximate=True)
        y = layer_norm(p, "bert/cls/ln", y)
        with jax.named_scope("bert/cls/decoder"):
            logits = y @ p["bert/embeddings/word"].T + p["bert/cls/decoder/b"]
        with jax.named_scope("loss"):
            one_hot = jax.nn.one_hot(batch["labels"], o.vocab)
            picked = jnp.sum(logits * one_hot, axis=-1)
            each = jax.nn.logsumexp(logits, axis=-1) - picked
            mask = batch["mask"].astype(jnp.float32)
            tokens = jnp.sum(each * mask) / jnp.maximum(jnp.sum(mask), 1)
        return tokens + order, (stats, [])


class T5(Model):
    """T5: encoder and decoder with RMS norm, gelu (as T5 1.1), bucketed relative position
    biases that all layers of a side share, cross attention and a tied head; no biases
    elsewhere."""

    defaults = dict(
        layers=2, hidden=32, heads=4, ffn=64, vocab=96, seq=16, target_seq=12, buckets=8,
        max_distance=16, batch=8,
    )  # fmt: skip

    def params(self):
        o = self.o
        query_std = (o.hidden * o.hidden / o.heads) ** -0.5
        specs = {"t5/embed": Spec((o.vocab, o.hidden), std=1.0)}
        for side, parts in (("encoder", ["attn"]), ("decoder", ["attn", "cross"])):
            specs[f"t5/{side}/position"] = Spec((o.buckets, o.heads), std=0.5)
            specs.update(rms_norm_spec(f"t5/{side}/ln_f", o.hidden))
            for i in range(o.layers):
                path = f"t5/{side}/block_{i}"
                for part in parts:
                    specs.update(rms_norm_spec(f"{path}/ln_{part}", o.hidden))
                    specs.update(
                        attention_spec(f"{path}/{part}", o.hidden, False, query_std)
                    )
                specs.update(rms_norm_spec(f"{path}/ln_mlp", o.hidden))
                specs.update(dense_spec(f"{path}/mlp/wi", o.hidden, o.ffn, bias=False))
                specs.update(dense_spec(f"{path}/mlp/wo", o.ffn, o.hidden, bias=False))
        return specs

    def batch(self):
        o = self.o
        target = (o.batch, o.target_seq)
        return {
            "source": Spec((o.batch, o.seq), high=o.vocab),
            "target": Spec(target, high=o.vocab),
            "labels": Spec(target, high=o.vocab),
        }

    def position_bias(self, p, path, n, both_sides):
        """[heads, n, n] biases.  A distance's bucket is the number of thresholds that it
        reaches: every distance has its own up to half the buckets, then they widen."""
        o = self.o
        buckets = o.buckets // 2 if both_sides else o.buckets
        exact = buckets // 2
        steps = np.arange(buckets - exact) / (buckets - exact)
        wide = np.ceil(exact * (o.max_distance / exact) ** steps)
        thresholds = np.concatenate([np.arange(1, exact), wide]).astype(np.int32)
        with jax.named_scope(path):
            rows = jax.lax.broadcasted_iota(jnp.int32, (n, n), 0)
            columns = jax.lax.broadcasted_iota(jnp.int32, (n, n), 1)
            behind = rows - columns
            distance = jnp.abs(behind) if both_sides else jnp.maximum(behind, 0)
            bucket = jnp.sum(
                (distance[..., None] >= thresholds).astype(jnp.int32), axis=-1
            )
            if both_sides:
                bucket = bucket + jnp.where(behind < 0, buckets, 0)
            return jnp.transpose(p[path][bucket], (2, 0, 1))

    def stack(self, p, side, x, memory=None):
        """One side: blocks of self attention, cross attention over memory, and MLP."""
        o = self.o
        causal = memory is not None
        bias = self.position_bias(p, f"t5/{side}/position", x.shape[1], not causal)
        for i in range(o.layers):
            path = f"t5/{side}/block_{i}"
            y = rms_norm(p, f"{path}/ln_attn", x)
            y = attention(p, f"{path}/attn", y, y, o.heads, 1.0, causal, bias)
            with jax.named_scope(path):
                x = x + y
            if memory is not None:
                y = rms_norm(p, f"{path}/ln_cross", x)
                y = attention(p, f"{path}/cross", y, memory, o.heads, 1.0)
                with jax.named_scope(path):
                    x = x + y
            y = dense(p, f"{path}/mlp/wi", rms_norm(p, f"{path}/ln_mlp", x))
            with jax.named_scope(f"{path}/mlp/act"):
                y = jax.nn.gelu(y)
            y = dense(p, f"{path}/mlp/wo", y)
            with jax.named_scope(path):
                x = x + y
        return rms_norm(p, f"t5/{side}/ln_f", x)

    def loss(self, p, stats, batch):
        memory = self.stack(p, "encoder", embed(p, "t5/embed", batch["source"]))
        x = self.stack(p, "decoder", embed(p, "t5/embed", batch["target"]), memory)
        with jax.named_scope("t5/head"):
            logits = (x * self.o.hidden**-0.5) @ p["t5/embed"].T
        return cross_entropy_one_hot(logits, batch["labels"]), (stats, [])


class Resnet(Model):
    """ResNet of basic blocks: stem with max pooling, stages that halve the image and double
    the width, batch norm over the batch with running statistics, global average pooling.
    """

    optimizer = "momentum"
    defaults = dict(layers=1, stages=2, hidden=16, image=16, classes=10, batch=8)

    def blocks(self):
        """(path, channels in, channels out, stride) of every block."""
        o, n_in = self.o, self.o.hidden
        for stage in range(o.stages):
            for i in range(o.layers):
                n_out = o.hidden << stage
                stride = 2 if stage > 0 and i == 0 else 1
                yield f"resnet/stage_{stage}/block_{i}", n_in, n_out, stride
                n_in = n_out

    def convs(self):
        """(path, kernel size, channels in, channels out) of every convolution."""
        o = self.o
        yield "resnet/stem", 7 if o.image >= 64 else 3, 3, o.hidden
        for path, n_in, n_out, stride in self.blocks():
            yield f"{path}/conv_0", 3, n_in, n_out
            yield f"{path}/conv_1", 3, n_out, n_out
            if stride != 1 or n_in != n_out:
                yield f"{path}/shortcut", 1, n_in, n_out

    def params(self):
        o = self.o
        specs = dense_spec("resnet/fc", o.hidden << (o.stages - 1), o.classes)
        for path, kernel, n_in, n_out in self.convs():
            shape = (kernel, kernel, n_in, n_out)
            specs[f"{path}/w"] = Spec(shape, std=(2 / (kernel * kernel * n_in)) ** 0.5)
            specs[f"{path}/bn/scale"] = Spec((n_out,), std=0.1, mean=1.0)
            specs[f"{path}/bn/bias"] = Spec((n_out,), std=0.02)
        return specs

    def stats(self):
        specs = {}
        for path, _, _, n_out in self.convs():
            specs[f"{path}/bn/mean"] = Spec((n_out,))
            specs[f"{path}/bn/var"] = Spec((n_out,), mean=1.0)
        return specs

    def batch(self):
        o = self.o
        shape = (o.batch, o.image, o.image, 3)
        return {"image": Spec(shape, std=1.0), "label": Spec((o.batch,), high=o.classes)}

    def conv_norm(self, p, stats, new_stats, path, x, stride=1):
        """Convolution, then batch norm; adds the new running statistics to new_stats."""
        with jax.named_scope(path):
            x = jax.lax.conv_general_dilated(
                x, p[f"{path}/w"], (stride, stride), "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )  # fmt: skip
        with jax.named_scope(f"{path}/bn"):
            mean = jnp.mean(x, axis=(0, 1, 2))
            var = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2))
            for name, value in (("mean", mean), ("var", var)):
                key = f"{path}/bn/{name}"
                new_stats[key] = 0.9 * stats[key] + 0.1 * jax.lax.stop_gradient(value)
            y = (x - mean) * jax.lax.rsqrt(var + 1e-5)
            return y * p[f"{path}/bn/scale"] + p[f"{path}/bn/bias"]

    def loss(self, p, stats, batch):
        new_stats = {}
        stride = 2 if self.o.image >= 64 else 1
        x = self.conv_norm(p, stats, new_stats, "resnet/stem", batch["image"], stride)
        with jax.named_scope("resnet/stem/pool"):
            x = jax.nn.relu(x)
            window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")
        for path, n_in, n_out, stride in self.blocks():
            y = self.conv_norm(p, stats, new_stats, f"{path}/conv_0", x, stride)
            with jax.named_scope(f"{path}/act_0"):
                y = jax.nn.relu(y)
            y = self.conv_norm(p, stats, new_stats, f"{path}/conv_1", y)
            if stride != 1 or n_in != n_out:
                x = self.conv_norm(p, stats, new_stats, f"{path}/shortcut", x, stride)
            with jax.named_scope(f"{path}/act_1"):
                x = jax.nn.relu(x + y)
        with jax.named_scope("resnet/pool"):
            x = jnp.mean(x, axis=(1, 2))
        logits = dense(p, "resnet/fc", x)
        return cross_entropy(logits, batch["label"]), (new_stats, [])


class ScanMlp(Model):
    """Dense tanh layers as a scan over stacked weights, forward and in reverse."""

    defaults = dict(layers=3, hidden=32, classes=10, batch=8)
    loops = True
    # the second stack has its layers on the second axis, as MaxText's have
    stacked = {"mlp/up/layers/w": 0, "mlp/up/layers/b": 0, "mlp/down/layers/w": 1}

    def params(self):
        o = self.o
        std = o.hidden**-0.5
        return {
            "mlp/up/layers/w": Spec((o.layers, o.hidden, o.hidden), std=std),
            "mlp/up/layers/b": Spec((o.layers, o.hidden), std=0.1),
            "mlp/down/layers/w": Spec((o.hidden, o.layers, o.hidden), std=std),
            **dense_spec("mlp/head", o.hidden, o.classes),
        }

    def batch(self):
        o = self.o
        return {
            "x": Spec((o.batch, o.hidden), std=1.0),
            "y": Spec((o.batch,), high=o.classes),
        }

    def loss(self, p, stats, batch):
        def up(x, layer):
            w, b = layer
            with jax.named_scope("layers/fc"):
                return jnp.tanh(x @ w + b), jnp.sum(jnp.square(x))

        def down(x, w):
            with jax.named_scope("layers/fc"):
                return x + jnp.tanh(x @ w), None

        stack = (p["mlp/up/layers/w"], p["mlp/up/layers/b"])
        with jax.named_scope("mlp/up"):
            x, sizes = jax.lax.scan(up, batch["x"], stack)
        stack = jnp.swapaxes(p["mlp/down/layers/w"], 0, 1)
        with jax.named_scope("mlp/down"):
            x, _ = jax.lax.scan(down, x, stack, reverse=True)
        loss = cross_entropy(dense(p, "mlp/head", x), batch["y"])
        return loss + 1e-5 * jnp.mean(sizes), (stats, [])


class Lstm(Model):
    """A language model of LSTM layers, each a scan over time (Hochreiter, Schmidhuber)."""

    loops = True
    defaults = dict(layers=2, hidden=32, vocab=64, seq=6, batch=8)

    def params(self):
        o = self.o
        specs = {"lstm/embed": Spec((o.vocab, o.hidden), std=1.0)}
        for i in range(o.layers):
            path = f"lstm/layer_{i}"
            specs.update(dense_spec(f"{path}/x", o.hidden, 4 * o.hidden))
            specs.update(dense_spec(f"{path}/h", o.hidden, 4 * o.hidden, bias=False))
        return {**specs, **dense_spec("lstm/head", o.hidden, o.vocab)}

    def batch(self):
        shape = (self.o.batch, self.o.seq)
        return {
            "tokens": Spec(shape, high=self.o.vocab),
            "labels": Spec(shape, high=self.o.vocab),
        }

    def layer(self, p, path, x):
        def step(carry, x):
            h, cell = carry
            gates = dense(p, f"{path}/x", x) + dense(p, f"{path}/h", h)
            take, forget, give, new = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
            h = jax.nn.sigmoid(give) * jnp.tanh(cell)
            return (h, cell), h

        zeros = jnp.zeros(x.shape[1:])
        return jax.lax.scan(step, (zeros, zeros), x)[1]

    def loss(self, p, stats, batch):
        x = embed(p, "lstm/embed", batch["tokens"].T)
        for i in range(self.o.layers):
            x = self.layer(p, f"lstm/layer_{i}", x)
        return cross_entropy(dense(p, "lstm/head", x), batch["labels"].T), (stats, [])


class ScanGpt(Gpt):
    """The GPT with its blocks in a scan that keeps a block's input only (remat)."""

    loops = True

    def one_block(self):
        """Specs of one block, by path inside the block."""
        root = f"{self.root}/h_0/"
        return {k.removeprefix(root): s for k, s in super().params().items() if root in k}

    @property
    def stacked(self):
        return {f"{self.root}/layers/{path}": 0 for path in self.one_block()}

    def params(self):
        specs = {k: s for k, s in super().params().items() if "/h_" not in k}
        for path, spec in self.one_block().items():
            shape = (self.o.layers, *spec.shape)
            specs[f"{self.root}/layers/{path}"] = dataclasses.replace(spec, shape=shape)
        return specs

    def blocks(self, p, x):
        """All blocks, in a scan over their stacked weights."""
        prefix = f"{self.root}/layers/"
        stack = {k.removeprefix(prefix): w for k, w in p.items() if k.startswith(prefix)}

        @jax.checkpoint
        def body(x, block):
            block = {f"layers/{k}": w for k, w in block.items()}
            return self.block(block, "layers", 0, x)[0], None

        with jax.named_scope(self.root):
            return jax.lax.scan(body, x, stack)[0], [], []


class Ff(Model):
    """Forward-forward (Hinton, 2022): a layer learns to tell real rows from false ones by
    the squares of its own activations, and gets no gradient from the layers after it."""

    defaults = dict(layers=3, hidden=32, features=32, batch=8)
    local = True

    def params(self):
        specs = {}
        n_in = self.o.features
        for i in range(self.o.layers):
            specs.update(dense_spec(f"ff/fc_{i}", n_in, self.o.hidden))
            n_in = self.o.hidden
        return specs

    def batch(self):
        shape = (self.o.batch, self.o.features)
        return {"neg": Spec(shape, std=1.0), "pos": Spec(shape, std=1.0)}

    def layer_loss(self, p, path, neg, pos):
        """One layer's loss and its activations of the false and the real rows."""
        threshold = 0.5
        neg = dense(p, path, jax.lax.stop_gradient(neg))
        pos = dense(p, path, jax.lax.stop_gradient(pos))
        with jax.named_scope(f"{path}/act"):
            neg = jax.nn.gelu(neg, approximate=True)
            pos = jax.nn.gelu(pos, approximate=True)
        with jax.named_scope(f"{path}/loss"):
            too_good = jnp.mean(jnp.square(neg), axis=-1) - threshold
            too_bad = threshold - jnp.mean(jnp.square(pos), axis=-1)
            loss = jnp.mean(jax.nn.softplus(too_good) + jax.nn.softplus(too_bad))
        return loss, (neg, pos)

    def next_input(self, path, x):
        """Activations without their length, which is all that the layer has judged."""
        with jax.named_scope(f"{path}/norm"):
            return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5)

    def loss(self, p, stats, batch):
        neg, pos, total = batch["neg"], batch["pos"], 0.0
        for i in range(self.o.layers):
            path = f"ff/fc_{i}"
            loss, (neg, pos) = self.layer_loss(p, path, neg, pos)
            neg, pos = self.next_input(path, neg), self.next_input(path, pos)
            total = total + loss
        return total, (stats, [])

    def local_step(self, params, opt_state, batch, update):
        """Layer by layer: its loss, the gradient of that alone, its update."""
        neg, pos, total = batch["neg"], batch["pos"], 0.0
        new_params, m, v = {}, {}, {}
        for i in range(self.o.layers):
            path = f"ff/fc_{i}"
            names = (f"{path}/b", f"{path}/w")
            own = {name: params[name] for name in names}
            state = {
                "m": {name: opt_state["m"][name] for name in names},
                "step": opt_state["step"],
                "v": {name: opt_state["v"][name] for name in names},
            }
            loss_of = jax.value_and_grad(self.layer_loss, has_aux=True)
            (loss, (neg, pos)), grads = loss_of(own, path, neg, pos)
            changed, state = update(own, grads, state)
            new_params.update(changed)
            m.update(state["m"])
            v.update(state["v"])
            neg, pos = self.next_input(path, neg), self.next_input(path, pos)
            total = total + loss
        return total, new_params, {"m": m, "step": state["step"], "v": v}


MODELS = {
    "mlp": Mlp,
    "gpt": Gpt,
    "bert": Bert,
    "moe": Moe,
    "t5": T5,
    "resnet": Resnet,
    "scan_mlp": ScanMlp,
    "scan_gpt": ScanGpt,
    "lstm": Lstm,
    "ff": Ff,
}
