# SPDX-License-Identifier: Apache-2.0
"""Proves an export: what JAX computes with a step beside what ap-exec computes with its text.

JAX runs the step some times, and once more from arguments that are changed by a rounding error.
The second run says how far rounding alone may carry each result: Adam makes a whole step of a
gradient that is zero but for rounding.  A result of ap-exec may differ from JAX's by a thousandth of
what the steps have changed (3 % where the step computes in 16 bits or fewer), by a few times
what the second run differs, or by a millionth of what changes most in the same argument.
"""

import json
import re
import tempfile
from pathlib import Path

import jax
import numpy as np

from . import step as steps
from . import tools
from .errors import Differs, ToolError

NARROW = re.compile(r"\b(bf16|f16|f8\w+)\[")
NOISE = 16  # times what the second run differs


class Reference:
    """Losses, results and new arguments of n_steps steps, by JAX on one device; 0: the arguments."""

    def __init__(self, lowered, section, pairs, arrays, n_steps):
        self.lowered, self.section, self.pairs = lowered, section, dict(pairs)
        self.start, self.n_steps = arrays, n_steps
        self.narrow = any(NARROW.search(r["shape"]) for r in section["arguments"]) or bool(
            NARROW.search(steps.module_text(lowered))
        )
        self.function = jax.jit(lowered.watched())
        self.losses, self.results, self.final = self.steps(arrays)

    def steps(self, arrays):
        """(losses, results of the last step, arguments behind it) from these arguments."""
        infos = jax.tree.leaves(self.lowered.args_info)
        structure = jax.tree.structure(self.lowered.args_info[0])
        leaves = [
            jax.random.wrap_key_data(a, impl=steps.key_name(i)) if steps.is_key(i) else a
            for a, i in zip(arrays, infos)
        ]
        loss, losses, results = self.section.get("loss"), [], []
        for _ in range(self.n_steps):
            results = jax.tree.leaves(self.function(*structure.unflatten(leaves)))
            if loss:
                losses.append(float(results[loss["result"]]))
            for result, argument in self.pairs.items():
                leaves[argument] = results[result]
        return np.array(losses), [plain(r) for r in results], [plain(a) for a in leaves]

    def noise(self):
        """The same from arguments changed by about one rounding error of the narrowest type."""
        rng = np.random.default_rng(0)
        eps = 2.0**-9 if self.narrow else 2.0**-23

        def changed(a):
            if a.dtype.kind not in "fV" or a.dtype.itemsize < 2:
                return a
            wide = np.asarray(a, np.float64)
            return (wide * (1 + eps * rng.choice([-1.0, 1.0], a.shape))).astype(a.dtype)

        return self.steps([changed(a) for a in self.start])


def plain(array):
    """A numpy array; of a random key, its data."""
    return np.asarray(jax.random.key_data(array) if steps.is_key(array) else array)


# ---- files ----


def write(folder, reference):
    """K.npy, losses.npy and out/K.npy for ap-exec --data and --compare."""
    for place in (folder, folder / "out"):
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob("*.npy"):
            old.unlink()
    for index, array in enumerate(reference.start):
        np.save(folder / f"{index}.npy", array)
    for argument in reference.pairs.values() if reference.n_steps else ():
        np.save(folder / "out" / f"{argument}.npy", reference.final[argument])
    if len(reference.losses):
        np.save(folder / "losses.npy", reference.losses.astype(np.float32))


# ---- ap-exec ----


def imported(hlo):
    """The document that ap-import makes of the text; None without ap-exec."""
    return tools.run("ap-import", "--quiet", hlo)[0] if tools.find("ap-exec") else None


def aliases(document):
    """{result of the step: argument that it replaces}, as ap-import knows or finds them."""
    found, graph = {}, json.loads(document or '{"graph": {"results": []}}')["graph"]
    for number, result in enumerate(graph["results"]):
        if "alias" in result:
            node = graph["nodes"][result["alias"]]
            argument = node.get("argument", {"index": node["param"]})["index"]
            found[result.get("result", {"index": number})["index"]] = argument
    return found


def run_one_rank(document, data, out, n_steps):
    """Losses of the step on one rank, or a message why it does not run."""
    try:
        plan, _ = tools.run(
            "ap-shard", "--quiet", "--mesh", "1", "--algorithm", "data", stdin=document
        )
        program, _ = tools.run("ap-rewrite", "--quiet", stdin=plan)
        said, _ = tools.run(
            "ap-exec", "--quiet", "--data", data, "--steps", n_steps, "--out", out, "--json",
            stdin=program,
        )  # fmt: skip
    except ToolError as error:
        return str(error)
    return json.loads(said).get("losses", [])


def load(path, like):
    """An array that ap-exec wrote, of the type of another."""
    array = np.load(path)
    if array.dtype != like.dtype and array.dtype.itemsize == like.dtype.itemsize:
        array = array.view(like.dtype)
    return array.reshape(like.shape)


# ---- comparing ----


def pieces(*arrays):
    """Parts of arrays of equal size, a million elements at a time, in f64 or c128."""
    flat = [np.ravel(a) for a in arrays]
    kind = np.complex128 if any(a.dtype.kind == "c" for a in flat) else np.float64
    for i in range(0, flat[0].size, 1 << 20):
        yield [a[i : i + (1 << 20)].astype(kind) for a in flat]


def norms(got, want, start, other):
    """Norms of got - want, want - start and other - want where want is finite; infinite, 0, 0 where
    another element than want's is not."""
    sums = np.zeros(3)
    for g, w, o, *s in pieces(got, want, other, *(() if start is None else (start,))):
        finite = np.isfinite(w)
        if not np.array_equal(np.isfinite(g), finite):
            return np.inf, 0.0, 0.0
        o = np.where(np.isfinite(o), o, w)
        for k, d in enumerate((g - w, w - s[0] if s else w, o - w)):
            sums[k] += np.sum(np.abs(d[finite]) ** 2)
    return tuple(map(float, np.sqrt(sums)))


class Rows:
    """What was compared: error, changed (per element), size, limit and path of each array."""

    def __init__(self, narrow):
        self.rows, self.part = [], 3e-2 if narrow else 1e-3

    def add(self, path, got, want, start, other):
        """start: before the steps, None for a result; other: of the second run."""
        if want.dtype.kind not in "fcV":
            n, free = int(np.sum(got != want)), int(np.sum(other != want))
            self.rows.append((n, 0, want.size, max(NOISE * free, 0.5), path))
            return
        error, change, noise = norms(got, want, start, other)
        limit = max(self.part * change, NOISE * noise, 1e-30)
        self.rows.append((error, change / want.size**0.5, want.size, limit, path))

    def judge(self):
        """[(error by what is allowed, path)], the worst first; Differs where it is more than 1."""
        most, found = {}, []
        root = lambda path: re.match(r"[^.\[]*", path)[0]
        for _, change, _, _, path in self.rows:
            most[root(path)] = max(most.get(root(path), 0), change)
        for error, change, size, limit, path in self.rows:
            limit = max(limit, 1e-6 * most[root(path)] * size**0.5)
            found.append((error / limit, path, error / max(change * size**0.5, 1e-30)))
        found.sort(key=lambda row: -row[0])
        wrong = [f"{path or 'the result'} by {part:.2g}" for excess, path, part in found if excess > 1]
        if wrong:
            raise Differs(
                f"ap-exec computes other numbers than JAX: {len(wrong)} of {len(found)} arrays "
                f"differ, as part of what the steps change: {'; '.join(wrong[:4])}"
            )
        return found


def compare(reference, document, losses, out):
    """The line that says so, or Differs."""
    loss, rows = reference.section.get("loss"), Rows(reference.narrow)
    other = reference.noise()
    if loss and len(losses) == len(reference.losses):
        path = reference.section["results"][loss["result"]]["path"]
        rows.add(f"the loss {path}".strip(), np.array(losses), reference.losses, None, other[0])
    arguments, results = (reference.section[k] for k in ("arguments", "results"))
    for argument in reference.pairs.values():
        want = reference.final[argument]
        found = out / f"{argument}.npy"
        if found.exists() and want.size:
            rows.add(arguments[argument]["path"], load(found, want), want,
                     reference.start[argument], other[2][argument])  # fmt: skip
    for number, result in enumerate(document["graph"]["results"]):
        index = result.get("result", {"index": number})
        found = out / f"result_{number}.npy"
        known = loss and index["index"] == loss["result"]
        if known or "alias" in result or "dim" in index or not found.exists():
            continue
        want = reference.results[index["index"]]
        if want.size:
            rows.add(f"the result {results[index['index']]['path']}".strip(), load(found, want),
                     want, None, other[1][index["index"]])  # fmt: skip
    worst = rows.judge()
    n = reference.n_steps
    return (
        f"checked: {len(worst)} arrays of {n} step{'s' if n > 1 else ''} are JAX's"
        + (f"; {worst[0][1]} differs most, by {worst[0][0]:.2g} of what is allowed" if worst else "")
    )


def run(reference, document, data, checked):
    """Writes the arrays to data (None: nowhere), and compares with what ap-exec makes of the document;
    the line that says what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(data) if data else Path(name) / "data"
        write(folder, reference)
        if not checked or reference.n_steps == 0:
            return ""
        if document is None:
            return "not checked: ap-exec is not on the PATH"
        out = Path(name) / "out"
        losses = run_one_rank(document, folder, out, reference.n_steps)
        if isinstance(losses, str):
            return f"not checked: {losses}"
        return compare(reference, json.loads(document), losses, out)
