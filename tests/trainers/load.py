#!/usr/bin/env python3
"""Loads what ap-rewrite wrote with the trainer's own reader (where it is installed).

    load.py torchtitan FILE...   # arguments, one a line; the first is MODULE:CONFIG
    load.py megatron FILE...     # lines: stages, layers, layout
    load.py deepspeed FILE...    # JSON

Prints the files that were read; exits 77 where the trainer is not installed.
"""
import json
import os
import sys


def lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def torchtitan(path):
    from torchtitan.config import ConfigManager
    base, *words = lines(path)
    module, config = base.split(":")
    got = ConfigManager().parse_args(["--module", module, "--config", config, *words])
    par = dict(zip(words, words[1:]))
    assert got.parallelism.tensor_parallel_degree == int(
        par["--parallelism.tensor_parallel_degree"])
    assert got.training.global_batch_size == int(par["--training.global_batch_size"])
    parts = got.parallelism.module_fqns_per_model_part
    assert parts is None or parts[-1][-1] == "lm_head"


def megatron(path):
    stages, layers, text = lines(path)
    from megatron.core.transformer.pipeline_parallel_layer_layout import (
        PipelineParallelLayerLayout)
    PipelineParallelLayerLayout(text, int(stages)).validate_layer_layout(int(layers), None)


def deepspeed(path):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig
    with open(path, encoding="utf-8") as file:
        got = json.load(file)
    data = got["train_batch_size"] // (got["train_micro_batch_size_per_gpu"] *
                                       got["gradient_accumulation_steps"])

    class Unit:  # what DeepSpeed asks of a model parallel unit
        def get_data_parallel_world_size(self):
            return data
    deepspeed.comm.get_rank = lambda *a, **k: 0
    read = DeepSpeedConfig(path, mpu=Unit())
    assert read.zero_optimization_stage == got["zero_optimization"]["stage"]
    assert read.train_batch_size == got["train_batch_size"]


def main():
    for path in sys.argv[2:]:
        {"torchtitan": torchtitan, "megatron": megatron, "deepspeed": deepspeed}[
            sys.argv[1]](path)
        print(os.path.basename(path))


try:
    main()
except ImportError as why:
    print(why, file=sys.stderr)
    sys.exit(77)
