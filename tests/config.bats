#!/usr/bin/env bats
# ap-model --config: Hugging Face's config.json, its parameter counts, and what is refused.

load helpers

CONFIGS=$AP_TOP/cmd/ap-model/configs

# from FILE [OPTION...]: the forward graph
from() {
    local file=$1
    shift
    ap-model --no-history --quiet --forward --config "$file" "$@"
}

# edited MODEL FILTER: its config.json, changed by jq
edited() {
    jq "$2" "$CONFIGS/$1.json" >"$BATS_TEST_TMPDIR/config.json"
    echo "$BATS_TEST_TMPDIR/config.json"
}

# The counts that the makers and `transformers` state; BERT's is that of BertForPreTraining.
@test "config: parameters of well-known models are the published ones" {
    local n=0
    while read -r want model; do
        got=$(from "$CONFIGS/$model.json" --seq 512 --batch 1 --stats -o /dev/null 2>&1 | jq .weight_elems)
        [ "$got" -eq "$want" ] || { echo "$model: $got, not $want"; return 1; }
        n=$((n + 1))
    done <<'END'
6738415616 llama2-7b
13015864320 llama2-13b
68976648192 llama2-70b
8030261248 llama3-8b
70553706496 llama3-70b
405853388800 llama3-405b
1235814400 llama3.2-1b
7241732096 mistral-7b
46702792704 mixtral-8x7b
7615616512 qwen2-7b
72706203648 qwen2.5-72b
8190735360 qwen3-8b
8537680896 gemma-7b
9241705984 gemma2-9b
15706484224 deepseek-v2-lite
671026404352 deepseek-v3
124439808 gpt2
110106428 bert-base-uncased
222903552 google-t5-base
3212749824 llama3.2-3b
8100852736 nemotron-h-8b
31577937344 nemotron-3-nano-30b-a3b
336226108 bert-large-uncased
34980831232 command-r-35b
8028033024 command-r7b
235741434880 deepseek-v2
360748032 ernie-4.5-0.3b
32003216384 exaone4-32b
27227128320 gemma2-27b
999885952 gemma3-1b
27009346304 gemma3-27b
9400279040 glm-4-9b
106852245504 glm-4.5-air
352797814784 glm-4.5
29943390976 glm-4.7-flash
116829156672 gpt-oss-120b
20914757184 gpt-oss-20b
1557611200 gpt2-xl
3298793472 granite-3.1-3b-a800m
8170848256 granite-3.1-8b
1026408209408 kimi-k2
400711848960 llama4-maverick
107769861120 llama4-scout
228689748992 minimax-m2
8019808256 ministral-8b
4190509056 minitron-4b
12247782400 mistral-nemo-12b
23572403200 mistral-small-24b
140620634112 mixtral-8x22b
6888095744 olmo-7b
32234279936 olmo2-32b
7298617344 olmo2-7b
7298011136 olmo3-7b
6919161856 olmoe-1b-7b
2779683840 phi-2
3821079552 phi-3-mini
14659507200 phi-4
11846072320 pythia-12b
14315784192 qwen1.5-moe-a2.7b
494032768 qwen2.5-0.5b
596049920 qwen3-0.6b
235093634560 qwen3-235b-a22b
30532122624 qwen3-30b-a3b
32762123264 qwen3-32b
36151104512 seed-oss-36b
3075098624 smollm3-3b
2795443200 stablelm-3b
7173923840 starcoder2-7b
2851598336 google-t5-3b
END
    [ "$n" -eq "$(find "$CONFIGS" -name '*.json' | wc -l)" ]
}

# testdata/config_counts is written by scripts/torch/config-types --golden.
@test "config: absent members are counted as transformers counts them" {
    local kind out want members small
    while read -r kind out want members; do
        [ "$out" != - ] || small=$members
        jq "del(.[\"$out\"])" <<<"$small" >"$BATS_TEST_TMPDIR/config.json"
        got=$(from "$BATS_TEST_TMPDIR/config.json" --seq 16 --batch 1 --stats -o /dev/null 2>&1) || true
        [[ $got == *"\"weight_elems\":$want,"* ]] || { echo "$kind without $out: $got, not $want"; return 1; }
    done <"$AP_TOP/testdata/config_counts"
}

@test "config: the graph is that of the configuration of the same name" {
    for model in llama2-70b mixtral-8x7b gpt-oss-20b; do
        diff <(from "$CONFIGS/$model.json" --seq 8192 --layers 4 | jq -c '.graph.nodes[]') \
            <(ap-model --forward "$model" --seq 8192 --layers 4 | jq -c '.graph.nodes[]') ||
            { echo "$model"; return 1; }
    done
    diff <(from "$CONFIGS/gpt2.json" | jq -c '.graph.nodes[]') \
        <(ap-model --forward gpt2-124m --positions 1024 | jq -c '.graph.nodes[]')
}

@test "config: options come before the file, the sequence is within its positions" {
    from "$CONFIGS/gpt2.json" --batch 2 --seq 16 | jq -e '[.graph.nodes[] |
        select(.name == "tokens" or .name == "gpt/wpe") | .shape] | sort == ["f32[1024,768]", "s32[2,16]"]'
    from "$(edited llama3-8b '.max_position_embeddings = 128')" --layers 1 |
        jq -e '[.graph.nodes[] | select(.name == "tokens") | .shape] == ["s32[8,128]"]'
    # a train step is named after the model
    ap-model --no-history --config "$(edited llama3-8b '._name_or_path = "mine"')" --layers 1 --batch 1 |
        jq -e '.graph.name == "mine" and any(.graph.nodes[]; .phase == "update")'
    ap-model --config "$CONFIGS/llama3-8b.json" --layers 1 --forward | jq -e '.history[0].model == "llama"'
}

# count FILE FILTER: how many nodes match
count() { from "$1" --layers 2 --batch 1 --seq 64 | jq "[.graph.nodes[] | select($2)] | length"; }

@test "config: members that change the graph do" {
    is_weight='.role == "weight" and (.name | test'
    [ "$(count "$CONFIGS/llama3-8b.json" "$is_weight(\"/b\$\"))")" -eq 0 ]
    [ "$(count "$(edited llama3-8b '.attention_bias = true')" "$is_weight(\"attn/[qkvo]/b\$\"))")" -eq 8 ]
    [ "$(count "$(edited llama3-8b '.mlp_bias = true')" "$is_weight(\"mlp/[a-z]+/b\$\"))")" -eq 6 ]
    [ "$(count "$CONFIGS/qwen2-7b.json" "$is_weight(\"attn/[qkvo]/b\$\"))")" -eq 6 ]
    [ "$(count "$CONFIGS/qwen3-8b.json" "$is_weight(\"[qk]_norm/scale\$\"))")" -eq 4 ]
    [ "$(count "$(edited llama3-8b '.tie_word_embeddings = true')" "$is_weight(\"head\"))")" -eq 0 ]
    [ "$(count "$CONFIGS/llama3-8b.json" "$is_weight(\"head\"))")" -eq 1 ]
    [ "$(count "$(edited mistral-7b '.sliding_window = 8')" '.op == "and"')" -eq 2 ]
    [ "$(count "$(edited mistral-7b '.sliding_window = null')" '.op == "and"')" -eq 0 ]
    [ "$(count "$(edited gemma2-9b '.sliding_window = 8')" '.op == "and"')" -eq 1 ]
    [ "$(count "$CONFIGS/gemma2-9b.json" '.op == "tanh"')" -eq 5 ] # gelu, scores; logits
    [ "$(count "$(edited gemma2-9b '.final_logit_softcapping = null')" '.op == "tanh"')" -eq 4 ]
    [ "$(count "$(edited llama3-8b '.hidden_act = "relu"')" '.op == "logistic"')" -eq 0 ]
    [ "$(count "$(edited google-t5-base '.feed_forward_proj = "gated-gelu"')" "$is_weight(\"wi_gate\"))")" -eq 4 ]
    [ "$(count "$(edited llama3-8b '.rms_norm_eps = 0.125')" '.op == "constant" and .value == 0.125')" -eq 5 ]
    [ "$(count "$(edited mixtral-8x7b '.router_aux_loss_coef = 0.375')" '.op == "constant" and .value == 0.375')" -eq 1 ]
    [ "$(count "$(edited mixtral-8x7b '.router_aux_loss_coef = 0')" '.scope | endswith("balance")')" -eq 0 ]
    # frequencies are theta ^ (-2 i / 128)
    from "$(edited llama3-8b '.rope_theta = 16')" --layers 1 | jq -e '[.graph.nodes[] |
        select(.op == "constant" and .shape == "f32[64]") | .value[32]] == [0.25]'
    from "$(edited llama3-8b '.rope_parameters = {rope_theta: 16, rope_type: "default"} | del(.rope_theta)')" \
        --layers 1 | jq -e '[.graph.nodes[] | select(.op == "constant" and .shape == "f32[64]") | .value[32]] == [0.25]'
    # layers of several kinds: windows, rotation, experts
    [ "$(count "$(edited gpt-oss-20b '.sliding_window = 8')" '.op == "and"')" -eq 1 ]
    [ "$(count "$CONFIGS/gpt-oss-20b.json" "$is_weight(\"sinks|router/b\"))")" -eq 4 ]
    [ "$(count "$(edited smollm3-3b '.no_rope_layers = null | .no_rope_layer_interval = 2')" '.op == "cosine"')" -eq 1 ]
    [ "$(count "$(edited llama4-maverick '.text_config.attention_chunk_size = 8')" '.op == "and"')" -eq 2 ]
    [ "$(count "$CONFIGS/llama4-maverick.json" "$is_weight(\"router\"))")" -eq 1 ]
    [ "$(count "$(edited qwen3-30b-a3b '.mlp_only_layers = [0]')" "$is_weight(\"router\"))")" -eq 1 ]
    [ "$(count "$CONFIGS/olmo2-7b.json" "$is_weight(\"ln_[12]/scale\"))")" -eq 0 ]
    [ "$(count "$CONFIGS/command-r-35b.json" "$is_weight(\"ln_2\"))")" -eq 0 ]
    # the router's way of choosing
    [ "$(count "$CONFIGS/deepseek-v2-lite.json" '.op == "or"')" -eq 0 ]
    [ "$(count "$(edited deepseek-v2-lite '.n_group = 8 | .topk_group = 3 | .topk_method = "group_limited_greedy"')" \
        '.op == "or"')" -eq 2 ]
    [ "$(count "$(edited deepseek-v2-lite '.scoring_func = "sigmoid"')" '.op == "logistic"')" -eq 4 ]
}

# wrong MODEL FILTER TEXT; unbuilt: the same of what is not built
wrong() { refuses 1 "$3" ap-model --config "$(edited "$1" "$2")"; }
unbuilt() { refuses 2 "$3" ap-model --config "$(edited "$1" "$2")"; }

@test "config: what is missing, wrong or not built is an error at its place" {
    wrong llama3-8b 'del(.model_type)' '/model_type: missing'
    wrong llama3-8b '.num_hidden_layers = "32"' '/num_hidden_layers: '
    wrong llama3-8b '.num_hidden_layers = 100000' '/num_hidden_layers: '
    wrong llama3-8b '.tie_word_embeddings = 1' '/tie_word_embeddings: expected true or false'
    wrong llama3-8b '.rope_scaling = 3' '/rope_scaling: expected an object or null'
    wrong llama3-8b '.partial_rotary_factor = 2' '/partial_rotary_factor: expected at most 1'
    wrong gemma2-9b '.windows = ""' '/windows: expected a digit for each layer'
    wrong llama3-8b '.rms_norm_eps = -1' '/rms_norm_eps: expected a number >= 0'
    wrong qwen3-8b '.num_hidden_layers = 2 | .layer_types = ["full_attention", "sliding_attention"]' \
        '/layer_types: windows need a sliding_window and use_sliding_window'
    wrong gemma2-9b '.layer_types = ["full_attention"]' '/layer_types: expected an array of 42'
    wrong qwen3-30b-a3b '.mlp_only_layers = [-1]' '/mlp_only_layers/0: expected the number of a layer'
    wrong smollm3-3b '.no_rope_layer_interval = 0' '/no_rope_layer_interval: '
    wrong deepseek-v3 '.num_experts_per_tok = 17' '/num_experts_per_tok: '
    wrong deepseek-v2-lite 'del(.num_experts_per_tok)' '/num_experts_per_tok: expected an integer from 1 to 16; model_type'
    wrong llama3-8b '[.]' 'expected an object'
    wrong llama4-scout '.text_config = 3' '/text_config: expected an object'
    printf '{"model_type": "llama",' >"$BATS_TEST_TMPDIR/cut.json"
    refuses 1 'cut.json:1:' ap-model --config "$BATS_TEST_TMPDIR/cut.json"
    refuses 1 'none.json' ap-model --config "$BATS_TEST_TMPDIR/none.json"
    refuses 2 '--config comes without a NAME' ap-model --config "$CONFIGS/gpt2.json" gpt
    refuses 2 '--experts: llama has no such size' ap-model --config "$CONFIGS/llama3-8b.json" --experts 4
    refuses 2 'is not a multiple of --kv-heads' ap-model --config "$(edited llama3-8b '.num_key_value_heads = 5')"
}

@test "config: a model that is not built is refused by the member's name" {
    unbuilt llama3-8b '.model_type = "ssm"' "/model_type: no model_type 'ssm' is built, but llama, "
    unbuilt llama3-8b '.model_type = "lama"' "/model_type: no model_type 'lama' is built; did you mean 'llama'?"
    unbuilt nemotron-h-8b '.hybrid_override_pattern = "M?"' "/hybrid_override_pattern/1: no layer '?' is built"
    unbuilt llama3-8b '.model_type = "qwen3_next"' '/model_type: qwen3_next: gated delta layers are not built'
    unbuilt llama3-8b '.model_type = "gemma3"' "/model_type: gemma3: its vision tower is not built; the text model alone"
    unbuilt llama3-8b '.hidden_act = "sillu"' "/hidden_act: no activation 'sillu'; did you mean 'silu'?"
    unbuilt nemotron-h-8b '.chunk_size = null' 'a size of the scan is missing'
    unbuilt llama3-8b '.partial_rotary_factor = 0.01' '--head-dim 1: rotary embedding needs an even number'
    unbuilt qwen2-7b '.use_sliding_window = true' '/use_sliding_window: expected 0: windows'
    unbuilt qwen3-8b '.layer_types = [range(36) | "linear_attention"]' '/layer_types/0: such layers are not built'
    unbuilt deepseek-v3 '.topk_method = "best"' '/topk_method: expected one of: greedy '
    unbuilt olmo-7b '.clip_qkv = 8' '/clip_qkv: expected 0: clipped'
    unbuilt command-r-35b '.use_qk_norm = true' '/use_qk_norm: expected 0: layer norms of queries'
    unbuilt google-t5-base '.num_decoder_layers = 3' "/num_decoder_layers: expected 12"
    unbuilt google-t5-base '.tie_word_embeddings = false' '/tie_word_embeddings: expected 1: T5'
    unbuilt bert-base-uncased '.type_vocab_size = 3' '/type_vocab_size: expected 2'
}

@test "config: a scan's loss does not depend on its chunks, and falls" {
    needs_exec
    local chunk
    for chunk in 3 12; do
        echo '{"model_type": "nemotron_h", "hidden_size": 16, "layers_block_type": ["linear_attention", "mlp"],
            "vocab_size": 31, "intermediate_size": 24, "mamba_num_heads": 4, "mamba_head_dim": 4, "n_groups": 2,
            "ssm_state_size": 6, "chunk_size": '$chunk'}' >"$BATS_TEST_TMPDIR/config.json"
        ap-model --config "$BATS_TEST_TMPDIR/config.json" --seq 12 --batch 2 --lr 0.01 | ap-rewrite |
            ap-exec --seed 1 --int-range 31 --steps 3 --json | jq -c '[.losses[] * 1e4 | round / 1e4]'
    done >"$BATS_TEST_TMPDIR/losses"
    [ "$(sort -u "$BATS_TEST_TMPDIR/losses" | wc -l)" -eq 1 ]
    jq -e '.[2] < .[1] and .[1] < .[0]' "$BATS_TEST_TMPDIR/losses"
    refuses 2 'is not a multiple of 3, the scan' ap-model --config <(sed 's/12}/3}/' "$BATS_TEST_TMPDIR/config.json") --seq 10
}

@test "config: members that are left out are named" {
    run --separate-stderr ap-model --forward --layers 1 -o /dev/null --config "$CONFIGS/llama3-405b.json"
    [[ $stderr == *"/rope_scaling: frequencies stay those of rope_theta"* ]]
    run --separate-stderr ap-model --forward --layers 4 -o /dev/null --config "$CONFIGS/deepseek-v3.json"
    [[ $stderr == *"/num_nextn_predict_layers: multi-token prediction is left out but for --mtp"* ]]
    run --separate-stderr ap-model --forward --layers 1 -o /dev/null \
        --config "$(edited llama3-8b '.num_key_value_head = 4 | del(.num_key_value_heads)')"
    [[ $stderr == *"/num_key_value_head: not known for model_type llama, left out; did you mean 'num_key_value_heads'?"* ]]
    run --separate-stderr ap-model --forward --layers 1 -o /dev/null \
        --config "$(edited llama3-8b '.hiden_size = .hidden_size | del(.hidden_size)')"
    [[ $stderr == *"/hiden_size: not known for model_type llama, left out; did you mean 'hidden_size'?"* ]]
    run --separate-stderr ap-model --forward --layers 1 -o /dev/null --config "$CONFIGS/llama3-8b.json"
    [ -z "$stderr" ]
}

@test "config: tiny models have the losses and counts of transformers, from the same weights" {
    needs_exec
    [ -n "${AP_TORCH_PYTHON-}" ] || skip "AP_TORCH_PYTHON names no Python with PyTorch and transformers"
    "$AP_TORCH_PYTHON" scripts/torch/config-loss 2>"$BATS_TEST_TMPDIR/messages" ||
        { cat "$BATS_TEST_TMPDIR/messages"; return 1; }
}
