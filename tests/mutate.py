"""mutate.py FILE SEED: the document with one change to what ap-exec runs: to the lanes, cuts,
messages or buffers of its section "pipeline" or "program", not to the graphs themselves. What was
changed goes to standard error."""
import json
import random
import sys


def numbers(value, path):
    """Places of integers below value, graphs left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if key in ("graph", "source", "mesh", "collectives", "transfers", "params", "results"):
            continue
        if isinstance(item, bool):
            continue
        if isinstance(item, int):
            yield value, key, path + [key]
        elif isinstance(item, (dict, list)):
            yield from numbers(item, path + [key])


def main():
    doc = json.load(open(sys.argv[1]))
    rng = random.Random(int(sys.argv[2]))
    name = "pipeline" if "pipeline" in doc else "program"
    lists = [lane["instructions"] for lane in doc[name].get("lanes", []) if len(lane["instructions"]) > 1]
    kind = rng.choice(["number", "buffer", "delete", "swap", "repeat"] if lists else ["number", "buffer"])
    if kind in ("number", "buffer"):
        places = [p for p in numbers(doc[name], [name]) if ("buffers" in p[2]) == (kind == "buffer")]
        holder, key, path = rng.choice(places)
        old = holder[key]
        others = [other[0][other[1]] for other in rng.sample(places, min(4, len(places)))]
        holder[key] = rng.choice([old + 1, old - 1, old + 64, 0] + others)
        what = "/".join(map(str, path)) + f": {old} -> {holder[key]}"
    else:
        lane = rng.randrange(len(lists))
        at = rng.randrange(len(lists[lane]) - 1)
        what = f"{kind} {lane}/{at}: {lists[lane][at]}"
        if kind == "delete":
            del lists[lane][at]
        elif kind == "swap":
            lists[lane][at], lists[lane][at + 1] = lists[lane][at + 1], lists[lane][at]
        else:
            lists[lane].insert(rng.randrange(len(lists[lane])), dict(lists[lane][at]))
    print(what, file=sys.stderr)
    json.dump(doc, sys.stdout)


main()
