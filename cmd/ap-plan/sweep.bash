# shellcheck shell=bash
# Several asks at once. Each cluster, number of devices, batch and length of samples is a row, whose plan
# the pipe finds as for one ask; rows run side by side, and sweep.jq makes the table, the page and the
# picture of them. The model is made once for each batch and length, which is why a sweep always has a
# cache: the user's, or one of its own. A row without a plan says why; any other failure ends the sweep.

row_jq=$(cat <<'END_OF_JQ'
#include row.jq
END_OF_JQ
)
text_jq=$(cat <<'END_OF_JQ'
#include text.jq
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
    for option in out from log details free; do
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
    [[ -e ${value[cluster]} || ,${value[cluster]}, != *,,* ]] ||
        usage_error "--cluster: expected names with commas between, got '${value[cluster]}'"
    [ -z "${value[svg]+x}" ] || check_file svg "${value[svg]}"
    [[ ${value[jobs]-1} =~ ^[1-9][0-9]{0,3}$ ]] || usage_error "--jobs: expected a number > 0, got '${value[jobs]}'"
    [ -z "${value[price]+x}" ] || check_prices "${value[price]}"
}

check_prices() { # FILE
    local why
    [ -r "$1" ] || bad_input "$1: No such file or directory"
    why=$(jq -rs '.[0] as $p | if length != 1 or ($p | type) != "object" then "expected one object"
        elif ($p.per_device_hour | type) != "object" then
            "/per_device_hour: expected an object: a price for each name of a device"
        elif $p.currency != null and ($p.currency | type) != "string" then
            "/currency: expected a string, got \($p.currency | tojson)"
        else ($p.per_device_hour | to_entries[]
            | select((.value | type) != "number" or .value <= 0)
            | "/per_device_hour/\(.key): expected a number > 0, got \(.value | tojson)"),
            ($p.per_device_hour | keys | group_by(ascii_downcase)[] | select(length > 1)
            | "/per_device_hour/\(.[1]): \(.[0]) is the same name") end' "$1" 2>&1) ||
        bad_input "$1: ${why#jq: }"
    [ -z "$why" ] || bad_input "$1: $(head -n 1 <<<"$why")"
}

# Names under which a cluster's devices can have a price: theirs, and its own if they are of one kind.
price_names() { # CLUSTER
    local part
    if [ -e "$1" ]; then
        jq -r '.. | .device? // empty' "$1"
    else
        for part in ${1//+/ }; do
            ap-cost --quiet --cluster "$part" <"$work/any" | jq -r .cluster.device
        done
        [[ $1 == *+* ]] || printf '%s\n' "$1" "${1%x+([0-9])}"
    fi
}

# A name that nothing has is a slip of the pen; a file may have prices that this ask does not need.
check_price_names() { # CLUSTER...
    local item
    for item; do price_names "$item"; done | jq -rRn "$text_jq"' [inputs | ., without_memory] | unique_by(ascii_downcase)[]' >"$work/known"
    ap-cost --cluster help | awk '$2 ~ /^[0-9x]+$/ { print $3 }' | jq -rR "$text_jq"' ., without_memory' >"$work/devices"
    while IFS= read -r item; do
        grep -qixF -e "$item" "$work/known" "$work/devices" || devices_of "${item,,}" >/dev/null ||
            bad_input "${value[price]}: /per_device_hour/$item: no device or cluster has this name; those asked have $(
                paste -sd , "$work/known" | sed 's/,/, /g')"
    done < <(jq -r '.per_device_hour | keys[]' "${value[price]}")
}

# The numbers that an option stands for: commas are between them, A..B is A, twice A, ... up to B.
numbers=()
read_numbers() { # OPTION
    local item at
    local -a items=()
    numbers=()
    [ -n "${value[$1]+x}" ] || { numbers=('') && return; }
    IFS=, read -ra items <<<"${value[$1]}"
    for item in "${items[@]}"; do
        [[ $item =~ ^([1-9][0-9]{0,8})(\.\.([1-9][0-9]{0,8}))?$ && ${BASH_REMATCH[1]} -le ${BASH_REMATCH[3]:-$item} ]] ||
            usage_error "--$1: expected a number > 0 or A..B, got '$item'"
        for ((at = BASH_REMATCH[1]; at <= ${BASH_REMATCH[3]:-at}; at *= 2)); do
            numbers+=("$at")
            [ -n "${BASH_REMATCH[3]}" ] || break
        done
    done
    [ ${#numbers[@]} -gt 0 ] || usage_error "--$1: expected a number > 0 or A..B, got ''"
}

# The devices of a cluster, as ap-cost reads it; status 1: $work/why says why it does not.
devices_of() { # CLUSTER
    ap-cost --quiet --cluster "$1" <"$work/any" 2>"$work/why" | jq '[.cluster.levels[].size] | reduce .[] as $n (1; . * $n)'
}

# CLUSTER|WHY: so many devices of a cluster, which is the cluster itself or KINDxHOSTS of its kind of host.
of_devices() { # CLUSTER DEVICES
    local kind each n
    n=$(devices_of "$1") || usage_error "--devices: $(sed 's/^ap-cost: //; q' "$work/why")"
    [ "$n" -ne "$2" ] || { echo "$1|" && return; }
    [ ! -e "$1" ] || { echo "$1|$2 devices: the file has $n" && return; }
    for kind in "${1%x+([0-9])}" "$1" "$1-$n"; do
        each=$(devices_of "${kind}x1") || continue
        if [ $(($2 % each)) -ne 0 ]; then
            echo "${kind}x?|$2 devices: a host has $each"
        elif ! n=$(devices_of "${kind}x$(($2 / each))") || [ "$n" -ne "$2" ]; then
            echo "${kind}x$(($2 / each))|$2 devices: it has ${n:-none}"
        else
            echo "${kind}x$(($2 / each))|"
        fi
        return
    done
    echo "$1|$2 devices: it has $n, and there is no KINDxHOSTS of its hosts"
}

# All names are known before the first row is planned; of equal rows there is one.
make_rows() {
    local cluster n batch seq sized row
    local -a clusters=() devices batches seqs
    local -A seen=()
    IFS=, read -ra clusters <<<"${value[cluster]}"
    [ ! -e "${value[cluster]}" ] || clusters=("${value[cluster]}")
    read_numbers devices && devices=("${numbers[@]}")
    read_numbers batch && batches=("${numbers[@]}")
    read_numbers seq && seqs=("${numbers[@]}")
    ap-model mlp >"$work/any"
    for cluster in "${clusters[@]}"; do
        ap-fuse --quiet --cluster "$cluster" <"$work/any" 2>"$work/why" >/dev/null ||
            bad_input "$(sed 's/^ap-fuse: //; q' "$work/why")"
        for n in "${devices[@]}"; do
            sized="$cluster|"
            [ -z "$n" ] || sized=$(of_devices "$cluster" "$n") || exit
            for batch in "${batches[@]}"; do
                for seq in "${seqs[@]}"; do
                    row="${sized%%|*}|$batch|$seq|${sized#*|}"
                    [ -n "${seen[$row]+x}" ] || rows+=("$row")
                    seen[$row]=1
                done
            done
        done
    done
    [ -z "${value[price]+x}" ] || check_price_names "${clusters[@]}"
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
    local row key err
    local -A made=()
    for row in "${rows[@]}"; do
        key=${row#*|} key=${key%|*}
        [ -z "${made[$key]+x}" ] || continue
        made[$key]=1
        ( # what it says, rows say again
            err=$work/err.model
            exec 3>&2 2>"$err"
            trap '[ $? -eq 0 ] || cat "$err" >&3' EXIT
            take_row "$row" "$work/model"
            make_step
        )
    done
}

plan_row() { # ROW FOLDER
    take_row "$1" "$2"
    value[quiet]=1 # as --quiet, of commands alone
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
    [ -n "${value[grid]+x}" ] || value[jobs]=$((most > ${#rows[@]} ? most / ${#rows[@]} : 1))
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
            cat "$work/err.$i" >>"$work/said"
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
    [ ! -e "$work/said" ] || awk '!said[$0]++' "$work/said" >&2 # most rows say the same
}

# The sweep's document as text, a page or a picture.
write_as() { # text, html or svg
    jq -r --arg form "$1" "$text_jq"$'\n'"$sweep_jq" "$work/sweep.json"
}

sweep() {
    local asked
    asked="ap-plan $(printf '%q ' "${words_asked[@]}" | sed 's/\\,/,/g')"
    [ -n "$cache" ] || { cache=$work/cache && mkdir "$cache"; }
    make_rows
    make_models
    plan_rows >"$work/rows"
    jq -s --arg asked "${asked% }" --arg model "$model" --arg tokens "${value[tokens]-}" --arg days "${value[days]-}" \
        --slurpfile price "${value[price]-/dev/null}" "$text_jq"$'\n'"$reckon_jq" "$work/rows" >"$work/sweep.json"
    if jq -e 'has("tokens") and any(.rows[]; .tokens == 0)' "$work/sweep.json" >/dev/null; then
        bad_input "$model: --tokens: its samples are not sequences of tokens"
    fi
    jq -e 'any(.rows[]; .words)' "$work/sweep.json" >/dev/null || { write_as text >&2 && exit 3; }
    [ -z "${value[o]+x}" ] || cat "$work/sweep.json" >"${value[o]}"
    [ -z "${value[html]+x}" ] || write_as html >"${value[html]}"
    [ -z "${value[svg]+x}" ] || write_as svg >"${value[svg]}"
    write_as text
}
