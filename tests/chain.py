#!/usr/bin/env python3
"""A random forward graph of a few layers as HLO text: products, sums, maxima, transposes,
softmax-like reductions of rows, values that skip layers. With integers for data every
number stays one. `chain.py SEED LAYERS`."""
import random
import sys

rng = random.Random(int(sys.argv[1]))
layers = int(sys.argv[2])
batch, width = 8, 4
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
for layer in range(layers):
    x = values[-1]
    kind = rng.choice(["dot", "dot", "turn", "row", "clip"]) if layer else "dot"
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
    else:
        x = put(f"{full} maximum({x}, {one})")
    if rng.random() < 0.5:  # from any layer before
        x = put(f"{full} add({x}, {rng.choice(values)})")
    values.append(put(f"{full} clamp(lo, {x}, hi)"))
total = put(f"f32[] reduce({values[-1]}, {zero}), dimensions={{0,1}}, to_apply=sum")
outs = [values[-1], total]
if rng.random() < 0.5:
    outs.append(rng.choice(values[1:]))
shapes = {values[-1]: full, total: "f32[]"}
print("HloModule chain\n")
print("sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n")
print("ENTRY main {")
for p in params:
    print("  " + p)
print(f"  lo = f32[] constant(-9)")
print(f"  hi = f32[] constant(9)")
print("\n".join(lines))
types = ", ".join(shapes.get(o, full) for o in outs)
print(f"  ROOT out = ({types}) tuple({', '.join(outs)})")
print("}")
