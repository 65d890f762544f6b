"""``python -m asr <verb>``: one verb a stage of a recipe, and what looks on."""

import argparse
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

from asr.errors import STOPPED, Stopped, UserError
from asr.interruption import ignore, listen
from asr.stages import Workspace

# verb -> (module with run(workspace, ...), what it does). Modules are imported when their verb is
# called, so that --help is immediate.
STAGES = {
    "corpus": ("asr.corpora", "make or fetch the corpus (stage 0)"),
    "manifests": ("asr.manifests", "list the utterances and validate them (stage 1)"),
    "features": ("asr.features", "log-mel filterbank features and their statistics"),
    "tokens": ("asr.tokens", "train the token model; drop what CTC cannot align (stage 3)"),
    "train": ("asr.train", "train one system (stages 4 to 6)"),
    "decode": ("asr.decode", "recognise the test sets with every trained system (stage 7)"),
    "score": ("asr.score", "word error rates by system and test set (stage 8)"),
    "compare": ("asr.compare", "compare the systems with the baseline (stage 9)"),
}
OTHERS = {
    "plan": ("asr.plan", "what a run will need: disk, hours, steps, bytes, memory"),
    "inspect": ("asr.inspect", "look at an utterance, a manifest, features, or a directory"),
}
VERBS = {**STAGES, **OTHERS}


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line; exits with status 2 and the usage on a mistake."""
    parser = argparse.ArgumentParser(prog="python -m asr", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, (_, help_text) in VERBS.items():
        options = verbs.add_parser(verb, help=help_text, description=help_text)
        if verb == "inspect":
            _add_inspection_options(options)
            continue
        needed = verb != "compare"  # which also takes folders in their place
        options.add_argument("--recipe", type=Path, required=needed, help="folder with conf/*.yaml")
        options.add_argument("--dir", type=Path, required=needed, help="where all outputs go")
        if verb in STAGES:
            _add_stage_options(options)
        if verb == "train":
            _add_training_options(options)
        if verb == "plan":
            _add_plan_options(options)
        if verb == "compare":
            _add_comparison_options(options)
            continue
        options.add_argument(
            "overrides", nargs="*", metavar="key=value", help="set one configuration value"
        )
    arguments, others = parser.parse_known_args(words)
    if arguments.verb == "compare":
        # Folders and settings may stand on both sides of the options.
        arguments.words += [word for word in others if not word.startswith("-")]
        others = [word for word in others if word.startswith("-")]
        _settle_comparison(verbs.choices["compare"], arguments)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return arguments


def _add_stage_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--force", action="store_true", help="run even if done before")
    options.add_argument(
        "--verify",
        action="store_true",
        help="compare earlier outputs by content, not size (files over 64 MB only where their "
        "stage ran with --verify)",
    )


def _add_training_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--system", required=True, help="conf/systems/SYSTEM.yaml, laid over train.yaml"
    )
    options.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint even if settings have changed since (with "
        "the same settings that happens by itself)",
    )


def _add_plan_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--system", action="append", default=[], help="may be repeated; all of the recipe's if not"
    )
    options.add_argument("--json", type=Path, help="write the plan to this file, too")
    options.add_argument(
        "--sample", type=Path, help="a folder of audio to measure preparation on; else it is made"
    )


def _add_comparison_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--baseline", help="the system that others are compared with")
    options.add_argument(
        "--out", type=Path, help="where the report of FOLDERs goes; ./comparison if not given"
    )
    options.add_argument(
        "words",
        nargs="*",
        metavar="FOLDER | key=value",
        help="folders with references and hypotheses of any toolkit, in place of --recipe and "
        "--dir; settings",
    )


def _settle_comparison(options: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Tell folders from settings; exits with the usage if it is neither a stage nor folders."""
    words = arguments.words
    arguments.folders = [Path(word) for word in words if "=" not in word or Path(word).is_dir()]
    folders = set(map(str, arguments.folders))
    arguments.overrides = [word for word in words if str(Path(word)) not in folders]
    stage = [arguments.recipe, arguments.dir]
    if arguments.folders:
        if stage != [None, None]:
            options.error("give either folders, or --recipe and --dir")
        arguments.recipe, arguments.dir = Path(), Path()
    elif None in stage:
        options.error("give folders with results, or both --recipe and --dir")
    elif arguments.out is not None:
        options.error("--out belongs to folders; with --dir the report goes to DIR/compare")


def _add_inspection_options(options: argparse.ArgumentParser) -> None:
    options.set_defaults(recipe=Path(), overrides=[])  # it needs neither
    options.add_argument(
        "what", help="a directory that stages have filled, a manifest, a file of features, or an id"
    )
    options.add_argument("--dir", type=Path, default=Path(), help="where to look for an id")
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--out", type=Path, help="write a picture (PNG) into this folder, too")


def _extra_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a verb's ``run`` takes beside the workspace."""
    if arguments.verb == "train":
        return {"system": arguments.system}
    if arguments.verb == "plan":
        return {"systems": arguments.system, "json": arguments.json, "sample": arguments.sample}
    if arguments.verb == "compare":
        names = ("folders", "baseline", "out")
        return {name: getattr(arguments, name) for name in names}
    if arguments.verb == "inspect":
        return {"what": arguments.what, "as_json": arguments.json, "out": arguments.out}
    return {}


def main(words: list[str] | None = None) -> int:
    """Run one verb; returns the exit status.

    0 done, 1 the user can mend it, 75 training stopped as it was asked to, 130 interrupted.
    """
    arguments = parse_arguments(sys.argv[1:] if words is None else words)
    if arguments.verb == "train" and {"RANK", "SLURM_PROCID"} & os.environ.keys():
        listen()  # a cluster may ask this rank to stop while it still loads
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    workspace = Workspace(
        recipe=arguments.recipe,
        root=arguments.dir,
        overrides=tuple(arguments.overrides),
        force=getattr(arguments, "force", False),
        verify=getattr(arguments, "verify", False),
        resume=getattr(arguments, "resume", False),
    )
    # Processes are what runs in parallel; read by torch when a verb's module imports it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    module = importlib.import_module(VERBS[arguments.verb][0])
    try:
        if not workspace.recipe.is_dir():
            raise UserError(f"{workspace.recipe}: no such recipe folder (--recipe)")
        module.run(workspace, **_extra_arguments(arguments))
    except (UserError, OSError) as error:  # a full disk names its file, too
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        ignore()
    return 0


if __name__ == "__main__":
    sys.exit(main())
