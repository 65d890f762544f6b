"""Where the errors are: utterances, speakers, words; and what was left out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asr.report.inputs import Results
from asr.scoring.align import Alignment, Pair, aligned_lines
from asr.scoring.error_tables import WordCounts, counts_by, pair_counts, word_counts
from asr.scoring.summary import describe_counts

LINE_WIDTH = 120
LISTED = 10  # ids named where a number alone would not help
Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]  # test set -> id -> speaker, corpus ...


def by(key: str, results: Sequence[Results], rows: Rows) -> list[dict[str, Any]]:
    """Errors and words by ``speaker`` or ``corpus``, of utterances whose is known."""
    listing = []
    for test_set in results[0].scores:
        names = {name: row.get(key) for name, row in rows.get(test_set, {}).items()}
        groups = {
            result.system: counts_by(
                (name, item.counts)
                for item in result.scores[test_set].utterances
                if (name := names.get(item.id)) is not None
            )
            for result in results
        }
        for name in groups[results[0].system]:
            rates = {system: describe_counts(by[name].counts) for system, by in groups.items()}
            listing.append({"test_set": test_set, key: name, "rates": rates})
    return listing


def words(results: Sequence[Results], number: int) -> list[dict[str, Any]]:
    """The words that cost most errors over all systems and test sets, with each system's counts.

    ``wrong`` counts the times a reference word was deleted or heard as another, ``inserted`` the
    times it was heard where nothing was said.
    """
    tables = {result.system: word_counts(_pairs(result)) for result in results}
    cost: Counter[str] = Counter()
    for table in tables.values():
        cost.update({word: counts.errors for word, counts in table.items() if counts.errors})
    ordered = sorted(cost, key=lambda word: (-cost[word], word))[:number]
    listing = []
    for word in ordered:
        by_system = {system: table.get(word, WordCounts()) for system, table in tables.items()}
        first = by_system[results[0].system]
        listing.append(
            {
                "word": word,
                "said": first.right + first.substituted + first.deleted,
                "wrong": {name: one.substituted + one.deleted for name, one in by_system.items()},
                "inserted": {name: one.inserted for name, one in by_system.items()},
            }
        )
    return listing


def confusions(results: Sequence[Results], number: int) -> list[dict[str, Any]]:
    """The most frequent pairs of reference and hypothesis word that differ, over all systems.

    None in the hypothesis' place is a deletion, in the reference's an insertion.
    """
    pairs = {result.system: _pairs(result) for result in results}
    total: Counter[Pair] = Counter()
    for counts in pairs.values():
        total.update({pair: count for pair, count in counts.items() if pair[0] != pair[1]})
    ordered = sorted(total, key=lambda pair: (-total[pair], pair[0] or "", pair[1] or ""))
    return [
        {
            "reference": pair[0],
            "hypothesis": pair[1],
            "counts": {system: counts[pair] for system, counts in pairs.items()},
        }
        for pair in ordered[:number]
    ]


def disagreements(baseline: Results, others: Sequence[Results]) -> list[dict[str, Any]]:
    """Utterances that one of a system and the baseline has wholly right and the other not."""
    listing = []
    for other in others:
        for test_set, theirs in baseline.scores.items():
            pairs = list(zip(other.scores[test_set].utterances, theirs.utterances, strict=True))
            gained = [m.id for m, t in pairs if not m.counts.errors and t.counts.errors]
            lost = [m.id for m, t in pairs if m.counts.errors and not t.counts.errors]
            both_wrong = sum(m.counts.errors > 0 and t.counts.errors > 0 for m, t in pairs)
            listing.append(
                {
                    "system": other.system,
                    "baseline": baseline.system,
                    "test_set": test_set,
                    "only_system_right": gained,
                    "only_baseline_right": lost,
                    "both_right": len(pairs) - len(gained) - len(lost) - both_wrong,
                    "both_wrong": both_wrong,
                }
            )
    return listing


def worst(results: Sequence[Results], number: int) -> list[dict[str, Any]]:
    """Each system's ``number`` worst utterances by test set: ref, hyp and op lines in columns."""
    return [
        {
            "system": result.system,
            "test_set": test_set,
            "id": item.id,
            "errors": item.counts.errors,
            "words": item.counts.words,
            "lines": [line for part in wrap(item.alignment) for line in _labelled(part)],
        }
        for result in results
        for test_set, score in result.scores.items()
        for item in score.worst(number)
    ]


def utterances(results: Sequence[Results], rows: Rows) -> list[dict[str, Any]]:
    """Every utterance, the one with most errors first: errors by system, and texts in columns.

    ``reference`` and each of ``hypotheses`` are lists of one length; None where there is no word.
    """
    listing = []
    for test_set in results[0].scores:
        scores = [result.scores[test_set].utterances for result in results]
        for items in zip(*scores, strict=True):
            row = rows.get(test_set, {}).get(items[0].id, {})
            reference, hypotheses = columns([item.alignment for item in items])
            systems = [result.system for result in results]
            listing.append(
                {
                    "id": items[0].id,
                    "test_set": test_set,
                    "speaker": row.get("speaker"),
                    "seconds": row.get("duration"),
                    "words": items[0].counts.words,
                    "errors": {s: i.counts.errors for s, i in zip(systems, items, strict=True)},
                    "reference": reference,
                    "hypotheses": dict(zip(systems, hypotheses, strict=True)),
                }
            )
    return sorted(listing, key=lambda row: -sum(row["errors"].values()))


def columns(
    alignments: Sequence[Alignment],
) -> tuple[list[str | None], list[list[str | None]]]:
    """Put several alignments of one reference below each other: the reference, the hypotheses.

    Insertions between the same two reference words share columns.
    """
    slots = [list(_slots(alignment)) for alignment in alignments]
    reference: list[str | None] = []
    hypotheses: list[list[str | None]] = [[] for _ in alignments]
    for place in zip(*slots, strict=True):
        width = max(len(inserted) for inserted, _, _ in place)
        word = place[0][1]
        reference += [None] * width + ([word] if word is not None else [])
        for line, (inserted, _, heard) in zip(hypotheses, place, strict=True):
            line += [*inserted, *[None] * (width - len(inserted))]
            line += [heard] if word is not None else []
    return reference, hypotheses


def left_out(
    results: Sequence[Results], rejected: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """What no rate counts, or counts as wrong for want of a hypothesis, by reason."""
    listing: list[dict[str, Any]] = []
    for stage, rows in rejected.items():
        kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            kinds.setdefault((row["split"], row["reason"]), []).append(row)
        for (split, reason), members in sorted(kinds.items()):
            seconds = round(sum(row.get("seconds") or 0.0 for row in members), 3)
            what = {"what": f"not used ({stage})", "set": split, "reason": reason}
            names = [row["id"] for row in members]
            listing.append(what | _named(names) | {"seconds": seconds})
    for result in results:
        for test_set, score in result.scores.items():
            if score.missing:
                reason = "no hypothesis: all words count as deleted"
                what = {"what": result.system, "set": test_set, "reason": reason}
                listing.append(what | _named(score.missing) | {"seconds": None})
    return listing


def wrap(alignment: Alignment) -> Iterator[Alignment]:
    """Cut an alignment into parts whose lines fit into the report's width."""
    part: Alignment = []
    for pair in alignment:
        if part and max(map(len, aligned_lines([*part, pair]))) > LINE_WIDTH - 8:
            yield part
            part = []
        part.append(pair)
    yield part


def _named(ids: Sequence[str]) -> dict[str, Any]:
    return {"utterances": len(ids), "ids": list(ids[:LISTED])}


def _pairs(result: Results) -> Counter[Pair]:
    return pair_counts(
        item.alignment for score in result.scores.values() for item in score.utterances
    )


def _slots(alignment: Alignment) -> Iterator[tuple[list[str], str | None, str | None]]:
    """For each reference word, and for the end: what was inserted before it, it, what was heard."""
    inserted: list[str] = []
    for reference, hypothesis in alignment:
        if reference is None:
            assert hypothesis is not None
            inserted.append(hypothesis)
        else:
            yield inserted, reference, hypothesis
            inserted = []
    yield inserted, None, None


def _labelled(alignment: Alignment) -> list[str]:
    lines = zip(("ref", "hyp", "op "), aligned_lines(alignment), strict=True)
    return [f"{label}  {line}" for label, line in lines]
