"""What the report is made of: the results of systems trained here, or of any two folders."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import read_json, read_jsonl
from asr.report.clips import find_audio
from asr.score import Score, score_texts
from asr.stages import MARKER, Workspace
from asr.systems import model_of
from asr.text import UnsafeText, normalise
from asr.transcript_formats import find_results, read_transcripts

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class Results:
    """One system: its training's summary, empty where unknown; the score of each test set.

    ``extra`` names, by test set, hypotheses that have no reference and are not scored. ``events``
    is the folder of its TensorBoard files, ``config`` the file of its settings, ``commit`` what
    the code was at.
    """

    system: str
    summary: Mapping[str, Any]
    scores: Mapping[str, Score]
    extra: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    events: Path | None = None
    config: Path | None = None
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
        name: _score(decoded / name / "ref.txt", decoded / name / "hyp.txt")[0]
        for name in test_sets
    }
    training = _training(workspace.directory(f"train/{model_of(system)}"))
    return Results(system, scores=scores, **training)


def corpus_of(workspace: Workspace, test_sets: Sequence[str]) -> Corpus:
    """Speakers, audio and rejected utterances, as stages 1 and 3 have listed them."""
    listings = {
        name: read_jsonl(workspace.directory("tokens") / f"{name}.jsonl") for name in test_sets
    }
    rejected = {}
    for stage in ("manifests", "tokens"):
        path = workspace.directory(stage) / "rejected.jsonl"
        if path.exists():
            rejected[stage] = read_jsonl(path)
    manifests = workspace.directory("manifests")
    return Corpus(
        rows={name: {row["id"]: row for row in rows} for name, rows in listings.items()},
        audio={name: find_audio(manifests / f"{name}.jsonl.gz") for name in test_sets},
        rejected=rejected,
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
        name = next((name for sets in found for name in sets if name), "test")
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
        scored = {name: _score(sets[name].references, sets[name].hypotheses) for name in common}
        results.append(
            Results(
                system,
                scores={name: score for name, (score, _) in scored.items()},
                extra={name: extra for name, (_, extra) in scored.items() if extra},
                **_training(_training_folder(folder)),
            )
        )
    return results


def _score(references: Path, hypotheses: Path) -> tuple[Score, list[str]]:
    """The score of two files, and the ids that only the hypotheses have."""
    ref = {}
    for name, text in read_transcripts(references, "ref").items():
        try:
            ref[name] = normalise(text)
        except UnsafeText as error:
            raise UserError(f"{references}: utterance {name!r}: {error}") from None
    if not ref:
        raise UserError(f"{references}: no utterances; there is nothing to compare")
    hyp = {name: _safely(text) for name, text in read_transcripts(hypotheses, "hyp").items()}
    extra = sorted(hyp.keys() - ref.keys(), key=str.encode)
    return score_texts(ref, {name: text for name, text in hyp.items() if name in ref}), extra


def _safely(text: str) -> str:
    """Normalised; a word that the normaliser refuses stays, and is wrong as no reference has it."""
    try:
        return normalise(text)
    except UnsafeText:
        return " ".join(map(_safely, words)) if len(words := text.split()) > 1 else text.strip()


def _training(folder: Path) -> dict[str, Any]:
    """Fields of ``Results`` that training has left in ``folder``, which need not be there."""
    summary, marker = folder / "summary.json", folder / MARKER
    events, config = folder / "tensorboard", folder / "config.yaml"
    measured = read_json(marker).get("measured", {}) if marker.exists() else {}
    return {
        "summary": read_json(summary) if summary.exists() else {},
        "events": events if events.is_dir() else None,
        "config": config if config.exists() else None,
        "commit": measured.get("git_commit"),
    }


def _training_folder(folder: Path) -> Path:
    """``train/<system>`` beside a ``decode/<system>``; else the folder itself."""
    folder = folder.resolve()
    trained = folder.parents[1] / "train" / model_of(folder.name) if folder.parent.name else folder
    return trained if folder.parent.name == "decode" and trained.is_dir() else folder


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
