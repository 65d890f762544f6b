"""What the local launcher runs in every worker: ``python -m asr.training.rank``, one rank."""

import argparse
import logging
import os
import sys
from pathlib import Path

from asr.errors import UserError
from asr.stages import Workspace
from asr.training.trainer import SystemTrainer, read_config
from tiered_dist import ExchangeError, init_process_group


def main() -> int:
    """Train as one rank; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--system", required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    workspace = Workspace(recipe=arguments.recipe, root=arguments.dir)
    try:
        init_process_group(read_config(workspace, arguments.system).timeout_seconds)
        SystemTrainer(workspace, arguments.system).run()
    except (UserError, ExchangeError, OSError) as error:
        print(f"error: rank {os.environ['RANK']}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
