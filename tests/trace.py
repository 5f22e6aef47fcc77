"""Checks a timeline by the rules of the trace event format; prints what it adds up to.

trace.py FILE: exit 1 and the reason when a rule is broken, else one JSON object with the
last slice's end in seconds, the counters' extremes, and how many slices and flows there are.
"""

import json
import math
import sys

MICROSEC = 1e6


def fail(why, event=None):
    sys.exit(f"{why}: {json.dumps(event)}" if event else why)


def number(event, key):
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        fail(f"{key} is no number", event)
    if not math.isfinite(value) or value < 0:
        fail(f"{key} is not finite and >= 0", event)
    return value


def read(path):
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        fail("displayTimeUnit is neither ms nor ns")
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        fail("traceEvents is no list")
    for event in events:
        for key in ("pid", "tid"):
            if not isinstance(event.get(key), int):
                fail(f"{key} is no integer", event)
        if not isinstance(event.get("name"), str) or not event["name"]:
            fail("no name", event)
        if event.get("ph") not in ("X", "C", "M", "s", "f"):
            fail("unknown ph", event)
        if event["ph"] != "M":
            number(event, "ts")
    return events


def check_slices(slices):
    tracks = {}
    for event in slices:
        number(event, "dur")
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for track in tracks.values():
        track.sort(key=lambda e: e["ts"])
        for before, after in zip(track, track[1:]):
            if after["ts"] < before["ts"] + before["dur"] - 1e-6:
                fail("slices of one track overlap", after)
    return tracks


def in_slice(tracks, event):
    return any(
        s["ts"] - 1e-6 <= event["ts"] <= s["ts"] + s["dur"] + 1e-6
        for s in tracks.get((event["pid"], event["tid"]), [])
    )


def check_flows(events, tracks):
    ends = {}
    for event in events:
        if event["ph"] not in "sf":
            continue
        if "id" not in event or "cat" not in event:
            fail("a flow without id or cat", event)
        if event["ph"] == "f" and event.get("bp") != "e":
            fail("a flow that ends in no slice", event)
        if not in_slice(tracks, event):
            fail("a flow outside of all slices", event)
        ends.setdefault(event["id"], []).append(event)
    for pair in ends.values():
        if [e["ph"] for e in pair] != ["s", "f"] or pair[0]["ts"] > pair[1]["ts"]:
            fail("a flow does not go from one place to a later one", pair[0])
    return len(ends)


def check_names(events):
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    for event in events:
        if event["ph"] == "X":
            if ("thread_name", event["pid"], event["tid"]) not in named:
                fail("a track without a name", event)
            if not any(n[:2] == ("process_name", event["pid"]) for n in named):
                fail("a process without a name", event)


def main():
    events = read(sys.argv[1])
    slices = [e for e in events if e["ph"] == "X"]
    tracks = check_slices(slices)
    check_names(events)
    n_flows = check_flows(events, tracks)
    counts = [number(e["args"], "bytes") for e in events if e["ph"] == "C"]
    print(
        json.dumps(
            {
                "end_sec": max((s["ts"] + s["dur"] for s in slices), default=0) / MICROSEC,
                "busy_sec": sum(s["dur"] for s in slices) / MICROSEC,
                "slices": len(slices),
                "flows": n_flows,
                "most_bytes": max(counts),
                "least_bytes": min(counts),
            }
        )
    )


main()
