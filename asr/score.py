"""Stage 8: word error rates from hypotheses and references, joined by utterance id.

What is counted, where the usual tools differ:

- a missing hypothesis counts as the deletion of all its words, and is named;
- an extra hypothesis is an error: it belongs to no reference;
- an empty reference is legal: words inserted there count in the totals, and the utterance's own
  error rate is null;
- both sides pass through the same normaliser, which never maps words that a model does not know;
  a hypothesis that it refuses keeps the refused words, which are then errors.

``python -m asr.score REF HYP`` scores two files, also of other toolkits (``transcript_formats``).
docs/scoring.md says what each number means, and what the files hold.
"""

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from asr.errors import UserError
from asr.files import read_jsonl, write_json, write_text
from asr.scoring.align import Alignment, ErrorCounts, aligned_lines
from asr.scoring.error_tables import counts_by, pair_counts, word_counts
from asr.scoring.files import ops_text, per_spk_text, stm_text, trn_text, words_text
from asr.scoring.summary import Rows, ScoreConfig, describe
from asr.scoring.texts import Score, ScoredUtterance, score_texts
from asr.scoring.transcript_formats import read_transcripts
from asr.stages import StageResult, Workspace, run_stage
from asr.systems import finished_systems
from asr.text import UnsafeText, normalise

log = logging.getLogger("asr")


def run(workspace: Workspace, systems: Sequence[str] | None = None) -> None:
    """Score ``systems`` (None: all decoded) on every test set, each a stage ``score/<system>``."""
    config = workspace.config(ScoreConfig, "score")
    test_sets = workspace.require("corpus")["counts"]["splits"]["tests"]
    if systems is None:
        systems = finished_systems(workspace, "decode")
    for system in systems:

        def build(directory: Path, system: str = system) -> StageResult:
            return _score_system(workspace, system, test_sets, config, directory)

        run_stage(workspace, f"score/{system}", config, ["tokens", f"decode/{system}"], build)


def score_files(reference: Path, hypothesis: Path) -> Score:
    """Score two files in any format of ``transcript_formats``, normalising both.

    One file may hold both sides. UserError for a missing file, ids that occur twice, a reference
    without utterances, a hypothesis without reference, or a reference that the normaliser rejects.
    """
    references, hypotheses = _read_references(reference), _read_hypotheses(hypothesis)
    extra = sorted(hypotheses.keys() - references.keys(), key=str.encode)
    if extra:
        raise UserError(
            f"{hypothesis}: no reference in {reference} for {len(extra)} of its utterances, the "
            f"first is {extra[0]!r}; score each file against the references of its own test set"
        )
    score = score_texts(references, hypotheses)
    if score.missing:
        log.warning(
            "%s: %d of %d utterances have no hypothesis; all their words count as deleted: %s",
            hypothesis,
            len(score.missing),
            len(references),
            " ".join(score.missing),
        )
    return score


def write_alignments(path: Path, score: Score) -> None:
    """Write each utterance's ref, hyp and op lines and its counts, as Kaldi's per_utt does."""
    blocks = []
    for utterance in score.utterances:
        counts = utterance.counts
        csid = (counts.hits, counts.substitutions, counts.insertions, counts.deletions)
        lines = (*aligned_lines(utterance.alignment), " ".join(map(str, csid)))
        blocks += [
            f"{utterance.id} {label:<5} {line}".rstrip() + "\n"
            for label, line in zip(("ref", "hyp", "op", "#csid"), lines, strict=True)
        ]
    write_text(path, "".join(blocks))


def read_alignments(path: Path) -> Score:
    """Read back what ``write_alignments`` wrote; which hypotheses were missing is not in it."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split() for line in file]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the score stage") from None
    utterances = []
    for ref, hyp, op, _ in zip(*[iter(lines)] * 4, strict=True):
        alignment: Alignment = [
            (None if letter == "I" else reference, None if letter == "D" else hypothesis)
            for reference, hypothesis, letter in zip(ref[2:], hyp[2:], op[2:], strict=True)
        ]
        utterances.append(ScoredUtterance(ref[0], alignment, ErrorCounts.of(alignment)))
    return Score(utterances, [])


def _score_system(
    workspace: Workspace,
    system: str,
    test_sets: Sequence[str],
    config: ScoreConfig,
    directory: Path,
) -> StageResult:
    outputs: list[Path] = []
    counts = {}
    for test_set in test_sets:
        decoded = workspace.directory(f"decode/{system}") / test_set
        score = score_files(decoded / "ref.txt", decoded / "hyp.txt")
        listing = workspace.directory("tokens") / f"{test_set}.jsonl"
        rows = {row["id"]: row for row in read_jsonl(listing)}
        outputs += _write_set(directory / test_set, score, rows, config)
        counts[test_set] = {**dataclasses.asdict(score.total), "missing": len(score.missing)}
        log.info("%s on %s: %s", system, test_set, score.wer_line())
    return StageResult(counts, outputs)


def _write_set(folder: Path, score: Score, rows: Rows, config: ScoreConfig) -> list[Path]:
    """Write all files of one test set; returns their paths."""
    pairs = pair_counts(item.alignment for item in score.utterances)
    speakers = counts_by((rows[item.id]["speaker"], item.counts) for item in score.utterances)
    references = {item.id: item.reference for item in score.utterances}
    hypotheses = {item.id: item.hypothesis for item in score.utterances}
    texts = {
        "wer.txt": f"{score.wer_line()}\n{score.ser_line()}\n",
        "ops": ops_text(pairs),
        "per_spk": per_spk_text(speakers),
        "words.tsv": words_text(word_counts(pairs)),
        "ref.trn": trn_text(references),
        "hyp.trn": trn_text(hypotheses),
    }
    if all("duration" in rows[name] for name in references):
        texts["ref.stm"] = stm_text(references, rows)
    for name, text in texts.items():
        write_text(folder / name, text)
    write_alignments(folder / "per_utt.txt", score)
    write_json(folder / "wer.json", describe(score, rows, config))
    return [folder / name for name in (*texts, "per_utt.txt", "wer.json")]


def _read_references(path: Path) -> dict[str, str]:
    references = {}
    for name, text in read_transcripts(path, "ref").items():
        try:
            references[name] = normalise(text)
        except UnsafeText as error:
            raise UserError(f"{path}: utterance {name!r}: {error}") from None
    if not references:
        raise UserError(f"{path}: no utterances; there is nothing to score")
    return references


def _read_hypotheses(path: Path) -> dict[str, str]:
    """Hypotheses, normalised; what the normaliser refuses stays, and counts as an error.

    A recogniser may say anything, and a word that no reference can hold is a wrong word.
    """
    hypotheses = {}
    for name, text in read_transcripts(path, "hyp").items():
        try:
            hypotheses[name] = normalise(text)
        except UnsafeText as error:
            log.warning("%s: utterance %r, word kept as it is: %s", path, name, error)
            hypotheses[name] = " ".join(map(_normalise_if_safe, text.split()))
    return hypotheses


def _normalise_if_safe(word: str) -> str:
    try:
        return normalise(word)
    except UnsafeText:
        return word


def _main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asr.score", description=__doc__)
    parser.add_argument("ref", type=Path, help="references: Kaldi's text, TRN, recogs, CSV, JSONL")
    parser.add_argument("hyp", type=Path, help="hypotheses, in any of them; REF if it has both")
    arguments = parser.parse_args(words)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        score = score_files(arguments.ref, arguments.hyp)
    except (UserError, OSError) as error:  # a folder, say
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(score.wer_line())
    print(score.ser_line())
    return 0


if __name__ == "__main__":
    sys.exit(_main())
