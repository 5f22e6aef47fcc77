# shellcheck shell=bash
# What a trainer runs, or measured, beside a plan: --from, --log, --free.

# What a filter says of a document's price, blanks between.
priced() { # DOCUMENT FILTER
    jq -r "[.cost | $2] | join(\" \")" "$1"
}
peak='(.peak_bytes // .memory.peak_bytes)'

# "2.149 s, 49.93 GB" of a priced document.
said() { # DOCUMENT
    local sec gb
    read -r sec gb < <(priced "$1" ".step_sec, $peak / 1e9")
    printf '%.4g s, %.4g GB' "$sec" "$gb"
}

# What a trainer's log measured, beside the price: the median step after the first lines,
# which compile and allocate, and the fullest device. torchtitan prints tokens per second of
# a device, DeepSpeed samples per second of all.
measured() { # DOCUMENT LOG
    local step bytes samples tokens n first own=${value[from]-.*}
    own=${own%%:*}
    read -r step bytes samples tokens \
        < <(priced "$1" ".step_sec, $peak, .plan.samples, .plan.tokens / .n_devices")
    awk -v samples="$samples" -v tokens="$tokens" '
        function value(key,    at, text) { # the number after it; 0: there is none
            at = index(line, key)
            text = substr(line, at + length(key))
            gsub(/,/, "", text)
            return at ? text + 0 : 0
        }
        function held(bytes, how) { if (bytes > 0) print "held", bytes, how }
        function took(who, sec) { if (sec > 0) print "took", who, sec }
        { line = $0; gsub(/\033\[[0-9;]*m/, "", line) }
        { took("megatron", value("elapsed time per iteration (ms):") / 1e3); took("deepspeed", value("iter time (s):")) }
        (rate = value(" tps:")) > 0 { took("torchtitan", tokens / rate); held(value(" memory:") * 2 ^ 30, "reserved") }
        (rate = value("CurrSamplesPerSec=")) > 0 { took("deepspeed", samples / rate) }
        { held(value("max allocated:") * 2 ^ 20, "allocated"); held(value("MaxMemAllocated=") * 2 ^ 30, "allocated") }
        ' "$2" >"$work/log"
    n=$(grep -c ^took "$work/log") || bad_input "$2: no line of a step of Megatron-LM, torchtitan or DeepSpeed"
    n=$(grep -c "^took ${own%-main} " "$work/log") ||
        bad_input "$2: steps of $(awk '$1 == "took" { print $2; exit }' "$work/log"), and the plan is --from $own"
    first=$((n > 4 ? 2 : n > 1))
    grep "^took ${own%-main} " "$work/log" | tail -n +$((first + 1)) | sort -gk 3 |
        awk -v step="$step" -v first="$first" -v median_sec="$work/sec" '{ sec[NR] = $3 }
        END { median = (sec[int((NR + 1) / 2)] + sec[int(NR / 2) + 1]) / 2
            printf "%.17g", median >median_sec
            printf "\nmeasured: step %.4g s, %.3f x the prediction (lines of the log: median of %d, after %d)\n",
                median, median / step, NR, first }'
    { grep ^held "$work/log" || true; } | sort -grk 2 | awk -v bytes="$bytes" 'NR == 1 {
        printf "measured: %.4g GB %s on the fullest device that it names, %.3f x the prediction\n",
            $2 / 1e9, $3, $2 / bytes }'
    [ ! -s "$work/best" ] || priced "$work/best" .step_sec | awk -v step="$step" -v sec="$(cat "$work/sec")" '
        $1 < step { printf "measured: at this pace the best line takes %.4g s\n", $1 * sec / step }'
    [ -z "${value[calibrate]+x}" ] ||
        run /dev/null "$work/cluster" ap-cost --calibrate --step "$(cat "$work/sec")" "$1"
    [ ! -s "$work/cluster" ] || cat "$work/cluster" >"${value[calibrate]}"
}

# What a plan whose stages may differ gains: that of the document, or with --free of a search.
compare_free() {
    local -a words=()
    if grep -Eaq '"(sharding|stages)":' "$work/0" &&
        ap-cost --quiet --cluster "${value[cluster]}" <"$work/0" >"$work/free.json" 2>"$work/why"; then
        needs jq
    elif [ -z "${value[free]+x}" ]; then
        return 0
    else
        mapfile -t words < <(taken cluster memory stages microbatches recompute f32-matmul jobs)
        find_layers
        make_blocks
        run "$work/2" "$work/3" ap-stage "${words[@]}"
        run "$work/3" "$work/free.json" ap-cost
    fi
    awk -v own="$(priced "$work/plan.json" .step_sec)" -v free="$(priced "$work/free.json" .step_sec)" \
        -v words="$(priced "$work/free.json" .plan.words)" 'BEGIN { gain = 100 * (1 - free / own)
            printf "\n%.4g s if stages could differ: %.1f %% %s (%s)\n", free, gain < 0 ? -gain : gain,
                gain < 0 ? "more, none quicker was found" : "less", words }'
}

price_line() { # LINE DOCUMENT: false where there is no such plan
    ap-stage --quiet "${on[@]}" --grid "$1" <"$work/2" 2>"$work/why" >"$work/line" &&
        ap-cost --quiet <"$work/line" 2>"$work/why" >"$2"
}

# Key by key: what the plan would take with the best line's value alone.
put_keys() { # LINE BEST
    local key value item line
    local -A mine=() best=()
    for item in ${1//,/ }; do mine[${item%%=*}]=$item; done
    for item in ${2//,/ }; do best[${item%%=*}]=$item; done
    for key in $(printf '%s\n' "${!mine[@]}" "${!best[@]}" | sort -u); do
        [ "${mine[$key]-}" != "${best[$key]-}" ] || continue
        case $key in dp | shard | layers) continue ;; esac # they follow from others
        line=''
        for item in ${1//,/ }; do
            case $key:${item%%=*} in
            "$key:$key" | *:dp | *:shard | tp:sp | pp:vpp | pp:layers) ;;
            *) line+=$item, ;;
            esac
        done
        line+=${best[$key]-}
        value=${best[$key]-without $key}
        printf '  %-24s %s\n' "$value alone" \
            "$(price_line "${line%,}" "$work/alone" && said "$work/alone" || echo 'no such plan')"
    done
}

# The plan of --from beside the best that the same trainer can run.
compare() {
    local trainer=${value[from]%%:*} mine best file
    local -a on=()
    mapfile -t on < <(taken cluster f32-matmul)
    mine=$(jq -r .stages.line "$work/plan.json")
    printf '\nyours %s  %s\n' "$(said "$work/plan.json")" "$mine"
    if ! ap-stage --quiet "${on[@]}" --for "$trainer" <"$work/2" >"$work/best.3" 2>"$work/why"; then
        printf 'best  none: %s\n' "$(tail -n 1 "$work/why" | cut -d: -f2-)"
        return 0
    fi
    run "$work/best.3" "$work/best" ap-cost --quiet
    if [ "$(jq -s '.[0].cost.step_sec >= .[1].cost.step_sec' "$work/best" "$work/plan.json")" = true ]; then
        echo 'no line that --for searches is quicker' # it leaves out what few people type
        return 0
    fi
    best=$(jq -r .stages.line "$work/best")
    printf 'best  %s  %s\n' "$(said "$work/best")" "$best"
    put_keys "$mine" "$best"
    echo 'flags that differ'
    for file in plan.json best; do
        ap-rewrite --quiet --to "$trainer" "$work/$file" | grep '^ ' | sort >"$work/$file.flags"
    done
    comm -3 "$work/plan.json.flags" "$work/best.flags" |
        awk '{ whose = /^\t/ ? "best: " : "yours:"; sub(/^[\t ]+/, ""); print "  " whose " " $0 }'
}
