"""What stages 0 to 3 need: hours and utterances, disk, and core-hours at rates measured now.

Stages that have run are counted; the others are what the recipe's conf/plan.yaml says.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr.audio.validation import Rules
from asr.errors import UserError
from asr.features import FeaturesConfig
from asr.manifests import ManifestConfig
from asr.planning.config import PartConfig, PlanConfig
from asr.planning.preparation_rate import Rate, measure_given, measure_made
from asr.stages import Workspace
from asr.tokens import TokensConfig

# About what a row takes beside its tokens: manifests are packed (measured on AN4: 39 bytes for a
# cut, 56 with features), tokens are not (105 and four digits and signs for each token).
CUT_BYTES, CUT_WITH_FEATURES_BYTES, TOKENS_ROW_BYTES, TOKEN_BYTES = 60, 80, 120, 4
# Characters of English read aloud, in a second; and in a word piece, where there are pieces.
CHARACTERS_A_SECOND, CHARACTERS_A_PIECE = 15.0, 4.0


@dataclasses.dataclass(frozen=True)
class Split:
    """Hours and utterances of train, dev or all test sets."""

    hours: float
    utterances: int


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Stages 0 to 3. ``counted`` are the stages of which everything is counted, not planned;
    ``disk`` is bytes by stage, ``hours`` by split; ``core_hours`` of stages 1 and 2."""

    counted: list[str]
    splits: dict[str, Split]
    disk: dict[str, float]
    rates: dict[str, Rate]
    core_hours: dict[str, float]


def prepare(workspace: Workspace, config: PlanConfig, sample: Path | None) -> Preparation:
    """What stages 0 to 3 take, at rates measured on ``sample`` or, without one, on speech made now.

    UserError where neither stage 1 nor conf/plan.yaml say what train is.
    """
    counted = [
        stage for stage in ("corpus", "manifests", "features", "tokens") if workspace.has_run(stage)
    ]
    if "manifests" in counted:
        splits = _counted_splits(workspace)
    else:
        train_parts(workspace, config)
        splits = {
            purpose: Split(
                sum(part.hours for part in config.parts if part.split == purpose),
                sum(part.utterances for part in config.parts if part.split == purpose),
            )
            for purpose in ("train", "dev", "test")
        }
    disk = _planned_disk(workspace, config, splits)
    for stage in counted:
        disk[stage] = _bytes_in(workspace.directory(stage))
    rates = _rates(workspace, config, sample)
    return Preparation(counted, splits, disk, rates, _core_hours(workspace, config, splits, rates))


def train_parts(workspace: Workspace, config: PlanConfig) -> list[PartConfig]:
    """Train's parts; those that stage 1 has counted if it has run.

    UserError where there are none, or their utterances would be rejected at their mean length.
    """
    if workspace.has_run("manifests"):
        train = workspace.require("corpus")["counts"]["splits"]["train"]
        corpora = workspace.require("manifests")["counts"]["splits"][train]["corpora"]
        return [
            PartConfig(name, counts["hours"], counts["utterances"], 0, 0)
            for name, counts in corpora.items()
        ]
    parts = [part for part in config.parts if part.split == "train"]
    if not parts:
        raise UserError(
            f"{workspace.recipe}/conf/plan.yaml names no part of train, and stage 1 has not run in "
            f"{workspace.root}: say there what the corpus has, or run stages 0 to 3 first"
        )
    _check_means(workspace, parts)
    return parts


def _check_means(workspace: Workspace, parts: Sequence[PartConfig]) -> None:
    """UserError for utterances that stage 1 would reject at their mean length."""
    manifests = workspace.config(ManifestConfig, "manifests")
    shortest, longest = manifests.min_seconds, manifests.max_seconds
    for part in parts:
        mean = 3600 * part.hours / part.utterances
        if not shortest <= mean <= longest:
            raise UserError(
                f"{workspace.recipe}/conf/plan.yaml: part {part.name}: {part.hours:g} hours in "
                f"{part.utterances} utterances are {mean:g} s each, which is not within "
                f"min_seconds={shortest:g} and max_seconds={longest:g}: mend hours or utterances"
            )


def tokens_a_second(tokens: TokensConfig) -> float:
    """About what a second of read English has, characters or pieces."""
    return CHARACTERS_A_SECOND / (1.0 if tokens.kind == "char" else CHARACTERS_A_PIECE)


def _counted_splits(workspace: Workspace) -> dict[str, Split]:
    names = workspace.require("corpus")["counts"]["splits"]
    counts = workspace.require("manifests")["counts"]["splits"]
    purposes = {"train": [names["train"]], "dev": [names["dev"]], "test": names["tests"]}
    return {
        purpose: Split(
            sum(counts[name]["hours"] for name in members),
            sum(counts[name]["utterances"] for name in members),
        )
        for purpose, members in purposes.items()
    }


def _bytes_in(folder: Path) -> float:
    return float(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def _planned_disk(
    workspace: Workspace, config: PlanConfig, splits: dict[str, Split]
) -> dict[str, float]:
    """Bytes by stage; archives stay beside the corpus that was unpacked from them."""
    features, tokens = (
        workspace.config(FeaturesConfig, "features"),
        workspace.config(TokensConfig, "tokens"),
    )
    hours = sum(split.hours for split in splits.values())
    utterances = sum(split.utterances for split in splits.values())
    factors = sum(1 / speed for speed in features.speeds)
    stored = hours + splits["train"].hours * (factors - 1)
    frames = 3600 * stored / features.fbank.frame_shift
    cuts = utterances + splits["train"].utterances * (len(features.speeds) - 1)
    a_second = tokens_a_second(tokens) * TOKEN_BYTES + CHARACTERS_A_SECOND
    return {
        "archives": float(sum(part.archive_bytes for part in config.parts)),
        "corpus": float(sum(part.audio_bytes for part in config.parts)),
        "manifests": float(utterances * CUT_BYTES),
        "features": frames * _frame_bytes(features) + cuts * CUT_WITH_FEATURES_BYTES,
        "tokens": utterances * TOKENS_ROW_BYTES + 3600 * hours * a_second,
    }


def _frame_bytes(features: FeaturesConfig) -> int:
    if not features.store:
        return 0
    return features.fbank.bins * np.dtype(features.dtype).itemsize


def _rates(workspace: Workspace, config: PlanConfig, sample: Path | None) -> dict[str, Rate]:
    """By kind of audio, or one for the sample that was given."""
    manifests = workspace.config(ManifestConfig, "manifests")
    features = workspace.config(FeaturesConfig, "features")
    rules = Rules(
        manifests.sample_rate,
        manifests.min_seconds,
        manifests.max_seconds,
        manifests.resample,
        manifests.channel,
    )
    if sample is not None:
        return {"given": measure_given(sample, rules, features.fbank, features.speeds)}
    kinds = sorted({part.kind for part in config.parts}) or ["flac"]
    return {kind: measure_made(kind, rules, features.fbank, features.speeds) for kind in kinds}


def _core_hours(
    workspace: Workspace, config: PlanConfig, splits: dict[str, Split], rates: dict[str, Rate]
) -> dict[str, float]:
    """Hours of one core in stages 1 and 2, at the rates that were measured."""
    speeds = workspace.config(FeaturesConfig, "features").speeds
    total = {"validation": 0.0, "features": 0.0}
    for split, kind, hours, recorded in _hours_by_kind(config, splits):
        rate = rates.get(kind) or next(iter(rates.values()))
        total["validation"] += recorded / rate.validation
        for speed in speeds if split == "train" else [1.0]:
            total["features"] += hours / rate.features[f"{speed:g}"]
            if kind == "ogg":  # it is decoded from its beginning on, not from where speech begins
                total["features"] += (recorded - hours) / rate.validation
    return total


def _hours_by_kind(
    config: PlanConfig, splits: dict[str, Split]
) -> list[tuple[str, str, float, float]]:
    """Split, kind of audio, hours, hours recorded: the splits' own hours, in the parts' shares."""
    found: list[tuple[str, str, float, float]] = []
    for name, split in splits.items():
        parts = [part for part in config.parts if part.split == name]
        planned = sum(part.hours for part in parts)
        found += [
            (
                name,
                part.kind,
                part.hours / planned * split.hours,
                (part.recorded_hours or part.hours) / planned * split.hours,
            )
            for part in parts
        ]
        if not parts:
            found.append((name, "flac", split.hours, split.hours))
    return found
