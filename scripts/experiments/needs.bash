# shellcheck shell=bash
# needs PROGRAM...: ends where the filters are not built, or these programs are missing; said in front of the
# first command, which would say it less plainly.
needs() {
    local one missing=()
    if [[ ! -x build/bin/ap-model || ! -x build/unit/test_shard_alpa ]]; then
        echo "${0##*/}: build first: make all unit" >&2
        exit 1
    fi
    for one; do command -v "$one" >/dev/null || missing+=("$one"); done
    [ ${#missing[@]} = 0 ] || { echo "${0##*/}: missing: ${missing[*]} (scripts/deps installs them)" >&2 && exit 1; }
}
