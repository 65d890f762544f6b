# Which interpreter a script uses; to be sourced, with $root, the repository's folder, and $python,
# the value of the option --python, set, after parse_options.sh.

# shellcheck shell=bash
# shellcheck disable=SC2154 # the caller's variables, and functions of parse_options.sh

# choose_python: print the interpreter to use; its path holds in any working directory.
choose_python() {
    local environment=${VENV:-.venv} found
    [[ $environment == /* ]] || environment=$root/$environment
    if [[ -n $python ]]; then
        found=$(command -v "$python") || die "--python $python: no such program"
        absolute "$found"
    elif [[ -x $environment/bin/python ]]; then
        printf '%s\n' "$environment/bin/python"
    elif [[ -n ${VENV:-} ]]; then
        die "VENV=$VENV has no bin/python; make it with: make demo VENV=$VENV"
    else
        command -v python3 || die "no python3; install Python 3.11 or newer, or give --python"
        has_requirements python3 ||
            die "python3 lacks Python 3.11 or what requirements.txt lists; run: make setup"
    fi
}

# has_requirements PYTHON: whether it is new enough and has the packages the stages need.
has_requirements() {
    "$1" -c 'import importlib.util, sys
needed = ("torch", "lhotse", "sentencepiece", "yaml")
sys.exit(sys.version_info < (3, 11) or any(importlib.util.find_spec(m) is None for m in needed))'
}
