#!/usr/bin/env bash
# Stages 7 to 9 on one node: decode, score, compare. submit.sh submits it, in the repository's folder:
#   evaluate.sh RECIPE DIR PYTHON
set -euo pipefail
exec "$1/run.sh" --dir "$2" --python "$3" --stage 7 --stop-stage 9
