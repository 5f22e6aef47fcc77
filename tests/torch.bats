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

# placements FILE: the layout of every weight, by JAX's names, a PyTorch matrix turned round
placements() {
    jq -r '.sharding.layouts as $layout | .graph.nodes | to_entries[]
        | select(.value.role == "weight")
        | .value.name as $name | $layout[.key] as $at
        | if $name | test("^(h[.]|wte|wpe|ln_f)") then
            ($name | sub("^h[.](?<i>[0-9]+)[.]"; "h_\(.i)/")
                | sub("(?<m>[qkvo])[.](?<l>weight|bias)$"; "attn/\(.m).\(.l)")
                | sub("(?<m>fc|proj)[.](?<l>weight|bias)$"; "mlp/\(.m).\(.l)")
                | sub("(?<p>ln_.)[.]weight$"; "\(.p)/scale") | sub("(?<p>ln_.)[.]bias$"; "\(.p)/bias")
                | sub("^wte[.]weight$"; "wte") | sub("[.]weight$"; "/w") | sub("[.]bias$"; "/b")
                | "gpt/" + .) as $jax
            | if $jax | test("/w$") then
                [$jax, ($at | gsub("S0"; "S_") | gsub("S1"; "S0") | gsub("S_"; "S1"))]
              else [$jax, $at] end
          else [($name | sub("^params\\["; "") | sub("\\]$"; "") | gsub("\u0027"; "")), $at] end
        | @tsv' "$1" | sort
}

# of_note WAY.MESH FILE: the weights whose placement all ways share
of_note() {
    case $1 in
    torch.2x4) grep -v '^gpt/ln_f/' "$2" ;;
    *.8) grep -v '^gpt/wte' "$2" ;;
    *) cat "$2" ;;
    esac
}

@test "torch: one GPT-2 three ways: weights placed alike, prices within a hundredth" {
    local dir=$BATS_TEST_TMPDIR mesh way at
    ap-import -o "$dir/jax" "$MODELS/gpt2-124m.hlo.gz"
    ap-model -o "$dir/model" gpt2-124m --batch 8 --no-key-bias
    ap-import "$MODELS/torch_gpt2-124m.onnx.gz" |
        ap-grad --optimizer adam --lr 1e-3 | sed 's/"value":\[[tf][^]]*\],/"value":"elided",/' >"$dir/torch" # masks: 60 MB
    for mesh in 8 2x4; do
        for way in jax model torch; do
            ap-prune "$dir/$way" | ap-shard --mesh $mesh -o "$dir/$way.$mesh"
            placements "$dir/$way.$mesh" >"$dir/$way.$mesh.at"
            [ "$(wc -l <"$dir/$way.$mesh.at")" -eq 184 ]
            # on two axes PyTorch's loss, of rows and columns made one dimension, has the norm
            # before it split otherwise, for 0.1 % of the price
            diff <(of_note $way.$mesh "$dir/jax.$mesh.at") <(of_note $way.$mesh "$dir/$way.$mesh.at")
        done
        jq -es 'map(.sharding.objective_sec) | max / min < 1.01' "$dir"/{jax,model,torch}.$mesh ||
            { jq .sharding.objective_sec "$dir"/{jax,model,torch}.$mesh; return 1; }
    done
    # on one axis of 8 wte costs the same whole and split along its columns, whatever the way
    for way in 'jax params*gpt/wte*' 'model gpt/wte' 'torch wte.weight'; do
        ap-prune "$dir/${way% *}" >"$dir/pruned"
        for at in R S1; do
            ap-shard --mesh 8 --pin "${way#* }=$at" "$dir/pruned" |
                jq -es '.[0].sharding.objective_sec / .[1].sharding.objective_sec - 1
                    | fabs < 1e-12' - "$dir/${way% *}.8"
        done
    done
}

@test "torch: roles of the metadata: tied weights, buffers and constants" {
    needs_exec
    local model=$MODELS/torch_roles/model.onnx
    ap-import "$model" | jq -c '[.graph.nodes[] | select(.op == "parameter") | [.name, .role]]' |
        grep -F '["wte.weight","weight"]'
    [ "$(ap-import "$model" | jq '[.graph.nodes[] | select(.role == "weight")] | length')" -eq 1 ]
    [ "$(ap-import "$model" | jq '[.graph.nodes[] | select(.role == "state")] | length')" -eq 1 ]
    trains torch_roles
}

@test "torch: broken roles of the metadata are refused with their place" {
    local model=$BATS_TEST_TMPDIR/model.onnx
    sed 's/"loss": "loss"/"loss": "lost"/' "$MODELS/torch_roles/model.onnx" >"$model"
    run ap-import "$model"
    [ "$status" -eq 1 ]
    [[ $output == *'"autopar.roles": /loss: '"'lost' is not an output"* ]]
}
