# SPDX-License-Identifier: Apache-2.0
"""Proves an export: what PyTorch computes beside what ap-exec computes of the exported text.

PyTorch trains the module some steps. A tensor of ap-exec may differ from PyTorch's by a thousandth of
its norm (weights and states: of their change), 3 % where the step computes in bf16 or f16. Where one
differs more, PyTorch trains once more from weights that are changed by a rounding error (of the
narrowest type that the step computes with), which says how far rounding alone may carry each value: Adam
makes a whole step of a gradient that is zero but for rounding. The tensor may differ by a few times what
the second run differs.
"""
import dataclasses
import functools
import json
import math
import tempfile
import types
from pathlib import Path

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import tools
from ..errors import Differs, StepError
from . import rules
from .capture import first_names, loss_in, place_of
from .known import dense_gradients
from .lower import Elements, Known, Lowering
from .rules import to_numpy

NOISE, NARROW_NOISE = 16, 3  # times what the second run differs
RATE = 2.0**30  # see gradients_of_change
TOLERANCE, NARROW_TOLERANCE = 1e-3, 3e-2
NARROW = torch.bfloat16, torch.float16
ORDERS = {"topk", "kthvalue", "median", "sort"}  # PyTorch leaves open which of equal values they take
STATES = {"sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"),
          "adamw": ("exp_avg", "exp_avg_sq")}
OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
}


@dataclasses.dataclass
class Run:
    """Numbers of PyTorch: losses of all steps, the first gradients, tensors after the last."""

    losses: list
    gradients: dict  # by parameter
    after: dict  # parameters and buffers
    moments: list  # the optimizer's states in the order in which ap-grad has them


def tensors_of(model):
    names = first_names(model)
    every = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: every[name] for name in dict.fromkeys(names.values())}


def moments_of(model, optimizer, kind):
    """The optimizer's states as ap-grad numbers them, its counter of steps last."""
    trained = [p for p in model.parameters() if p.grad is not None]
    found = [optimizer.state[p][key].clone() for key in STATES[kind] for p in trained]
    if kind.startswith("adam"):
        found.append(optimizer.state[trained[0]]["step"].to(torch.int32))
    return found


def key_after(seed, steps):
    """The state of the random numbers after some steps, as an array."""
    key = jnp.asarray(seed)
    for _ in range(steps):
        key = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key))[1])
    return np.asarray(key)


class Drawn(torch.fx.Interpreter):
    """The joint graph, by PyTorch's operators, with the random numbers of the exported text."""

    def __init__(self, step):
        super().__init__(step.module)
        self.step, self.key, self.n = step, None, 0

    def run_node(self, n):
        if not rules.is_random(n):
            return super().run_node(n)
        of = types.SimpleNamespace(node=n, results=n.meta["val"], key=self.next_key)
        first = of.results[0] if isinstance(of.results, tuple) else of.results
        of.shape, of.dtype = tuple(first.shape), rules.dtype_of(first.dtype)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args = [jnp.asarray(to_numpy(a)) if isinstance(a, torch.Tensor) else a for a in args]
        kwargs = {k: v for k, v in kwargs.items() if k not in rules.IGNORED}
        made = rules.TABLE[str(n.target)](of, *args, **kwargs)
        to_torch = lambda x, like: torch.from_numpy(np.array(x, np.float32)).to(like.dtype)
        if isinstance(of.results, tuple):
            return tuple(map(to_torch, made, of.results))
        return to_torch(made, of.results)

    def next_key(self):
        self.n += 1
        return jax.random.fold_in(self.key, self.n - 1)

    def __call__(self, model, inputs, seed, k):
        """Loss, gradients by name and next states of step k."""
        key = jax.random.wrap_key_data(jnp.asarray(key_after(seed, k)))
        self.key = jax.random.split(key)[0]
        self.n, values = 0, tensors_of(model) | inputs
        of = {node: values[t.name].detach() for t in self.step.arguments for node in t.nodes}
        of |= {node: torch.ones(node.meta["val"].shape) for node in self.step.ones}
        ends = [n for n in self.step.graph.nodes if n.op == "placeholder"]
        out = dict(zip(next(n for n in self.step.graph.nodes if n.op == "output").args[0],
                       self.run(*(of[n] for n in ends), enable_io_processing=False)))
        gradients = {name: sum(out[n] for n in nodes)
                     for name, nodes in self.step.gradients.items() if nodes}
        return out[self.step.loss], gradients, {n: out[v] for n, v in self.step.states.items()}


class Operators(Drawn):
    """Both evaluations of each operator, of PyTorch's own operands: a rule that differs at a kink or a tie shows,
    whatever rounding error is elsewhere."""

    def __init__(self, step):
        super().__init__(step)
        self.tolerance = NARROW_TOLERANCE if narrowest(step) in NARROW else TOLERANCE
        self.wrong, self.free = {}, {}  # operators with their modules, as keys
        self.traced = []  # gradients that the graph has otherwise than PyTorch without it

    def run_node(self, n):
        want = super().run_node(n)
        operands = {x: self.env[x] for x in n.all_input_nodes}
        plain_ones = all(isinstance(x, torch.Tensor) for x in operands.values())
        if n.op == "call_function" and operands and plain_ones and not rules.is_random(n):
            values = {x: jnp.asarray(to_numpy(a)) for x, a in operands.items() if x.op != "get_attr"}
            lowering = Lowering(self.step.module, values)
            lowering.values |= {x: Known(a.detach(), None) for x, a in operands.items() if x.op == "get_attr"}
            try:
                self.compare(n, lowering.evaluate(n), want, max(map(size_of, operands.values())))
            except StepError:  # the rule needs the values of an operand that is a constant
                pass
        return want

    def compare(self, n, made, want, size):
        of, many = n.meta["val"], isinstance(want, (tuple, list))
        read = {x.args[1] for x in n.users} if many else {0}
        for k, (ours, theirs, like) in enumerate(zip(*((made, want, of) if many else ([made], [want], [of])))):
            if k in read and isinstance(ours, Elements) and isinstance(theirs, torch.Tensor):
                ours, theirs = np.asarray(ours.array(tuple(like.shape))), to_numpy(theirs)
                same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
                off = norm(np.where(same, 0, ours.astype(wide_type(ours)) - theirs))
                if off > self.tolerance * norm(theirs[np.isfinite(theirs)]) and off > 1e-5 * size:
                    kind = self.free if str(n.target).split(".")[1] in ORDERS else self.wrong
                    kind[f"{n.target} (in {place_of(n)})"] = None

    def by(self, model, inputs, seed, run):
        """Itself, after one step."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _, gradients, _ = self(model, inputs, np.zeros(2, np.uint32) if seed is None else seed, 0)
        self.traced = [f"the gradient of '{name}'" for name, g in gradients.items()
                       if size_of(g - run.gradients[name]) > self.tolerance * size_of(run.gradients[name])]
        return self

    def reasons(self):
        """Why numbers may differ for which no rule is wrong: one sentence, or none."""
        if self.free:
            return [f"PyTorch leaves open which of equal values {'; '.join(self.free)} takes"]
        return [f"PyTorch's own graph differs from PyTorch, too, in {', '.join(self.traced[:8])}"] if self.traced else []


def one_step(model, inputs, drawn, seed, k):
    """Sets gradients and changes buffers; returns the loss."""
    if drawn is None:
        loss = loss_in(model(**inputs))
        loss.backward()
        return loss
    with torch.no_grad():
        loss, gradients, states = drawn(model, inputs, seed, k)
        tensors = tensors_of(model)
        for name, gradient in gradients.items():
            tensors[name].grad = gradient
        for name, state in states.items():
            tensors[name].copy_(state)
    return loss


def train(model, inputs, step, seed, kind, lr, steps):
    """A Run, from the module's present values, which stay; seed: of random numbers, or None; kind: of
    OPTIMIZERS, or a function that makes the user's optimizer for the module."""
    before = {name: t.detach().clone() for name, t in tensors_of(model).items()}
    optimizer = kind(model) if step.update else OPTIMIZERS[kind](
        [p for p in model.parameters() if p.requires_grad], lr)
    losses, gradients = [], {}
    drawn = None if seed is None else Drawn(step)
    # where PyTorch draws numbers that the exported text does not, every run draws the same ones
    with sdpa_kernel(SDPBackend.MATH), dense_gradients(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for k in range(steps):
            optimizer.zero_grad()
            losses.append(one_step(model, inputs, drawn, seed, k).item())
            if k == 0:
                gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters()
                             if p.grad is not None}
            optimizer.step()
    after = {name: t.detach().clone() for name, t in tensors_of(model).items()}
    moments = [] if step.update else moments_of(model, optimizer, kind)
    if step.update:
        after |= {t.name: optimizer.state[model.get_parameter(name)][key].clone()
                  for t, (name, key) in zip(step.update.states, step.update.keys)}
    optimizer.zero_grad()
    with torch.no_grad():
        for name, t in tensors_of(model).items():
            if name in before:  # not a buffer that the forward pass has made
                t.copy_(before[name])
    return Run(losses, gradients, after, moments)


def narrowest(step):
    """The floating-point type with the largest rounding error among the step's tensors."""
    types = {t.value.dtype for t in step.arguments}
    graphs = [step.graph] + ([step.update.module.graph] if step.update else [])
    types |= {getattr(node.meta.get("val"), "dtype", None) for graph in graphs for node in graph.nodes}
    return next((t for t in NARROW if t in types), torch.float32)


def train_nearby(model, inputs, step, *how):
    """The Run from weights that are changed by a rounding error, relative to them."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rounding = torch.finfo(narrowest(step)).eps / 2
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            up = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
            p.copy_(p * (1 + up * max(rounding, torch.finfo(p.dtype).eps)))
    run = train(model, inputs, step, *how)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(before[name])
    return run


# ---- the tools ----


def pipe(*commands):
    """Standard output of commands in a pipe; ToolError with the message of one that fails."""
    data = None
    for command in commands:
        data, _ = tools.run(*command, stdin=data)
    return data


# ---- the comparison ----


def wide_type(x):
    return np.complex128 if np.iscomplexobj(x) else np.float64


def size_of(tensor):
    return norm(plain(tensor))


def norm(x):
    x = np.asarray(x, wide_type(np.asarray(x)))
    return float(np.linalg.norm(x.ravel()))


class Comparison:
    def __init__(self, narrow):
        self.tolerance = NARROW_TOLERANCE if narrow else TOLERANCE
        self.noise = NARROW_NOISE if narrow else NOISE
        self.wrong, self.excused, self.largest, self.n = [], [], 0.0, 0
        self.first = False  # a loss or a gradient of the first step differs

    def add(self, what, ours, want, nearby, base=0, least=0.0, first=False):
        """nearby(): the second run's; base: what the change is from; least: a size below which a
        difference is rounding; first: of the first step."""
        wide = lambda a: np.asarray(a) if np.asarray(a).dtype.kind == "c" else np.asarray(a, np.float64)
        ours, want = wide(ours), wide(want)
        change = want - base
        same = (ours == want) | (np.isnan(ours) & np.isnan(want))  # PyTorch's own infinities, too
        apart = np.where(same, 0, ours - want)
        off, size = norm(apart), norm(change[np.isfinite(change)])
        self.n += 1
        if off <= self.tolerance * size:
            self.largest = max(self.largest, off / size if size else 0)
        elif off <= least or off <= self.noise * norm(wide(nearby()) - want):
            self.first |= first and off > least
            self.excused.append(f"{what} ({off / size if size else math.inf:.1e})")
        else:
            self.wrong.append(f"{what}: norm {norm(ours - base):.6g}, PyTorch's {size:.6g}, the "
                              f"difference's {off:.2g}")

    def judged(self, operators):
        """What was checked; raises Differs with what is wrong. operators(): evaluated one by one, where the first
        step differs: rounding excuses nothing that an operator does otherwise with PyTorch's own operands."""
        by = operators() if self.wrong or self.first else None
        if by and (by.wrong or self.wrong):
            also = [f"with PyTorch's own operands, too: {'; '.join(by.wrong)}"] * bool(by.wrong)
            raise Differs("ap-exec computes other numbers than PyTorch:\n  " + "\n  ".join(
                [*self.wrong, *(f"{what} off" for what in self.excused), *also, *by.reasons()]))
        return self.said(*by.reasons()) if by else self.said()

    def said(self, why="no farther than rounding error may carry it"):
        """What was checked, with the tensors that differ more and why they may."""
        more = f" and {len(self.excused) - 8} more" if len(self.excused) > 8 else ""
        rounding = f"; farther off, but {why}: {', '.join(self.excused[:8])}{more}" if self.excused else ""
        return f"checked: {self.n} losses, gradients and tensors, {self.largest:.1e} off at most{rounding}"


def load(path):
    """An array of ap-exec, which writes bf16 as two bytes that numpy has no name for."""
    array = np.load(path)
    if array.dtype.kind == "V":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array


def plain(tensor):
    tensor = tensor.detach()
    return to_numpy(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)


def compare_gradients(found, ours, step, run, nearby):
    """ours: the array of ap-exec, of a parameter's name."""
    largest = max((norm(plain(g)) for g in run.gradients.values()), default=0.0)
    for name in step.reached():
        found.add(f"the gradient of '{name}'", ours(name), plain(run.gradients[name]),
                  lambda: plain(nearby().gradients[name]), least=1e-6 * largest, first=True)


def compare_tensors(found, folder, step, run, nearby, without=()):
    for k, t in step.changed():
        if t.name in without:
            continue
        want, start = run.after[t.name], plain(t.value)
        found.add(f"'{t.name}' after the last step", load(f"{folder}/{k}.npy"), plain(want),
                  lambda: plain(nearby().after[t.name]), start, least=1e-6 * norm(start))


def gradients_of_change(step, folder, rate):
    """Of a step of SGD whose rate is a power of 2 beside which the weights themselves do not count."""
    place = {t.name: (k, plain(t.value)) for k, t in step.changed()}
    return lambda name: (place[name][1] - load(f"{folder}/{place[name][0]}.npy")) / rate


def gradients_alone(step, folder, data, start):
    pipe(start, ("ap-rewrite", "--quiet"), ("ap-exec", "--data", data, "--steps", 1, "--out", folder))
    at = {name: k for k, name in enumerate(step.reached())}
    return lambda name: load(f"{folder}/result_{1 + at[name]}.npy")


def prove(path, model, inputs, step, run, how):
    """Compares a Run with ap-exec's; returns a line of text, raises Differs with what is wrong."""
    _, kind, lr, steps = how
    once = kind == "sgd" and steps == 1 and narrowest(step) != torch.float16  # one run is enough
    rate = RATE if once else lr
    nearby = functools.cache(lambda: train_nearby(model, inputs, step, *how))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(path) / "inputs"
        start = "ap-import", "--quiet", f"{path}/model.hlo"
        update = () if step.update else (("ap-grad", "--optimizer", kind, "--lr", rate),)
        said = pipe(start, *update, ("ap-rewrite", "--quiet"),
                    ("ap-exec", "--data", data, "--steps", steps, "--out", f"{folder}/last", "--json"))
        found = Comparison(narrowest(step) in NARROW)
        for k, ours in enumerate(json.loads(said)["losses"]):
            found.add(f"the loss of step {k}", ours, run.losses[k], lambda: nearby().losses[k], first=k == 0)
        if not step.update:
            ours = (gradients_of_change(step, f"{folder}/last", rate) if once
                    else gradients_alone(step, f"{folder}/first", data, start))
            compare_gradients(found, ours, step, run, nearby)
        compare_tensors(found, f"{folder}/last", step, run, nearby, step.reached() if once else ())
    return found.judged(lambda: Operators(step).by(model, inputs, how[0], run))
