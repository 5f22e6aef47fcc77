"""What scripts/published prints of measured and predicted steps: errors, ranks, what choosing by
the price costs, pairs of rows; and its factors. A result is {"row", "sec", "gib", "line"}: a row of
the table, predicted seconds and memory, the grid line."""
import math
import random
import re


def software_of(row):
    return re.split(r"[ /]", row["source"])[0]


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    out, i = [0.0] * len(values), 0
    while i < len(order):
        k = i
        while k + 1 < len(order) and values[order[k + 1]] == values[order[i]]:
            k += 1
        for j in order[i:k + 1]:
            out[j] = (i + k) / 2
        i = k + 1
    return out


def correlation(a, b):
    a, b = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    under = (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5
    return over / under if under else 1.0


# Columns that say what is run; of two rows that agree in them the seconds differ by noise.
RUN = ("model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq", "gpu", "gpu_mem_gb",
       "n_gpus", "interconnect", "dtype", "dp", "shard", "tp", "sp", "pp", "vpp", "cp", "ep",
       "micro_batch", "global_batch", "recompute", "attention", "compile")


def noise(rows):
    """Of what is measured more than once: how many runs, the standard deviation of the seconds'
    logarithms, and the rank correlation that rows with as much noise have with themselves without
    it, on average of 200 draws; None: nothing is."""
    runs = {}
    for row in rows:
        runs.setdefault(tuple(row.get(c, "") for c in RUN), []).append(
            math.log(float(row["step_s"])))
    again = [logs for logs in runs.values() if len(logs) > 1]
    if not again:
        return None
    squares = sum((x - sum(logs) / len(logs)) ** 2 for logs in again for x in logs)
    sigma = (squares / sum(len(logs) - 1 for logs in again)) ** 0.5
    draw, seconds = random.Random(1), [float(row["step_s"]) for row in rows]
    ranked = [correlation(seconds, [s * math.exp(draw.gauss(0, sigma)) for s in seconds])
              for _ in range(200)]
    return len(again), sigma, sum(ranked) / len(ranked)


def software(row):
    return f"{software_of(row)} on {row['gpu']}-{row['gpu_mem_gb']}GB"


def middle(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def fit(results):
    """Multiplies by the factors; prints them, and the error of each row under the factor of the
    others of its software and device."""
    groups = {}
    for r in results:
        groups.setdefault(software(r["row"]), []).append(r)
    for name, group in sorted(groups.items()):
        ratios = [float(r["row"]["step_s"]) / r["sec"] for r in group]
        factor = middle(ratios)
        apart = [abs(middle(ratios[:i] + ratios[i + 1:]) / ratios[i] - 1)
                 for i in range(len(ratios)) if len(ratios) > 1]
        for r in group:
            r["sec"] *= factor
        print(f"factor {factor:6.3f}  {name}, {len(group)} rows"
              + (f", error {sum(apart) / len(apart):.1%} where each is left out of the fit"
                 if apart else ""))


def report(results):
    by = {}
    for r in results:
        by.setdefault(r["row"]["source"], []).append(r)
    summary = []
    for source, group in by.items():
        print(f"\n{source}")
        errors, memory = [], []
        for r in group:
            measured = float(r["row"]["step_s"])
            error = r["sec"] / measured - 1
            errors.append(abs(error))
            text = f"  {r['row']['id'][:60]:60s} {measured:9.3f} s {r['sec']:9.3f} s {error:+7.1%}"
            if r["row"].get("peak_mem_gib", "?") != "?":
                gib = float(r["row"]["peak_mem_gib"])
                memory.append(abs(r["gib"] / gib - 1))
                text += f"  {gib:6.1f} GiB {r['gib']:6.1f} GiB {r['gib'] / gib - 1:+7.1%}"
            print(f"{text}  {r['line']}")
        rank = correlation([float(r["row"]["step_s"]) for r in group],
                           [r["sec"] for r in group])
        summary.append((source, len(group), sum(errors) / len(errors), rank,
                        sum(memory) / len(memory) if memory else None))
    print(f"\n{'source':66s} {'rows':>4s} {'error':>7s} {'rank':>6s} {'memory':>7s}")
    for source, n, error, rank, memory in summary:
        print(f"{source[:66]:66s} {n:4d} {error:7.1%} {rank if n > 2 else float('nan'):6.3f} "
              f"{'' if memory is None else format(memory, '7.1%')}")
    for source, group in by.items():
        if found := noise([r["row"] for r in group]):
            print(f"{source}: {found[0]} runs are there more than once, {found[1]:.1%} apart "
                  f"(standard deviation): a prediction without error would rank {found[2]:.3f}")
    report_regrets(by)


# Columns that say what somebody who chooses a plan has given.
GIVEN = ("model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq", "gpu",
         "gpu_mem_gb", "n_gpus", "interconnect", "dtype", "global_batch", "attention", "compile")
FEWEST_PLANS = 3  # of two, half of all guesses are right


def regrets(group):
    """For each set of plans among which one could choose: (regret, number of plans, id of the
    plan with the least price, id of the quickest). Runs of one plan count as their mean."""
    choices = {}
    for r in group:
        plans = choices.setdefault(tuple(r["row"].get(c, "") for c in GIVEN), {})
        plans.setdefault(tuple(r["row"].get(c, "") for c in RUN), []).append(r)
    out = []
    for plans in choices.values():
        if len(plans) < FEWEST_PLANS:
            continue
        means = [(sum(float(r["row"]["step_s"]) for r in runs) / len(runs), runs[0])
                 for runs in plans.values()]
        best, quickest = min(means, key=lambda m: m[0])
        taken, first = min(means, key=lambda m: m[1]["sec"])
        out.append((taken / best - 1, len(means), first["row"]["id"], quickest["row"]["id"]))
    return out


def report_pairs(results):
    pairs = {}
    for r in results:
        if r["row"].get("pair"):
            pairs.setdefault(r["row"]["pair"], []).append(r)
    if pairs:
        print(f"\n{'pair':40s} {'measured':>9s} {'predicted':>9s}")
    for name, rows in pairs.items():
        if len(rows) != 2:
            print(f"{name:40s} only one of its rows has a price")
            continue
        first, second = rows
        measured = float(first["row"]["step_s"]) / float(second["row"]["step_s"])
        print(f"{name:40s} {measured - 1:+9.1%} {first['sec'] / second['sec'] - 1:+9.1%}")


def report_regrets(by):
    print(f"\n{'regret by source':66s} {'choices':>7s} {'mean':>7s} {'worst':>7s}")
    for source, group in by.items():
        if not (found := regrets(group)):
            continue
        worst, plans, first, quickest = max(found)
        print(f"{source[:66]:66s} {len(found):7d} {sum(f[0] for f in found) / len(found):7.1%} "
              f"{worst:7.1%}" + (f"  {first} of {plans}, quickest {quickest}" if worst else ""))
