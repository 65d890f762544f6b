"""Stage 0: the corpus, made on the spot or found in a folder, and the listing of its files.

An adapter (``asr.corpora.librispeech``) turns a corpus' layout into utterances. Everything after
stage 0 sees utterances only, and does not know where a corpus came from.
"""

import dataclasses
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from asr.config import to_dict
from asr.corpora.synthetic import SPLITS as SYNTHETIC_SPLITS
from asr.corpora.synthetic import SyntheticConfig, make_corpus
from asr.errors import UserError
from asr.files import sha256, write_text
from asr.stages import StageResult, Workspace, run_stage

STAGE = "corpus"
LISTING = "files.tsv"
CONTENTS = "contents.sha256"
AUDIO_SUFFIXES = frozenset(
    {".flac", ".wav", ".ogg", ".opus", ".mp3", ".sph", ".aiff", ".aif", ".au"}
)

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class Utterance:
    """One utterance as the corpus claims it to be; nothing about it has been checked.

    ``audio`` is where the audio stands or ought to stand; ``text`` is the transcript as written,
    or None if there is none; ``source`` is the place of the transcript, ``file:line``. ``start``
    and ``end`` are seconds into the audio (None: its end), ``channel`` counts from 0 (None: what
    the recipe says).
    """

    id: str
    audio: Path
    text: str | None
    speaker: str
    source: str
    start: float = 0.0
    end: float | None = None
    channel: int | None = None


@dataclasses.dataclass(frozen=True)
class Splits:
    """Names of the splits by what they are for."""

    train: str = "train"
    dev: str = "dev"
    tests: list[str] = dataclasses.field(default_factory=lambda: ["test-seen", "test-unseen"])

    def __post_init__(self) -> None:
        names = self.names()
        if not self.tests:
            raise ValueError("splits.tests names no test set; give at least one")
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"splits: {name!r} cannot be a split; use letters, digits, . _ -")
            if names.count(name) > 1:
                raise ValueError(f"splits: {name!r} is named twice; a split has one purpose")

    def names(self) -> list[str]:
        """All splits: train, dev, and the test sets in their order."""
        return [self.train, self.dev, *self.tests]


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """Which corpus a recipe uses: one made here, or one that lies in ``corpus_dir``."""

    source: Literal["synthetic", "librispeech"] = "synthetic"
    name: str = "mini"
    corpus_dir: str | None = None
    splits: Splits = dataclasses.field(default_factory=Splits)
    synthetic: SyntheticConfig = dataclasses.field(default_factory=SyntheticConfig)

    def __post_init__(self) -> None:
        if self.source == "synthetic" and self.corpus_dir is not None:
            raise ValueError(
                f"corpus_dir={self.corpus_dir!r}, but a synthetic corpus is made under --dir; "
                "set source=librispeech, or corpus_dir=null"
            )
        unknown = set(self.splits.names()) - set(SYNTHETIC_SPLITS)
        if self.source == "synthetic" and unknown:
            raise ValueError(
                f"splits: {min(unknown)!r} is not in the synthetic corpus, which has "
                f"{', '.join(SYNTHETIC_SPLITS)}"
            )
        if self.source != "synthetic" and self.corpus_dir is None:
            raise ValueError(f"source={self.source} needs corpus_dir=<folder of the corpus>")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus on disk; ``splits`` is ``{"train": ..., "dev": ..., "tests": [...]}``."""

    name: str
    root: Path
    splits: dict[str, Any]

    def split_names(self) -> list[str]:
        """All splits: train, dev, and the test sets in their order."""
        return [self.splits["train"], self.splits["dev"], *self.splits["tests"]]

    def utterances(self, split: str) -> Iterator[Utterance]:
        """The split's utterances, sorted bytewise by id; UserError if its layout is not right."""
        from asr.corpora import librispeech  # it needs Utterance, so it can't come first

        # A synthetic corpus is written in LibriSpeech's layout, as if it came from outside.
        return librispeech.utterances(self.root, split)


def open_corpus(workspace: Workspace) -> Corpus:
    """The corpus that stage 0 made or found; UserError if stage 0 has not run."""
    marker = workspace.require(STAGE)
    counts, parameters = marker["counts"], marker["parameters"]
    synthetic = parameters["source"] == "synthetic"
    # A synthetic corpus lies in its workspace; the root in the marker is where it was made.
    root = workspace.directory(STAGE).resolve() if synthetic else Path(counts["root"])
    return Corpus(name=parameters["name"], root=root, splits=counts["splits"])


def run(workspace: Workspace) -> None:
    """Make the corpus or find it, and list its files, so that a change to one is noticed."""
    config = workspace.config(CorpusConfig, "corpus")
    root = workspace.directory(STAGE) if config.corpus_dir is None else Path(config.corpus_dir)
    root = root.expanduser().resolve()

    def build(directory: Path) -> StageResult:
        made = make_corpus(directory, config.synthetic) if config.source == "synthetic" else None
        return _list(directory, root, config, workspace.verify, made)

    def fresh(directory: Path) -> bool:
        return _is_unchanged(directory, root, config.splits, workspace.verify)

    # How many processes make the corpus does not change it, so that a marker leaves it out.
    request = replace(config, synthetic=replace(config.synthetic, jobs=None))
    run_stage(workspace, STAGE, request, inputs=[], build=build, fresh=fresh)


def split_folder(root: Path, split: str) -> Path:
    """The split's folder; UserError names what there is when the folder is missing."""
    if not root.is_dir():
        raise UserError(f"{root}: no such corpus folder; set corpus_dir to where the corpus lies")
    folder = root / split
    if not folder.is_dir():
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        raise UserError(
            f"{folder}: the corpus has no split folder {split!r}; {root} holds: "
            f"{', '.join(found) or 'no folders'}; mend splits or corpus_dir in conf/corpus.yaml"
        )
    return folder


def _list(
    directory: Path, root: Path, config: CorpusConfig, verify: bool, made: dict[str, Any] | None
) -> StageResult:
    files = _corpus_files(root, config.splits)
    write_text(directory / LISTING, _describe(root, files))
    if verify:
        write_text(directory / CONTENTS, _digests(root, files))
    audio = [name for name in files if Path(name).suffix.lower() in AUDIO_SUFFIXES]
    counts: dict[str, Any] = {
        "splits": to_dict(config.splits),
        "root": str(root),
        "utterances": {
            split: sum(name.startswith(split + "/") for name in audio)
            for split in config.splits.names()
        },
        "bytes": sum((root / name).stat().st_size for name in files),
    }
    for split, utterances in counts["utterances"].items():
        log.info("corpus %s: %s: %d audio files", config.name, split, utterances)
    if made is not None:
        counts["synthetic"] = made
    return StageResult(counts=counts, outputs=[directory / LISTING])


def _corpus_files(root: Path, splits: Splits) -> list[str]:
    """Paths of all files of the splits, relative to ``root``, sorted bytewise.

    Hidden files are passed over: editors, file managers and killed writers leave them.
    """
    files = []
    for split in splits.names():
        for folder, _, names in os.walk(split_folder(root, split), followlinks=True):
            inside = Path(folder).relative_to(root).as_posix()
            files += [f"{inside}/{name}" for name in names if not name.startswith(".")]
    for name in files:
        if not name.isprintable():  # so are tabs, line ends, and bytes that are not UTF-8
            raise UserError(f"{root}: the file name {name!r} is not printable UTF-8; rename it")
    return sorted(files, key=str.encode)


def _describe(root: Path, files: list[str]) -> str:
    """One line a file: relative path, size in bytes, time of modification in ns."""
    lines = []
    for name in files:
        try:
            status = (root / name).stat()
        except FileNotFoundError:  # a link to nowhere
            raise UserError(f"{root / name}: the link points nowhere; mend or delete it") from None
        lines.append(f"{name}\t{status.st_size}\t{status.st_mtime_ns}\n")
    return "".join(lines)


def _digests(root: Path, files: list[str]) -> str:
    """The files' SHA-256 in the format of ``sha256sum``."""
    return "".join(f"{sha256(root / name)}  {name}\n" for name in files)


def _is_unchanged(directory: Path, root: Path, splits: Splits, verify: bool) -> bool:
    if not root.is_dir() or not all((root / split).is_dir() for split in splits.names()):
        log.warning("corpus %s: a split's folder is gone", root)
        return False
    files = _corpus_files(root, splits)
    return _is_same(directory / LISTING, _describe(root, files)) and (
        not verify or _has_same_contents(directory / CONTENTS, root, files)
    )


def _has_same_contents(recorded: Path, root: Path, files: list[str]) -> bool:
    digests = _digests(root, files)
    if not recorded.exists():
        write_text(recorded, digests)
        log.info("%s: contents recorded; from now on --verify compares with them", recorded)
        return True
    return _is_same(recorded, digests)


def _is_same(recorded: Path, now: str) -> bool:
    """Whether a record, one line a file, still holds; logs an example if it does not."""
    changed = set(recorded.read_text(encoding="utf-8").splitlines()) ^ set(now.splitlines())
    if changed:
        log.warning("the corpus changed since %s was written: e.g. %s", recorded, min(changed))
    return not changed
