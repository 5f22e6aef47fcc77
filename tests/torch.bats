#!/usr/bin/env bats
# Modules written in PyTorch, exported to ONNX, made train steps by ap-grad and trained on
# four ranks: the losses of PyTorch's own optimizer.

load helpers

# trains MODEL [ALGORITHM]: five steps within 1e-4 of PyTorch's losses
trains() {
    local dir=$MODELS/$1 data=$BATS_TEST_TMPDIR/$1-${2:-ilp}
    cp -r "$dir/inputs" "$data"
    ap-import --weights "$data" "$dir/model.onnx" |
        ap-grad --optimizer "$(jq -r .optimizer "$dir/meta.json")" --lr "$(jq .lr "$dir/meta.json")" |
        ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-4.json" --algorithm "${2:-ilp}" |
        ap-rewrite | ap-exec -n 4 --data "$data" --steps 5 --json >"$data/run.json"
    jq -e --slurpfile meta "$dir/meta.json" '[.losses, $meta[0].losses] | transpose |
        length == 5 and all((.[0] - .[1] | fabs) <= 1e-4 * .[1])' "$data/run.json" ||
        { jq -c .losses "$data/run.json" "$dir/meta.json"; return 1; }
}

@test "torch: a GPT trains to PyTorch's losses on four ranks" {
    needs_exec
    trains torch_gpt
    trains torch_gpt megatron
}

@test "torch: a ResNet trains to PyTorch's losses on four ranks" {
    needs_exec
    trains torch_resnet
    trains torch_resnet data
}
