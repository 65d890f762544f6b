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
from asr.systems import model_of

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
    "export": ("asr.export", "write a trained model as one folder, with ONNX"),
    "transcribe": ("asr.transcribe", "write down what is said in audio files, or on stdin"),
    "align": ("asr.forced_alignment", "when each word of the transcripts is said; wrong ones"),
    "average": ("asr.average", "a system whose model is the mean of a trained one's last or best"),
    "study": ("asr.study", "train, decode and compare many systems: a study, resumable"),
}
VERBS = {**STAGES, **OTHERS}


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line; exits with status 2 and the usage on a mistake."""
    parser = argparse.ArgumentParser(prog="python -m asr", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, (_, help_text) in VERBS.items():
        options = verbs.add_parser(verb, help=help_text, description=help_text)
        if verb in WITHOUT_RECIPE:
            options.set_defaults(recipe=Path(), overrides=[])
            WITHOUT_RECIPE[verb](options)
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
        if verb == "align":
            _add_alignment_options(options)
        if verb == "average":
            options.set_defaults(overrides=[])
            _add_averaging_options(options)
            continue
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
    options.add_argument(
        "what", help="a directory that stages have filled, a manifest, a file of features, or an id"
    )
    options.add_argument("--dir", type=Path, default=Path(), help="where to look for an id")
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--out", type=Path, help="write a picture (PNG) into this folder, too")


def _add_model_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--model", type=Path, help="a folder that export wrote, or a model.pt")
    options.add_argument(
        "--dir", type=Path, help="in place of --model: where the stages' outputs are"
    )
    options.add_argument("--system", help="with --dir: a system that was trained there")


def _add_export_options(options: argparse.ArgumentParser) -> None:
    _add_model_options(options)
    options.add_argument("--out", type=Path, required=True, help="the folder to write")


def _add_transcription_options(options: argparse.ArgumentParser) -> None:
    _add_model_options(options)
    options.add_argument(
        "files", nargs="+", metavar="FILE", help="audio; - is 16-bit little-endian PCM on stdin"
    )
    options.add_argument("--rate", type=int, help="samples a second of what comes on stdin")
    options.add_argument("--channel", help="of audio with several: its number from 0, or mix")
    options.add_argument(
        "--json", action="store_true", help="a JSON object a line, with times and confidence"
    )


def _add_alignment_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--system", required=True, help="a trained system")
    options.add_argument("--split", help="a split of the corpus; its test sets if not given")
    options.add_argument("--force", action="store_true", help="run even if done before")


def _add_averaging_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--system", required=True, help="a trained system")
    number = options.add_mutually_exclusive_group(required=True)
    number.add_argument("--last", type=int, metavar="N", help="the last N models evaluated")
    number.add_argument("--best", type=int, metavar="N", help="the N best on dev of those kept")
    options.add_argument("--force", action="store_true", help="run even if done before")


def _add_study_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("study", type=Path, help="recipes/<corpus>/conf/<study>.yaml")
    options.add_argument(
        "--dir", type=Path, required=True, help="where stages 0 to 3 have run, and training will"
    )
    options.add_argument(
        "--only", action="append", default=[], metavar="SYSTEM", help="may be repeated"
    )
    options.add_argument("--later", action="store_true", help="also the systems for later")
    options.add_argument("--list", action="store_true", help="list the runs, and run none")
    options.add_argument(
        "--commit", action="store_true", help="git commit what is kept of each run as it ends"
    )


# Verbs that need no recipe, or find it themselves, and no overrides.
WITHOUT_RECIPE = {
    "study": _add_study_options,
    "inspect": _add_inspection_options,
    "export": _add_export_options,
    "transcribe": _add_transcription_options,
}


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
    if arguments.verb == "export":
        return {"model": _chosen_model(arguments), "out": arguments.out}
    if arguments.verb == "transcribe":
        return {
            "model": _chosen_model(arguments),
            "files": arguments.files,
            "rate": arguments.rate,
            "channel": arguments.channel,
            "as_json": arguments.json,
        }
    if arguments.verb == "align":
        _refuse_decoded(arguments.system)
        return {"system": arguments.system, "split": arguments.split}
    if arguments.verb == "study":
        chosen = {name: getattr(arguments, name) for name in ("study", "only", "later", "commit")}
        return {"listed": arguments.list, **chosen}
    if arguments.verb == "average":
        _refuse_decoded(arguments.system)
        return {"system": arguments.system, "last": arguments.last, "best": arguments.best}
    return {}


def _refuse_decoded(system: str) -> None:
    """UserError for a name that the reports know, but that no model has."""
    if system != model_of(system):
        raise UserError(
            f"--system {system}: beam search with the model of {model_of(system)}; give that"
        )


def _chosen_model(arguments: argparse.Namespace) -> Path:
    """The model's path; UserError unless it is named in one of the two ways."""
    model, root, system = arguments.model, arguments.dir, arguments.system
    if model is not None and root is None and system is None:
        return model
    if model is None and root is not None and system is not None:
        _refuse_decoded(system)
        return root / "train" / system / "model.pt"
    raise UserError("name the model by --model FOLDER, or by both --dir and --system")


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
        root=arguments.dir or Path(),
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
