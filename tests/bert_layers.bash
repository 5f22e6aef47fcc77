#!/bin/bash
# Usage: bert_layers.bash LAYERS BATCH SEQ HIDDEN HEADS
# HLO of BERT's layers alone, hidden states in, mean square to a target out: no embedding,
# no head. Queries, keys and values come from one dense layer, by heads, as in Alpa's BERT.
# Every dense layer has a bias; tanh stands for gelu.
set -euo pipefail
layers=$1 b=$2 s=$3 h=$4 n=$5
d=$((h / n)) f=$((4 * h)) param=2

weight() { # weight NAME DIMS
    echo "  $1 = f32[$2] parameter($param)"
    param=$((param + 1))
}

along() { # along NAME OPERAND DIMS WHICH: broadcast
    echo "  $1 = f32[$3] broadcast($2), dimensions={$4}"
}

dense() { # dense NAME OPERAND IN OUT
    weight "$1_w" "$3,$4"
    weight "$1_b" "$4"
    echo "  $1_dot = f32[$b,$s,$4] dot($2, $1_w), lhs_contracting_dims={2}, rhs_contracting_dims={0}"
    along "$1_all" "$1_b" "$b,$s,$4" 2
    echo "  $1 = f32[$b,$s,$4] add($1_dot, $1_all)"
}

norm() { # norm NAME OPERAND
    weight "$1_scale" "$h"
    weight "$1_bias" "$h"
    along "$1_n" width "$b,$s" ""
    echo "  $1_sum = f32[$b,$s] reduce($2, zero), dimensions={2}, to_apply=sum"
    echo "  $1_mean = f32[$b,$s] divide($1_sum, $1_n)"
    along "$1_means" "$1_mean" "$b,$s,$h" 0,1
    echo "  $1_centred = f32[$b,$s,$h] subtract($2, $1_means)"
    echo "  $1_square = f32[$b,$s,$h] multiply($1_centred, $1_centred)"
    echo "  $1_squares = f32[$b,$s] reduce($1_square, zero), dimensions={2}, to_apply=sum"
    echo "  $1_var = f32[$b,$s] divide($1_squares, $1_n)"
    along "$1_eps" tiny "$b,$s" ""
    echo "  $1_safe = f32[$b,$s] add($1_var, $1_eps)"
    echo "  $1_root = f32[$b,$s] rsqrt($1_safe)"
    along "$1_roots" "$1_root" "$b,$s,$h" 0,1
    echo "  $1_unit = f32[$b,$s,$h] multiply($1_centred, $1_roots)"
    along "$1_scales" "$1_scale" "$b,$s,$h" 2
    echo "  $1_scaled = f32[$b,$s,$h] multiply($1_unit, $1_scales)"
    along "$1_biases" "$1_bias" "$b,$s,$h" 2
    echo "  $1 = f32[$b,$s,$h] add($1_scaled, $1_biases)"
}

softmax() { # softmax NAME OPERAND
    echo "  $1_max = f32[$b,$n,$s] reduce($2, low), dimensions={3}, to_apply=max"
    along "$1_maxs" "$1_max" "$b,$n,$s,$s" 0,1,2
    echo "  $1_less = f32[$b,$n,$s,$s] subtract($2, $1_maxs)"
    echo "  $1_exp = f32[$b,$n,$s,$s] exponential($1_less)"
    echo "  $1_sum = f32[$b,$n,$s] reduce($1_exp, zero), dimensions={3}, to_apply=sum"
    along "$1_sums" "$1_sum" "$b,$n,$s,$s" 0,1,2
    echo "  $1 = f32[$b,$n,$s,$s] divide($1_exp, $1_sums)"
}

part() { # part NAME OPERAND I: the I-th third of every head
    echo "  $1 = f32[$b,$s,$n,$d] slice($2), slice={[0:$b],[0:$s],[0:$n],[$(($3 * d)):$((($3 + 1) * d))]}"
}

attention() { # attention NAME OPERAND
    dense "$1_qkv" "$2" "$h" "$((3 * h))"
    echo "  $1_heads = f32[$b,$s,$n,$((3 * d))] reshape($1_qkv)"
    part "$1_q" "$1_heads" 0
    part "$1_k" "$1_heads" 1
    part "$1_v" "$1_heads" 2
    echo "  $1_scores = f32[$b,$n,$s,$s] dot($1_q, $1_k), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}, rhs_contracting_dims={3}"
    softmax "$1_soft" "$1_scores"
    echo "  $1_mix = f32[$b,$n,$s,$d] dot($1_soft, $1_v), lhs_batch_dims={0,1}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}, rhs_contracting_dims={1}"
    echo "  $1_back = f32[$b,$s,$n,$d] transpose($1_mix), dimensions={0,2,1,3}"
    echo "  $1_flat = f32[$b,$s,$h] reshape($1_back)"
    dense "$1_o" "$1_flat" "$h" "$h"
}

layer() { # layer NAME OPERAND
    attention "$1" "$2"
    echo "  $1_res1 = f32[$b,$s,$h] add($2, $1_o)"
    norm "$1_ln1" "$1_res1"
    dense "$1_fc" "$1_ln1" "$h" "$f"
    echo "  $1_act = f32[$b,$s,$f] tanh($1_fc)"
    dense "$1_proj" "$1_act" "$f" "$h"
    echo "  $1_res2 = f32[$b,$s,$h] add($1_ln1, $1_proj)"
    norm "$1_ln2" "$1_res2"
}

cat <<END
HloModule bert_layers
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}
ENTRY main {
  x = f32[$b,$s,$h] parameter(0)
  target = f32[$b,$s,$h] parameter(1)
  zero = f32[] constant(0)
  low = f32[] constant(-1e30)
  tiny = f32[] constant(1e-6)
  width = f32[] constant($h)
  count = f32[] constant($((b * s * h)))
END
last=x
for ((i = 0; i < layers; i++)); do
    layer "l$i" "$last"
    last=l${i}_ln2
done
cat <<END
  off = f32[$b,$s,$h] subtract($last, target)
  off2 = f32[$b,$s,$h] multiply(off, off)
  total = f32[] reduce(off2, zero), dimensions={0,1,2}, to_apply=sum
  ROOT loss = f32[] divide(total, count)
}
END
