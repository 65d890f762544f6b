#!/usr/bin/env bash
# Stages 0 to 3 on one node. submit.sh submits it, in the repository's folder:
#   prepare.sh RECIPE DIR PYTHON [--corpus-dir FOLDER] [--mirror FOLDER]
# A job that was stopped goes on with what its stages had finished. Told nothing of the corpus' place,
# it takes the corpus that stage 0 left: to ask again, with other words, could empty it and download.
set -euo pipefail
recipe=$1 dir=$2 python=$3
shift 3
first=0
(($# > 0)) || [[ ! -f $dir/corpus/stage.json ]] || first=1
exec "$recipe/run.sh" --dir "$dir" --python "$python" --stage "$first" --stop-stage 3 "$@"
