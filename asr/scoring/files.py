"""Formats of the files that the score stage writes for other tools and for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.scoring.align import GAP, ErrorCounts, Pair
from asr.scoring.error_tables import GroupCounts, WordCounts

_PER_SPEAKER = ("#SENT", "#WORD", "Corr", "Sub", "Ins", "Del", "Err", "S.Err")


def ops_text(pairs: Mapping[Pair, int]) -> str:
    """Kaldi's ``ops``: operation, reference word, hypothesis word, how often; ``***`` for none."""
    rows = sorted((said or GAP, heard or GAP, number) for (said, heard), number in pairs.items())
    width = max((len(word) for row in rows for word in row[:2]), default=0)
    digits = max((len(str(row[2])) for row in rows), default=0)
    return "".join(
        f"{_operation(reference, hypothesis):<12}  {reference:>{width}}    {hypothesis:>{width}}"
        f"    {number:>{digits}}\n"
        for reference, hypothesis, number in rows
    )


def per_spk_text(speakers: Mapping[str, GroupCounts]) -> str:
    """Kaldi's ``per_spk``: by speaker, and in all, a line of counts and one in per cent.

    The second is left out where there are no reference words.
    """
    width = max([15, *map(len, speakers)])
    lines = [f"{'SPEAKER':<{width}} id  {_columns(_PER_SPEAKER)}\n"]
    total = sum(speakers.values(), GroupCounts())
    for name, group in [*speakers.items(), ("SUM", total)]:
        words, utterances = group.counts.words, group.utterances
        by_word, by_utterance = _csid(group.counts), group.sentence_errors
        counts = _columns([utterances, words, *by_word, by_utterance])
        lines.append(f"{name:<{width}} raw {counts}\n")
        if words:
            rates = [100 * n / words for n in by_word] + [100 * by_utterance / utterances]
            shares = _columns([utterances, words, *(f"{rate:.2f}" for rate in rates)])
            lines.append(f"{name:<{width}} sys {shares}\n")
    return "".join(lines)


def words_text(words: Mapping[str, WordCounts]) -> str:
    """A table with tabs: word, times right, substituted, deleted, inserted; most errors first."""
    rows = sorted(words.items(), key=lambda row: (-row[1].errors, row[0]))
    lines = [
        f"{word}\t{counts.right}\t{counts.substituted}\t{counts.deleted}\t{counts.inserted}\n"
        for word, counts in rows
    ]
    return "".join(["word\tright\tsubstituted\tdeleted\tinserted\n", *lines])


def trn_text(texts: Mapping[str, str]) -> str:
    """TRN of sclite: the words, then the utterance's id in parentheses."""
    return "".join(f"{text} ({name})\n".lstrip() for name, text in texts.items())


def stm_text(texts: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """STM of sclite, one segment an utterance: file (its id), channel, speaker, begin, end, words.

    ``rows`` give an utterance's ``speaker`` and ``duration`` in seconds.
    """
    return "".join(
        f"{name} 1 {rows[name]['speaker']} 0.00 {rows[name]['duration']:.2f} {text}".rstrip() + "\n"
        for name, text in texts.items()
    )


def _operation(reference: str, hypothesis: str) -> str:
    if reference == hypothesis:
        return "correct"
    if reference == GAP:
        return "insertion"
    return "deletion" if hypothesis == GAP else "substitution"


def _columns(cells: Sequence[object]) -> str:
    return " ".join(f"{cell:>10}" for cell in cells)


def _csid(counts: ErrorCounts) -> tuple[int, ...]:
    return (
        counts.hits,
        counts.substitutions,
        counts.insertions,
        counts.deletions,
        counts.errors,
    )
