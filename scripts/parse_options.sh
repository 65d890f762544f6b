# Command-line options for bash scripts; to be sourced. Each option is declared once:
#
#   declare_option stop-stage number 9 "last stage to run"
#   parse_options "$@"            # then $stop_stage holds the value
#
# Types: text; number (0, 1, 2, ...); boolean (true or false, nothing else); list (may be given
# several times; the variable is an array). Options are written --name value or --name=value;
# the words after a lone -- go to the array remaining_words. An unknown option, a stray word or a
# bad value ends the script with status 2 and the list of options; --help shows it and ends with 0.

# shellcheck shell=bash
# shellcheck disable=SC2034 # remaining_words is the caller's

option_names=()
declare -A option_type=() option_default=() option_help=()
remaining_words=()

# die MESSAGE...: print the message to stderr and end the script with status 2.
die() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# absolute PATH: print a path that holds in any working directory; nothing for nothing.
absolute() {
    case $1 in
        "" | /*) printf '%s\n' "$1" ;;
        \~/*) printf '%s\n' "$HOME/${1#*/}" ;; # bash leaves it in --name=~/value
        *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# declare_option NAME TYPE DEFAULT HELP
declare_option() {
    option_names+=("$1")
    option_type[$1]=$2
    option_default[$1]=$3
    option_help[$1]=$4
    if [[ $2 == list ]]; then
        declare -ga "${1//-/_}=()"
    else
        declare -g "${1//-/_}=$3"
    fi
}

# print_options: one line an option, from the declarations; $usage, if set, above them.
print_options() {
    local name shown
    printf '%s\n\noptions:\n' "${usage:-usage: $0 [options]}"
    for name in "${option_names[@]}"; do
        shown=${option_help[$name]}
        [[ -z ${option_default[$name]} ]] || shown+=" (default: ${option_default[$name]})"
        printf '  --%-28s %s\n' "$name ${option_type[$name]^^}" "$shown"
    done
    printf '  --%-28s %s\n' help "show this"
}

# parse_options WORD...: set the variables of the declared options.
parse_options() {
    local name value
    while (($# > 0)); do
        case $1 in
            --)
                shift
                remaining_words=("$@")
                return
                ;;
            --help | -h)
                print_options
                exit 0
                ;;
            --*=*)
                name=${1%%=*} value=${1#*=}
                shift
                ;;
            --*)
                name=$1
                _is_option "${name#--}" || _die_with_options "unknown option $name"
                (($# > 1)) || _die_with_options "$name needs a value"
                value=$2
                shift 2
                ;;
            *) _die_with_options "unexpected word '$1'" ;;
        esac
        _is_option "${name#--}" || _die_with_options "unknown option $name"
        _set_option "${name#--}" "$value"
    done
}

_is_option() {
    [[ -n $1 && -n ${option_type[$1]:-} ]]
}

_set_option() {
    local name=$1 value=$2 type=${option_type[$1]}
    case $type in
        number)
            [[ $value =~ ^[0-9]+$ ]] || _die_with_options "--$name takes a number, not '$value'"
            value=$((10#$value)) # 08 is eight, not a bad octal number
            ;;
        boolean)
            [[ $value == true || $value == false ]] ||
                _die_with_options "--$name takes true or false, not '$value'"
            ;;
    esac
    if [[ $type == list ]]; then
        local -n list=${name//-/_}
        list+=("$value")
    else
        printf -v "${name//-/_}" %s "$value"
    fi
}

_die_with_options() {
    print_options >&2
    printf '\n' >&2
    die "$@"
}
