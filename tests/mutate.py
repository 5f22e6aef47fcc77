"""mutate.py FILE FIRST LAST DIR: for each seed DIR/SEED.json, the document with one change to what
ap-exec runs: to the lanes, cuts, messages or buffers of its section "pipeline" or "program", not to
the graphs themselves; DIR/SEED.json.what says what was changed."""
import json
import pathlib
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


def change(doc, rng):
    """One change, in place; what it was."""
    name = "pipeline" if "pipeline" in doc else "program"
    lists = [lane["instructions"] for lane in doc[name].get("lanes", []) if len(lane["instructions"]) > 1]
    kind = rng.choice(["number", "buffer", "delete", "swap", "repeat"] if lists else ["number", "buffer"])
    if kind in ("number", "buffer"):
        places = [p for p in numbers(doc[name], [name]) if ("buffers" in p[2]) == (kind == "buffer")]
        holder, key, path = rng.choice(places)
        old = holder[key]
        others = [other[0][other[1]] for other in rng.sample(places, min(4, len(places)))]
        holder[key] = rng.choice([old + 1, old - 1, old + 64, 0] + others)
        return "/".join(map(str, path)) + f": {old} -> {holder[key]}"
    lane = rng.randrange(len(lists))
    at = rng.randrange(len(lists[lane]) - 1)
    what = f"{kind} {lane}/{at}: {lists[lane][at]}"
    if kind == "delete":
        del lists[lane][at]
    elif kind == "swap":
        lists[lane][at], lists[lane][at + 1] = lists[lane][at + 1], lists[lane][at]
    else:
        lists[lane].insert(rng.randrange(len(lists[lane])), dict(lists[lane][at]))
    return what


def main():
    text, folder = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[4])
    for seed in range(int(sys.argv[2]), int(sys.argv[3]) + 1):
        doc = json.loads(text)
        what = change(doc, random.Random(seed))
        (folder / f"{seed}.json").write_text(json.dumps(doc))
        (folder / f"{seed}.json.what").write_text(what)


main()
