#!/usr/bin/env bash
# Decoding, scoring and, with a baseline to hold the others against, comparing (stages 7 to 9), on one
# node. submit.sh submits it, in the repository's folder:
#   evaluate.sh RECIPE DIR PYTHON [BASELINE]
set -euo pipefail
last=(--stop-stage 8)
[[ -z ${4:-} ]] || last=(--stop-stage 9 --baseline "$4")
exec "$1/run.sh" --dir "$2" --python "$3" --stage 7 "${last[@]}"
