"""Stage 7: what each trained system hears in each test set, by greedy CTC search."""

import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from asr.data import UtteranceSet, pad
from asr.errors import UserError
from asr.features import STATISTICS
from asr.files import read_json, read_jsonl, write_id_text
from asr.frames import stacked_length
from asr.model import load_model
from asr.stages import StageResult, Workspace, run_stage
from asr.systems import finished_systems
from asr.tokens import BLANK, Tokenizer

log = logging.getLogger("asr")


@dataclasses.dataclass
class DecodeConfig:
    """``batch_frames``: 10 ms frames in a batch, padding included; bounds the memory."""

    batch_frames: int = 20_000

    def __post_init__(self) -> None:
        if self.batch_frames < 1:
            raise ValueError(f"batch_frames={self.batch_frames}: at least 1")


def run(workspace: Workspace) -> None:
    """Decode every test set with every trained system, one stage ``decode/<system>`` each.

    UserError when a model was trained on other features or tokens than the test sets have now.
    """
    config = workspace.config(DecodeConfig, "decode")
    test_sets = workspace.require("corpus")["counts"]["splits"]["tests"]
    for system in finished_systems(workspace, "train"):

        def build(directory: Path, system: str = system) -> StageResult:
            return _decode_system(workspace, system, test_sets, config, directory)

        inputs = [f"train/{system}", "features", "tokens"]
        run_stage(workspace, f"decode/{system}", config, inputs, build)


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
    device = next(model.parameters()).device
    frames = utterances.frames
    chosen = list(range(len(utterances)) if indices is None else indices)
    texts = {utterances.id(index): "" for index in chosen}
    audible = [index for index in chosen if stacked_length(frames[index])]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), _progress(len(audible)) as progress:
            for batch in batches_by_length(audible, frames, batch_frames):
                features, lengths = pad([utterances.load(index) for index in batch])
                log_probs, out_lengths = model(features.to(device), lengths.to(device))
                for index, path in zip(batch, greedy_search(log_probs, out_lengths), strict=True):
                    texts[utterances.id(index)] = tokenizer.decode(path)
                progress.update(len(batch))
    finally:
        model.train(was_training)
    return texts


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


def _decode_system(
    workspace: Workspace,
    system: str,
    test_sets: Sequence[str],
    config: DecodeConfig,
    directory: Path,
) -> StageResult:
    path = workspace.directory(f"train/{system}") / "model.pt"
    model, travels_with = load_model(path)
    features, tokens = workspace.directory("features"), workspace.directory("tokens")
    check_same(path, "features", travels_with, read_json(features / STATISTICS)["features"])
    check_same(path, "tokens", travels_with, read_json(tokens / "tokens.json"))
    tokenizer = Tokenizer(tokens / "tokens.model")
    outputs: list[Path] = []
    counts, measured = {}, {}
    for test_set in test_sets:
        listing = tokens / f"{test_set}.jsonl"
        utterances = UtteranceSet.of_split(workspace, test_set)
        begin = time.perf_counter()
        texts = recognise(model, utterances, tokenizer, config.batch_frames)
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
