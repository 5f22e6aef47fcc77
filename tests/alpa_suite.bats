#!/usr/bin/env bats
# Alpa's own tests of its sharding pass, re-built: alpa_suite.txt. AP_ALPA=all runs all rows.

load helpers
load alpa_helpers

# row MODEL OPTIMIZER MESH OPTIONS PRICE KERNELS
row() {
    local f model got want=$6
    read -ra model <<<"$1"
    if [ "${model[0]}" = bert ]; then
        f=$(bert "${model[@]:1}" "$2")
    else
        f=$(alpa_model "$2" "${model[@]}")
    fi
    # shellcheck disable=SC2086 # options
    f=$(alpa "$f" "$3" $4)
    [ "$5" = - ] || closed "$f" "$5" 0.01 >/dev/null || return 1
    got=$(layouts "$f" weight '[/_]w$')
    while [ "$want" != - ] && [ ${#want} -lt ${#got} ]; do want+=" $6"; done
    [ "$want" = - ] || [ "$got" = "$want" ] || {
        echo "kernels $got, not $want"
        return 1
    }
}

@test "Alpa's tests: prices by the closed forms, layouts of kernels (AP_ALPA=all: all of them)" {
    local when columns n=0 bad=0
    while IFS=@ read -ra columns; do
        when=${columns[0]}
        [[ $when == quick || ($when == all && ${AP_ALPA-} == all) ]] || continue
        n=$((n + 1))
        row "${columns[@]:1}" || {
            echo "in: ${columns[*]}"
            bad=$((bad + 1))
        }
    done <tests/alpa_suite.txt
    echo "$n rows, $bad of them wrong"
    [ $bad = 0 ]
    [ $n -ge 12 ]
}
