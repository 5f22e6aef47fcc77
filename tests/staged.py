#!/usr/bin/python3
"""A random pipelined plan for the document on standard input, which has blocks: stages of one to
eight devices in all, a schedule, microbatches, rules for the shardings, recomputation, statistics
of the batch or of each microbatch. `staged.py SEED exact|each [FALLBACK ...]`: these stages have
the rule largest-dim. AP_SCHEDULE: the schedule.
"""
import json
import os
import random
import sys

rng = random.Random(int(sys.argv[1]))
document = json.load(sys.stdin)
nodes, blocks = document["graph"]["nodes"], document["blocks"]
forward = all(n["phase"] == "forward" for n in nodes if n["op"] != "parameter")
n_blocks = blocks["n"]
# those of one stage on a device, and of two
single = ["1f1b", "gpipe", "eager-1f1b", "zb-h1", "zb-h2"]
double = ["interleaved-1f1b", "looped-bfs", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"]
chunks = 1 + (n_blocks % 2 == 0 and rng.randrange(3) > 0)
schedule = rng.choice(double if chunks == 2 else single)
if only := os.environ.get("AP_SCHEDULE"):
    schedule, chunks = only, 1 + (only in double and (only not in single or chunks == 2))
if forward:
    schedule, chunks = "inference", 1
if schedule in ("zb-h1", "interleaved-1f1b") and 8 % (n_blocks // chunks):
    chunks = 1
lanes = n_blocks // chunks
microbatches = rng.choice([1, 2, 2, 4, 4, 8])
if schedule == "interleaved-1f1b" or (schedule, chunks) == ("zb-h1", 2):
    microbatches = max(microbatches, lanes)
if schedule == "dualpipe-v":
    microbatches = 8 if lanes > 2 else max(microbatches, 2 * lanes)
in_v = schedule in ("zb-v", "v-half", "v-min", "dualpipe-v")
left, sizes = 8, []
for i in range(lanes):
    most = left - (lanes - 1 - i)
    sizes.append(rng.choice([d for d in (1, 1, 2, 2, 3, 4) if d <= most]))
    left -= sizes[-1]
at = [sum(sizes[:i]) for i in range(lanes)]
stages = []
for i in range(n_blocks):
    lane = 2 * lanes - 1 - i if in_v and i >= lanes else i % lanes
    d = sizes[lane]
    stage = {"blocks": [i], "devices": list(range(at[lane], at[lane] + d))}
    mesh = rng.choice(["2x2", "4"]) if d == 4 else str(d)
    rule = rng.choice(["data", "largest-dim", "megatron", "zero3", "zero2"])
    stage["sharding"] = {"algorithm": "largest-dim" if str(i) in sys.argv[3:] else rule, "mesh": mesh}
    how = rng.choice(["none", "none", "all", "selected"]) if not forward else "none"
    chosen = [k for k, n in enumerate(nodes) if blocks["block_of"][k] == i and n["phase"] == "forward"
              and n["op"] in ("dot", "clamp", "negate", "multiply", "reduce")]
    if how == "all":
        stage["recompute"] = "all"
    elif how == "selected" and chosen:
        stage |= {"recompute": "selected", "recomputed": chosen}
    stages.append(stage)
document["stages"] = {"schedule": schedule, "chunks": chunks, "microbatches": microbatches,
                      "microbatch": sys.argv[2], "stages": stages,
                      "resharding": rng.choice(["auto", "send-recv", "local-allgather", "broadcast"])}
json.dump(document, sys.stdout)
