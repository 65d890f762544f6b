"""Stage 3: the token model, every utterance as token ids, and what CTC cannot align.

Token id 0 is the CTC blank; sentencepiece's piece p is token p + 1 (so 1 is the unknown piece).
There are no begin and end tokens, which CTC has no use for.
"""

import collections
import dataclasses
import functools
import io
import itertools
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from asr.errors import UserError
from asr.features import manifest_name
from asr.files import atomic_write, write_json, write_jsonl
from asr.filterbank.frames import stacked_length
from asr.filterbank.storage import feature_rows, read_cuts
from asr.stages import StageResult, Workspace, run_stage
from asr.training.data import UtteranceSet, index_name

STAGE = "tokens"
MODEL = "tokens.model"
BLANK = 0
BLANK_PIECE = "<blank>"
UNKNOWN = 1
WORD_MARK = "\u2581"  # sentencepiece's sign for a space, where a word begins
TOO_MANY_TOKENS = "too-many-tokens"

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class TokensConfig:
    """``size``: tokens without the blank; None: every character of train (``char`` only)."""

    kind: Literal["char", "bpe"] = "char"
    size: int | None = None

    def __post_init__(self) -> None:
        if self.kind == "bpe" and self.size is None:
            raise ValueError("kind: bpe needs a size, say size: 120")
        if self.size is not None and self.size < 2:
            raise ValueError(f"size={self.size} leaves no token beside the unknown one")


class Tokenizer:
    """Text to token ids and back, by a trained token model.

    Raises UserError when ``path`` is missing or not a sentencepiece model.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UserError(f"{path}: no such file; run the tokens stage")
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except RuntimeError as error:
            raise UserError(f"{path}: not a token model ({error})") from None

    @property
    def size(self) -> int:
        """Number of tokens, the blank included: the width of the model's output."""
        return self._model.get_piece_size() + 1

    @functools.cached_property
    def pieces(self) -> list[str]:
        """What each token id stands for, blank first; a word's beginning is written U+2581."""
        model = self._model
        return [BLANK_PIECE, *(model.id_to_piece(i) for i in range(model.get_piece_size()))]

    @property
    def marks_beginnings(self) -> bool:
        """Whether every word begins with the mark, the first one too, as word pieces do."""
        return bool(self._model.encode("a", out_type=str)[0][0] == WORD_MARK)

    def encode(self, text: str) -> list[int]:
        """Token ids of normalised text; adjacent unknown characters share one unknown token."""
        return [piece + 1 for piece in self._model.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, words separated by one space; blanks must have been removed."""
        return " ".join(self._model.decode([token - 1 for token in ids]).split())

    def unknown_characters(self, text: str) -> str:
        """The characters of ``text`` that the token model does not have, in order."""
        pieces = zip(self._model.encode(text), self._model.encode(text, out_type=str), strict=True)
        return "".join(surface for piece, surface in pieces if piece + 1 == UNKNOWN)


def ctc_frames_needed(tokens: Sequence[int]) -> int:
    """The fewest output frames from which CTC can give ``tokens``: a blank parts equal ones."""
    return len(tokens) + sum(a == b for a, b in itertools.pairwise(tokens))


def train_token_model(texts: Sequence[str], config: TokensConfig) -> bytes:
    """A sentencepiece model as bytes; the same texts in the same order give the same bytes.

    Raises UserError when the texts are too few for ``config.size``, with the size they allow.
    """
    if not any(texts):
        raise UserError("the train split has no text to train the token model on")
    characters = len(set().union(*texts)) + 1  # and the unknown one
    if config.kind == "char" and (config.size or 0) > characters:
        raise UserError(_too_large(config, characters))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.size or characters,
            character_coverage=1.0,
            normalization_rule_name="identity",  # texts come normalised
            # Word pieces mark a word's beginning; for characters a mark at the utterance's
            # beginning would be a token that nobody says.
            add_dummy_prefix=config.kind == "bpe",
            unk_id=UNKNOWN - 1,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            # Longer texts would be left out. (Fewer than 10 bytes are not accepted.)
            max_sentence_length=max(10, *(len(text.encode()) for text in texts)),
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_explain(str(error), config)) from None
    return model.getvalue()


def _explain(message: str, config: TokensConfig) -> str:
    if most := re.search(r"size too high.*<= (\d+)", message):
        return _too_large(config, int(most[1]))
    if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"tokens: size={config.size} is too small: the characters of train alone need "
            f"{least[1]} tokens; set size={least[1]} or more"
        )
    return f"tokens: sentencepiece cannot train on the text of train: {message}"


def _too_large(config: TokensConfig, most: int) -> str:
    return (
        f"tokens: size={config.size} is too large for the text of train, which gives at most "
        f"{most} {config.kind} tokens; set size={most} or less"
    )


def run(workspace: Workspace) -> None:
    """Train the token model on train, encode every split, reject what CTC cannot align."""
    config = workspace.config(TokensConfig, STAGE)
    splits = workspace.require("corpus")["counts"]["splits"]
    features = workspace.directory("features")
    speeds = workspace.require("features")["counts"]["speeds"]

    def build(directory: Path) -> StageResult:
        return _build(directory, features, splits, speeds, config)

    run_stage(workspace, STAGE, config, ["features"], build)


def _build(
    directory: Path,
    features: Path,
    splits: dict[str, Any],
    speeds: Sequence[float],
    config: TokensConfig,
) -> StageResult:
    train, dev, tests = splits["train"], splits["dev"], splits["tests"]
    texts = [cut.supervisions[0].text for cut in read_cuts(features / manifest_name(train))]
    tokenizer = _save_model(directory, train_token_model(texts, config), config)
    outputs = [directory / MODEL, directory / "tokens.json", directory / "rejected.jsonl"]
    counts: dict[str, Any] = {"size": tokenizer.size}
    rejected: list[dict[str, Any]] = []
    for split in [train, dev, *tests]:
        rows = [_encode(cut, tokenizer) for cut in read_cuts(features / manifest_name(split))]
        unknown = _count_unknown(split, rows, tokenizer)
        refused: dict[str, dict[str, Any]] = {}
        if split not in tests:
            frames = _fewest_frames(features, split, speeds if split == train else [1.0])
            refused = _refuse(split, rows, frames)
        kept = [row for row in rows if row["id"] not in refused]
        write_jsonl(directory / f"{split}.jsonl", kept)
        split_speeds = sorted(speeds, key=lambda s: (s != 1.0, s)) if split == train else [1.0]
        manifests = [features / manifest_name(split, speed) for speed in split_speeds]
        utterances = UtteranceSet.of_files(directory / f"{split}.jsonl", manifests)
        utterances.write_index(directory / index_name(split))
        outputs += [directory / f"{split}.jsonl", directory / index_name(split)]
        rejected += refused.values()
        counts[split] = {
            "utterances": len(kept),
            "tokens": sum(len(row["tokens"]) for row in kept),
            "unknown_characters": unknown,
            "rejected": len(refused),
        }
    write_jsonl(directory / "rejected.jsonl", rejected)
    return StageResult(counts=counts, outputs=outputs)


def _save_model(directory: Path, model: bytes, config: TokensConfig) -> Tokenizer:
    with atomic_write(directory / MODEL) as partial:
        partial.write_bytes(model)
    tokenizer = Tokenizer(directory / MODEL)
    description = {"kind": config.kind, "size": tokenizer.size, "pieces": tokenizer.pieces}
    write_json(directory / "tokens.json", description)
    return tokenizer


def _encode(cut: Any, tokenizer: Tokenizer) -> dict[str, Any]:
    supervision = cut.supervisions[0]
    return {
        "id": cut.id,
        "speaker": supervision.speaker,
        "corpus": cut.custom["corpus"],
        "text": supervision.text,
        "duration": cut.duration,
        "frames": cut.features.num_frames,
        "tokens": tokenizer.encode(supervision.text),
    }


def _count_unknown(split: str, rows: Iterable[dict[str, Any]], tokenizer: Tokenizer) -> int:
    unknown: collections.Counter[str] = collections.Counter()
    for row in rows:
        if UNKNOWN in row["tokens"]:
            unknown.update(tokenizer.unknown_characters(row["text"]))
    if unknown:
        shown = ", ".join(f"{character!r} x {n}" for character, n in unknown.most_common(10))
        log.warning(
            "%s: %d characters are unknown to the token model: %s", split, unknown.total(), shown
        )
    return unknown.total()


def _fewest_frames(features: Path, split: str, speeds: Sequence[float]) -> dict[str, int]:
    """By utterance id, the frames at the fastest speed: the hardest case for CTC."""
    rows = feature_rows(features / manifest_name(split, max(speeds)))
    return {utterance: row["num_frames"] for utterance, row in rows}


def _refuse(
    split: str, rows: Sequence[dict[str, Any]], frames: dict[str, int]
) -> dict[str, dict[str, Any]]:
    """By utterance id, the rows of rejected.jsonl for what CTC cannot align."""
    refused = {}
    for row in rows:
        have, needed = stacked_length(frames[row["id"]]), ctc_frames_needed(row["tokens"])
        if have < needed:
            detail = f"{len(row['tokens'])} tokens need {needed} model frames, the audio has {have}"
            refused[row["id"]] = {
                "id": row["id"],
                "split": split,
                "reason": TOO_MANY_TOKENS,
                "detail": detail,
                "seconds": round(row["duration"], 3),
            }
    if refused:
        hours = sum(row["seconds"] for row in refused.values()) / 3600
        number = len(refused)
        log.warning(
            "rejected: %s: %s: %d utterances, %.4f h", split, TOO_MANY_TOKENS, number, hours
        )
    if rows and len(refused) == len(rows):
        raise UserError(
            f"split {split!r}: no utterance can be aligned with its tokens (e.g. "
            f"{rows[0]['id']}: {refused[rows[0]['id']]['detail']}); do audio and text belong "
            "together?"
        )
    return refused
