#!/usr/bin/env python3
"""Reads what ap-rewrite wrote for a trainer, and says in words which plan it is.

    read.py megatron|torchtitan DEVICES ARGUMENT...
    read.py deepspeed DEVICES FILE

Prints "TP 2 · PP 2 × VPP 2 · DP 2 · ZeRO-1 · micro-batch 1 · recompute all", and of
pipelines the layers of each stage, where the file lists them. Fails where numbers
contradict each other: devices, batch, layers.
"""
import json
import re
import sys


def flags(words):
    """Flags with their values: a list of words each."""
    got, name = {}, None
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            got[name] = []
        elif name is None or ":" in word:
            got[word] = []
        else:
            got[name].append(word)
    return got


def layout(text):
    """Megatron's layout as layers per stage."""
    def repeat(match):
        return match.group(1) * int(match.group(2))
    flat = re.sub(r"([Etm L])\*(\d+)", repeat, text)
    while "(" in flat:
        flat = re.sub(r"\(([^()]*)\)\*(\d+)", repeat, flat)
    stages = flat.split("|")
    assert stages[0][0] == "E" and stages[-1][-1] == "L", text
    return [stage.count("t") for stage in stages]


def megatron(devices, words):
    got = flags(words)
    one = lambda key, default: int(got.get(key, [default])[0])
    plan = {"tp": one("tensor-model-parallel-size", 1), "sp": "sequence-parallel" in got,
            "pp": one("pipeline-model-parallel-size", 1), "cp": one("context-parallel-size", 1),
            "ep": one("expert-model-parallel-size", 1),
            "etp": one("expert-tensor-parallel-size", 1), "zero": 0,
            "micro": one("micro-batch-size", 1), "batch": one("global-batch-size", 1)}
    plan["dp"] = devices // (plan["tp"] * plan["pp"] * plan["cp"])
    plan["vpp"] = one("num-virtual-stages-per-pipeline-rank", 1)
    if "pipeline-model-parallel-layout" in got:
        plan["layers"] = layout(got["pipeline-model-parallel-layout"][0])
        plan["vpp"] = len(plan["layers"]) // plan["pp"]
        assert len(plan["layers"]) == plan["pp"] * plan["vpp"]
    if "use-distributed-optimizer" in got:
        strategy = got.get("data-parallel-sharding-strategy", ["optim"])[0]
        plan["zero"] = ["", "optim", "optim_grads", "optim_grads_params"].index(strategy)
        assert (plan["zero"] > 1) == ("use-megatron-fsdp" in got)
    plan["shard"] = plan["dp"] * plan["cp"] // one("num-distributed-optimizer-instances", 1)
    plan["recompute"] = {"full": "all", "selective": "selected"}.get(
        got.get("recompute-granularity", [""])[0], "")
    return plan


def torchtitan(devices, words):
    got = flags(words)
    one = lambda key, default: int(got.get(key, [default])[0])
    par = lambda key: one("parallelism." + key, 1)
    plan = {"tp": par("tensor_parallel_degree"), "pp": par("pipeline_parallel_degree"),
            "cp": par("context_parallel_degree"), "ep": par("expert_parallel_degree"),
            "batch": one("training.global_batch_size", -1)}
    plan["sp"] = plan["tp"] > 1 and "parallelism.no-enable_sequence_parallel" not in got
    shard, copies = par("data_parallel_shard_degree"), par("data_parallel_replicate_degree")
    plan["dp"], plan["shard"] = shard * copies, shard * plan["cp"]
    reshard = got.get("parallelism.fsdp_reshard_after_forward", ["none"])[0]
    plan["zero"] = {"none": 0, "never": 1 if plan["pp"] > 1 else 2, "always": 3}[reshard]
    assert shard * copies * plan["cp"] * plan["tp"] * plan["pp"] == devices
    assert shard * plan["cp"] * plan["tp"] % plan["ep"] == 0, "experts and sharding"
    plan["etp"] = 1 if plan["ep"] > 1 else plan["tp"]
    plan["micro"], plan["vpp"] = one("training.local_batch_size", 1), 1
    if plan["pp"] > 1:
        plan["micro"] = par("pipeline_parallel_microbatch_size")
        parts = [part.split(",") for part in got["parallelism.module_fqns_per_model_part"]]
        names = sum(parts, [])
        plan["layers"] = [sum(name.startswith("layers.") for name in part) for part in parts]
        plan["vpp"] = len(parts) // plan["pp"]
        assert names == ["tok_embeddings"] + [
            f"layers.{i}" for i in range(sum(plan["layers"]))] + ["norm", "lm_head"], names
    how = [word for word in got if word.startswith("activation_checkpoint:")]
    plan["recompute"] = {"none": "", "full": "all", "selective": "selected"}[
        how[0].split(":")[1]]
    return plan


def deepspeed(devices, words):
    with open(words[0], encoding="utf-8") as file:
        got = json.load(file)
    experts = got.get("expert_parallel", {})
    plan = {"tp": got.get("tensor_parallel", {}).get("autotp_size", 1), "sp": False,
            "vpp": 1,
            "cp": got.get("sequence_parallel_size", 1), "ep": experts.get("autoep_size", 1),
            "etp": experts.get("expert_tensor_parallel_size", 1),
            "zero": got["zero_optimization"]["stage"],
            "micro": got["train_micro_batch_size_per_gpu"], "batch": got["train_batch_size"]}
    plan["dp"] = plan["batch"] // (plan["micro"] * got["gradient_accumulation_steps"])
    plan["pp"] = devices // (plan["tp"] * plan["dp"] * plan["cp"])  # the script has stages
    plan["shard"] = plan["dp"] * plan["cp"]
    plan["recompute"] = "all" if "activation_checkpointing" in got or got.get(
        "pipeline", {}).get("activation_checkpoint_interval") else ""
    assert plan["batch"] == plan["micro"] * got["gradient_accumulation_steps"] * plan["dp"]
    return plan


def words_of(p):
    out = []
    if p["tp"] > 1:
        out.append(f"TP {p['tp']}" + " with sequence parallelism" * p["sp"])
    if p["pp"] > 1:
        out.append(f"PP {p['pp']}" + f" × VPP {p['vpp']}" * (p["vpp"] > 1))
    for key in "cp", "dp", "ep":
        if p[key] > 1:
            out.append(f"{key.upper()} {p[key]}")
    if p["ep"] > 1 and p["etp"] != p["tp"]:
        out.append(f"expert TP {p['etp']}")
    if p["zero"]:
        over = "" if p["shard"] == p["dp"] * p["cp"] else f" over {p['shard']}"
        out.append(f"ZeRO-{p['zero']}{over}")
    out.append(f"micro-batch {p['micro']}")
    if p["recompute"]:
        out.append(f"recompute {p['recompute']}")
    return " · ".join(out)


def main():
    trainer, devices = sys.argv[1], int(sys.argv[2])
    plan = {"megatron": megatron, "torchtitan": torchtitan,
            "deepspeed": deepspeed}[trainer](devices, sys.argv[3:])
    used = plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"]
    assert used == devices, f"{used} of {devices} devices"
    assert plan["batch"] % (plan["micro"] * plan["dp"]) == 0, "batch"
    print(words_of(plan))
    if "layers" in plan:
        print("layers", *plan["layers"])


main()
