"""Stage 1: Lhotse manifests of the utterances that pass validation, and a list of the others."""

import collections
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tqdm import tqdm

from asr.audio.validation import REASONS, Rules, Verdict, examine_all
from asr.cluster import SlurmJobs, check_cluster
from asr.corpora import Corpus, Utterance, open_corpus
from asr.errors import UserError
from asr.files import write_jsonl
from asr.filterbank.cuts import write_cuts
from asr.processes import cores
from asr.stages import StageResult, Workspace, run_stage
from asr.text import TEXT_VERSION

STAGE = "manifests"
REJECTED = "rejected.jsonl"
UTTERANCES_PER_JOB = 16

if TYPE_CHECKING:
    from lhotse import MonoCut

log = logging.getLogger("asr")
Examined = list[tuple[Utterance, Verdict]]


@dataclasses.dataclass(frozen=True)
class ManifestConfig:
    """What validation asks of every utterance.

    Audio of another rate than ``sample_rate`` is rejected, or with ``resample`` converted when
    features are extracted. Of audio with several channels the utterance is ``channel`` (from 0, or
    ``mix`` for the mean of all) where the corpus does not say; null rejects it. An utterance that
    ends up to ``overhang_seconds`` after its audio is cut there.

    ``max_rejected`` is the share of a split's utterances that may be rejected before the stage
    fails, but for those that the corpus itself excludes; ``jobs`` processes decode (None: one a
    core), or the workers of ``cluster`` (see ``worker_map``); ``text_version`` states the
    normaliser.
    """

    sample_rate: int = 16_000
    resample: bool = False
    channel: int | Literal["mix"] | None = None
    overhang_seconds: float = 0.05
    min_seconds: float = 0.1
    max_seconds: float = 30.0
    max_rejected: float = 0.02
    jobs: int | None = None
    cluster: str | SlurmJobs | None = None
    text_version: int = TEXT_VERSION

    def __post_init__(self) -> None:
        if self.sample_rate <= 0:
            raise ValueError(f"sample_rate={self.sample_rate}; give a rate in Hz, e.g. 16000")
        if not 0 < self.min_seconds < self.max_seconds:
            raise ValueError(
                f"min_seconds={self.min_seconds:g}, max_seconds={self.max_seconds:g}; "
                "0 < min_seconds < max_seconds must hold"
            )
        if self.overhang_seconds < 0:
            raise ValueError(f"overhang_seconds={self.overhang_seconds:g}; it cannot be negative")
        if not 0 <= self.max_rejected <= 1:
            raise ValueError(f"max_rejected={self.max_rejected:g}; it is a share, from 0 to 1")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs={self.jobs}; it must be 1 or more, or null for one a core")
        check_cluster(self.cluster)
        if self.text_version != TEXT_VERSION:
            raise ValueError(
                f"text_version={self.text_version}; this release normalises text by version "
                f"{TEXT_VERSION} only"
            )


def run(workspace: Workspace) -> None:
    """Validate every utterance of the corpus and write one manifest a split."""
    config = workspace.config(ManifestConfig, "manifests")
    # Which processes decode does not change what comes out, so that a marker leaves it out.
    request = dataclasses.replace(config, jobs=None, cluster=None)
    run_stage(
        workspace,
        STAGE,
        request,
        inputs=["corpus"],
        build=lambda directory: build(directory, open_corpus(workspace), config),
    )


def build(directory: Path, corpus: Corpus, config: ManifestConfig) -> StageResult:
    """Write ``<split>.jsonl.gz`` for every split, and ``rejected.jsonl``.

    UserError for two utterances of one id, a split without utterances, and a split of which
    more than ``max_rejected`` is rejected; ``rejected.jsonl`` is there even then.
    """
    utterances = {split: list(corpus.utterances(split)) for split in corpus.split_names()}
    _check_ids(utterances)
    examined = _examine(utterances, corpus.splits["tests"], config)
    rejected = [row for split in examined for row in _rejected_rows(split, examined[split])]
    write_jsonl(directory / REJECTED, rejected)
    totals = _log_rejected(rejected)
    for split in examined:
        _check_share(split, examined[split], config.max_rejected, directory / REJECTED)
    counts = {}
    for split in examined:
        accepted = [pair for pair in examined[split] if not pair[1].reason]
        cuts = (_to_cut(*pair, _source(pair[0].audio, directory)) for pair in accepted)
        write_cuts(directory / f"{split}.jsonl.gz", cuts)
        counts[split] = _count(accepted, rejected=len(examined[split]) - len(accepted))
        _log_counts(split, counts[split])
    outputs = [directory / f"{split}.jsonl.gz" for split in examined]
    return StageResult(
        counts={"splits": counts, "rejected": totals}, outputs=[*outputs, directory / REJECTED]
    )


def _check_ids(utterances: Mapping[str, Sequence[Utterance]]) -> None:
    first: dict[str, str] = {}
    for split in utterances:
        for utterance in utterances[split]:
            if not utterance.id or not utterance.id.isprintable() or " " in utterance.id:
                raise UserError(
                    f"{utterance.source}: the utterance id {utterance.id!r} has white space or "
                    "what cannot be printed; Kaldi's text files could not hold it: rename it"
                )
            if utterance.id in first:
                raise UserError(
                    f"utterance id {utterance.id!r} occurs twice: {first[utterance.id]} and "
                    f"{utterance.source}; ids must be unique in all splits: rename or delete one"
                )
            first[utterance.id] = utterance.source


def _examine(
    utterances: Mapping[str, Sequence[Utterance]], tests: Sequence[str], config: ManifestConfig
) -> dict[str, Examined]:
    """Every split's utterances with their verdicts, by one pool of processes for all splits."""
    together = [utterance for split in utterances for utterance in utterances[split]]
    may_be_empty = [split in tests for split in utterances for _ in utterances[split]]
    rules = Rules(
        config.sample_rate,
        config.min_seconds,
        config.max_seconds,
        config.resample,
        config.channel,
        config.overhang_seconds,
    )
    # Starting processes takes longer than decoding a few utterances.
    jobs = min(config.jobs or cores(), max(1, len(together) // UTTERANCES_PER_JOB))
    verdicts = tqdm(
        examine_all(together, may_be_empty, rules, jobs, config.cluster),
        total=len(together),
        desc="validation",
        unit="utt",
        dynamic_ncols=True,
    )
    ordered = (verdict for _, verdict in sorted(verdicts, key=lambda pair: pair[0]))
    return {
        split: [(utterance, next(ordered)) for utterance in utterances[split]]
        for split in utterances
    }


def _rejected_rows(split: str, examined: Examined) -> list[dict[str, Any]]:
    return [
        {
            "id": utterance.id,
            "split": split,
            "file": verdict.file,
            "reason": verdict.reason,
            "detail": verdict.detail,
            "seconds": None if verdict.seconds is None else round(verdict.seconds, 3),
        }
        for utterance, verdict in examined
        if verdict.reason
    ]


def _log_rejected(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Log and return the number of utterances and hours (where measured) by reason."""
    totals: dict[str, dict[str, float]] = {}
    for row in rows:
        total = totals.setdefault(row["reason"], {"utterances": 0, "hours": 0.0})
        total["utterances"] += 1
        total["hours"] += (row["seconds"] or 0.0) / 3600
    for reason, total in sorted(totals.items()):
        total["hours"] = round(total["hours"], 4)
        log.warning("rejected: %s: %d utterances, %.4f h", reason, *total.values())
    return dict(sorted(totals.items()))


def _check_share(split: str, examined: Examined, max_rejected: float, listing: Path) -> None:
    examined = [pair for pair in examined if pair[1].reason != "excluded"]
    if not examined:
        raise UserError(f"split {split!r} has no utterances; check the corpus and its splits")
    faults = [(utterance, verdict) for utterance, verdict in examined if verdict.reason]
    share = len(faults) / len(examined)
    if share <= max_rejected and len(faults) < len(examined):
        return
    examples: dict[str, tuple[Utterance, Verdict]] = {}
    for utterance, verdict in faults:
        examples.setdefault(str(verdict.reason), (utterance, verdict))
    number = collections.Counter(verdict.reason for _, verdict in faults)
    lines = [
        f"  {reason}: {number[reason]} ({REASONS[reason]}); e.g. {utterance.id}, "
        f"{verdict.file}: {verdict.detail}"
        for reason, (utterance, verdict) in sorted(examples.items())
    ]
    raise UserError(
        f"split {split!r}: {len(faults)} of {len(examined)} utterances rejected ({share:.1%}); "
        f"at most max_rejected={max_rejected:g} may be, and one must be left:\n"
        + "\n".join(lines)
        + f"\nall of them: {listing}; mend the corpus, or raise max_rejected"
    )


def _source(audio: Path, directory: Path) -> str:
    """The path to write: from ``directory`` on for what lies in the workspace, to move with it."""
    folder = directory.resolve()
    return os.path.relpath(audio, folder) if audio.is_relative_to(folder.parent) else str(audio)


def _to_cut(utterance: Utterance, verdict: Verdict, source: str) -> "MonoCut":
    """One utterance as one cut over its stretch of the file ``source``, with one supervision."""
    # Lhotse imports torch, which takes seconds that a skipped stage need not.
    from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

    heard = verdict.recording
    assert heard is not None
    whole = utterance.start == 0 and utterance.end is None
    recording = Recording(
        id=utterance.id if whole else source,
        sources=[AudioSource("file", channels=list(range(heard.channels)), source=source)],
        sampling_rate=heard.rate,
        num_samples=heard.samples,
        duration=heard.samples / heard.rate,
    )
    duration = verdict.samples / heard.rate
    channel = 0 if verdict.channel == "mix" else verdict.channel
    supervision = SupervisionSegment(
        id=utterance.id,
        recording_id=recording.id,
        start=0.0,
        duration=duration,
        channel=channel,
        text=verdict.text,
        speaker=utterance.speaker,
    )
    return MonoCut(
        id=utterance.id,
        start=verdict.first / heard.rate,
        duration=duration,
        channel=channel,
        supervisions=[supervision],
        recording=recording,
        custom={"corpus": utterance.corpus} | ({"mix": True} if verdict.channel == "mix" else {}),
    )


def _count(accepted: Examined, rejected: int) -> dict[str, Any]:
    by_corpus: dict[str, Examined] = {}
    for pair in accepted:
        by_corpus.setdefault(pair[0].corpus, []).append(pair)
    return {
        "utterances": len(accepted),
        "hours": _hours(accepted),
        "words": sum(len(verdict.text.split()) for _, verdict in accepted),
        "speakers": len({utterance.speaker for utterance, _ in accepted}),
        "rejected": rejected,
        "with_digits": sum(any(map(str.isdigit, verdict.text)) for _, verdict in accepted),
        "corpora": {
            name: {"utterances": len(pairs), "hours": _hours(pairs)}
            for name, pairs in sorted(by_corpus.items())
        },
    }


def _hours(examined: Examined) -> float:
    return round(sum(verdict.seconds or 0.0 for _, verdict in examined) / 3600, 4)


def _log_counts(split: str, counts: Mapping[str, Any]) -> None:
    numbers = [
        f"{n} {name}" for name, n in counts.items() if name not in ("with_digits", "corpora")
    ]
    log.info("%s: %s", split, ", ".join(numbers))
    if len(counts["corpora"]) > 1:
        for name, part in counts["corpora"].items():
            log.info("%s: of %s: %d utterances, %.4f h", split, name, *part.values())
    if counts["with_digits"]:
        log.warning(
            "%s: %d transcripts have digits, left as they are: how they were read is not known",
            *(split, counts["with_digits"]),
        )
