#!/usr/bin/env python3
"""Bad documents for autopar.torch.load: each is refused with its place.

    torch_load.py PLAN.json STAGES.json

Both are of ap-rewrite --to torch. First mistakes that people make, then documents that are changed
somewhere at random: they load, or ValueError names the place. A last line counts them.
"""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
import autopar.torch  # noqa: E402

VALUES = [None, -1, 0, 1, 7, 10**30, 1.5, True, "", "x", [], {}, ["x"], [0], "Shard(9)",
          "Shard(-1)", "Partial(x)", "StridedShard(0)", ["Shard(0)"], {"mesh": 1}]


def refusal(data):
    """What load says of a file with this text, or None."""
    with tempfile.NamedTemporaryFile("wb", suffix=".json", delete=False) as file:
        file.write(data if isinstance(data, bytes) else json.dumps(data).encode())
    try:
        autopar.torch.load(file.name)
    except ValueError as e:
        assert str(e).startswith(file.name), e
        return str(e)[len(file.name):]
    finally:
        os.unlink(file.name)
    return None


def expect(text, data):
    said = refusal(data)
    if said is None or text not in said:
        sys.exit(f"expected '{text}', load says {said}")


def changed(document, path, value):
    """A copy with another value in a place; Ellipsis: without it."""
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copy


def mistakes(plan, stages):
    text = json.dumps(plan).encode()
    expect(":1:1: the file ends early or is no JSON", b"")
    expect("the file ends early or is no JSON", text[:len(text) // 2])
    expect("the file is no text", b"\xff\xfe" + text)
    expect("/autopar_torch: expected version 1", changed(plan, ["autopar_torch"], 2))
    expect("/autopar_torch: expected version 1", [1])
    expect("/: lacks 'mesh'", changed(plan, ["mesh"], ...))
    expect("/mesh: 2 axes of sizes [2]", changed(plan, ["mesh", "shape"], [2]))
    expect("/microbatches: expected 1 or more", changed(plan, ["microbatches"], 0))
    expect("/parameters/0/placements/0: expected a placement, not 'Shard'",
           changed(plan, ["parameters", 0, "placements", 0], "Shard"))
    expect("/parameters/0/placements: 1 placements on 2 mesh axes",
           changed(plan, ["parameters", 0, "placements"], ["Replicate"]))
    expect("/parameters/0/placements: S(7) of a tensor of shape",
           changed(plan, ["parameters", 0, "placements", 0], "Shard(7)"))
    expect("/parameters/1/shape/0: expected int, not '4'",
           changed(plan, ["parameters", 1, "shape", 0], "4"))
    expect("/inputs/0: lacks 'name'", changed(plan, ["inputs", 0, "name"], ...))
    expect("/schedule: expected one of gpipe, 1f1b, interleaved-1f1b, not 'zb'",
           changed(stages, ["schedule"], "zb"))
    expect("/chunks: 2 stages, 3 for each set of devices", changed(stages, ["chunks"], 3))
    expect("/stages/1/devices: 3 devices, a mesh of [2]",
           changed(stages, ["stages", 1, "devices"], [2, 3, 4]))
    expect("/stages: two stages of one chunk have the same device",
           changed(stages, ["stages", 1, "devices"], [1, 2]))
    expect("/stages/1/fsdp: axes of the mesh are", changed(
        stages, ["stages", 1, "fsdp"],
        {"shard": ["z"], "replicate": [], "reshard_after_forward": True}))


def place(at):
    """A random place, as a path."""
    path = []
    while isinstance(at, (dict, list)) and at and (not path or random.random() < 0.8):
        path.append(random.choice(list(at) if isinstance(at, dict) else range(len(at))))
        at = at[path[-1]]
    return path


def main():
    plan, stages = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
    random.seed(0)
    assert refusal(plan) is None and refusal(stages) is None
    mistakes(plan, stages)
    refused = 0
    for k in range(1000):
        document = (plan, stages)[k % 2]
        said = refusal(changed(document, place(document), random.choice([..., *VALUES])))
        if said is not None:
            refused += 1
            assert said.startswith(": /"), said
    print(f"{refused} of 1000 changed documents are refused with a place")


if __name__ == "__main__":
    main()
