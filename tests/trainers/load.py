#!/usr/bin/env python3
"""Checks what autopar writes for a trainer with the trainer's own code, where it is installed.

    load.py TRAINER FILE...

TRAINER: megatron, torchtitan or deepspeed. FILE: a bash array of flags, or JSON; its name ends
in -DEVICES, or a comment has the number of devices. Prints the files that were refused, with the
reason, and how many there were; exits 1 if there is one, 77 where the trainer is not installed.
Megatron-LM: its arguments and the configuration of its transformer, from a checkout in
PYTHONPATH, without a GPU.
"""
import contextlib
import io
import json
import os
import re
import shlex
import sys
import types


def flags(text):
    """The words of the bash array."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return shlex.split("\n".join(lines).split("(", 1)[1].rsplit(")", 1)[0])


def devices(path, text):
    found = re.search(r"^# (\d+) devices", text, re.M) or re.search(r"-(\d+)$", path)
    return int(found[1])


def torchtitan():
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    def check(path, text):
        words = flags(text)
        base = ("deepseek_v3" if any("expert_parallel_degree" in word for word in words) else
                "llama3")
        got = ConfigManager().parse_args(["--module", base, "--config", base + "_debugmodel",
                                          *words])
        par = got.parallelism
        ParallelDims(dp_replicate=par.data_parallel_replicate_degree,
                     dp_shard=par.data_parallel_shard_degree, cp=par.context_parallel_degree,
                     tp=par.tensor_parallel_degree, pp=par.pipeline_parallel_degree,
                     ep=par.expert_parallel_degree, world_size=devices(path, text))
        data = par.data_parallel_replicate_degree * par.data_parallel_shard_degree
        assert got.training.global_batch_size % (got.training.local_batch_size * data) == 0
        parts = par.module_fqns_per_model_part
        assert parts is None or parts[-1][-1] == "lm_head"
    return check


def deepspeed():
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig
    deepspeed.comm.get_rank = lambda *a, **k: 0

    def check(path, text):
        got = json.loads(text)
        data = got["train_batch_size"] // (got["train_micro_batch_size_per_gpu"] *
                                           got["gradient_accumulation_steps"])

        class Unit:  # what DeepSpeed asks of a model parallel unit
            def get_data_parallel_world_size(self):
                return data
        read = DeepSpeedConfig(path, mpu=Unit())
        assert read.zero_optimization_stage == got["zero_optimization"]["stage"]
        assert read.train_batch_size == got["train_batch_size"]
        assert devices(path, text) % data == 0
    return check


def megatron():
    import torch
    from megatron.training import arguments
    torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=9, minor=0)
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)

    def check(path, text):
        words = flags(text)
        fsdp = "--use-megatron-fsdp" in words
        os.environ.update(WORLD_SIZE=str(devices(path, text)), RANK="0", LOCAL_RANK="0")
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        if not fsdp:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        sys.argv = ["pretrain_gpt.py", "--vocab-size", "32000", *words, "--tokenizer-type",
                    "NullTokenizer", "--no-rope-fusion", "--train-iters", "1", "--lr", "1e-4",
                    *(["--hidden-size", "1024", "--num-attention-heads", "16", "--num-layers",
                       "8", "--seq-length", "64", "--max-position-embeddings", "64"]
                      if "--hidden-size" not in words else [])]
        args = arguments.validate_args(arguments.parse_args())
        arguments.core_transformer_config_from_args(args)
        assert args.data_parallel_size * args.micro_batch_size <= args.global_batch_size
    return check


def main():
    refused = 0
    trainer, *files = sys.argv[1:]
    try:
        check = {"megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed}[
            trainer]()
    except ImportError as why:
        print(why, file=sys.stderr)
        sys.exit(77)
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                check(path, text)
        except (Exception, SystemExit) as why:  # whatever it refuses with
            refused += 1
            print(f"{path}: {type(why).__name__} {why} {said.getvalue()[-300:]}")
    print(f"{trainer}: {len(files)} files, {refused} refused")
    sys.exit(refused > 0)


main()
