"""What the report is made of: the results of systems trained here, or of any two folders."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import read_json, read_jsonl
from asr.report.clips import find_audio
from asr.score import score_files
from asr.scoring.texts import Score
from asr.scoring.transcript_formats import find_results
from asr.stages import MARKER, Workspace
from asr.systems import model_of

log = logging.getLogger("asr")

SUMMARY = "summary.json"
CURVES = "curves.json"
UNNAMED = "test"  # a test set whose files lie in the folder itself


@dataclasses.dataclass(frozen=True)
class Results:
    """One system: its training's summary, empty where unknown; the score of each test set.

    ``events`` is the folder of its TensorBoard files, or ``curves`` what a study kept of them;
    ``commit`` what the code was at.
    """

    system: str
    summary: Mapping[str, Any]
    scores: Mapping[str, Score]
    events: Path | None = None
    curves: Mapping[str, Any] | None = None
    commit: str | None = None


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What is known of the test utterances beside their words.

    ``rows``: test set -> id -> speaker, corpus and duration; ``audio`` likewise the utterance's
    place in an audio file; ``rejected``: rows of each stage's ``rejected.jsonl``, by stage.
    """

    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    audio: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    rejected: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)


def of_workspace(workspace: Workspace, system: str, test_sets: Sequence[str]) -> Results:
    """A system that was trained, decoded and scored here."""
    decoded = workspace.directory(f"decode/{system}")
    scores = {
        name: score_files(decoded / name / "ref.txt", decoded / name / "hyp.txt")
        for name in test_sets
    }
    training = _training(workspace.directory(f"train/{model_of(system)}"))
    return Results(system, scores=scores, **training)


def corpus_of(root: Path, test_sets: Sequence[str]) -> Corpus:
    """Speakers, audio and rejected utterances, as stages 1 and 3 have listed them in ``root``."""
    listings = {name: root / "tokens" / f"{name}.jsonl" for name in test_sets}
    rejected = {stage: root / stage / "rejected.jsonl" for stage in ("manifests", "tokens")}
    return Corpus(
        rows={
            name: {row["id"]: row for row in read_jsonl(path)}
            for name, path in listings.items()
            if path.exists()
        },
        audio={name: find_audio(root / "manifests" / f"{name}.jsonl.gz") for name in test_sets},
        rejected={stage: read_jsonl(path) for stage, path in rejected.items() if path.exists()},
    )


def of_folders(folders: Sequence[Path]) -> list[Results]:
    """Systems whose references and hypotheses lie in folders, in any format that is known.

    Only test sets that all have are compared. UserError for a folder without results, given
    twice, or without a test set in common with the others. A folder ``decode/<system>`` of this
    recipe brings what is known of its training; so does one with a ``summary.json``.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError(f"a folder is given twice: {' '.join(map(str, folders))}")
    found = [find_results(folder) for folder in folders]
    if all(len(sets) == 1 for sets in found):
        name = next((name for sets in found for name in sets if name), UNNAMED)
        found = [dict.fromkeys([name], *sets.values()) for sets in found]
    common = [name for name in found[0] if all(name in sets for sets in found)]
    if not common:
        listed = "; ".join(
            f"{folder}: {', '.join(name or '(itself)' for name in sets)}"
            for folder, sets in zip(folders, found, strict=True)
        )
        raise UserError(f"no test set is in all of the folders ({listed})")
    results = []
    for folder, sets, system in zip(folders, found, _short_names(folders), strict=True):
        for name in sorted(set(sets) - set(common)):
            log.warning("%s: test set %s is not in all of the folders: left out", folder, name)
        scores = {
            name: score_files(sets[name].references, sets[name].hypotheses) for name in common
        }
        named = {name or UNNAMED: score for name, score in scores.items()}
        results.append(Results(system, scores=named, **_training(_training_folder(folder))))
    return results


def _training(folder: Path) -> dict[str, Any]:
    """Fields of ``Results`` that training has left in ``folder``, which need not be there."""
    summary, marker, curves = (folder / name for name in (SUMMARY, MARKER, CURVES))
    events = folder / "tensorboard"
    measured = read_json(marker).get("measured", {}) if marker.exists() else {}
    return {
        "summary": read_json(summary) if summary.exists() else {},
        "events": events if events.is_dir() else None,
        "curves": read_json(curves) if curves.exists() else None,
        "commit": measured.get("git_commit"),
    }


def workspace_of(folder: Path) -> Path | None:
    """The workspace of this recipe that holds ``decode/<system>``; None for any other folder."""
    folder = folder.resolve()
    root = folder.parent.parent
    inside = folder.parent.name == "decode" and (root / "train" / model_of(folder.name)).is_dir()
    return root if inside else None


def _training_folder(folder: Path) -> Path:
    root = workspace_of(folder)
    return folder if root is None else root / "train" / model_of(folder.resolve().name)


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    # decode/<system> in several workspaces differ in the middle: what all share says nothing.
    words = [name.split("/") for name in names]
    if length > 1 and len(set(map(len, words))) == 1:
        kept = [i for i in range(length) if len({word[i] for word in words}) > 1]
        names = ["/".join(word[i] for i in kept) for word in words]
    return names
