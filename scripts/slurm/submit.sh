#!/usr/bin/env bash
# Submits a recipe to Slurm: preparation, a job a system, evaluation, each after the one before.
# shellcheck disable=SC2154 # parse_options sets the variables that declare_option names
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/scripts/parse_options.sh"
source "$root/scripts/choose_python.sh"

usage="usage: submit.sh --recipe NAME --dir DIR [options] [-- key=value ...]

Submits stages 0 to 3 on one node, the training of each system with a task a GPU, and stages 7 to 9
when all systems are trained. The words after -- set configuration values of the training."

declare_option recipe text "" "a folder of recipes/, by its name or path"
declare_option dir text "" "where all outputs go; all nodes must see it"
declare_option system list "" "may be repeated; all of the recipe's conf/systems unless given"
declare_option baseline text "" "compared with the others; bmuf if it is one of them, else the first"
declare_option corpus-dir text "" "where the corpus lies, as of run.sh; all nodes must see it"
declare_option mirror text "" "a folder with the archives that the recipe would download"
declare_option partition text "" "for training"
declare_option cpu-partition text "" "for preparation and evaluation; --partition unless given"
declare_option account text "" "whom to charge"
declare_option tasks-per-node number 8 "ranks on a node, one a GPU; the nodes follow from the system's workers"
declare_option gpus boolean true "ask for a GPU a task (--gpus-per-node)"
declare_option cpus-per-task number 4 "of a training task"
declare_option cpus number 16 "of preparation and evaluation"
declare_option time text 24:00:00 "limit of a training job, after which it goes on in a new one"
declare_option cpu-time text 24:00:00 "limit of preparation and of evaluation"
declare_option notice number 120 "seconds before the limit at which training saves and stops"
declare_option prepare boolean true "submit stages 0 to 3; false if they have run before"
declare_option evaluate boolean true "submit stages 7 to 9"
declare_option python text "" "the interpreter; else \$VENV (or .venv), else python3"
declare_option dry-run boolean false "print the commands instead of running them"
parse_options "$@"

# check_arguments: what the types of the options cannot say.
check_arguments() {
    local word
    [[ -n $recipe ]] || die "--recipe is missing: one of $(cd "$root/recipes" && echo *)"
    [[ $recipe == */* ]] || recipe=$root/recipes/$recipe
    [[ -d $recipe/conf/systems ]] || die "--recipe: $recipe has no conf/systems"
    recipe=$(cd "$recipe" && pwd)
    [[ -n $dir ]] || die "--dir is missing"
    dir=$(absolute "$dir")
    corpus_dir=$(absolute "$corpus_dir")
    mirror=$(absolute "$mirror")
    ((tasks_per_node > 0)) || die "--tasks-per-node 0: at least 1"
    for word in "${remaining_words[@]}"; do
        [[ $word =~ ^[A-Za-z_][A-Za-z0-9_.]*= ]] || die "'$word' is not key=value"
    done
    [[ -z $baseline ]] || check_system baseline "$baseline"
    [[ $dry_run == true ]] || command -v sbatch >/dev/null || die "no sbatch here: is this a login node?"
}

# check_system OPTION SYSTEM
check_system() {
    [[ -f $recipe/conf/systems/$2.yaml ]] || die "--$1 $2: no $recipe/conf/systems/$2.yaml"
}

# submit NAME WORD...: submit a job, or with --dry-run print how; sets $job to its id.
submit() {
    local name=$1
    shift
    local command=(sbatch --parsable --job-name "$name" --chdir "$root"
        --output "$dir/slurm/%x-%j.out" --open-mode append --requeue --kill-on-invalid-dep yes)
    [[ -z $account ]] || command+=(--account "$account")
    command+=("$@")
    if [[ $dry_run == true ]]; then
        printf '%q ' "${command[@]}"
        printf '\n'
        job="JOB-$name"
    else
        mkdir -p "$dir/slurm"
        job=$("${command[@]}")
        job=${job%%;*} # of several clusters it names the cluster, too
        printf '%s: job %s, %s/slurm/%s-%s.out\n' "$name" "$job" "$dir" "$name" "$job"
    fi
}

# submit_cpu NAME DEPENDENCY [WORD...]: scripts/slurm/NAME.sh on one node without GPUs.
submit_cpu() {
    local name=$1 dependency=$2 where=()
    shift 2
    [[ -z ${cpu_partition:-$partition} ]] || where=(--partition "${cpu_partition:-$partition}")
    [[ -z $dependency ]] || where+=(--dependency "$dependency")
    submit "$name" "${where[@]}" --nodes 1 --ntasks 1 --cpus-per-task "$cpus" --time "$cpu_time" \
        "$root/scripts/slurm/$name.sh" "$recipe" "$dir" "$interpreter" "$@"
}

# workers SYSTEM: how many ranks it trains with; the words after -- win over its files.
workers() {
    local word given=""
    for word in "${remaining_words[@]}"; do
        [[ $word != workers=* ]] || given=${word#workers=}
    done
    if [[ -n $given ]]; then
        printf '%s\n' "$given"
        return
    fi
    "$interpreter" -c 'import sys, yaml
values = {}
for name in sys.argv[1:]:
    values |= yaml.safe_load(open(name)) or {}
print(values.get("workers", 1))' "$recipe/conf/train.yaml" "$recipe/conf/systems/$1.yaml"
}

# choose_nodes SYSTEM: set how many nodes it trains on, and how many of its ranks are on each.
choose_nodes() {
    local name=$1 ranks
    ranks=$(workers "$name")
    [[ $ranks =~ ^[1-9][0-9]*$ ]] || die "$name: workers=$ranks is no number of ranks"
    ranks_on_node[$name]=$((ranks < tasks_per_node ? ranks : tasks_per_node))
    nodes[$name]=$((ranks / ranks_on_node[$name]))
    ((nodes[$name] * ranks_on_node[$name] == ranks)) ||
        die "$name has $ranks workers: no whole number of nodes with --tasks-per-node $tasks_per_node"
}

# submit_training SYSTEM [DEPENDENCY]
submit_training() {
    local name=$1 where=()
    [[ -z $partition ]] || where=(--partition "$partition")
    [[ -z ${2:-} ]] || where+=(--dependency "$2")
    [[ $gpus == false ]] || where+=(--gpus-per-node "${ranks_on_node[$name]}")
    submit "train-$name" "${where[@]}" --nodes "${nodes[$name]}" \
        --ntasks-per-node "${ranks_on_node[$name]}" --cpus-per-task "$cpus_per_task" --time "$time" \
        --signal "B:USR1@$notice" \
        "$root/scripts/slurm/train.sh" "$recipe" "$dir" "$interpreter" "$name" "${remaining_words[@]}"
}

# choose_baseline: print what the systems are held against (it may have been trained before); nothing
# if none is named and there is but one system.
choose_baseline() {
    [[ -n $baseline ]] || ((${#systems[@]} > 1)) || return 0
    if [[ -z $baseline && " ${systems[*]} " == *" bmuf "* ]]; then
        baseline=bmuf
    fi
    printf '%s' "${baseline:-${systems[0]}}"
}

check_arguments
interpreter=$(choose_python)
systems=("${system[@]}")
if ((${#systems[@]} == 0)); then
    for file in "$recipe"/conf/systems/*.yaml; do
        file=${file##*/}
        systems+=("${file%.yaml}")
    done
fi
# All that can be found wrong is, before the first job is submitted.
declare -A nodes=() ranks_on_node=()
for name in "${systems[@]}"; do
    check_system system "$name"
    choose_nodes "$name"
done

prepared="" trained=afterok
if [[ $prepare == true ]]; then
    corpus=()
    [[ -z $corpus_dir ]] || corpus+=(--corpus-dir "$corpus_dir")
    [[ -z $mirror ]] || corpus+=(--mirror "$mirror")
    submit_cpu prepare "" "${corpus[@]}"
    prepared=afterok:$job
fi
for name in "${systems[@]}"; do
    submit_training "$name" "$prepared"
    trained+=:$job
done
[[ $evaluate == false ]] || submit_cpu evaluate "$trained" "$(choose_baseline)"
