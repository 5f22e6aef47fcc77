# shellcheck shell=bash
# Answers of filters that are kept: what a command makes of its input is a function of its words, of
# the files that these name, of the program and of the input, and so is the key under which standard
# output, standard error and a file that the command writes beside them are kept. An input is known
# by the key that made it, so that a chain of known answers is read and never hashed. --jobs is no
# part of a key: plans are the same for any number. An entry is one file, which is there as a whole or
# not at all: a line with the status and the sizes of standard error and of the file beside, these two,
# and standard output.

cache=''                     # folder; '': nothing is kept
most_cached=$((1024 ** 3))   # bytes; what was used least recently goes first
declare -A made_by=()        # file of $work -> key of the answer that it is

# The user's cache, or none where there is no place for it. With --stats filters run.
open_cache() {
    [ -z "${value[no-cache]+x}${value[stats]+x}" ] || return 0
    cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
    [ -n "$cache" ] || return 0
    cache=$cache/autopar/plan
    mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || cache=''
}

digest() { sha256sum | cut -d' ' -f1; }

cache_key() { # IN SIDE COMMAND WORD...
    local in=$1 side=$2 word skip=''
    shift 2
    {
        if [ -n "${made_by[$in]-}" ]; then echo "${made_by[$in]}"; else digest <"$in"; fi
        stat -Lc '%n %s %y' -- "$(command -v "$1")" "$(command -v ap-shard)" # which ap-stage runs
        for word in "$@" "${common[@]}"; do
            if [ -n "$skip" ]; then
                skip=''
            elif [ "$word" = --jobs ]; then
                skip=1
            else
                printf '%q\n' "$word"
                [ "$word" = "$side" ] || [ ! -f "$word" ] || digest <"$word"
                [[ $word != ?*:* || ! -f ${word#*:} ]] || digest <"${word#*:}" # TRAINER:FILE
            fi
        done
    } | digest
}

cached() { # KEY OUT ERR SIDE: writes the answer, if there is one, and prints its status
    local status n_err n_side
    gzip -dc "$cache/$1" 2>/dev/null | {
        read -r status n_err n_side && [[ "$status $n_err $n_side" =~ ^[03]\ [0-9]+\ [0-9]+$ ]] &&
            head -c "$n_err" >"$3" && head -c "$n_side" >"$2" &&
            { [ -z "$4" ] || [ "$status" -ne 0 ] || cp "$2" "$4"; } && cat >"$2" && echo "$status"
    } && touch -c "$cache/$1"
}

keep() { # KEY OUT ERR SIDE STATUS
    local new=$cache/new.$BASHPID err=$3 beside=$4
    [ -f "$err" ] || err=/dev/null # a terminal
    [ -n "$beside" ] && [ "$5" -eq 0 ] || beside=/dev/null
    { echo "$5 $(wc -c <"$err") $(wc -c <"$beside")" && cat "$err" "$beside" "$2"; } | gzip -1 >"$new" &&
        mv "$new" "$cache/$1" && return
    rm -f "$new"
    return 1
}

# Drops what was not used for longest, down to most_cached.
trim_cache() {
    [ -n "$cache" ] || return 0
    find "$cache" -type f -printf '%T@ %s %f\n' | sort -rn |
        awk -v most="$most_cached" '{ sum += $2 } sum > most { print $3 }' |
        (cd "$cache" && xargs -r rm -f --)
}

# What COMMAND makes of IN: from the cache, or by running it. SIDE: the file that it writes beside
# OUT, or ''. The exit status is that of the command; of failures "no solution" alone is kept.
answer() { # IN OUT ERR SIDE COMMAND WORD...
    local in=$1 out=$2 err=$3 side=$4 key='' status=0
    shift 4
    if [ -n "$cache" ]; then
        key=$(cache_key "$in" "$side" "$@")
        if status=$(cached "$key" "$out" "$err" "$side"); then
            made_by[$out]=$key
            return "$status"
        fi
        status=0
    fi
    made_by[$out]=''
    "$@" "${common[@]}" <"$in" >"$out" 2>"$err" || status=$?
    if [ -n "$key" ] && [[ $status == [03] ]] && keep "$key" "$out" "$err" "$side" "$status" 2>/dev/null; then
        made_by[$out]=$key
    fi
    return "$status"
}
