#!/usr/bin/env python3
"""The models of Alpa's own tests as HLO, forward only, a mean square at the end.

usage: alpa_models.py mlp LAYERS BATCH WIDTH
       alpa_models.py conv LAYERS BATCH IMAGE CHANNELS
       alpa_models.py depthwise LAYERS BATCH IMAGE CHANNELS
       alpa_models.py ffn LAYERS BATCH WIDTH HIDDEN
       alpa_models.py moe LAYERS GROUPS LENGTH EXPERTS CAPACITY WIDTH
       alpa_models.py embedding BATCH LENGTH VOCABULARY WIDTH
       alpa_models.py lm BATCH LENGTH VOCABULARY WIDTH tied|untied

Weights are called lN/w and lN/b, the embedding embed/w. `ap-grad` makes them train steps.
"""
import sys


class Module:
    def __init__(self):
        self.lines, self.n_params, self.n = [], 0, 0

    def put(self, dims, text, name=None, dtype="f32"):
        if not name:
            self.n += 1
            name = f"v{self.n}"
        shape = ",".join(map(str, dims))
        self.lines.append(f"  {name} = {dtype}[{shape}] {text}")
        return name

    def param(self, name, *dims, dtype="f32"):
        self.n_params += 1
        op_name = f', metadata={{op_name="{name}"}}'
        return self.put(dims, f"parameter({self.n_params - 1}){op_name}",
                        name.replace("/", "_"), dtype)

    def along(self, x, dims, which):
        return self.put(dims, f"broadcast({x}), dimensions={{{','.join(map(str, which))}}}")

    def number(self, value, dims):
        return self.along(self.put((), f"constant({value})"), dims, ())

    def dot(self, a, b, dims, lhs, rhs, batch=((), ())):
        def text(side, kind, which):
            return f", {side}_{kind}_dims={{{','.join(map(str, which))}}}" if which else ""
        return self.put(dims, f"dot({a}, {b})" + text("lhs", "batch", batch[0]) +
                        text("rhs", "batch", batch[1]) + text("lhs", "contracting", lhs) +
                        text("rhs", "contracting", rhs))

    def one_hot(self, ids, dims):
        """ids [*dims[:-1]] as rows of a unit matrix."""
        rank = len(dims)
        many = self.put(dims, f"broadcast({ids}), dimensions={{"
                        f"{','.join(map(str, range(rank - 1)))}}}", dtype="s32")
        rows = self.put(dims, f"iota(), iota_dimension={rank - 1}", dtype="s32")
        same = self.put(dims, f"compare({many}, {rows}), direction=EQ", dtype="pred")
        return self.put(dims, f"convert({same})")

    def mean_square(self, x, target, dims):
        off = self.put(dims, f"subtract({x}, {target})")
        square = self.put(dims, f"multiply({off}, {off})")
        zero = self.put((), "constant(0)")
        size = 1
        for d in dims:
            size *= d
        total = self.put((), f"reduce({square}, {zero}), "
                         f"dimensions={{{','.join(map(str, range(len(dims))))}}}, to_apply=sum")
        self.lines.append(f"  size = f32[] constant({size})")
        self.lines.append(f"  ROOT loss = f32[] divide({total}, size)")

    def text(self):
        return "\n".join(["HloModule alpa", "sum {", "  a = f32[] parameter(0)",
                          "  b = f32[] parameter(1)", "  ROOT c = f32[] add(a, b)", "}",
                          "ENTRY main {"] + self.lines + ["}"])


def relu(m, x, dims):
    return m.put(dims, f"maximum({x}, {m.number(0, dims)})")


def mlp(m, layers, batch, width):
    dims = (batch, width)
    x, y = m.param("x", *dims), m.param("y", *dims)
    for i in range(layers):
        w, b = m.param(f"l{i}/w", width, width), m.param(f"l{i}/b", width)
        x = m.dot(x, w, dims, [1], [0])
        x = m.put(dims, f"add({x}, {m.along(b, dims, [1])})")
        if i < layers - 1:
            x = relu(m, x, dims)
    m.mean_square(x, y, dims)


def conv(m, layers, batch, image, channels):
    dims = (batch, image, image, channels)
    x, y = m.param("x", *dims), m.param("y", *dims)
    for i in range(layers):
        w = m.param(f"l{i}/w", 3, 3, channels, channels)
        b = m.param(f"l{i}/b", channels)
        x = m.put(dims, f"convolution({x}, {w}), window={{size=3x3 pad=1_1x1_1}}, "
                  "dim_labels=b01f_01io->b01f")
        x = m.put(dims, f"add({x}, {m.along(b, dims, [3])})")
        x = relu(m, x, dims)
    m.mean_square(x, y, dims)


def depthwise(m, layers, batch, image, channels):
    dims = (batch, image, image, channels)
    x, y = m.param("x", *dims), m.param("y", *dims)
    for i in range(layers):
        w = m.param(f"l{i}/w", 3, 3, 1, channels)
        b = m.param(f"l{i}/b", channels)
        x = m.put(dims, f"convolution({x}, {w}), window={{size=3x3 pad=1_1x1_1}}, "
                  f"dim_labels=b01f_01io->b01f, feature_group_count={channels}")
        x = m.put(dims, f"add({x}, {m.along(b, dims, [3])})")
        x = relu(m, x, dims)
    m.mean_square(x, y, dims)


def ffn(m, layers, batch, width, hidden):
    dims, wide = (batch, width), (batch, hidden)
    x, y = m.param("x", *dims), m.param("y", *dims)
    for i in range(layers):
        up = m.param(f"l{i}/up/w", width, hidden)
        down = m.param(f"l{i}/down/w", hidden, width)
        h = relu(m, m.dot(x, up, wide, [1], [0]), wide)
        x = m.put(dims, f"add({m.dot(h, down, dims, [1], [0])}, {x})")
    m.mean_square(x, y, dims)


def moe(m, layers, groups, length, experts, capacity, width):
    dims = (groups, length, width)
    x, y = m.param("x", *dims), m.param("y", *dims)
    places = m.param("places", groups, length, experts, capacity)
    for i in range(layers):
        gate = m.param(f"l{i}/gate/w", width, experts)
        wi = m.param(f"l{i}/wi/w", experts, width, 4 * width)
        wo = m.param(f"l{i}/wo/w", experts, 4 * width, width)
        scores = m.put((groups, length, experts), "logistic(" + m.dot(
            x, gate, (groups, length, experts), [2], [0]) + ")")
        mask = m.put((groups, length, experts, capacity), "multiply(" + m.along(
            scores, (groups, length, experts, capacity), [0, 1, 2]) + f", {places})")
        sent = m.dot(places, x, (groups, experts, capacity, width), [1], [1], ([0], [0]))
        sent = m.put((experts, groups, capacity, width),
                     f"transpose({sent}), dimensions={{1,0,2,3}}")
        hidden = m.dot(sent, wi, (experts, groups, capacity, 4 * width), [3], [1], ([0], [0]))
        hidden = relu(m, hidden, (experts, groups, capacity, 4 * width))
        back = m.dot(hidden, wo, (experts, groups, capacity, width), [3], [1], ([0], [0]))
        back = m.put((groups, experts, capacity, width),
                     f"transpose({back}), dimensions={{1,0,2,3}}")
        flat = m.put((groups, experts * capacity, width), f"reshape({back})")
        mask = m.put((groups, length, experts * capacity), f"reshape({mask})")
        x = m.dot(mask, flat, dims, [2], [1], ([0], [0]))
    m.mean_square(x, y, dims)


def embedding(m, batch, length, vocabulary, width):
    ids = m.param("ids", batch, length, dtype="s32")
    y = m.param("y", batch, length, width)
    table = m.param("embed/w", vocabulary, width)
    rows = m.one_hot(ids, (batch, length, vocabulary))
    x = m.dot(rows, table, (batch, length, width), [2], [0])
    m.mean_square(x, y, (batch, length, width))


def lm(m, batch, length, vocabulary, width, tied):
    dims, wide = (batch * length, width), (batch * length, vocabulary)
    ids = m.param("ids", batch * length, dtype="s32")
    y = m.param("y", *wide)
    table = m.param("embed/w", vocabulary, width)
    x = m.dot(m.one_hot(ids, wide), table, dims, [1], [0])
    w, b = m.param("l0/w", width, width), m.param("l0/b", width)
    x = m.dot(x, w, dims, [1], [0])
    x = m.put(dims, f"tanh({m.put(dims, f'add({x}, {m.along(b, dims, [1])})')})")
    if tied == "tied":
        x = m.dot(x, table, wide, [1], [1])
    else:
        x = m.dot(x, m.param("head/w", width, vocabulary), wide, [1], [0])
    m.mean_square(x, y, wide)


def main():
    models = {"mlp": mlp, "conv": conv, "depthwise": depthwise, "ffn": ffn, "moe": moe, "embedding": embedding, "lm": lm}
    if len(sys.argv) < 2 or sys.argv[1] not in models:
        sys.exit(__doc__)
    m = Module()
    models[sys.argv[1]](m, *[int(a) if a.isdigit() else a for a in sys.argv[2:]])
    print(m.text())


main()
