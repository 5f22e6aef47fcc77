# shellcheck shell=bash
# What the scripts of tables share: alpa, rhino, tap, tofu, rannc, across. One is run as `alpa figure-8`:
# functions whose names have a _ in place of - are its tables, of tab-separated values, with a
# header.
set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PWD/build/bin:$PATH
# shellcheck source=scripts/experiments/needs.bash
. scripts/experiments/needs.bash
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
TIMEFORMAT=%U

# A row of a table; a cell without a figure is a failure of what should have made it.
row() {
    local IFS=$'\t' cell
    for cell; do
        [ -n "$cell" ] || { echo "no figure in the row $*" >&2 && exit 1; }
    done
    printf '%s\n' "$*"
}

# four FIGURE: to four digits, and whole from 1000 on
four() {
    awk -v x="$1" 'BEGIN { printf(x >= 1000 ? "%.0f" : "%.4g", x) }'
}

# elements NAMES MODEL [OPTION]...: of the weights, without those whose names match
elements() {
    local but=$1
    shift
    ap-model "$@" | jq --arg but "$but" '[.graph.nodes[] | select(.role == "weight" and
        ($but == "" or (.name | test($but) | not))) | .shape | [scan("[0-9]+") | tonumber][1:] |
        reduce .[] as $d (1; . * $d)] | add'
}

# weights NAMES MODEL [OPTION]...: billions of them
weights() {
    elements "$@" | awk '{ printf "%.4g\n", $1 / 1e9 }'
}

# sizes NAMES: rows of models' billions, from lines "the paper's, model and options"
sizes() {
    local paper model
    row model paper ours
    while read -r paper model; do
        # shellcheck disable=SC2086 # a name and options
        row "$model" "$paper" "$(weights "$1" $model)"
    done
}

# cluster FILE DEVICES [MEMORY]: its first DEVICES, whole hosts or a part of one; prints a file
cluster() {
    local file=$dir/$1-$2-${3:-}.json
    jq --argjson n "$2" --argjson memory "${3:-null}" '.levels[0].size as $host
        | (if $memory then .memory_bytes = $memory else . end)
        | if $n <= $host then .levels = [.levels[0] | .size = $n]
          else .levels = [.levels[0], (.levels[-1] | .size = $n / $host)] end' \
        "$(find clusters -name "$1.json")" >"$file"
    echo "$file"
}

# figure COMMAND...: what it prints, "none" where there is no plan (exit 3), else it fails
figure() {
    local status=0 out
    out=$("$@" 2>"$dir/said") || status=$?
    case $status in
    0) four "$out" ;;
    3) printf none ;;
    *) cat "$dir/said" >&2 && return $status ;;
    esac
}

# The tables that the script has, by its own text.
tables() {
    sed -n 's/^\([a-z][a-z0-9_]*\)() { *# table.*/\1/p' "$script" | tr _ -
}

main() {
    local name=${1-} usage
    usage="usage: scripts/experiments/${script##*/} TABLE, one of: $(tables | paste -sd ' ')"
    [ "$name" != --help ] || { echo "$usage" && exit; }
    if [ $# != 1 ] || ! grep -qx -- "$name" <(tables); then
        echo "$usage" >&2
        exit 2
    fi
    needs jq
    "${name//-/_}"
}
