#!/usr/bin/env bats
# ap-model: the papers' parameter counts, JAX's numbers, and what is refused.

load helpers

# Elements of all weights: elems NAME [OPTION...]
elems() {
    ap-model --no-history --forward --stats -o /dev/null "$@" 2>&1 | jq .weight_elems
}

# Elements of the weights whose names do not match the regular expression WITHOUT:
# elems_but WITHOUT NAME [OPTION...]
elems_but() {
    local without=$1
    shift
    ap-model --no-history --forward "$@" | jq --arg without "$without" '
        [.graph.nodes[] | select(.role == "weight" and (.name | test($without) | not))
            | .shape | [scan("\\d+") | tonumber][1:] | reduce .[] as $d (1; . * $d)] | add'
}

# Reads lines "COUNT SCALE MODEL [OPTION...]" and compares each model's elements, divided
# by SCALE, with COUNT, to its last digit: rounded or cut off (the sources do both).
# $1: see elems_but.
same_counts() {
    local want scale args got digits
    while read -r want scale args; do
        if [ -n "$1" ]; then got=$(elems_but "$1" $args); else got=$(elems $args); fi
        digits=${want#*.}
        [ "$digits" != "$want" ] || digits=
        awk -v n="$got" -v s="$scale" -v d="${#digits}" -v want="$want" 'BEGIN {
            exit sprintf("%.*f", d, n / s) != want && int(n / s * 10 ^ d) != want * 10 ^ d
        }' || { echo "$args: $got, expected $want"; return 1; }
        shows "$args: $got weights ($want x $scale)"
    done
}

@test "model: rhino table 1: GPT, 0.356 to 6.658 B" {
    same_counts '' <<'END'
0.356 1e9 gpt-350m
0.760 1e9 gpt-760m
1.316 1e9 gpt-1.3b
2.651 1e9 gpt-2.7b
6.658 1e9 gpt-6.7b
END
    # L (12 h^2 + 13 h) + V h + s h + 2 h
    [ "$(elems gpt-350m)" -eq $((24 * (12 * 1024 ** 2 + 13 * 1024) + (51200 + 1024 + 2) * 1024)) ]
}

# The papers count neither positions nor the last norm, nor the routers.
@test "model: rhino table 2: MoE, 0.384 to 10.17 B" {
    same_counts '/wpe$|/ln_f/|/router/' <<'END'
0.384 1e9 moe-380m
0.742 1e9 moe-760m
1.347 1e9 moe-1.3b
2.383 1e9 moe-2.4b
10.17 1e9 moe-10b
END
}

@test "model: rhino table 3: VGG-19 with a million classes, 4.237 B, 33.9 GB with gradients" {
    same_counts '' <<'END'
4.237 1e9 vgg19-4.2b
139.6 1e6 vgg19-4.2b --classes 1
END
    [ "$(elems vgg19-4.2b)" -eq $(($(elems vgg19-4.2b --classes 1) + 999999 * 4097)) ]
    [ "$(awk -v n="$(elems vgg19-4.2b)" 'BEGIN { printf "%.1f", 8 * n / 1e9 }')" = 33.9 ]
}

@test "model: rhino table 4: Wide-ResNet is smaller than its table says" {
    same_counts '' <<'END'
1.006 1e9 wresnet-1b
1.965 1e9 wresnet-2b
4.001 1e9 wresnet-4b
9.55 1e9 wresnet-12b
END
}

@test "model: rhino §7: DNABERT 162 M and U-Net 33 M" {
    same_counts '' <<'END'
162 1e6 dnabert
33 1e6 unet-33m
31 1e6 unet
END
}

# L (12 h^2 + 13 h) + V (h + 1): without positions and the last norm
@test "model: alpa table 6: GPT, 0.355 to 39.08 B" {
    same_counts '/wpe$|/ln_f/' <<'END'
0.355 1e9 gpt3-350m
1.313 1e9 gpt3-1.3b
2.649 1e9 gpt3-2.6b
6.654 1e9 gpt3-6.7b
15.36 1e9 gpt3-15b
39.08 1e9 gpt3-39b
END
    [ "$(elems_but '/wpe$|/ln_f/' gpt3-39b)" -eq \
        $((48 * (12 * 8192 ** 2 + 13 * 8192) + 51200 * 8193)) ]
}

@test "model: alpa table 7: MoE, 0.3835 to 70.415 B" {
    same_counts '/wpe$|/ln_f/|/router/' <<'END'
0.3835 1e9 moe-380m
1.3468 1e9 moe-1.3b
2.3830 1e9 moe-2.4b
10.170 1e9 moe-10b
26.648 1e9 moe-27b
70.415 1e9 moe-70b
END
    # attention 4 h^2 + 4 h, norms 4 h, feed-forward 16 h^2 + 9 h once or per expert
    [ "$(elems_but '/wpe$|/ln_f/|/router/' moe-70b)" -eq $((32 * (4 * 2048 ** 2 + 8 * 2048) +
        16 * 65 * (16 * 2048 ** 2 + 9 * 2048) + 32000 * 2049)) ]
}

@test "model: alpa table 8: Wide-ResNet, 0.254 to 12.63 B" {
    same_counts '' <<'END'
0.254 1e9 wresnet-250m
1.006 1e9 wresnet-1b
1.965 1e9 wresnet-2b
4.001 1e9 wresnet-4b
6.728 1e9 wresnet-6.8b
12.63 1e9 wresnet-13b
END
}

@test "model: rannc §IV: BERT, 18 sizes of 0.336 to 12.964 B" {
    {
        for h in 1024 1536 2048; do
            for l in 24 48 96 144 192 256; do
                echo "1e9 bert-large --layers $l --hidden $h"
            done
        done
    } | paste -d ' ' - - - - - - | sed 's/ 1e9/\n1e9/g' | paste -d ' ' <(printf '%s\n' \
        .336 .639 1.243 1.848 2.452 3.259 .732 1.412 2.772 4.132 5.492 7.305 \
        1.281 2.489 4.906 7.324 9.741 12.964 | sed 's/^\./0./') - >"$BATS_TEST_TMPDIR/sizes"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/sizes")" -eq 18 ]
    same_counts '' <"$BATS_TEST_TMPDIR/sizes"
}

@test "model: rannc §IV: ResNet-152 has 60.19 M, eight times as wide 3.729 B" {
    same_counts '' <<'END'
60.19 1e6 resnet152
3.729 1e9 resnet152x8
END
}

@test "model: rannc §IV: the largest BERT is 5.2 times Megatron-LM's largest" {
    ratio=$(awk -v a="$(elems bert-256x2048)" -v b="$(elems bert-48x2048)" \
        'BEGIN { printf "%.1f", a / b }')
    shows "$ratio times (5 times)"
    [ "$ratio" = 5.2 ]
    # 256 rows on 32 devices
    ap-model bert-256x2048 --forward | jq -e '[.graph.nodes[] | select(.name == "tokens") |
        .shape] == ["s32[256,512]"]'
}

@test "model: tap §4.2: T5-large has 1015 weights" {
    run --separate-stderr ap-model --forward --stats -o /dev/null t5-large
    shows "$(jq .weights <<<"$stderr") weights (1015)"
    [ "$(jq .weights <<<"$stderr")" -eq 1015 ]
}

@test "model: tap §3.3: a classifier of 204.8 M on a body of 23.5 M" {
    same_counts '/fc/' <<<"23.5 1e6 resnet50-100k"
    same_counts '(^|/)([^f]|f[^c])[^/]*/[wb]$|scale|bias|fc/b' <<<"204.8 1e6 resnet50-100k"
}

# Named sizes of other sources, to the digits that they print.
@test "model: known sizes of the other families" {
    same_counts '' <<'END'
124 1e6 gpt2-124m
110 1e6 bert-base
12 1e6 albert-base
18 1e6 albert-large
223 1e6 t5-base
86.6 1e6 vit-base
632 1e6 vit-huge
151.3 1e6 clip-base
95 1e6 wav2vec2-base
317 1e6 wav2vec2-large
25.56 1e6 resnet50
61.1 1e6 alexnet
143.67 1e6 vgg19
1.571 1e12 switch-c
103 1e9 m6-moe-100b
1.003 1e12 m6-moe-1t
2626560 1 rannc-mlp
END
}

# What the makers publish (safetensors' metadata, num_parameters() of transformers); the
# router's bias of DeepSeek-V3 is a buffer, its multi-token prediction a model of its own.
@test "model: Llama, Mistral, Mixtral, DeepSeek, Gemma, Qwen: the published counts exactly" {
    while read -r want name; do
        [ "$(elems "$name")" -eq "$want" ] || { echo "$name: $(elems "$name"), not $want"; return 1; }
    done <<'END'
6738415616 llama2-7b
13015864320 llama2-13b
68976648192 llama2-70b
8030261248 llama3-8b
70553706496 llama3-70b
405853388800 llama3-405b
1235814400 llama3.2-1b
3212749824 llama3.2-3b
7241732096 mistral-7b
46702792704 mixtral-8x7b
140620634112 mixtral-8x22b
7615616512 qwen2-7b
72706203648 qwen2.5-72b
8190735360 qwen3-8b
8537680896 gemma-7b
9241705984 gemma2-9b
15706484224 deepseek-v2-lite
235741434880 deepseek-v2
671026404352 deepseek-v3
END
    # layers, each with attention, feed-forward part and two norms; embedding, head, norm
    [ "$(elems llama3-8b)" -eq $((32 * (4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14336) + 2 * 4096) +
        2 * 128256 * 4096 + 4096)) ]
    # embedding, head, norm; per layer latent attention and two norms; 3 dense layers; 58 with
    # a router, 256 routed and one shared expert
    h=7168
    [ "$(elems deepseek-v3)" -eq $((2 * 129280 * h + h +
        61 * (h * 1536 + 1536 + 1536 * 128 * 192 + h * 576 + 512 + 512 * 128 * 256 + 128 * 128 * h + 2 * h) +
        3 * 3 * h * 18432 + 58 * (h * 256 + 257 * 3 * h * 2048))) ]
}

# jax MODEL NAME [OPTION...]: the train step has exactly the weights of JAX's (names and
# shapes) and FLOPs within 1 %; left in $BATS_TEST_TMPDIR/MODEL.json.
jax() {
    local model=$1 f=$BATS_TEST_TMPDIR/$1.json
    shift
    ap-model --no-history --stats -o "$f" "$@" 2>"$f.stats"
    ap-import --stats -o "$f.jax" "$(hlo "$model")" 2>"$f.jax.stats"
    diff <(jq -r '.graph.nodes[] | select(.role == "weight") | "\(.name) \(.shape)"' "$f" | sort) \
        <(jq -r '.graph.nodes[] | select(.role == "weight") | "\(.scope) \(.shape)"' "$f.jax" | sort)
    jq -en --slurpfile a "$f.stats" --slurpfile b "$f.jax.stats" '
        $a[0].heavy_flops / $b[0].heavy_flops | . > 0.99 and . < 1.01'
}

# same_losses MODEL: five steps from JAX's weights and batch give JAX's losses.
same_losses() {
    local model=$1 f=$BATS_TEST_TMPDIR/$1.json data=$BATS_TEST_TMPDIR/$1.in mine theirs
    mkdir "$data"
    while read -r mine theirs; do
        [ ! -e "$MODELS/$model/in/$theirs.npy" ] ||
            ln -s "$MODELS/$model/in/$theirs.npy" "$data/$mine.npy"
    done < <(jq -r --slurpfile meta "$MODELS/$model/meta.json" '
        ([$meta[0].params[] | {key: .name | sub("^(params|batch)/"; ""), value: .index}] |
            from_entries) as $of
        | [.graph.nodes[] | select(.op == "parameter") | .name] | to_entries[]
        | "\(.key) \($of[.value])"' "$f")
    [ "$(find "$data" -name "*.npy" | wc -l)" -eq "$(find "$MODELS/$model/in" -name "*.npy" | wc -l)" ]
    cp "$MODELS/$model/losses.npy" "$data"
    ap-rewrite "$f" | ap-exec --data "$data" --steps 5 --json >"$f.losses"
    /usr/bin/python3 - "$data/losses.npy" "$f.losses" <<'END'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
want = struct.unpack("<5f", raw[-20:])
got = json.load(open(sys.argv[2]))["losses"]
for a, b in zip(got, want, strict=True):
    assert abs(a - b) <= 1e-5 * abs(b), (got, want)
END
}

adam='--lr 3e-3 --beta2 0.99 --eps 1e-6'

@test "model: GPT-2 124M has JAX's weights and FLOPs" {
    jax gpt2-124m gpt2-124m --no-key-bias
}

@test "model: GPT has JAX's weights, FLOPs and losses" {
    needs_exec
    jax gpt2l gpt --layers 2 --hidden 64 --heads 4 --ffn 128 --vocab 257 --seq 32 \
        --no-key-bias $adam
    same_losses gpt2l
}

@test "model: BERT has JAX's weights, FLOPs and losses" {
    needs_exec
    jax bert bert --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 --no-key-bias $adam
    same_losses bert
}

@test "model: MoE has JAX's weights, FLOPs and losses" {
    needs_exec
    jax moe moe --layers 2 --hidden 32 --heads 4 --ffn 48 --experts 8 --vocab 64 --seq 16 \
        --untied --no-key-bias --no-expert-bias --no-capacity $adam
    same_losses moe
}

# A small one of each family: NAME OPTIONS.
small() {
    cat <<'END'
mlp
gpt --layers 2 --hidden 32 --heads 4 --kv-heads 2 --seq 16 --vocab 64
bert --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64
albert --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64
t5 --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64
moe --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 --experts 4
m6-moe --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 --experts 4
switch --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 --experts 4
llama --layers 2 --hidden 32 --heads 4 --kv-heads 2 --ffn 48 --seq 16 --vocab 64
decoder --layers 2 --hidden 32 --heads 4 --kv-heads 2 --ffn 48 --experts 4 --dense-layers 1 --group 8 --seq 16 --vocab 64 --head-bias
mixtral --layers 2 --hidden 32 --heads 4 --kv-heads 2 --ffn 48 --experts 4 --group 8 --seq 16 --vocab 64
deepseek --layers 2 --dense-layers 1 --hidden 32 --heads 4 --head-dim 8 --rope-dim 4 --value-dim 6 --q-rank 16 --kv-rank 12 --ffn 48 --experts 16 --top 2 --expert-ffn 16 --group 8 --seq 16 --vocab 64
gemma --layers 2 --hidden 32 --heads 4 --kv-heads 4 --head-dim 16 --ffn 48 --seq 16 --vocab 64
qwen --layers 2 --hidden 32 --heads 4 --kv-heads 1 --ffn 48 --seq 16 --vocab 64
vit --layers 2 --hidden 32 --heads 4 --image 32 --patch 8
v-moe --layers 2 --hidden 32 --heads 4 --image 32 --patch 8 --experts 4
widenet --layers 2 --hidden 32 --heads 4 --image 32 --patch 8
clip --layers 2 --hidden 32 --heads 4 --image 32 --patch 8 --text-hidden 64 --seq 8 --vocab 64
wav2vec2 --layers 1 --hidden 32 --heads 4 --seq 2000 --batch 2
resnet --layers 18 --hidden 4 --image 32
wresnet --hidden 4 --image 32 --batch 4
vgg19 --hidden 8 --image 32 --ffn 32
alexnet --image 67 --ffn 32 --batch 2
cnn --hidden 8 --image 8
unet --hidden 4 --image 32 --batch 4
END
}

@test "model: layers that predict further tokens: counts, losses by hand, ranks" {
    needs_exec
    # a layer with experts, two norms and a map of both halves, the norm behind it; head and table are the model's
    h=7168
    [ "$(ap-model deepseek-v3 --quiet --mtp 1 --batch 8 --stats -o /dev/null 2>&1 >/dev/null | jq .weight_elems)" -eq \
        $((671026404352 + 2 * h + 2 * h * h + h + h * 1536 + 1536 + 1536 * 128 * 192 + h * 576 + 512 + 512 * 128 * 256 +
            128 * 128 * h + 2 * h + h * 256 + 257 * 3 * h * 2048)) ]
    local n dir=$BATS_TEST_TMPDIR want run=$BATS_TEST_TMPDIR/run.json
    for n in 1 3; do
        mkdir "$dir/$n"
        ap-model --quiet llama --layers 2 --hidden 16 --heads 4 --kv-heads 2 --ffn 16 --vocab 32 --seq 8 --batch 4 --untied \
            --mtp $n -o "$dir/mtp.json"
        want=$(/usr/bin/python3 tests/mtp.py "$dir/mtp.json" "$dir/$n")
        ap-rewrite "$dir/mtp.json" | ap-exec --data "$dir/$n" --steps 1 --json |
            jq -e --argjson want "$want" '(.losses[0] / $want - 1 | fabs) < 1e-6'
    done
    ap-model --quiet deepseek --layers 3 --hidden 64 --heads 4 --kv-rank 16 --q-rank 16 --head-dim 16 --value-dim 16 --rope-dim 8 \
        --ffn 64 --expert-ffn 32 --experts 8 --top 2 --dense-layers 1 --seq 16 --vocab 128 --batch 16 --mtp 1 |
        ap-coarsen --quiet --algorithm layers -o "$dir/d.json"
    ap-shard --quiet --mesh 4 --cluster cpu-4 "$dir/d.json" | ap-rewrite >"$run"
    ap-exec -n 4 --verify --steps 3 --quiet "$run"
    ap-stage --quiet --cluster cpu-4 --grid pp=2,ep=2,mbs=2 "$dir/d.json" | ap-rewrite >"$run"
    ap-exec -n 4 --verify --steps 3 --quiet "$run"
    refuses 2 '--mtp: expected less than --seq' ap-model llama --seq 8 --mtp 8
    refuses 2 '--mtp: gpt has no such size' ap-model gpt --mtp 1
    # Megatron-LM's flags, and back
    for line in pp=2,ep=2,mbs=2 pp=2,layers=3:1,ep=2,mbs=2 ep=4,mbs=1; do
        ap-stage --quiet --cluster cpu-4 --for megatron --grid $line "$dir/d.json" -o "$dir/plan"
        ap-rewrite --quiet --to megatron "$dir/plan" >"$dir/flags.sh"
        ap-stage --cluster cpu-4 --from "megatron:$dir/flags.sh" "$dir/d.json" 2>"$dir/said" |
            jq -e --slurpfile plan "$dir/plan" '.stages.line == $plan[0].stages.line and .stages.line != null'
        grep -q -- '--num-layers 3$' "$dir/flags.sh"
        grep -q -- '--mtp-num-layers 1$' "$dir/flags.sh"
        [[ $(<"$dir/said") != *'mtp'* ]]
    done
    sed -i 's/--mtp-num-layers 1/--mtp-num-layers 2/' "$dir/flags.sh"
    refuses 1 '5 layers, not 4; 2 layers that predict further tokens, not 1' ap-stage --quiet --cluster cpu-4 --from "megatron:$dir/flags.sh" "$dir/d.json"
    refuses 3 'the last stage has 0 layers' ap-stage --quiet --cluster cpu-4 --for megatron --grid pp=2,layers=4:0,ep=2,mbs=2 "$dir/d.json"
    refuses 3 'its models predict the next token alone' ap-stage --quiet --cluster cpu-4 --for torchtitan --grid ep=4,mbs=1 "$dir/d.json"
}

families() { ap-model help | sed -n '/^families/,/^configurations/s/^  \([^ ]*\) .*/\1/p'; }
configurations() { ap-model help | sed -n '/^configurations/,/^models/s/^  \([^ ]*\) .*/\1/p'; }
named() { ap-model help | sed -n '/^models/,$s/^  \([^ ]*\) .*/\1/p'; }

@test "model: every family trains: the loss falls" {
    needs_exec
    diff <(families) <(small | cut -d ' ' -f 1)
    while read -r line; do
        ap-model $line | ap-rewrite | ap-exec --seed 1 --int-range 2 --steps 2 --json |
            jq -e '.losses | .[1] < .[0]' || { echo "$line"; return 1; }
    done < <(small)
}

# The searched plan is not what a rule would give: heads, groups of heads, experts split.
@test "model: decoders of today run as planned on 2x2 ranks: as on one" {
    needs_exec
    while read -r line; do
        ap-model $line | ap-prune | ap-shard --mesh 2x2 --cluster cpu-4 | ap-rewrite |
            ap-exec -n 4 --seed 1 --int-range 64 --steps 2 --verify --tolerance 1e-3 ||
            { echo "$line"; return 1; }
    done < <(small | grep -E '^(llama|mixtral|deepseek|gemma|qwen) ' |
        sed 's/^gemma/gemma2-9b --window 4/')
}

@test "model: decoders with experts run as a pipeline of two stages, two microbatches: as on one" {
    needs_exec
    while read -r line; do
        ap-model $line | ap-prune | ap-coarsen --blocks 2 | ap-stage --cluster cpu-4 --stages 2 \
            --microbatches 2 --submeshes 1x2 | ap-rewrite |
            ap-exec -n 4 --seed 1 --int-range 64 --steps 2 --verify --tolerance 1e-3 || { echo "$line"; return 1; }
    done < <(small | grep -E '^(mixtral|deepseek) ')
}

@test "model: batches split over four ranks compute the same" {
    needs_exec
    while read -r line; do
        ap-model $line | ap-shard --mesh 4 --algorithm data | ap-rewrite |
            ap-exec -n 4 --seed 1 --int-range 2 --verify --tolerance 1e-3 ||
            { echo "$line"; return 1; }
    done < <(small | grep -E '^(moe|clip|unet) ' | sed 's/--layers 2 .*/& --no-key-bias/')
}

@test "model: dropout draws the same numbers on 4 ranks, and others with another seed" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/d.json seed=1 one words
    ap-model gpt --layers 1 --hidden 64 --heads 2 --vocab 128 --seq 32 --batch 4 --dropout 0.2 >"$f"
    losses() { ap-rewrite | ap-exec --seed $seed --steps 2 --json --quiet "$@" | jq -c '.losses | map(. * 1e4 | round)'; }
    one=$(losses <"$f")
    for words in 'data --mesh 4' 'megatron --mesh 2x2'; do
        # shellcheck disable=SC2086
        [ "$(ap-shard --quiet --algorithm $words "$f" --cluster cpu-4 | losses -n 4)" = "$one" ]
    done
    ap-fuse --quiet --attention plain --kernels "$f" | losses | grep -Fx "$one"
    ap-fuse --quiet "$f" | losses | grep -Fx "$one"
    seed=2 && [ "$(losses <"$f")" != "$one" ]
}

@test "model: every configuration is a train step and has its name" {
    for c in $(configurations); do
        ap-model "$c" --stats -o "$BATS_TEST_TMPDIR/c.json" 2>"$BATS_TEST_TMPDIR/stats"
        jq -e '.weights > 5 and .backward > 0 and .update > 0 and
            .states >= .weights' "$BATS_TEST_TMPDIR/stats" || { echo "$c"; return 1; }
        grep -q "\"model\":\"$c\"" "$BATS_TEST_TMPDIR/c.json"
    done
    for c in $(named); do
        ap-model "$c" --layers 4 --seq 256 --batch 1 | grep -q "\"model\":\"$c\"" || { echo "$c"; return 1; }
    done
    ap-model vgg19-4.2b | jq -e '(.history | length == 1) and
        .graph.name == "vgg19-4.2b" and .graph.results[0].role == "loss" and
        ([.graph.results[] | select(.role == "weight")] | length) == 38'
}

@test "model: names of parameters differ, and scopes are the same forward and backward" {
    ap-model gpt --layers 3 --hidden 32 --heads 4 --seq 16 --vocab 64 >"$BATS_TEST_TMPDIR/g.json"
    jq -e '.graph.nodes | map(.name) | length == (unique | length)' "$BATS_TEST_TMPDIR/g.json"
    jq -e '[.graph.nodes[] | select(.op == "dot") | [.scope, .phase]] | group_by(.[0]) |
        map([.[0][0], (map(.[1]) | unique | join(" "))]) |
        length == 3 * 7 + 1 and all(.[1] == "backward forward")' "$BATS_TEST_TMPDIR/g.json"
}

@test "model: shared weights are one parameter" {
    [ "$(elems albert --layers 1)" -eq "$(elems albert --layers 24)" ]
    # norms are not shared
    [ $(($(elems widenet --layers 3) - $(elems widenet --layers 2))) -eq $((4 * 768)) ]
}

@test "model: bf16 keeps weights in bf16, with master weights in f32" {
    gpt='gpt --layers 1 --hidden 32 --heads 4 --seq 16 --vocab 64'
    types() { jq -r '[.graph.nodes[] | select(.role == "weight") | .shape[0:3]] | unique | join(" ")'; }
    [ "$(ap-model $gpt | types)" = f32 ]
    [ "$(ap-model $gpt --dtype bf16 | types)" = bf1 ]
    [ "$(ap-model $gpt --dtype bf16 --master-weights | types)" = f32 ]
    # with cast weights what layers hand on is bf16, and gradients up to the update
    sums() { jq -r '[.graph.nodes[] | select(.op == "add" and .phase == "forward" and .scope == "gpt/h_0") | .shape[0:3]] | unique | join(" ")'; }
    [ "$(ap-model $gpt --dtype bf16 --master-weights | sums)" = f32 ]
    [ "$(ap-model $gpt --dtype bf16 --master-weights --cast-weights | sums)" = bf1 ]
    low() { jq '[.graph.nodes[] | select(.op == "convert" and .phase == "update" and (.scope | endswith("/w")))] | length'; }
    [ "$(ap-model $gpt --dtype bf16 --master-weights --cast-weights | low)" = 0 ]
    [ "$(ap-model $gpt --dtype bf16 --master-weights --cast-weights --low-gradients | low)" = 6 ]
}

@test "model: recipes are names of options, and moments in a type of their own" {
    gpt='gpt --layers 1 --hidden 32 --heads 4 --seq 16 --vocab 64 --no-history'
    while IFS=: read -r recipe options; do
        # shellcheck disable=SC2086
        diff <(ap-model $gpt --recipe $recipe) <(ap-model $gpt $options) || { echo "$recipe"; return 1; }
    done <<'END'
mixed:--dtype bf16 --master-weights --cast-weights
mixed --dtype f16:--dtype f16 --master-weights --cast-weights
mixed,gradients=f32:--dtype bf16 --master-weights --cast-weights
mixed,gradients=bf16:--dtype bf16 --master-weights --cast-weights --low-gradients
mixed,moments=f32:--dtype bf16 --master-weights --cast-weights
bf16:--dtype bf16
bf16,moments=bf16:--dtype bf16
f32:
END
    # types of weights, of matrices of states, and of the operators that change them
    types() {
        jq -r '[(.graph.nodes[] | select(.op == "parameter" and .role == "weight")),
            (.graph.nodes[] | select(.role == "state" and (.name | test("/[mv]/")))),
            (.graph.nodes[] | select(.op == "sqrt" and .phase == "update"))] | map(.shape[0:3]) | unique | join(" ")'
    }
    [ "$(ap-model $gpt --recipe mixed,moments=bf16 | types)" = 'bf1 f32' ]
    [ "$(ap-model $gpt --recipe bf16,moments=f32 | types)" = 'bf1 f32' ]
    [ "$(ap-model $gpt --recipe mixed,moments=bf16 |
        jq -r '[.graph.nodes[] | select(.op == "sqrt" and .phase == "update") | .shape[0:3]] | unique[]')" = f32 ]
    [ "$(ap-model $gpt --recipe mixed,moments=bf16 |
        jq -r '[.graph.nodes[] | select(.role == "state" and (.name | test("/[mv]/"))) | .shape[0:3]] | unique[]')" = bf1 ]
    refuses 2 "--recipe: 'half' is not one of mixed, bf16, f32, fp8" ap-model $gpt --recipe half
    refuses 2 '--recipe fp8: products in fp8 are made by ap-fuse --fp8' ap-model $gpt --recipe fp8
    refuses 2 '--recipe mixed: --dtype f32 is' ap-model $gpt --recipe mixed --dtype f32
    refuses 2 '--recipe bf16: --dtype f16 is' ap-model $gpt --recipe bf16 --dtype f16
    # first moments in 8 bits, each over a scale of its own; second ones in 16
    ap-model $gpt --recipe mixed,moments=fp8:bf16 | jq -e '[.graph.nodes[] | select(.op == "parameter" and .role == "state")] as $states |
        [$states[] | select(.name | startswith("opt_state/m/")) | .shape | sub("\\[.*"; "")] as $first |
        ($first | unique) == ["f8e4m3fn"] and
        [$states[] | select(.name | startswith("opt_state/v/")) | .shape[0:4]] == [$first[] | "bf16"] and
        [$states[] | select(.name | startswith("opt_state/m_scale/")) | .shape] == [$first[] | "f32[]"]'
    refuses 2 "moments: 'fp9' is not one of f32, bf16, f16, fp8" ap-model $gpt --recipe mixed,moments=fp8:fp9
    refuses 2 "moments: '' is not one of f32, bf16, f16, fp8" ap-model $gpt --recipe mixed,moments=bf16:
    refuses 2 'gradients are bf16 or f32' ap-model $gpt --recipe mixed,gradients=f16
    refuses 2 'gradients are bf16' ap-model $gpt --recipe bf16,gradients=f32
    refuses 2 "'sums=f32' is not one of moments=TYPE, gradients=TYPE" ap-model $gpt --recipe mixed,sums=f32
    refuses 2 'sgd has no moments' ap-model mlp --optimizer sgd --recipe mixed,moments=bf16
}

@test "model: sizes and flags reach the weights and the shapes" {
    local doc=$BATS_TEST_TMPDIR/sized.json tiny='--layers 2 --hidden 16 --heads 2 --vocab 12 --batch 2'
    # of NAME: shapes of the parameters, or of the nodes of a scope, that match
    of() { jq -r --arg n "$1" '[.graph.nodes[] | select(.op == "parameter" and .name == $n) | .shape] | join(" ")' "$doc"; }
    in_scope() { jq -r --arg s "$1" '[.graph.nodes[] | select(.scope == $s) | .shape] | unique | join(" ")' "$doc"; }
    ap-model gpt $tiny --seq 4 --forward --head-dim 5 --head-bias -o "$doc"
    [ "$(of gpt/h_0/attn/q/w) $(of gpt/h_1/attn/o/w) $(of gpt/head/b)" = \
        "f32[16,10] f32[10,16] f32[12]" ]
    ap-model moe $tiny --seq 8 --forward --experts 4 --moe-every 1 --capacity 3 -o "$doc"
    [ "$(in_scope moe/h_0/moe/dispatch)" = "f32[2,4,3,16] f32[4,2,3,16]" ]
    [ "$(in_scope moe/h_1/moe/dispatch)" = "f32[2,4,3,16] f32[4,2,3,16]" ]
    ap-model t5 $tiny --seq 8 --forward --target-seq 5 --layer-norm -o "$doc"
    [ "$(of source) $(of target) $(of t5/encoder/ln_f/bias)" = "s32[2,8] s32[2,5] f32[16]" ]
    ap-model resnet --image 32 --hidden 4 --width-factor 3 --forward -o "$doc"
    [ "$(of resnet/stem/w)" = "f32[3,3,3,12]" ]
    ap-model gpt $tiny --seq 4 --forward --positions 9 -o "$doc"
    [ "$(of gpt/wpe) $(in_scope gpt/wpe)" = "f32[9,16] f32[2,4,16] f32[4,16] f32[9,16]" ]
    ap-model gpt $tiny --seq 4 --forward --kv-heads 1 -o "$doc"
    [ "$(of gpt/h_0/attn/k/w) $(of gpt/h_0/attn/q/w)" = "f32[16,8] f32[16,16]" ]
    ap-model llama $tiny --seq 8 --forward --kv-heads 1 --window 3 --untied -o "$doc"
    [ "$(of llama/h_0/attn/k/w) $(of llama/head/w)" = "f32[16,8] f32[16,12]" ]
    [ "$(jq '[.graph.nodes[] | select(.op == "and")] | length' "$doc")" = 2 ] # a window in each layer
    ap-model deepseek $tiny --seq 8 --forward --head-dim 3 --value-dim 5 --rope-dim 4 --q-rank 6 \
        --kv-rank 7 --dense-layers 1 --experts 8 --top 2 --expert-ffn 9 --shared-experts 2 --group 4 -o "$doc"
    [ "$(of deepseek/h_0/attn/q_down/w) $(of deepseek/h_0/attn/q/w) $(of deepseek/h_0/attn/kv_down/w)" = \
        "f32[16,6] f32[6,14] f32[16,11]" ]
    [ "$(of deepseek/h_0/attn/kv/w) $(of deepseek/h_0/attn/o/w)" = "f32[7,16] f32[10,16]" ]
    [ "$(of deepseek/h_0/mlp/up/w) $(of deepseek/h_1/moe/fc/w) $(of deepseek/h_1/moe/shared/mlp/up/w)" = \
        "f32[16,18432] f32[8,16,9] f32[16,18]" ]
    # two groups of four tokens in each of two rows; an expert takes one token of a group
    [ "$(in_scope deepseek/h_1/moe/dispatch)" = "f32[4,8,1,16] f32[8,4,1,16]" ]
    ap-model gpt $tiny --seq 4 --optimizer momentum --momentum 0.625 --weight-decay 0.375 -o "$doc"
    [ "$(jq -c '[.graph.nodes[] | select(.op == "constant" and .phase == "update") | .value] | unique' \
        "$doc")" = "[0.01,0.375,0.625]" ]
}

@test "model: bad usage is refused by name" {
    refuses 2 "no model 'gpt5'" ap-model gpt5
    refuses 2 'operand NAME|help is missing' ap-model
    refuses 2 '--experts: gpt has no such size' ap-model gpt --experts 8
    refuses 2 '--classes: gpt has no such size' ap-model gpt-350m --classes 8
    refuses 2 '--no-capacity: bert has no such size' ap-model bert --no-capacity
    refuses 2 '--hidden 100 is not a multiple of --heads 12' ap-model gpt --hidden 100
    refuses 2 '--heads 32 is not a multiple of --kv-heads 5' ap-model llama --kv-heads 5
    refuses 2 '--heads 12 is not a multiple of --kv-heads 5' ap-model gpt --kv-heads 5
    refuses 2 'rotary embedding needs an even number' ap-model llama --head-dim 5
    refuses 2 'rotary embedding needs an even number' ap-model deepseek --rope-dim 5
    refuses 2 '--seq 1000 is not a multiple of --group 256' ap-model deepseek --seq 1000
    refuses 2 '--experts 20 is not a multiple of 8 groups' ap-model deepseek --experts 20
    refuses 2 '--top 8 of 4 experts: the 4 best groups' ap-model deepseek --experts 8
    refuses 2 '--seq 8 is more than 4 positions' ap-model gpt --seq 8 --positions 4
    refuses 2 '--image 100 is not a multiple of --patch 16' ap-model vit --image 100
    refuses 2 '--layers 20: expected one of 18, 34, 50, 101, 152' ap-model resnet --layers 20
    refuses 2 '--layers 18: expected one of 50, 101, 152' ap-model wresnet --layers 18
    refuses 2 '--image 24' ap-model unet --image 24
    refuses 2 '--image 31' ap-model vgg19 --image 31
    refuses 2 "optimizer 'lion'" ap-model mlp --optimizer lion
    refuses 2 'mlp: --dropout: there are no transformer layers' ap-model mlp --dropout 0.1
    refuses 2 'dropout: expected a number from 0 up to 1' ap-model gpt --dropout 1
    refuses 2 '--layers' ap-model mlp --layers 0
    refuses 2 'from 1 to 65536' ap-model gpt --layers 1000000000
    refuses 2 '--top' ap-model moe --top 17
    refuses 2 '--top 4 is more than --experts 2' ap-model moe --top 4 --experts 2
    refuses 2 '--forward has no use for --optimizer' ap-model mlp --forward --optimizer adam
    refuses 2 '--forward has no use for --lr' ap-model mlp --forward --lr 1
    refuses 2 '--beta1 is not for --optimizer sgd' ap-model mlp --optimizer sgd --beta1 0.5
    refuses 2 '--master-weights needs --dtype' ap-model mlp --master-weights
    refuses 2 '--cast-weights needs --master-weights' ap-model mlp --dtype bf16 --cast-weights
    refuses 2 '--low-gradients needs --cast-weights' ap-model mlp --dtype bf16 --master-weights --low-gradients
}

@test "model: the page lists families and configurations, and the options of each" {
    for n in $(families) $(configurations) $(named); do
        grep -qE "^\.It Cm $n( |\$)" man/ap-model.1 || { echo "man/ap-model.1 lacks $n"; return 1; }
    done
    { ap-model --help | sed '/^  --dtype/q'; ap-model --help=sizes; } |
        sed -n -E '/^  --dtype/d; s/^  --([a-z-]+) (N?).*/\1 \2/p' >"$BATS_TEST_TMPDIR/sizes"
    for f in $(families); do
        while read -r option arg; do
            [ -z "$arg" ] || arg=2
            ap-model "$f" "--$option" $arg -o /dev/null --forward 2>&1 |
                grep -q 'no such size' || echo "$option"
        done <"$BATS_TEST_TMPDIR/sizes" | sort >"$BATS_TEST_TMPDIR/taken"
        diff <(awk -v f="$f" '/^\.It Cm|^\.El/ { on = ($3 == f) } on && /^Sizes:/ { list = 1 }
            on && list && /^\.Fl/ { print substr($2, 2) }' man/ap-model.1 | sort) \
            "$BATS_TEST_TMPDIR/taken" || { echo "$f: < man page, > ap-model"; return 1; }
    done
}

@test "model: same bytes twice" {
    cmp <(ap-model moe-380m) <(ap-model moe-380m)
}

@test "model: 200 000 nodes are no matter (times: make bench; this finds a quadratic loop)" {
    run --separate-stderr ap-model gpt --hidden 512 --heads 8 --layers 276 --stats -o /dev/null
    jq -e '.nodes > 195000 and .nodes < 210000 and .sec < 20' <<<"$stderr"
}

@test "model: what make bench imports is the same step" {
    ap-model gpt --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 --stats 2>"$BATS_TEST_TMPDIR/a" |
        jq -rf scripts/bench/hlo.jq | ap-import --stats 2>"$BATS_TEST_TMPDIR/b" >/dev/null
    keys='[.weights, .states, .inputs, .weight_elems, .heavy_flops, .forward, .update]'
    diff <(jq -c "$keys" "$BATS_TEST_TMPDIR/a") <(jq -c "$keys" "$BATS_TEST_TMPDIR/b")
}

@test "model: frozen weights have no gradient, state or update, and no plan synchronises them" {
    gpt() { ap-model gpt --layers 2 --hidden 16 --heads 2 --seq 4 --vocab 12 --batch 2 "$@"; }
    gpt --freeze 'gpt/h_*' --freeze '*/wpe' >"$BATS_TEST_TMPDIR/frozen.json"
    jq -e '.graph as $g | ([$g.nodes[] | select(.role == "weight" and (.name | test("gpt/h_"))) | .name] | length > 30)
        and ([$g.results[] | select(.alias != null) | $g.nodes[.alias].name]
            | length > 0 and all(test("gpt/h_|wpe") | not))
        and ([$g.nodes[] | .name] | any(test("^opt_state/.*(h_|wpe)")) | not)' "$BATS_TEST_TMPDIR/frozen.json"
    # under data parallelism: an all-reduce per element of a trained weight, and of the loss
    sent() { ap-shard --mesh 2 --algorithm data | ap-cost | jq '[.cost.collectives[] | .bytes] | add'; }
    trained() { jq '[.graph as $g | $g.results[] | select(.role == "weight") | $g.nodes[.node].shape |
        [match("[0-9]+"; "g").string | tonumber][1:] | reduce .[] as $d (4; . * $d)] | add' "$1"; }
    [ "$(sent <"$BATS_TEST_TMPDIR/frozen.json")" -eq $(($(trained "$BATS_TEST_TMPDIR/frozen.json") + 4)) ]
    gpt >"$BATS_TEST_TMPDIR/all.json"
    [ "$(sent <"$BATS_TEST_TMPDIR/all.json")" -eq $(($(trained "$BATS_TEST_TMPDIR/all.json") + 4)) ]
    refuses 2 "--freeze 'nothing*' matches no weight" gpt --freeze 'nothing*'
    refuses 2 "no weight that is not frozen" gpt --freeze '*'
    refuses 2 "--forward has no use" gpt --forward --freeze '*'
}

@test "README of cmd/ap-model: weights and FLOPs of a GPT of one layer" {
    local tiny='gpt --layers 1 --hidden 4 --heads 2 --vocab 8 --seq 3 --batch 2'
    [ "$(elems $tiny)" -eq $((12 * 4 ** 2 + 13 * 4 + 8 * 4 + 3 * 4 + 2 * 4)) ]
    [ "$(elems $tiny)" -eq 296 ]
    flops() { ap-model --stats -o /dev/null $tiny "$@" 2>&1 | jq .heavy_flops; }
    [ "$(flops --forward)" -eq $((24 * 2 * 3 * 4 ** 2 + 4 * 2 * 3 ** 2 * 4 + 2 * 2 * 3 * 4 * 8)) ]
    [ "$(flops --forward)" -eq 2976 ]
    [ "$(flops)" -eq $((3 * 2976)) ]
}

@test "README of cmd/ap-model: a token of GShard's mixture goes to a place in an expert's queue" {
    # one row of six tokens, three experts, two choices: ceil(2 * 6 / 3) = 4 places
    ap-model moe --layers 1 --moe-every 1 --hidden 4 --heads 2 --vocab 8 --seq 6 --batch 1 --experts 3 \
        --forward | jq -e '[.graph.nodes[] | select(.scope == "moe/h_0/moe/dispatch" and .op == "dot") |
        .shape] == ["f32[1,3,4,4]"]'
}
