"""``python -m asr <verb>``: one verb a stage of a recipe."""

import argparse
import importlib
import logging
import os
import sys
from pathlib import Path

from asr.errors import UserError
from asr.stages import Workspace

# verb -> (module with run(workspace, arguments), whether it takes --system, what it does).
# Modules are imported when their verb is called, so that --help is immediate.
VERBS = {
    "corpus": ("asr.corpora", False, "make or fetch the corpus (stage 0)"),
    "manifests": ("asr.manifests", False, "list the utterances and validate them (stage 1)"),
    "features": ("asr.features", False, "log-mel filterbank features and their statistics"),
    "tokens": ("asr.tokens", False, "train the token model; drop what CTC cannot align (stage 3)"),
    "train": ("asr.train", True, "train one system (stages 4 to 6)"),
    "decode": ("asr.decode", False, "recognise the test sets with every trained system (stage 7)"),
    "score": ("asr.score", False, "word error rates by system and test set (stage 8)"),
    "compare": ("asr.compare", False, "compare the systems with the baseline (stage 9)"),
}


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line; exits with status 2 and the usage on a mistake."""
    parser = argparse.ArgumentParser(prog="python -m asr", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, (_, takes_system, help_text) in VERBS.items():
        options = verbs.add_parser(verb, help=help_text, description=help_text)
        options.add_argument("--recipe", type=Path, required=True, help="folder with conf/*.yaml")
        options.add_argument("--dir", type=Path, required=True, help="where all outputs go")
        options.add_argument("--force", action="store_true", help="run even if done before")
        options.add_argument(
            "--verify",
            action="store_true",
            help="compare earlier outputs by content, not size (files over 64 MB only where their "
            "stage ran with --verify)",
        )
        if takes_system:
            options.add_argument(
                "--system", required=True, help="conf/systems/SYSTEM.yaml, laid over train.yaml"
            )
            options.add_argument(
                "--resume",
                action="store_true",
                help="go on from the last checkpoint even if settings have changed since (with "
                "the same settings that happens by itself)",
            )
        options.add_argument(
            "overrides", nargs="*", metavar="key=value", help="set one configuration value"
        )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 1 the user can mend it, 130 interrupted."""
    arguments = parse_arguments(sys.argv[1:] if words is None else words)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    workspace = Workspace(
        recipe=arguments.recipe,
        root=arguments.dir,
        overrides=tuple(arguments.overrides),
        force=arguments.force,
        verify=arguments.verify,
        resume=getattr(arguments, "resume", False),
    )
    # Processes are what runs in parallel; read by torch when a verb's module imports it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    module = importlib.import_module(VERBS[arguments.verb][0])
    try:
        if not workspace.recipe.is_dir():
            raise UserError(f"{workspace.recipe}: no such recipe folder (--recipe)")
        if VERBS[arguments.verb][1]:
            module.run(workspace, arguments.system)
        else:
            module.run(workspace)
    except (UserError, OSError) as error:  # a full disk names its file, too
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
