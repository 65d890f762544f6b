#!/usr/bin/env bash
# The one driver of all recipes: runs the stages in order, each of them python -m asr <verb>.
# recipes/<corpus>/run.sh calls it with the recipe's names; see --help for the options.
# shellcheck disable=SC2154 # parse_options sets the variables that declare_option names
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/parse_options.sh"
source "$root/scripts/choose_python.sh"

usage="usage: run.sh [options] [-- key=value ...]

Runs the stages of a recipe, each of which is skipped when it was done before:
  0 corpus   1 manifests   2 features   3 tokens   4 train the baseline
  5 train the two-tier system   6 train the single-worker reference (with --single true)
  7 decode   8 score   9 compare"

declare_option recipe text "" "the recipe's folder, with conf/*.yaml"
declare_option dir text "" "where all outputs go; exp/<recipe> in the repository unless given"
declare_option corpus-dir text "" "where the corpus lies, for a recipe that would download it"
declare_option mirror text "" "a folder with the archives that the recipe would download"
declare_option baseline text bmuf "system trained in stage 4, by its conf/systems/*.yaml"
declare_option two-tier text two_tier "system trained in stage 5"
declare_option reference text single "system trained in stage 6"
declare_option stage number 0 "first stage to run"
declare_option stop-stage number 9 "last stage to run"
declare_option single boolean false "run stage 6"
declare_option force boolean false "run stages that were done before"
declare_option verify boolean false "check earlier outputs by content, not by size"
declare_option resume boolean false "training goes on from its last checkpoint though settings changed"
declare_option set list "" "key=value, a configuration value of the one stage that runs; also after --"
declare_option python text "" "the interpreter; else \$VENV (or .venv), else python3"
parse_options "$@"

# check_arguments: what the types of the options cannot say.
check_arguments() {
    local override
    [[ -n $recipe ]] || die "--recipe is missing; call recipes/<corpus>/run.sh"
    [[ -d $recipe ]] || die "--recipe $recipe: no such folder"
    ((stop_stage <= 9)) || die "--stop-stage $stop_stage: the last stage is 9"
    ((stage <= stop_stage)) || die "--stage $stage comes after --stop-stage $stop_stage"
    ((${#overrides[@]} == 0 || stage == stop_stage)) ||
        die "key=value settings belong to one stage: give it as both --stage and --stop-stage"
    for override in "${overrides[@]}"; do
        [[ $override =~ ^[A-Za-z_][A-Za-z0-9_.]*= ]] || die "'$override' is not key=value"
    done
}

# run_stage NUMBER TITLE VERB [ARGUMENT...]: run the verb if the stage is in the chosen range.
run_stage() {
    local number=$1 title=$2 status=0
    shift 2
    ((stage <= number && number <= stop_stage)) || return 0
    printf '\nstage %d: %s\n' "$number" "$title"
    "$interpreter" -m asr "$@" "${common[@]}" "${overrides[@]}" || status=$?
    if ((status != 0)); then
        printf 'stage %d did not finish (status %d); go on from it with: --stage %d\n' \
            "$number" "$status" "$number" >&2
        exit "$status"
    fi
}

overrides=("${set[@]}" "${remaining_words[@]}")
check_arguments
recipe=$(cd "$recipe" && pwd)
dir=${dir:-$root/exp/${recipe##*/}}
interpreter=$(choose_python)

# Messages name paths as short as the caller's working directory allows.
recipe=${recipe#"$PWD/"}
dir=${dir#"$PWD/"}
common=(--recipe "$recipe" --dir "$dir")
[[ $force == false ]] || common+=(--force)
[[ $verify == false ]] || common+=(--verify)
training=()
[[ $resume == false ]] || training+=(--resume)

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# Processes are what runs in parallel; threads of theirs would only contend for the cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" NUMEXPR_NUM_THREADS="${NUMEXPR_NUM_THREADS:-1}"

given=("${overrides[@]}")
[[ -z $corpus_dir ]] || overrides+=("corpus_dir=$corpus_dir")
[[ -z $mirror ]] || overrides+=("mirror=$mirror")
run_stage 0 "get or make the corpus" corpus
overrides=("${given[@]}")
run_stage 1 "list and validate the utterances" manifests
run_stage 2 "extract the features" features
run_stage 3 "train the token model" tokens
run_stage 4 "train the baseline ($baseline)" train --system "$baseline" "${training[@]}"
run_stage 5 "train the two-tier system ($two_tier)" train --system "$two_tier" "${training[@]}"
if [[ $single == true ]]; then
    run_stage 6 "train the single-worker reference ($reference)" train --system "$reference" "${training[@]}"
elif ((stage == 6 && stop_stage == 6)); then
    die "stage 6 is off by default; add --single true"
fi
run_stage 7 "recognise the test sets" decode
run_stage 8 "score" score
overrides=("baseline=$baseline" "${overrides[@]}")
run_stage 9 "compare the systems" compare
if ((stop_stage == 9)); then
    printf '\nreport: %s\n' "$dir/compare/report.html"
fi
