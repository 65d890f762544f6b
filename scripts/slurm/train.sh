#!/usr/bin/env bash
# One system, a task a GPU. submit.sh submits it, in the repository's folder:
#   train.sh RECIPE DIR PYTHON SYSTEM [key=value ...]
# Slurm tells it by SIGUSR1 that time is nearly up (--signal=B:USR1@...), and the tasks by SIGTERM
# that they are preempted: then all ranks save at the next block's end, and the job goes back into
# the queue, to go on from there by the same command.
set -euo pipefail

recipe=$1 dir=$2 python=$3 system=$4
shift 4
# A run that stopped with a checkpoint ends with 75 (asr/errors.py). One that the signals kill had not
# begun to listen, or was done and about to leave: to start again is right for both.
again=" 75 $((128 + $(kill -l USR1))) $((128 + $(kill -l TERM))) "

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# A step of one task is no rank to anyone; it shall hear of its end as a rank does.
if ((SLURM_NTASKS == 1)); then
    export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
    export MASTER_ADDR=localhost MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
fi

# Ranks that another one's end leaves waiting find out by themselves, within the time of --wait.
srun --kill-on-bad-exit=0 --wait=120 \
    "$python" -m asr train --recipe "$recipe" --dir "$dir" --system "$system" "$@" &
step=$!
trap 'kill -USR1 "$step" 2>/dev/null || true' USR1 # srun passes it on to all tasks

status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # it was a signal that ended the waiting
    status=0
    wait "$step" || status=$?
done
if [[ $again == *" $status "* ]]; then
    printf 'job %s: stopped as it was asked to, back into the queue\n' "$SLURM_JOB_ID"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
