"""Texts joined by utterance id, aligned and counted: what every table of errors is made from."""

import dataclasses
from collections.abc import Mapping

import jiwer

from asr.scoring.align import Alignment, ErrorCounts, align


@dataclasses.dataclass(frozen=True)
class ScoredUtterance:
    """One utterance: its id, the alignment of its words, and the counts of that alignment."""

    id: str
    alignment: Alignment
    counts: ErrorCounts

    @property
    def reference(self) -> str:
        """Its normalised reference."""
        return " ".join(word for word, _ in self.alignment if word is not None)

    @property
    def hypothesis(self) -> str:
        """Its normalised hypothesis; "" where that is missing."""
        return " ".join(word for _, word in self.alignment if word is not None)


@dataclasses.dataclass(frozen=True)
class Score:
    """Scored utterances, sorted bytewise by id, and the ids that have no hypothesis."""

    utterances: list[ScoredUtterance]
    missing: list[str]

    @property
    def total(self) -> ErrorCounts:
        """Counts over all utterances."""
        return sum((utterance.counts for utterance in self.utterances), ErrorCounts())

    @property
    def sentence_errors(self) -> int:
        """How many utterances have at least one error."""
        return sum(utterance.counts.errors > 0 for utterance in self.utterances)

    def wer_line(self) -> str:
        """Kaldi's line, ``%WER 7.31 [ 412 / 5636, 40 ins, 61 del, 311 sub ]``.

        The rate is ``nan`` when there are no reference words.
        """
        total = self.total
        rate = "nan" if total.rate is None else f"{100 * total.rate:.2f}"
        return (
            f"%WER {rate} [ {total.errors} / {total.words}, {total.insertions} ins, "
            f"{total.deletions} del, {total.substitutions} sub ]"
        )

    def ser_line(self) -> str:
        """Kaldi's line of sentence errors, ``%SER 33.33 [ 1 / 3 ]``."""
        errors, utterances = self.sentence_errors, len(self.utterances)
        return f"%SER {100 * errors / utterances:.2f} [ {errors} / {utterances} ]"

    def worst(self, number: int) -> list[ScoredUtterance]:
        """The ``number`` utterances with most errors; among equals, those with fewer words."""
        wrong = [utterance for utterance in self.utterances if utterance.counts.errors]
        wrong.sort(key=lambda item: (-item.counts.errors, item.counts.words, item.id))
        return wrong[:number]


def score_texts(references: Mapping[str, str], hypotheses: Mapping[str, str]) -> Score:
    """Align normalised texts by id, and check the totals against jiwer's."""
    utterances = []
    for name in sorted(references, key=str.encode):
        alignment = align(references[name].split(), hypotheses.get(name, "").split())
        utterances.append(ScoredUtterance(name, alignment, ErrorCounts.of(alignment)))
    missing = sorted(references.keys() - hypotheses.keys(), key=str.encode)
    score = Score(utterances, missing)
    _check_with_jiwer(score, references, hypotheses)
    return score


def _check_with_jiwer(
    score: Score, references: Mapping[str, str], hypotheses: Mapping[str, str]
) -> None:
    """Count a second time by other means; raises RuntimeError when the totals differ.

    Only totals can be compared: jiwer settles ties between alignments in another way.
    """
    names = list(references)
    second = jiwer.process_words(
        [references[name] for name in names], [hypotheses.get(name, "") for name in names]
    )
    errors = second.insertions + second.deletions + second.substitutions
    words = second.hits + second.deletions + second.substitutions
    total = score.total
    if (errors, words) != (total.errors, total.words):
        raise RuntimeError(
            f"the aligner counts {total.errors} errors in {total.words} words, jiwer {errors} in "
            f"{words}: one of them has a bug"
        )
