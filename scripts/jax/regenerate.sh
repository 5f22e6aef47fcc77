#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rewrite testdata/models; run from the root of the repository, in the environment of README.md.
set -euo pipefail

models=testdata/models
export PYTHONDONTWRITEBYTECODE=1

export_model() {
    python scripts/jax/export.py "$@"
}

export_model mlp --donate --frames -o "$models/mlp"
export_model gpt --ffn 128 --donate -o "$models/gpt2l"
export_model gpt --hidden 32 --untied --bf16 --lr 1e-3 --order-tolerance 3e-2 \
    -o "$models/gpt2l_bf16"
export_model resnet --donate --lr 0.05 --seed 1 -o "$models/resnet"
export_model moe --seed 4 -o "$models/moe"
export_model t5 -o "$models/t5"
export_model scan_mlp --donate -o "$models/scan_mlp"
export_model scan_gpt --hidden 32 --ffn 64 --vocab 64 --seq 16 -o "$models/scan_gpt"
export_model lstm --donate --lr 0.01 -o "$models/lstm"
export_model bert -o "$models/bert"
export_model ff --lr 0.01 -o "$models/ff"
export_model gpt --layers 12 --hidden 768 --heads 12 --vocab 50257 --seq 1024 --batch 8 \
    --donate --shapes-only -o "$models/gpt2-124m.hlo.gz"

# The losses alone, with golden gradients.
export_model mlp --forward -o "$models/mlp_fwd"
export_model gpt --ffn 128 --forward -o "$models/gpt2l_fwd"
export_model resnet --seed 1 --forward -o "$models/resnet_fwd"
export_model moe --seed 4 --forward -o "$models/moe_fwd"
export_model t5 --forward -o "$models/t5_fwd"
