#!/usr/bin/env bash
# Stages 0 to 3 on one node. submit.sh submits it, in the repository's folder:
#   prepare.sh RECIPE DIR PYTHON
# A job that was stopped goes on with what its stages had finished.
set -euo pipefail
exec "$1/run.sh" --dir "$2" --python "$3" --stage 0 --stop-stage 3
