#!/usr/bin/env python3
"""A shard command for tests of ap-stage: prices by FLOPs, and misbehaves when told to.

stage_fake.py [--log FILE] [--die N] [--hang N] [--say N TEXT] [--late] [--refuse TEXT]
              [--bytes N] [--cluster FILE] DOCUMENT

die, hang, say: at the N-th request (from 0) of this process. late: answers every request
only after the next one, or when none follows at once. bytes: of a microbatch in flight.
"""

import argparse
import json
import re
import select
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--log")
parser.add_argument("--die", type=int, default=-1)
parser.add_argument("--hang", type=int, default=-1)
parser.add_argument("--say", nargs=2, default=["-1", ""])
parser.add_argument("--late", action="store_true")
parser.add_argument("--refuse")
parser.add_argument("--bytes", type=int, default=1000)
parser.add_argument("--cluster")
parser.add_argument("--microbatch")
parser.add_argument("document")
args = parser.parse_args()
with open(args.document) as f:
    document = json.load(f)
blocks = document["blocks"]["blocks"]
inputs = [n["shape"] for n in document["graph"]["nodes"] if n.get("role") == "input"]
rows = int(re.search(r"\[(\d+)", inputs[0])[1])


def front(q):
    members = q.get("set") or range(q["blocks"][0], q["blocks"][1] + 1)
    devices = q["submesh"][0] * q["submesh"][1]
    own = sum(blocks[b]["weight_bytes"] + blocks[b]["state_bytes"] for b in members)
    flops = sum(blocks[b]["flops"]["forward"] for b in members)
    sec = (flops + 1e5) / 1e12 / devices / q["microbatches"]
    keep = {
        "sec_per_microbatch": {"forward": sec, "backward": 2 * sec},
        "sec_per_step": 1e-6,
        "sync_sec": 5e-7,
        "stage_bytes": own,
        "bytes_per_microbatch": args.bytes // q["microbatches"],
        "recompute": False,
    }
    again = dict(
        keep,
        sec_per_microbatch={"forward": sec, "backward": 3 * sec},
        bytes_per_microbatch=args.bytes // q["microbatches"] // 10,
        recompute=True,
    )
    return [keep, again]


def answer(n, q):
    if n == args.die:
        sys.exit(7)
    if n == args.hang:
        time.sleep(1000)
    if n == int(args.say[0]):
        return args.say[1]
    if args.refuse:
        return json.dumps({"id": q["id"], "error": args.refuse})
    if rows // q["microbatches"] < q["submesh"][0] * q["submesh"][1]:
        return json.dumps({"id": q["id"], "error": "too few rows"})
    a = {"id": q["id"], "front": front(q)}
    if "plan" in q:
        a["sharding"] = {"algorithm": "data", "mesh": q["mesh"]}
    return json.dumps(a)


log = open(args.log, "a") if args.log else None
held = None
for number, line in enumerate(iter(sys.stdin.readline, "")):
    if log:
        log.write(line)
        log.flush()
    text = answer(number, json.loads(line))
    if args.late:
        if held is None and select.select([sys.stdin], [], [], 0.001)[0]:
            held, text = text, None
        else:
            text, held = (text if held is None else text + "\n" + held), None
    if text is not None:
        print(text, flush=True)
