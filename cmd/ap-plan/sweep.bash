# shellcheck shell=bash
# Several asks at once. Each cluster, number of devices, batch and length of samples is a row, whose plan
# the pipe finds as for one ask; rows run side by side, and sweep.jq makes the table, the page and the
# picture of them. The model is made once for each batch and length, which is why a sweep always has a
# cache: the user's, or one of its own. A row without a plan says why; any other failure ends the sweep.

row_jq=$(cat <<'END_OF_JQ'
#include row.jq
END_OF_JQ
)
reckon_jq=$(cat <<'END_OF_JQ'
#include reckon.jq
END_OF_JQ
)
sweep_jq=$(cat <<'END_OF_JQ'
#include sweep.jq
END_OF_JQ
)

rows=() # CLUSTER|BATCH|SEQ|WHY: why there is no such row; nothing: it is planned

is_sweep() {
    local option
    for option in tokens days price devices svg; do
        [ -z "${value[$option]+x}" ] || return 0
    done
    [[ ${value[batch]-} == *[,.]* || ${value[seq]-} == *[,.]* ]] ||
        { [[ ${value[cluster]} == *,* ]] && [ ! -e "${value[cluster]}" ]; }
}

check_sweep() {
    local option
    for option in out from log details; do
        [ -z "${value[$option]+x}" ] || usage_error "--$option: it is of one plan, and these are several"
    done
    for option in tokens days; do
        [[ ${value[$option]-1} =~ ^[0-9]*\.?[0-9]+([eE][+]?[0-9]{1,2})?$ && ${value[$option]-1} =~ [1-9] ]] ||
            usage_error "--$option: expected a number > 0, got '${value[$option]}'"
    done
    for option in days price; do
        [ -z "${value[$option]+x}" ] || [ -n "${value[tokens]+x}" ] ||
            usage_error "--$option: how much is trained? --tokens is missing"
    done
    [ -z "${value[svg]+x}" ] || check_file svg "${value[svg]}"
    [[ ${value[jobs]-1} =~ ^[1-9][0-9]{0,3}$ ]] || usage_error "--jobs: expected a number > 0, got '${value[jobs]}'"
    [ -z "${value[price]+x}" ] || check_prices "${value[price]}"
}

check_prices() { # FILE
    local why
    [ -r "$1" ] || bad_input "$1: No such file or directory"
    why=$(jq -rn --arg file "$1" 'input as $p | "\($file): " as $at |
        if ($p | type) != "object" or ($p.per_device_hour | type) != "object" then
            "\($at)/per_device_hour: expected an object: a price for each name of a device"
        else $p.per_device_hour | to_entries[]
            | select((.value | type) != "number" or .value <= 0)
            | "\($at)/per_device_hour/\(.key): expected a number > 0, got \(.value)" end' "$1" 2>&1) ||
        bad_input "$1: ${why#jq: }"
    [ -z "$why" ] || bad_input "$(head -n 1 <<<"$why")"
}

# The numbers that an option stands for: commas are between them, A..B is A, twice A, ... up to B.
numbers=()
read_numbers() { # OPTION
    local item at
    numbers=()
    [ -n "${value[$1]+x}" ] || { numbers=('') && return; }
    for item in ${value[$1]//,/ }; do
        if [[ $item =~ ^([1-9][0-9]{0,8})(\.\.([1-9][0-9]{0,8}))?$ ]]; then
            for ((at = BASH_REMATCH[1]; at <= ${BASH_REMATCH[3]:-at}; at *= 2)); do
                numbers+=("$at")
                [ -n "${BASH_REMATCH[3]}" ] || break
            done
        fi
        [[ ${BASH_REMATCH[0]-} == "$item" && ${BASH_REMATCH[1]} -le ${BASH_REMATCH[3]:-$item} ]] ||
            usage_error "--$1: expected a number > 0 or A..B, got '$item'"
    done
    [ ${#numbers[@]} -gt 0 ] || usage_error "--$1: expected a number > 0 or A..B, got ''"
}

# CLUSTER|WHY: so many devices of a cluster's kind of host.
of_devices() { # CLUSTER DEVICES
    local kind=$1 each
    [[ ! $kind =~ ^(.*[^x])x[0-9]+$ ]] || kind=${BASH_REMATCH[1]}
    each=$(ap-cost --cluster help | awk -v kind="$kind" '$2 ~ /^[0-9]/ {
        name = $1; sub(/-[0-9]+$/, "", name)
        if ($1 == kind || name == kind || $1 == kind "x1") {
            n = split($2, sizes, "x"); each = 1
            for (i = $2 ~ /^1x/ ? 2 : 1; i <= n; i++) each *= sizes[i]
            print each; exit } }')
    [ -n "$each" ] || usage_error "--devices: '$1' is not one kind of host of --cluster help"
    if [ $(($2 % each)) -eq 0 ]; then echo "${kind}x$(($2 / each))|"; else
        echo "${kind}x?|$2 devices: a host has $each"; fi
}

make_rows() {
    local cluster n batch seq sized
    local -a clusters=() devices batches seqs
    IFS=, read -ra clusters <<<"${value[cluster]}"
    [ ! -e "${value[cluster]}" ] || clusters=("${value[cluster]}")
    read_numbers devices && devices=("${numbers[@]}")
    read_numbers batch && batches=("${numbers[@]}")
    read_numbers seq && seqs=("${numbers[@]}")
    for cluster in "${clusters[@]}"; do
        for n in "${devices[@]}"; do
            sized="$cluster|"
            [ -z "$n" ] || sized=$(of_devices "$cluster" "$n") || exit
            for batch in "${batches[@]}"; do
                for seq in "${seqs[@]}"; do
                    rows+=("${sized%%|*}|$batch|$seq|${sized#*|}")
                done
            done
        done
    done
}

# The options of a row, in a subshell.
take_row() { # ROW FOLDER
    local cluster batch seq
    IFS='|' read -r cluster batch seq _ <<<"$1"
    value[cluster]=$cluster
    [ -z "$batch" ] || value[batch]=$batch
    [ -z "$seq" ] || value[seq]=$seq
    unset 'value[html]'
    work=$2
    mkdir -p "$work"
}

make_models() {
    local row key
    local -A made=()
    for row in "${rows[@]}"; do
        key=${row#*|} key=${key%|*}
        [ -z "${made[$key]+x}" ] || continue
        made[$key]=1
        (take_row "$row" "$work/model" && make_step)
    done
}

plan_row() { # ROW FOLDER
    take_row "$1" "$2"
    build
    jq -c --arg cluster "${value[cluster]}" --arg seq "${value[seq]-}" "$row_jq" "$work/plan.json" >"$2/row.json"
}

stop_rows() {
    local group
    for group in $(jobs -p); do kill -- -"$group" 2>/dev/null || :; done
}

# The rows as planned, one JSON object a line.
plan_rows() {
    local i status own cluster batch seq most=${value[jobs]-$(nproc)} running=0
    value[jobs]=$((most > ${#rows[@]} ? most / ${#rows[@]} : 1))
    set -m # each row is a group of processes, which ends as one
    for i in "${!rows[@]}"; do
        [ -z "${rows[i]##*|}" ] || continue
        [ "$running" -lt "$most" ] || { wait -n || :; running=$((running - 1)); }
        (
            trap 'echo $? >"$own/status"' EXIT
            own=$work/row.$i
            plan_row "${rows[i]}" "$own"
        ) 2>"$work/err.$i" &
        running=$((running + 1))
    done
    wait
    set +m
    for i in "${!rows[@]}"; do
        status=3
        if [ -n "${rows[i]##*|}" ]; then
            echo "${rows[i]##*|}" >"$work/err.$i"
        else
            status=$(cat "$work/row.$i/status")
        fi
        if [ "$status" -eq 0 ]; then
            cat "$work/row.$i/row.json"
        elif [ "$status" -eq 3 ]; then
            IFS='|' read -r cluster batch seq _ <<<"${rows[i]}"
            jq -nc --arg cluster "$cluster" --arg batch "$batch" --arg seq "$seq" \
                --arg why "$(tail -n 1 "$work/err.$i" | sed 's/^ap-[a-z]*: //')" \
                '{cluster: $cluster, why: $why} + if $batch == "" then {} else {samples: ($batch | tonumber)} end
                    + if $seq == "" then {} else {seq: ($seq | tonumber)} end'
        else
            cat "$work/err.$i" >&2
            exit "$status"
        fi
    done
}

# The sweep's document as text, a page or a picture.
write_as() { # text, html or svg
    jq -r --arg form "$1" "$sweep_jq" "$work/sweep.json"
}

sweep() {
    local asked
    asked="ap-plan $(printf '%q ' "${words_asked[@]}" | sed 's/\\,/,/g')"
    [ -n "$cache" ] || { cache=$work/cache && mkdir "$cache"; }
    make_rows
    make_models
    plan_rows >"$work/rows"
    jq -s --arg asked "${asked% }" --arg model "$model" --arg tokens "${value[tokens]-}" --arg days "${value[days]-}" \
        --slurpfile price "${value[price]-/dev/null}" "$reckon_jq" "$work/rows" >"$work/sweep.json"
    if jq -e 'has("tokens") and any(.rows[]; .tokens == 0)' "$work/sweep.json" >/dev/null; then
        bad_input "$model: --tokens: its samples are not sequences of tokens"
    fi
    [ -z "${value[o]+x}" ] || cat "$work/sweep.json" >"${value[o]}"
    [ -z "${value[html]+x}" ] || write_as html >"${value[html]}"
    [ -z "${value[svg]+x}" ] || write_as svg >"${value[svg]}"
    write_as text
}
