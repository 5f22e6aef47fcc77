# shellcheck shell=bash
# From MODEL to blocks: the filters that run, and how each is printed.

common=() # options that all tools have
work=''   # folder of what goes from one command to the next
shown=()  # the commands as they are typed

typed() { # COMMAND WORD...
    local text
    printf -v text '%q ' "$@"
    shown+=("${text% }")
}

# Runs a command, standard input from the file before, into the next one. On a terminal, where
# searches show how far they are, standard error is not kept.
side='' # the file that the command writes, too
run() { # IN OUT COMMAND WORD...
    local status=0 err=$work/err
    [ ! -t 2 ] || err=/dev/stderr
    answer "$1" "$2" "$err" "$side" "${@:3}" || status=$?
    [ -t 2 ] || cat "$err" >&2
    [ "$status" -eq 0 ] || exit "$status"
}

step() { # IN OUT COMMAND WORD...
    typed "${@:3}"
    run "$@"
}

# Options of the command line that a tool takes under the same name.
taken() { # OPTION...
    local option
    for option; do
        [ -z "${value[$option]+x}" ] || printf '%s\n' "--$option" "${value[$option]}"
    done
}

refuse_sizes() { # WHAT OPTION...
    local what=$1 option
    shift
    for option; do
        [ -z "${value[$option]+x}" ] || usage_error "--$option: $what has its own"
    done
}

# Words of ap-model, or ap-grad, for the types of the train step: those of the recipe.
recipe_words() { # DEFAULT; "": the types of the model
    local recipe=$1
    case ${value[dtype]-} in
    f32) recipe=f32 ;;
    ?*) recipe=mixed ;;
    esac
    recipe=${value[recipe]-$recipe}
    [[ ,$recipe, != ,fp8,* ]] || { fusing+=(--fp8) && recipe=mixed${recipe#fp8}; }
    [ -z "$recipe" ] || words+=(--recipe "$recipe")
}

has_gradients() { # FILE: whether it is HLO text that leaves the optimizer to ap-grad
    gzip -cdf "$1" 2>/dev/null | sed -n '1{/\\"gradient\\":/q1}' || return 0
    return 1
}

# ap-grad's step of what was imported. RECIPE: without one on the command line.
train() { # RECIPE
    local -a words=()
    [ -n "${value[optimizer]+x}" ] || value[optimizer]=adam
    mapfile -t words < <(taken optimizer dtype)
    recipe_words "$1"
    step "$work/import" "$work/0" ap-grad "${words[@]}"
}

# The Python that has the exporter and what it needs, and PYTHONPATH for it; status 1: there is none.
python=''
find_python() {
    local at
    for at in "$here/../share/autopar/python" "$here/../../python"; do
        [ ! -d "$at/autopar/torch" ] || export PYTHONPATH=$at${PYTHONPATH:+:$PYTHONPATH}
    done
    python=${AP_TORCH_PYTHON-}
    [ -n "$python" ] || { python=$here/python3 && [ -x "$python" ]; } || python=python3
    "$python" -c 'import importlib.util as u, sys
sys.exit(not all(map(u.find_spec, ("autopar", "torch", "jax", "transformers"))))' 2>/dev/null
}

# The step of FILE as ap-model makes it with WORDs. What it does not build comes from the module of
# transformers, where a Python with that is at hand.
make_model() { # FILE WORD...
    local file=$1 status=0
    local -a words=()
    shift
    answer /dev/null "$work/0" "$work/why" '' ap-model "$@" || status=$?
    if [ "$status" -ne 2 ] || ! grep -Fq "ap-model: $file: /" "$work/why"; then
        cat "$work/why" >&2
        [ "$status" -eq 0 ] || exit "$status"
        typed ap-model "$@"
        return
    fi
    find_python || {
        cat "$work/why" >&2
        echo "$name: a Python with torch, jax and transformers ($python, else AP_TORCH_PYTHON) would make it" >&2
        exit 2
    }
    mapfile -t words < <(taken batch seq)
    typed "$python" -m autopar.torch.config "$file" "${words[@]}"
    status=0
    "$python" -m autopar.torch.config "$file" "${words[@]}" >"$work/text" 2>"$work/why" || status=$?
    if [ -z "${value[quiet]+x}" ] || [ "$status" -ne 0 ]; then cat "$work/why" >&2; fi
    [ "$status" -eq 0 ] || exit "$status"
    step "$work/text" "$work/import" ap-import
    fusing=(--kernels)
    train mixed
}

# The train step, in $work/0.
fusing=() # words of ap-fuse: what trainers fuse beside attention, in models that they have
make_step() {
    local -a words=()
    local file=$model kept=$cache
    [ ! -d "$file" ] || for f in config.json model.hlo model.onnx; do
        [ ! -f "$file/$f" ] || { file=$file/$f && break; }
    done
    [ ! -d "$file" ] || bad_input "$file: a folder without config.json, model.hlo and model.onnx"
    if [ ! -e "$file" ] || head -c 1000000 "$file" | grep -aq '"model_type"'; then
        [ -e "$file" ] || [[ " $(models)" == *" $file "* || $file != *[/.]* ]] ||
            bad_input "$file: No such file or directory"
        mapfile -t words < <([ ! -e "$file" ] || echo --config
            printf '%s\n' "$file" && taken batch seq dtype optimizer)
        fusing=(--kernels)
        recipe_words mixed
        make_model "$file" "${words[@]}"
    elif head -c 1000 "$file" | grep -aq '"autopar"'; then
        refuse_sizes "$file" batch seq dtype recipe optimizer
        shown+=("cat $(printf %q "$file")")
        cat "$file" >"$work/0"
        # what was computed of the graph as it is rules ap-fuse out
        ! grep -Eaq '"(families|blocks|sharding|stages|cost|program|pipeline)":' "$file" ||
            : "${value[attention]=plain}"
    elif [[ $file == *.onnx || $file == *.onnx.gz ]] || has_gradients "$file"; then
        refuse_sizes "$file" batch seq
        [[ $file != *.onnx?(.gz) ]] || kept='' # weights may be in files beside it
        cache=$kept step /dev/null "$work/import" ap-import "$file"
        train ''
    else
        refuse_sizes "$file" batch seq dtype recipe optimizer
        step /dev/null "$work/0" ap-import "$file"
    fi
}

# ap-prune, whose count of layers goes to `layers`.
layers=0
find_layers() {
    local line status=0
    typed ap-prune
    answer "$work/fused" "$work/1" "$work/why" '' ap-prune --stats || status=$?
    while IFS= read -r line; do
        if [[ $line =~ '"instances":'([0-9]+) ]]; then
            layers=${BASH_REMATCH[1]}
            [ -n "${value[stats]+x}" ] || continue
        fi
        printf '%s\n' "$line" >&2
    done <"$work/why"
    [ "$status" -eq 0 ] || exit "$status"
}

try_blocks() { # WORD...
    answer "$work/1" "$work/2" "$work/why" '' ap-coarsen "$@" || return 1
    [ -z "${value[stats]+x}" ] || cat "$work/why" >&2
    typed ap-coarsen "$@"
}

# Blocks as asked for. Else one for each layer, so that most blocks are identical and cuts
# can be anywhere between layers: the embedding and the loss are with the first and last
# layer, which may so be larger. Else 16, or as many as ap-coarsen finds.
make_blocks() {
    local n=$layers each=1 eps
    if [ -n "${value[blocks]+x}" ]; then
        step "$work/1" "$work/2" ap-coarsen --blocks "${value[blocks]}"
        return
    fi
    while [ "$n" -gt "$most_layers" ] || [ $((n * each)) -ne "$layers" ]; do
        each=$((each + 1)) n=$((layers / each))
    done
    if [ "$n" -ge 4 ]; then
        try_blocks --blocks "$n" && return
        for eps in 1 2 4 8; do
            try_blocks --blocks "$n" --eps "$eps" && return
        done
    fi
    try_blocks --blocks "$blocks_wanted" || step "$work/1" "$work/2" ap-coarsen --blocks auto
}

# Attentions of the step as one operator each, and kernels, if the devices run them so.
fuse() { # IN OUT
    local -a words=()
    [ "${value[attention]-}" = fused ] || words=(--cluster "${value[cluster]}")
    [ "${value[attention]-}" != plain ] || words+=(--attention plain)
    if [ "${value[attention]-}" = plain ] && [ ${#fusing[@]} -eq 0 ]; then
        cat "$1" >"$2"
    else
        step "$1" "$2" ap-fuse "${words[@]}" "${fusing[@]}"
    fi
}

show() {
    local line='' i file=plan.json
    [ -n "${value[out]+x}" ] || file=${value[o]-plan.json}
    for ((i = 0; i < ${#shown[@]}; i++)); do
        line+=${shown[i]}
        [ $((i + 1)) -eq ${#shown[@]} ] || line+=$' |\n    '
    done
    printf '%s > %q\n' "$line" "$file"
    printf 'ap-cost --%s %q\n' "$report" "$file"
    [ -z "${value[out]+x}" ] ||
        printf 'ap-rewrite --to %q %q%s\n' "${value[out]}" "$file" "${value[o]:+ > $(printf %q "${value[o]}")}"
}
