#!/usr/bin/python3
"""A random pipelined plan for the document on standard input, which has blocks: stages of one to
eight devices in all, a schedule, microbatches, rules for the shardings, recomputation, statistics
of the batch or of each microbatch. `staged.py SEED exact|each [FALLBACK ...]`: these stages have
the rule largest-dim.
"""
import json
import random
import sys

rng = random.Random(int(sys.argv[1]))
document = json.load(sys.stdin)
nodes, blocks = document["graph"]["nodes"], document["blocks"]
forward = all(n["phase"] == "forward" for n in nodes if n["op"] != "parameter")
n_blocks = blocks["n"]
schedule = "inference" if forward else rng.choice(["1f1b", "gpipe", "interleaved-1f1b", "eager-1f1b"])
microbatches = rng.choice([1, 2, 2, 4, 4, 8])
if schedule == "interleaved-1f1b" and n_blocks % 2 == 0:
    lanes, chunks = n_blocks // 2, 2
    microbatches = max(microbatches, lanes)
else:
    schedule = "1f1b" if schedule == "interleaved-1f1b" else schedule
    lanes, chunks = n_blocks, 1
left, sizes = 8, []
for i in range(lanes):
    most = left - (lanes - 1 - i)
    sizes.append(rng.choice([d for d in (1, 1, 2, 2, 3, 4) if d <= most]))
    left -= sizes[-1]
at = [sum(sizes[:i]) for i in range(lanes)]
stages = []
for i in range(n_blocks):
    lane = i % lanes
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
