# shellcheck shell=bash
# Options of the table: usage, completion, and reading them into `value` and `model`.

dashed() { if [ "${#1}" -gt 1 ]; then echo "--$1"; else echo "-$1"; fi; }

usage_error() {
    printf '%s: %s\n' "$name" "$1" >&2
    echo "try '$name --help'" >&2
    exit 2
}

bad_input() {
    printf '%s: %s\n' "$name" "$1" >&2
    exit 1
}

needs() { # COMMAND...: beside the filters
    local command
    for command; do
        command -v "$command" >/dev/null || {
            printf '%s: %s is not installed\n' "$name" "$command" >&2
            exit 2
        }
    done
}

print_options() { # GROUP
    local row option arg kind group help
    for row in "${table[@]}"; do
        IFS='|' read -r option arg kind group help <<<"$row"
        [ "$group" != "$1" ] || printf '  %-18s %s\n' "$(dashed "$option")${arg:+ $arg}" "$help"
    done
}

print_help() { # "", all or more
    [[ $1 == @(|all|more) ]] || usage_error "--help: '$1' is not one of more, all"
    if [ "$1" = more ]; then
        print_options more
        return
    fi
    echo "usage: $name [OPTION]... MODEL"
    echo 'plan a model on a cluster and report: HLO, ONNX, config.json of Hugging Face, a document, or a name of ap-model'
    printf '\noptions:\n'
    print_options ''
    if [ -z "$1" ]; then
        printf '  %-18s print all %d options\n' --help=all "${#table[@]}"
    else
        printf '\nmore options:\n'
        print_options more
    fi
}

clusters() { ap-cost --cluster help | awk '$2 ~ /^[0-9]/ { printf "%s ", $1 }'; }
trainers() { ap-stage --for=help | awk '{ printf "%s ", $1 }'; }
kinds() { ap-rewrite --to=help | awk '$1 != "program" { printf "%s ", $1 }'; }
models() { ap-model help | awk '/^  / { printf "%s ", $1 }'; }

words_of() { # KIND of an option
    case $1 in
    cluster) echo "$(clusters)help" ;;
    recipe) echo "${recipes[*]}" ;;
    trainer) trainers ;;
    out) echo "$(kinds)help" ;;
    attention) echo 'fused plain' ;;
    f32-matmul) echo 'auto tf32 f32' ;;
    esac
}

bash_completion() {
    local row option arg kind group help names='' words
    cat <<END
# bash completion for $name
_ap_plan() {
    local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD-1]} words='$(models)' files=1
    if [ "\$cur" = = ]; then cur='' # bash splits --name=value
    elif [ "\$prev" = = ]; then prev=\${COMP_WORDS[COMP_CWORD-2]}; fi
    case \$prev in
END
    for row in "${table[@]}"; do
        IFS='|' read -r option arg kind group help <<<"$row"
        names+="$(dashed "$option") "
        [ -n "$arg" ] || continue
        words=$(words_of "$kind")
        printf '    %s) ' "$(dashed "$option")"
        case $kind in
        cluster) echo "words='$words' files=1 ;;" ;;
        files) echo "words='' files=1 ;;" ;;
        out | recipe | trainer | attention | f32-matmul) echo "words='$words' files='' ;;" ;;
        *) echo 'return ;;' ;;
        esac
    done
    cat <<END
    *) case \$cur in -*) files='' words='${names% }' ;; esac ;;
    esac
    mapfile -t COMPREPLY < <(
        compgen -W "\$words" -- "\$cur"
        [ -z "\$files" ] || compgen -f -- "\$cur")
}
complete -o filenames -F _ap_plan $name
END
}

zsh_completion() {
    local row option arg kind group help action
    echo "#compdef $name"
    printf '_arguments %s\n' "\\"
    for row in "${table[@]}"; do
        IFS='|' read -r option arg kind group help <<<"$row"
        help=${help//:/\\:}
        case $kind in
        cluster) action="_alternative \"names\\:name\\:($(words_of cluster))\" \"files\\:file\\:_files\"" ;;
        out | recipe | trainer | attention | f32-matmul) action="($(words_of "$kind"))" ;;
        files) action=_files ;;
        *) action='' ;;
        esac
        if [ -z "$arg" ]; then
            printf "    '%s[%s]' \\\\\n" "$(dashed "$option")" "$help"
        else
            printf "    '%s[%s]:%s: %s' \\\\\n" \
                "$(dashed "$option")$([ "$option" = o ] || printf '=')" "$help" "$arg" "$action"
        fi
    done
    echo "    '*:file:_files'"
}

completion() {
    case $1 in
    bash) bash_completion ;;
    zsh) zsh_completion ;;
    *) usage_error "--completion: '$1' is not one of bash, zsh" ;;
    esac
    exit 0
}

# Before the search, not after it.
check_file() { # OPTION FILE
    [ -n "$2" ] || usage_error "$(dashed "$1"): expected a file"
    [ ! -d "$2" ] || bad_input "$2: Is a directory"
    [ -e "$2" ] || [ -d "$(dirname -- "$2")" ] || bad_input "$2: No such file or directory"
}

# The row of an option without its dashes; nothing: there is none.
row_of() {
    local row
    for row in "${table[@]}"; do
        [ "${row%%|*}" != "$1" ] || echo "$row"
    done
}

model=''
read_options() {
    local option row arg
    while [ $# -gt 0 ]; do
        case $1 in
        --) shift && break ;;
        --completion=*) completion "${1#*=}" ;;
        --completion) completion "${2-}" ;;
        --help) print_help '' && exit 0 ;;
        --help=*) print_help "${1#*=}" && exit 0 ;;
        --?* | -o) ;;
        -?*) usage_error "unknown option '$1'" ;;
        *) [ -z "$model" ] || usage_error "more than one MODEL: $model, $1"
            model=$1
            shift
            continue ;;
        esac
        option=${1#-} option=${option#-}
        row=$(row_of "${option%%=*}")
        [ -n "$row" ] || usage_error "unknown option '$1'"
        IFS='|' read -r _ arg _ <<<"$row"
        if [ -z "$arg" ]; then
            [[ $option != *=* ]] || usage_error "option '${1%%=*}' takes no value"
            value[$option]=1
        elif [[ $option == *=* ]]; then
            value[${option%%=*}]=${option#*=}
        else
            [ $# -gt 1 ] || usage_error "option '$1' needs a value"
            value[$option]=$2
            shift
            if [ "$option" = from ] && [[ $1 != *:* ]]; then # the file, or its text
                [ $# -gt 1 ] || usage_error "--from $1: expected a file, or flags"
                value[from]=$1:$(sed '/^ *#/d; s/\\$//' <<<"$2" | tr '\n' ' ' | sed 's/ $//')
                shift
            fi
        fi
        shift
    done
    [ $# -eq 0 ] || { [ $# -eq 1 ] && [ -z "$model" ]; } || usage_error 'more than one MODEL'
    [ $# -eq 0 ] || model=$1
}
