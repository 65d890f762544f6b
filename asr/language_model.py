"""The stage ``lm``: the n-gram model and the lexicon that beam search uses.

``lm.arpa`` predicts words, or tokens; ``lexicon.txt`` says how each word is spelled in tokens. The
verb ``decode`` makes both before it decodes with them.
"""

import dataclasses
import logging
import shutil
import subprocess
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from asr.errors import UserError
from asr.files import atomic_write, read_json, read_jsonl, read_lines, sha256, write_text
from asr.ngrams.arpa import write_arpa
from asr.ngrams.kneser_ney import check_pruning, estimate
from asr.ngrams.model import BEGIN, END, BackoffModel, fit
from asr.stages import MARKER, StageResult, Workspace, run_stage
from asr.text import UnsafeText, normalise
from asr.tokens import UNKNOWN, WORD_MARK, Tokenizer

STAGE = "lm"
ARPA = "lm.arpa"
BINARY = "lm.binary"
LEXICON = "lexicon.txt"

log = logging.getLogger("asr")


@dataclasses.dataclass
class LanguageModelConfig:
    """``units`` of the n-grams, their ``order``, and ``prune``, see ``kneser_ney.estimate``.

    ``text`` is a file with one sentence a line, in place of train's transcripts.
    """

    units: Literal["words", "tokens"] = "words"
    order: int = 3
    prune: list[int] = dataclasses.field(default_factory=list)
    text: str | None = None

    def __post_init__(self) -> None:
        try:
            check_pruning(self.order, self.prune)
        except ValueError as error:
            raise ValueError(f"lm: {error}") from None


def run(workspace: Workspace, config: LanguageModelConfig) -> None:
    """Estimate the model and write the lexicon, unless that was done from the same text."""

    def build(directory: Path) -> StageResult:
        return _build(workspace, config, own_text, directory)

    def fresh(directory: Path) -> bool:
        then = read_json(directory / MARKER)["counts"]["text_sha256"]
        return config.text is None or sha256(_own_text(config.text)) == then

    own_text = None
    done = workspace.has_run(STAGE) and fresh(workspace.directory(STAGE))
    if config.text is not None and not done:
        # Before the stage empties what it made of another text: this one may be no good.
        own_text = _read_own_text(_own_text(config.text))
    run_stage(workspace, STAGE, config, ["corpus", "tokens"], build, fresh)


def model_path(workspace: Workspace) -> Path:
    """The file that a decoder loads: KenLM's binary where there is one, else the ARPA file."""
    binary = workspace.directory(STAGE) / BINARY
    return binary if binary.exists() else workspace.directory(STAGE) / ARPA


def spell(tokenizer: Tokenizer, word: str) -> list[str] | None:
    """The tokens of a word in a text, None where the token model lacks one of its characters.

    Word pieces mark a word's beginning themselves. Characters mark the space between two words,
    so that a word ends with the mark: it is what tells a decoder that the word is over.
    """
    tokens = tokenizer.encode(word)
    if UNKNOWN in tokens:
        return None
    pieces = tokenizer.pieces
    spelling = [pieces[token] for token in tokens]
    return [*spelling, WORD_MARK] if ends_words(tokenizer) else spelling


def ends_words(tokenizer: Tokenizer) -> bool:
    """Whether the mark stands between words as a token of its own, as it does for characters."""
    return WORD_MARK in tokenizer.pieces and not tokenizer.marks_beginnings


def _build(
    workspace: Workspace,
    config: LanguageModelConfig,
    own_text: list[list[str]] | None,
    directory: Path,
) -> StageResult:
    tokens = workspace.directory("tokens")
    tokenizer = Tokenizer(tokens / "tokens.model")
    splits = workspace.require("corpus")["counts"]["splits"]
    transcripts = {
        split: [row["text"].split() for row in read_jsonl(tokens / f"{split}.jsonl")]
        for split in (splits["train"], splits["dev"], *splits["tests"])
    }
    train = transcripts[splits["train"]]
    text: Sequence[Sequence[str]] = train
    if config.text is not None:
        text = own_text or _read_own_text(_own_text(config.text))
    sentences = _in_units(text, config.units, tokenizer)
    try:
        model = estimate(sentences, config.order, config.prune)
    except ValueError as error:
        raise UserError(f"lm: {error}; is {config.text or 'the text of train'} empty?") from None
    write_arpa(directory / ARPA, _for_kenlm(model))
    lexicon, unspellable = _make_lexicon([*train, *text], tokenizer)
    write_text(
        directory / LEXICON,
        "".join(f"{word}\t{' '.join(spelling)}\n" for word, spelling in lexicon.items()),
    )
    fits = {}
    for split in (splits["dev"], *splits["tests"]):
        units = _in_units(transcripts[split], config.units, tokenizer)
        fits[split] = {**_fit(model, units), **_outside(lexicon, transcripts[split])}
        log.info(
            "lm on %s: perplexity %s of known %s, %s %% of the words are not in the lexicon",
            *(split, fits[split]["perplexity"], config.units),
            fits[split]["out_of_vocabulary_percent"],
        )
    counts = {
        "text_sha256": None if config.text is None else sha256(_own_text(config.text)),
        "sentences": len(sentences),
        "units": sum(map(len, sentences)),
        "ngrams": [len(table) for table in model.entries],
        "lexicon": len(lexicon),
        "unspellable": unspellable,
        "texts": fits,
    }
    return StageResult(counts, [directory / ARPA, directory / LEXICON, *_make_binary(directory)])


def _make_lexicon(
    text: Iterable[Sequence[str]], tokenizer: Tokenizer
) -> tuple[dict[str, list[str]], int]:
    """Each word of ``text`` and its spelling, and how many words the tokens cannot spell."""
    words = sorted({word for sentence in text for word in sentence})
    lexicon = {word: spelling for word in words if (spelling := spell(tokenizer, word))}
    missing = [word for word in words if word not in lexicon]
    if missing:
        log.warning(
            "lm: %d words have characters that no token has, and cannot be recognised: %s",
            *(len(missing), ", ".join(missing[:10])),
        )
    return lexicon, len(missing)


def _fit(model: BackoffModel, sentences: Iterable[Sequence[str]]) -> dict[str, Any]:
    found = fit(model, sentences)
    perplexity = None if found.perplexity is None else round(found.perplexity, 4)
    return {"units": found.words, "unknown_units": found.unknown, "perplexity": perplexity}


def _outside(lexicon: Container[str], text: Iterable[Sequence[str]]) -> dict[str, Any]:
    words = [word for sentence in text for word in sentence]
    outside = sum(word not in lexicon for word in words)
    return {
        "words": len(words),
        "out_of_vocabulary": outside,
        "out_of_vocabulary_percent": round(100 * outside / len(words), 2) if words else None,
    }


def _for_kenlm(model: BackoffModel) -> BackoffModel:
    """KenLM reads no unigram model: one with a bigram that says what the unigram says already."""
    if model.order > 1:
        return model
    end = model.entries[0][(END,)]
    return BackoffModel([*model.entries, {(BEGIN, END): (end[0], 0.0)}])


def _in_units(
    text: Iterable[Sequence[str]], units: str, tokenizer: Tokenizer
) -> list[Sequence[str]]:
    """Sentences of words as they are, or those that tokens can spell as the tokens' pieces."""
    if units == "words":
        return list(text)
    pieces = tokenizer.pieces
    encoded = (tokenizer.encode(" ".join(sentence)) for sentence in text)
    return [[pieces[token] for token in tokens] for tokens in encoded if UNKNOWN not in tokens]


def _own_text(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"lm.text={name}: no such file; one sentence a line, as UTF-8")
    return path


def _read_own_text(path: Path) -> list[list[str]]:
    """The lines of ``path`` that have words, normalised as transcripts are.

    UserError, with the line, for what the normaliser refuses; and where no line has words.
    """
    sentences = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            words = normalise(line).split()
        except UnsafeText as error:
            raise UserError(f"{path}:{number}: {error}") from None
        if words:
            sentences.append(words)
    if not sentences:
        raise UserError(f"lm.text={path}: no line of it has words")
    return sentences


def _make_binary(directory: Path) -> list[Path]:
    """The model in KenLM's format, which loads at once, where KenLM's build_binary is installed.

    KenLM's Python package can only query a model.
    """
    program = shutil.which("build_binary")
    if program is None:
        return []
    with atomic_write(directory / BINARY) as partial:
        command = [program, str(directory / ARPA), str(partial)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return [directory / BINARY]
