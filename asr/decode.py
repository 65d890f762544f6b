"""Stage 7: what each trained system hears in each test set.

``decode/<system>`` is greedy CTC search. With a section ``search`` in conf/decode.yaml there is
``decode/<system>+lm`` as well, beam search with a language model whose weights are tuned on dev.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from asr.errors import UserError
from asr.features import STATISTICS
from asr.files import read_json, read_jsonl, write_id_text
from asr.filterbank.frames import stacked_length
from asr.language_model import LEXICON, STAGE, LanguageModelConfig, model_path
from asr.language_model import run as make_language_model
from asr.model import load_model
from asr.recognition.beam_search import Beam, BeamSearch
from asr.recognition.tuning import best_of, grid_of, on_edge, sweep, write_sweep
from asr.stages import StageResult, Workspace, run_stage
from asr.systems import WITH_LM, finished_systems
from asr.tokens import BLANK, Tokenizer
from asr.training.data import UtteranceSet, pad

log = logging.getLogger("asr")
Result = TypeVar("Result")


@dataclasses.dataclass
class GreedyConfig:
    """``batch_frames``: 10 ms frames in a batch, padding included; bounds the memory."""

    batch_frames: int = 20_000

    def __post_init__(self) -> None:
        if self.batch_frames < 1:
            raise ValueError(f"batch_frames={self.batch_frames}: at least 1")


@dataclasses.dataclass
class SearchConfig:
    """Beam search: how wide, and the weights that are tried on dev; the best decode the tests."""

    beam: Beam = dataclasses.field(default_factory=Beam)
    lm_weights: list[float] = dataclasses.field(default_factory=lambda: [0.5, 1.0, 1.5, 2.0])
    word_scores: list[float] = dataclasses.field(default_factory=lambda: [-1.0, 0.0, 1.0, 2.0])

    def __post_init__(self) -> None:
        if not self.lm_weights or not self.word_scores:
            raise ValueError("search.lm_weights and search.word_scores: at least one value each")
        if not all(map(math.isfinite, [*self.lm_weights, *self.word_scores])):
            raise ValueError("search.lm_weights and search.word_scores: finite numbers")


@dataclasses.dataclass
class DecodeConfig(GreedyConfig):
    """``search`` None: greedy search alone. ``lm`` is the model for beam search."""

    search: SearchConfig | None = None
    lm: LanguageModelConfig = dataclasses.field(default_factory=LanguageModelConfig)


def run(workspace: Workspace, systems: Sequence[str] | None = None) -> None:
    """Decode every test set with ``systems`` (None: all trained), a stage ``decode/<system>`` each.

    With a section ``search``, ``decode/<system>+lm`` follows, and before all of them ``lm``.
    UserError when a model was trained on other features or tokens than the test sets have now.
    """
    config = workspace.config(DecodeConfig, "decode")
    if systems is None:
        systems = finished_systems(workspace, "train")
    if config.search:
        make_language_model(workspace, config.lm)
    for system in systems:
        _run_greedy(workspace, system, GreedyConfig(config.batch_frames))
        if config.search:
            _run_beam_search(workspace, system, config, config.search)


def greedy_search(log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
    """The tokens of the best path: repeats merged, then blanks dropped.

    ``log_probs`` ``(N, T, V)``, ``lengths`` ``(N,)``: frames from an utterance's length on are
    not looked at. Gives one list of token ids for each utterance.
    """
    best = log_probs.argmax(dim=-1)  # (N, T)
    begins = torch.ones_like(best, dtype=torch.bool)
    begins[:, 1:] = best[:, 1:] != best[:, :-1]
    inside = torch.arange(best.shape[1], device=best.device) < lengths.to(best.device)[:, None]
    kept = begins & inside & (best != BLANK)
    return [path[keep].tolist() for path, keep in zip(best.cpu(), kept.cpu(), strict=True)]


def recognise(
    model: nn.Module,
    utterances: UtteranceSet,
    tokenizer: Tokenizer,
    batch_frames: int,
    indices: Iterable[int] | None = None,
) -> dict[str, str]:
    """The words heard in every utterance, or in those of ``indices``, by id.

    ``model`` maps ``(N, T, F)`` and ``(N,)`` to log-probabilities and their lengths; it runs in
    eval mode and is left in the mode it had. Utterances of similar length share a batch of at
    most ``batch_frames`` frames, padding included. One shorter than a model frame gives "".
    """
    chosen = list(range(len(utterances)) if indices is None else indices)
    texts = {utterances.id(index): "" for index in chosen}

    def take(batch: list[int], log_probs: Tensor, lengths: Tensor) -> None:
        for index, path in zip(batch, greedy_search(log_probs, lengths), strict=True):
            texts[utterances.id(index)] = tokenizer.decode(path)

    _run_model(model, utterances, batch_frames, chosen, take)
    return texts


def log_probabilities(
    model: nn.Module, utterances: UtteranceSet, batch_frames: int
) -> dict[str, Tensor]:
    """Log-probabilities ``(T, V)`` of every utterance by id, float32 on the CPU.

    Model and batches are as in ``recognise``. T is 0 for one shorter than a model frame.
    """
    return for_each(model, utterances, batch_frames, lambda _, frames: frames.clone())


def for_each(
    model: nn.Module,
    utterances: UtteranceSet,
    batch_frames: int,
    do: Callable[[str, Tensor], Result],
) -> dict[str, Result]:
    """By id, what ``do`` makes of every utterance's id and log-probabilities, those above."""
    chosen = range(len(utterances))
    silent = [index for index in chosen if not stacked_length(utterances.frames[index])]
    names = map(utterances.id, silent)
    results = {name: do(name, torch.empty(0, 0)) for name in names}

    def take(batch: list[int], log_probs: Tensor, lengths: Tensor) -> None:
        for index, frames, length in zip(batch, log_probs.cpu(), lengths.tolist(), strict=True):
            name = utterances.id(index)
            results[name] = do(name, frames[:length])

    _run_model(model, utterances, batch_frames, chosen, take)
    return results


def _run_model(
    model: nn.Module,
    utterances: UtteranceSet,
    batch_frames: int,
    chosen: Sequence[int],
    take: Callable[[list[int], Tensor, Tensor], None],
) -> None:
    """Give ``take`` batches of those of ``chosen`` that have a model frame, and what the model
    makes of them: indices, log-probabilities and lengths."""
    device = next(model.parameters()).device
    frames = utterances.frames
    audible = [index for index in chosen if stacked_length(frames[index])]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), _progress(len(audible)) as progress:
            for batch in batches_by_length(audible, frames, batch_frames):
                features, lengths = pad([utterances.load(index) for index in batch])
                take(batch, *model(features.to(device), lengths.to(device)))
                progress.update(len(batch))
    finally:
        model.train(was_training)


def batches_by_length(
    indices: Sequence[int], frames: np.ndarray, batch_frames: int
) -> Iterator[list[int]]:
    """Batches of similar length, the longest first, so that too little memory shows at once.

    A batch times its longest utterance stays within ``batch_frames``; an utterance longer than
    that is alone.
    """
    batch: list[int] = []
    for index in sorted(indices, key=lambda index: -frames[index]):
        if batch and (len(batch) + 1) * frames[batch[0]] > batch_frames:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _progress(utterances: int) -> tqdm:
    return tqdm(total=utterances, desc="decode", unit="utt", leave=False, disable=None)


def _run_greedy(workspace: Workspace, system: str, config: GreedyConfig) -> None:
    def build(directory: Path) -> StageResult:
        model, tokenizer = _load(workspace, system)

        def hear(utterances: UtteranceSet) -> dict[str, str]:
            return recognise(model, utterances, tokenizer, config.batch_frames)

        return _decode_test_sets(workspace, system, hear, directory)

    inputs = [f"train/{system}", "features", "tokens"]
    run_stage(workspace, f"decode/{system}", config, inputs, build)


def _run_beam_search(
    workspace: Workspace, system: str, config: DecodeConfig, search: SearchConfig
) -> None:
    def build(directory: Path) -> StageResult:
        return _search_with_lm(workspace, system, config, search, directory)

    inputs = [f"train/{system}", "features", "tokens", STAGE]
    run_stage(workspace, f"decode/{system}{WITH_LM}", config, inputs, build)


def _search_with_lm(
    workspace: Workspace, system: str, config: DecodeConfig, settings: SearchConfig, directory: Path
) -> StageResult:
    model, tokenizer = _load(workspace, system)
    of_words = config.lm.units == "words"
    lexicon = workspace.directory(STAGE) / LEXICON if of_words else None
    search = BeamSearch(tokenizer, model_path(workspace), lexicon, settings.beam)
    dev = workspace.require("corpus")["counts"]["splits"]["dev"]
    references = {
        row["id"]: row["text"] for row in read_jsonl(workspace.directory("tokens") / f"{dev}.jsonl")
    }
    of_dev = log_probabilities(model, UtteranceSet.of_split(workspace, dev), config.batch_frames)
    grid = grid_of(settings.lm_weights, settings.word_scores)
    points = sweep(search.weigh, grid, of_dev, references)
    files = write_sweep(directory, points, f"{system}{WITH_LM} on {dev}")
    best = best_of(points)
    rate = None if best.counts.rate is None else round(100 * best.counts.rate, 4)
    chosen = {**dataclasses.asdict(best.weights), "dev_wer": rate}
    log.info("%s%s: the best on %s is %s", system, WITH_LM, dev, chosen)
    for name in on_edge(best.weights, grid):
        log.warning(
            "%s%s: %s=%s is on the edge of its grid; a wider one may be better (search.%ss)",
            *(system, WITH_LM, name, chosen[name], name),
        )
    search.weigh(best.weights)

    def hear(utterances: UtteranceSet) -> dict[str, str]:
        return for_each(model, utterances, config.batch_frames, lambda _, frames: search(frames))

    result = _decode_test_sets(workspace, f"{system}{WITH_LM}", hear, directory)
    return StageResult(
        {"chosen": chosen, **result.counts}, [*files, *result.outputs], result.measured
    )


def _load(workspace: Workspace, system: str) -> tuple[nn.Module, Tokenizer]:
    """The system's model, which must be of today's features and tokens, and the tokens' model."""
    path = workspace.directory(f"train/{system}") / "model.pt"
    model, travels_with = load_model(path)
    features, tokens = workspace.directory("features"), workspace.directory("tokens")
    check_same(path, "features", travels_with, read_json(features / STATISTICS)["features"])
    check_same(path, "tokens", travels_with, read_json(tokens / "tokens.json"))
    return model, Tokenizer(tokens / "tokens.model")


def _decode_test_sets(
    workspace: Workspace,
    system: str,
    hear: Callable[[UtteranceSet], dict[str, str]],
    directory: Path,
) -> StageResult:
    """Write what is heard in every test set, and what was said."""
    outputs: list[Path] = []
    counts, measured = {}, {}
    for test_set in workspace.require("corpus")["counts"]["splits"]["tests"]:
        listing = workspace.directory("tokens") / f"{test_set}.jsonl"
        utterances = UtteranceSet.of_split(workspace, test_set)
        begin = time.perf_counter()
        texts = hear(utterances)
        seconds = time.perf_counter() - begin
        files = [directory / test_set / name for name in ("hyp.txt", "ref.txt")]
        write_id_text(files[0], texts.items())
        rows = read_jsonl(listing)
        write_id_text(files[1], ((row["id"], row["text"]) for row in rows))
        outputs += files
        audio = sum(row["duration"] for row in rows)
        counts[test_set] = {"utterances": len(texts), "audio_seconds": round(audio, 2)}
        measured[test_set] = {
            "decoding_seconds": round(seconds, 3),
            "real_time_factor": round(seconds / audio, 6) if audio else None,
        }
        log.info(
            "%s on %s: %d utterances, %.1f s of audio in %.2f s, real-time factor %s",
            *(system, test_set, len(texts), audio, seconds),
            measured[test_set]["real_time_factor"],
        )
    return StageResult(counts, outputs, measured)


def check_same(model: Path, part: str, travels_with: Mapping[str, Any], now: Any) -> None:
    """UserError unless the model at ``model`` was trained with what stage ``part`` gives now."""
    then = travels_with[part]
    if then == now:
        return
    differing = [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]
    raise UserError(
        f"{model}: trained with other {part} than {part}/ holds now (they differ in "
        f"{', '.join(differing)}); train the system again, or run the {part} stage with the "
        f"settings it was trained with"
    )
