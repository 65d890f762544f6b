"""Stage 9: the systems side by side, and each against the baseline; also of any two folders.

The difference between two systems comes with a paired bootstrap over utterances: both systems
are scored on the same drawn utterances, so that what makes an utterance hard for both cancels.
It tells what other test utterances could have given, not what another training seed could.

As a stage (``--recipe``, ``--dir``) it compares the systems of one workspace. With folders it
compares references and hypotheses of any toolkit, and needs no recipe.
"""

import json
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.config import load_config
from asr.errors import UserError
from asr.files import write_json, write_text
from asr.report import clips, inputs
from asr.report.content import CompareConfig, make_report
from asr.report.curves import read_curves
from asr.report.inputs import Corpus, Results
from asr.report.page import make_page
from asr.report.text import format_report
from asr.stages import StageResult, Workspace, run_stage
from asr.systems import finished_systems, model_of

log = logging.getLogger("asr")

REPORTS = ("report.txt", "report.json", "report.html")


def run(
    workspace: Workspace,
    folders: Sequence[Path] = (),
    baseline: str | None = None,
    out: Path | None = None,
) -> None:
    """Write ``report.txt``, ``report.json`` and ``report.html``, and print the first.

    With ``folders`` into ``out``, else as the stage ``compare``.
    """
    if folders:
        directory = _compare_folders(workspace, folders, baseline, out or Path("comparison"))
    else:
        directory = _compare_stage(workspace, baseline)
    print((directory / "report.txt").read_text(encoding="utf-8"))
    for name in REPORTS:
        print(f"report: {directory / name}")


def choose_systems(
    config: CompareConfig,
    scored: Sequence[str],
    remedy: str = "Train, decode and score it, or choose",
) -> list[str]:
    """The systems to compare, in order; UserError when one, or the baseline, is not scored."""
    others = [system for system in scored if system != config.baseline]
    chosen = config.systems or [config.baseline, *others]
    for system in [config.baseline, *chosen]:
        if system not in scored:
            raise UserError(
                f"system '{system}' is not scored; scored are: {', '.join(scored)}. {remedy} "
                f"others with baseline=... and systems=[...]"
            )
    if config.baseline not in chosen:
        raise UserError(
            f"systems={chosen} leaves out the baseline '{config.baseline}'; add it, or set "
            f"baseline=... to one of them"
        )
    return list(chosen)


def _compare_stage(workspace: Workspace, baseline: str | None) -> Path:
    config = workspace.config(CompareConfig, "compare")
    if baseline is not None:
        config.baseline = baseline
    test_sets = workspace.require("corpus")["counts"]["splits"]["tests"]
    systems = choose_systems(config, finished_systems(workspace, "score"))
    models = list(dict.fromkeys(map(model_of, systems)))
    for system in sorted(set(finished_systems(workspace, "train")) - set(models)):
        log.warning("system %s is trained, but not in this comparison", system)
    stages = [f"train/{model}" for model in models] + [f"score/{system}" for system in systems]

    def build(directory: Path) -> StageResult:
        results = [inputs.of_workspace(workspace, system, test_sets) for system in systems]
        corpus = inputs.corpus_of(workspace.root, test_sets)
        outputs = write_report(directory, results, corpus, config, _commands(workspace, models))
        return StageResult({"systems": systems, "test_sets": test_sets}, outputs)

    run_stage(workspace, "compare", config, stages, build)
    return workspace.directory("compare")


def _compare_folders(
    workspace: Workspace, folders: Sequence[Path], baseline: str | None, out: Path
) -> Path:
    _check_out(out)
    results = inputs.of_folders(folders)
    names = [result.system for result in results]
    config = load_config(CompareConfig, [], ["baseline=''", *workspace.overrides])
    # As a name, or as the folder was given.
    config.baseline = baseline or config.baseline or names[0]
    if config.baseline not in names:
        given = dict(zip((folder.resolve() for folder in folders), names, strict=True))
        config.baseline = given.get(Path(config.baseline).resolve(), config.baseline)
    chosen = choose_systems(config, names, "Give its folder, too, or choose")
    results = [result for name in chosen for result in results if result.system == name]
    command = ["python", "-m", "asr", "compare", *map(str, folders), "--baseline", config.baseline]
    commands = [shlex.join([*command, "--out", str(out), *workspace.overrides])]
    root = next(filter(None, map(inputs.workspace_of, folders)), None)
    corpus = Corpus() if root is None else inputs.corpus_of(root, list(results[0].scores))
    write_report(out, results, corpus, config, commands)
    return out


def _check_out(out: Path) -> None:
    """UserError where the report would write over what is no report."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is there, and no folder; choose another")
    there = [name for name in (*REPORTS, clips.FOLDER) if (out / name).exists()]
    if there and not _is_report(out / "report.json"):
        raise UserError(
            f"--out {out} holds {', '.join(there)} that no comparison wrote; choose another folder"
        )


def _is_report(path: Path) -> bool:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and {"format_version", "verdicts"} <= report.keys()


def write_report(
    directory: Path,
    results: Sequence[Results],
    corpus: Corpus,
    config: CompareConfig,
    commands: Sequence[str],
) -> list[Path]:
    """Write the three reports, and audio for browsers; returns the files."""
    report = make_report(results, corpus, config)
    report["curves"] = _curves(results)
    report["commands"] = list(commands)
    texts = [directory / name for name in REPORTS]
    # First, without audio: it marks the folder as a report's, which a killed run may begin anew.
    write_json(texts[1], report)
    found = [
        place
        for row in report["utterances"]
        if (place := corpus.audio.get(row["test_set"], {}).get(row["id"]))
    ]
    links, converted = clips.link_audio(found, directory, config.audio)
    for row in report["utterances"]:
        row["audio"] = links.get(row["id"])
    write_text(texts[0], format_report(report))
    write_json(texts[1], report)
    write_text(texts[2], make_page(report))
    return [*texts, *converted]


def _curves(results: Sequence[Results]) -> list[dict[str, Any]]:
    """Training curves of each model once, though several systems may share one."""
    curves: dict[Path, dict[str, Any]] = {}
    for result in results:
        if result.events is not None and result.events not in curves:
            curves[result.events] = read_curves(result.system, result.events, result.summary)
    kept = [{**r.curves, "system": r.system} for r in results if r.curves is not None]
    return [*curves.values(), *kept]


def _commands(workspace: Workspace, models: Sequence[str]) -> list[str]:
    where = f"--recipe {workspace.recipe} --dir {workspace.root}"
    return [
        *(f"python -m asr train {where} --system {model}" for model in models),
        *(f"python -m asr {verb} {where}" for verb in ("decode", "score", "compare")),
        f"settings: stage.json beside the outputs of each in {workspace.root}",
        "rescoring: python -m asr.score REF HYP, with ref.txt and hyp.txt of "
        "decode/<system>/<test set>",
    ]
