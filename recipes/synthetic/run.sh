#!/usr/bin/env bash
# The study's recipe. Names and numbers only: scripts/run_recipe.sh does the
# work, and --help lists its options.
recipe=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "$recipe/../../scripts/run_recipe.sh" --recipe "$recipe" \
    --baseline bmuf --two-tier two_tier --reference single "$@"
