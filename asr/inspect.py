"""``python -m asr inspect WHAT``: look at an utterance, a manifest, features, or a whole directory.

Nothing is changed; pictures are written where ``--out`` says.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.cut import MonoCut

from asr.corpora import open_corpus
from asr.errors import UserError
from asr.features import STATISTICS
from asr.files import read_json
from asr.filterbank.fbank import LogMelFbankConfig
from asr.listing import (
    Row,
    Summary,
    cut_of,
    nearest,
    quantiles,
    read_list,
    read_rows,
    rejected_by_reason,
    summarise,
)
from asr.manifests import REJECTED
from asr.pictures import save_durations, save_spectrogram
from asr.stages import MARKER, Workspace
from asr.tokens import MODEL, Tokenizer

MANIFEST = ".jsonl.gz"
BARS, BAR_WIDTH = 10, 40
# Of a file of features so many utterances are read, evenly over it.
READ_UTTERANCES = 200

Found = dict[str, Any]


def run(workspace: Workspace, what: str, as_json: bool, out: Path | None) -> None:
    """Print what ``what`` is: a prepared directory, a manifest, a file of features, or else the id
    of an utterance in the workspace.

    UserError for what is none of them, and for a damaged file.
    """
    path = Path(what)
    if path.is_dir():
        found, draw = _directory(Workspace(workspace.recipe, path))
    elif path.name.endswith(MANIFEST):
        found, draw = _manifest(path)
    elif path.is_file():
        found, draw = _features(path)
    else:
        found, draw = _utterance(workspace, what)
    if out is not None:
        found["picture"] = str(draw(out))
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(_text(found)))


def _durations_picture(summary: Summary, name: str) -> Callable[[Path], Path]:
    def draw(out: Path) -> Path:
        picture = out / f"{name}-durations.png"
        save_durations(picture, summary.seconds, f"{name}: {len(summary.seconds):,} utterances")
        return picture

    return draw


def _manifest(path: Path) -> tuple[Found, Callable[[Path], Path]]:
    summary = summarise(read_rows(path))
    found = {"manifest": str(path), **summary.to_dict(), "histogram": _histogram(summary.seconds)}
    return found, _durations_picture(summary, path.name.removesuffix(MANIFEST))


def _directory(workspace: Workspace) -> tuple[Found, Callable[[Path], Path]]:
    """All that the stages have made; the splits are those of stage 1's manifests."""
    manifests = sorted(workspace.directory("manifests").glob(f"*{MANIFEST}"))
    if not manifests:
        raise UserError(
            f"{workspace.root}: holds no {workspace.directory('manifests').name}/*{MANIFEST}; "
            "give a directory in which stage 1 has run (--dir of run.sh), a manifest, a file of "
            "features, or an utterance's id"
        )
    summaries = {}
    for manifest in manifests:
        split = manifest.name.removesuffix(MANIFEST)
        summaries[split] = summarise(read_rows(manifest))
        tokens = workspace.directory("tokens") / f"{split}.jsonl"
        if tokens.exists():
            counts = [len(row["tokens"]) for row in read_list(tokens, "tokens")]
            summaries[split].tokens = np.array(counts)
    lists = [workspace.directory(stage) / REJECTED for stage in ("manifests", "tokens")]
    largest = max(summaries, key=lambda split: len(summaries[split].seconds))
    found: Found = {
        "directory": str(workspace.root),
        "stages": sorted(
            marker.parent.relative_to(workspace.root).as_posix()
            for marker in workspace.root.glob(f"**/{MARKER}")
        ),
        "splits": {split: summary.to_dict() for split, summary in summaries.items()},
        "rejected": rejected_by_reason(lists),
        f"histogram of {largest}": _histogram(summaries[largest].seconds),
    }
    return found, _durations_picture(summaries[largest], largest)


def _features(path: Path) -> tuple[Found, Callable[[Path], Path]]:
    """A shard of features, by what the manifest beside its folder says is in it."""
    manifest = path.absolute().parent.with_name(path.absolute().parent.name + MANIFEST)
    rows = _stored_in(path, manifest) if manifest.exists() else []
    cuts = [cut_of(row, manifest) for row in rows]
    if not cuts:
        raise UserError(
            f"{path}: {manifest} does not exist, or has no features in this file; features have no "
            "header, and cannot be read without a manifest"
        )
    chosen = cuts[:: max(1, len(cuts) // READ_UTTERANCES)]
    values = np.concatenate([_load(cut) for cut in chosen])
    frames = [cut.features.num_frames for cut in cuts]
    found = {
        "features": str(path),
        "bytes": path.stat().st_size,
        "utterances": len(cuts),
        "hours": round(sum(frames) * cuts[0].features.frame_shift / 3600, 4),
        "frames": quantiles(np.array(frames)),
        "bins": cuts[0].features.num_features,
        "read": f"{len(chosen)} utterances",
        "not finite": int((~np.isfinite(values)).sum()),
        "values": quantiles(values[np.isfinite(values)]),
    }
    summary = Summary(np.array([cut.duration for cut in cuts]), 0, 0, {})
    return found, _durations_picture(summary, path.name)


def _stored_in(path: Path, manifest: Path) -> Iterator[Row]:
    resolved = path.resolve()

    @functools.cache  # a manifest's utterances lie in few files
    def is_path(stored: str | None) -> bool:
        return stored is not None and (manifest.parent / stored).resolve() == resolved

    for row in read_rows(manifest):
        if is_path((row.get("features") or {}).get("storage_path")):
            yield row


def _load(cut: MonoCut) -> np.ndarray:
    """Features ``(T, bins)``; UserError with the utterance's id when they cannot be read."""
    try:
        return cut.load_features()
    except (UserError, OSError, LookupError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]  # Lhotse adds the whole cut to it
        raise UserError(f"utterance {cut.id}: {first}") from None


def _utterance(workspace: Workspace, identity: str) -> tuple[Found, Callable[[Path], Path]]:
    split, cut = _find(workspace, identity)
    supervision = cut.supervisions[0]
    found: Found = {
        "utterance": cut.id,
        "split": split,
        "corpus": (cut.custom or {}).get("corpus"),
        "speaker": supervision.speaker,
        "audio": cut.recording.sources[0].source,
        "place": f"{cut.start:.3f} to {cut.end:.3f} s of {cut.recording.duration:.3f} s, channel "
        f"{'mix' if (cut.custom or {}).get('mix') else cut.channel}",
        "sampling rate": cut.recording.sampling_rate,
        "text as written": _as_written(workspace, split, cut.id),
        "text": supervision.text,
        **_tokens(workspace, split, cut.id),
    }
    if cut.features is None:
        found["features"] = "stage 2 has not run"
        return found, _no_picture
    features = _load(cut)
    found["features"] = f"{features.shape[0]} frames of {features.shape[1]} bins"
    found["values"] = quantiles(features.flatten())

    def draw(out: Path) -> Path:
        picture = out / f"{cut.id.replace('/', '_')}.png"
        seen, config = features, LogMelFbankConfig(bins=features.shape[1])
        statistics = workspace.directory("features") / STATISTICS
        if statistics.exists():
            known = read_json(statistics)
            config = LogMelFbankConfig.from_dict(known["features"])
            seen = (features - np.array(known["mean"])) / np.array(known["std"])
        save_spectrogram(picture, seen, config, statistics.exists(), cut.id)
        return picture

    return found, draw


def _no_picture(out: Path) -> Path:
    raise UserError("no picture without features: run the features stage first")


def _find(workspace: Workspace, identity: str) -> tuple[str, MonoCut]:
    """The utterance's split and cut, with features if there are; UserError tells what is near."""
    folder = workspace.directory("manifests")
    manifests = sorted(folder.glob(f"*{MANIFEST}"))
    if not manifests:
        raise UserError(
            f"{identity}: no such file or directory, and no utterance of {workspace.root}, in "
            "which stage 1 has not run (--dir)"
        )
    known: list[str] = []
    for manifest in manifests:
        ids = [row["id"] for row in read_rows(manifest)]
        if identity in ids:
            with_features = workspace.directory("features") / manifest.name
            source = with_features if with_features.exists() else manifest
            found = next((row for row in read_rows(source) if row["id"] == identity), None)
            if found is None:
                raise UserError(f"{source}: lacks {identity}, which {manifest} has: rerun stage 2")
            return manifest.name.removesuffix(MANIFEST), cut_of(found, source)
        known += ids
    rejected = folder / REJECTED
    keys = ("id", "reason", "detail", "file")
    for row in read_list(rejected, *keys) if rejected.exists() else []:
        if row["id"] == identity:
            raise UserError(
                f"{identity} was rejected by stage 1: {row['reason']}: {row['detail']} "
                f"({row['file']})"
            )
    raise UserError(
        f"no utterance {identity!r} in {folder}; the nearest: {', '.join(nearest(identity, known))}"
    )


def _as_written(workspace: Workspace, split: str, identity: str) -> str | None:
    """The transcript in the corpus, which may be gone by now."""
    try:
        utterances = open_corpus(workspace).utterances(split)
        return next((utt.text for utt in utterances if utt.id == identity), None)
    except (UserError, OSError, KeyError):
        return None


def _tokens(workspace: Workspace, split: str, identity: str) -> Found:
    folder = workspace.directory("tokens")
    if not (folder / f"{split}.jsonl").exists():
        return {"tokens": "stage 3 has not run"}
    for row in read_list(folder / f"{split}.jsonl", "id", "tokens"):
        if row["id"] == identity:
            pieces = Tokenizer(folder / MODEL).pieces
            return {
                "tokens": len(row["tokens"]),
                "pieces": " ".join(pieces[token] for token in row["tokens"]),
            }
    return {"tokens": f"left out by stage 3, see {folder / REJECTED}"}


def _histogram(seconds: np.ndarray) -> list[list[float]]:
    """``[from, to, utterances]`` by bar."""
    counts, edges = np.histogram(seconds, bins=BARS)
    return [
        [round(float(low), 2), round(float(high), 2), int(count)]
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


def _text(found: Found, indent: str = "") -> Iterator[str]:
    """Lines of ``name value``; figures of one thing on one line."""
    for name, value in found.items():
        if name.startswith("histogram"):
            yield f"{indent}{name} (seconds)"
            yield from _bars(value, indent)
        elif isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
            yield f"{indent}{name}"
            yield from _text(value, indent + "  ")
        elif isinstance(value, dict):
            shown = ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
            yield f"{indent}{name:<16} {shown or '-'}"
        elif isinstance(value, list):
            yield f"{indent}{name:<16} {', '.join(map(str, value)) or '-'}"
        else:
            yield f"{indent}{name:<16} {_shown(value)}"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _bars(histogram: Sequence[Sequence[float]], indent: str) -> Iterator[str]:
    most = max((bar[2] for bar in histogram), default=0) or 1
    for low, high, count in histogram:
        bar = "#" * round(BAR_WIDTH * count / most)
        yield f"{indent}  {low:6.2f} to {high:6.2f} {int(count):9,} {bar}".rstrip()
