#!/usr/bin/env python3
"""A random forward graph of a few layers as HLO text: products, sums, maxima, transposes,
softmax-like reductions of rows, values that skip layers. With integers for data every
number stays one. `chain.py SEED LAYERS [ROWS]`: with ROWS, of 8 rows so many at a time, and
there are statistics of the batch: means and maxima that rows are compared with, and a term of
the loss that is a product of two of them, each as large as that of 8 rows."""
import random
import sys

rng = random.Random(int(sys.argv[1]))
layers = int(sys.argv[2])
statistics = len(sys.argv) > 3
batch, width = int(sys.argv[3]) if statistics else 8, 4
lines, n = [], 0


def put(text):
    global n
    n += 1
    lines.append(f"  v{n} = {text}")
    return f"v{n}"


full = f"f32[{batch},{width}]"
row = f"f32[{batch}]"
params = [f"x = {full} parameter(0)"]
values = ["x"]
zero = put("f32[] constant(0)")
one = put(f"{full} broadcast(v1), dimensions={{}}")
features = f"f32[{width}]"
terms = []


def statistic(x, how):
    """A value per feature, over the rows of the batch."""
    if how == "max":
        return put(f"{features} reduce({x}, low), dimensions={{0}}, to_apply=most")
    r = put(f"{features} reduce({x}, {zero}), dimensions={{0}}, to_apply=sum")
    return put(f"{features} multiply({r}, scales)")


for layer in range(layers):
    x = values[-1]
    kinds = ["dot", "dot", "turn", "row", "clip"] + statistics * ["mean", "mean", "term"]
    kind = rng.choice(kinds) if layer else "dot"
    if kind == "dot":
        params.append(f"params.w{layer} = f32[{width},{width}] parameter({len(params)})")
        x = put(f"{full} dot({x}, params.w{layer}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")
        # numbers stay small
        x = put(f"{full} clamp(lo, {x}, hi)")
    elif kind == "turn":
        t = put(f"f32[{width},{batch}] transpose({x}), dimensions={{1,0}}")
        t = put(f"f32[{width},{batch}] negate({t})")
        x = put(f"{full} transpose({t}), dimensions={{1,0}}")
    elif kind == "row":
        r = put(f"{row} reduce({x}, {zero}), dimensions={{1}}, to_apply=sum")
        b = put(f"{full} broadcast({r}), dimensions={{0}}")
        x = put(f"{full} subtract({x}, {b})")
    elif kind in ("mean", "max"):
        r = statistic(x, kind)
        if rng.random() < 0.5:
            r = put(f"{features} clamp(lo, {r}, hi)")
        b = put(f"{full} broadcast({r}), dimensions={{1}}")
        x = put(f"{full} {rng.choice(['subtract', 'multiply'])}({x}, {b})")
    elif kind == "term":
        r = statistic(x, "sum")
        p = put(f"{features} multiply({r}, {statistic(rng.choice(values), 'sum')})")
        terms.append(put(f"f32[] reduce({p}, {zero}), dimensions={{0}}, to_apply=sum"))
    else:
        x = put(f"{full} maximum({x}, {one})")
    if rng.random() < 0.5:  # from any layer before
        x = put(f"{full} add({x}, {rng.choice(values)})")
    values.append(put(f"{full} clamp(lo, {x}, hi)"))
total = put(f"f32[] reduce({values[-1]}, {zero}), dimensions={{0,1}}, to_apply=sum")
if statistics:
    total = put(f"f32[] multiply({total}, scale)")
for term in terms:
    total = put(f"f32[] add({total}, {term})")
outs = [values[-1], total]
if rng.random() < 0.5:
    outs.append(rng.choice(values[1:]))
shapes = {values[-1]: full, total: "f32[]"}
print("HloModule chain\n")
print("sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n")
if statistics:
    print("most {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, b)\n}\n")
print("ENTRY main {")
for p in params:
    print("  " + p)
print(f"  lo = f32[] constant(-9)")
print(f"  hi = f32[] constant(9)")
if statistics:
    print(f"  scale = f32[] constant({8 // batch})\n  scales = {features} broadcast(scale), dimensions={{}}")
    print("  low = f32[] constant(-inf)")
print("\n".join(lines))
types = ", ".join(shapes.get(o, full) for o in outs)
print(f"  ROOT out = ({types}) tuple({', '.join(outs)})")
print("}")
