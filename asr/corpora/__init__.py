"""Stage 0: the corpus, made on the spot, downloaded or found, and the listing of its files.

An adapter, a module of this package named for the corpus' layout, turns it into utterances and
lists its files. Everything after stage 0 sees utterances only, and does not know where a corpus
came from.
"""

import dataclasses
import importlib
import logging
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from asr.config import to_dict
from asr.corpora.archives import Archive, obtain, unpack
from asr.corpora.synthetic import SPLITS as SYNTHETIC_SPLITS
from asr.corpora.synthetic import SyntheticConfig, make_corpus
from asr.errors import UserError
from asr.files import sha256, write_text
from asr.stages import StageResult, Workspace, run_stage

STAGE = "corpus"
LISTING = "files.tsv"
CONTENTS = "contents.sha256"
UNPACKED = "unpacked"
DOWNLOADS = "downloads"  # beside the stages: what a stage owns may be emptied
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
    """Which corpus a recipe uses, and in which layout (``source``).

    It lies in ``corpus_dir``; or in the folder ``root`` of ``archives``, which are taken from the
    folder ``mirror``, else downloaded to ``downloads`` beside the stages' folders; or made here.
    """

    source: Literal["synthetic", "librispeech", "an4", "data_dir"] = "synthetic"
    name: str = "mini"
    corpus_dir: str | None = None
    archives: list[Archive] = dataclasses.field(default_factory=list)
    mirror: str | None = None
    root: str = "."
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
        if self.source != "synthetic" and self.corpus_dir is None and not self.archives:
            raise ValueError(f"source={self.source} needs corpus_dir=<folder of the corpus>")
        if self.mirror is not None and not self.archives:
            raise ValueError(
                f"mirror={self.mirror!r}, but the recipe names no archives to take there"
            )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus on disk; ``splits`` is ``{"train": ..., "dev": ..., "tests": [...]}``."""

    name: str
    source: str
    root: Path
    splits: dict[str, Any]

    def split_names(self) -> list[str]:
        """All splits: train, dev, and the test sets in their order."""
        return [self.splits["train"], self.splits["dev"], *self.splits["tests"]]

    def utterances(self, split: str) -> Iterator[Utterance]:
        """The split's utterances, sorted bytewise by id; UserError if its layout is not right."""
        return _adapter(self.source).utterances(self.root, split)


class Adapter(Protocol):
    """What a module of this package does for one corpus' layout."""

    def utterances(self, root: Path, split: str) -> Iterator[Utterance]:
        """The split's utterances, sorted bytewise by id."""

    def files(self, root: Path, split: str) -> list[str]:
        """Paths of the files that the split is made of, relative to ``root`` if they lie in it."""


def _adapter(source: str) -> Adapter:
    # A synthetic corpus is written in LibriSpeech's layout, as if it came from outside.
    layout = "librispeech" if source == "synthetic" else source
    return importlib.import_module(f"asr.corpora.{layout}")


def open_corpus(workspace: Workspace) -> Corpus:
    """The corpus that stage 0 made or found; UserError if stage 0 has not run."""
    marker = workspace.require(STAGE)
    counts, parameters = marker["counts"], marker["parameters"]
    # A corpus that was made or unpacked lies in its workspace, wherever that was moved since.
    root = Path(counts["root"])
    if parameters["corpus_dir"] is None:
        root = (workspace.directory(STAGE) / root).resolve()
    return Corpus(parameters["name"], parameters["source"], root, counts["splits"])


def run(workspace: Workspace) -> None:
    """Make the corpus or get it, and list its files, so that a change to one is noticed."""
    config = workspace.config(CorpusConfig, "corpus")
    place = _place(config)
    root = (workspace.directory(STAGE) / place).expanduser().resolve()

    def build(directory: Path) -> StageResult:
        made = None
        if config.source == "synthetic":
            made = make_corpus(directory, config.synthetic)
        elif config.corpus_dir is None and not (directory / UNPACKED).exists():
            mirror = None if config.mirror is None else Path(config.mirror).expanduser()
            unpack(
                obtain(config.archives, mirror, workspace.root / DOWNLOADS), directory / UNPACKED
            )
        return _list(directory, root, place, config, workspace.verify, made)

    def fresh(directory: Path) -> bool:
        return _is_unchanged(directory, root, config, workspace.verify)

    # Neither how many processes make the corpus nor where its archives lie changes it.
    request = replace(config, synthetic=replace(config.synthetic, jobs=None), mirror=None)
    run_stage(workspace, STAGE, request, inputs=[], build=build, fresh=fresh)


def _place(config: CorpusConfig) -> str:
    """Where the corpus lies: absolute, or from the stage's folder on."""
    if config.corpus_dir is not None:
        return str(Path(config.corpus_dir).expanduser().resolve())
    return "." if config.source == "synthetic" else str(Path(UNPACKED, config.root))


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
    directory: Path,
    root: Path,
    place: str,
    config: CorpusConfig,
    verify: bool,
    made: dict[str, Any] | None,
) -> StageResult:
    by_split = _files_by_split(root, config)
    files = _all(by_split)
    write_text(directory / LISTING, _describe(root, files))
    if verify:
        write_text(directory / CONTENTS, _digests(root, files))
    counts: dict[str, Any] = {
        "splits": to_dict(config.splits),
        "root": place,
        "audio_files": {
            split: sum(Path(name).suffix.lower() in AUDIO_SUFFIXES for name in names)
            for split, names in by_split.items()
        },
        "bytes": sum((root / name).stat().st_size for name in files),
    }
    for split, number in counts["audio_files"].items():
        log.info("corpus %s: %s: %d audio files", config.name, split, number)
    if made is not None:
        counts["synthetic"] = made
    return StageResult(counts=counts, outputs=[directory / LISTING])


def _files_by_split(root: Path, config: CorpusConfig) -> dict[str, list[str]]:
    adapter = _adapter(config.source)
    found = {split: adapter.files(root, split) for split in config.splits.names()}
    for name in _all(found):
        if not name.isprintable():  # so are tabs, line ends, and bytes that are not UTF-8
            raise UserError(f"{root}: the file name {name!r} is not printable UTF-8; rename it")
    return found


def _all(by_split: dict[str, list[str]]) -> list[str]:
    """The files of all splits, each once, sorted bytewise."""
    names = {name for names in by_split.values() for name in names}
    return sorted(names, key=lambda name: name.encode(errors="surrogateescape"))


def _describe(root: Path, files: list[str]) -> str:
    """One line a file: relative path, size in bytes, time of modification in ns."""
    lines = []
    for name in files:
        try:
            status = (root / name).stat()
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{root / name}: not a regular file; take it out of the corpus")
        except FileNotFoundError:  # a link to nowhere
            raise UserError(f"{root / name}: the link points nowhere; mend or delete it") from None
        lines.append(f"{name}\t{status.st_size}\t{status.st_mtime_ns}\n")
    return "".join(lines)


def _digests(root: Path, files: list[str]) -> str:
    """The files' SHA-256 in the format of ``sha256sum``."""
    return "".join(f"{sha256(root / name)}  {name}\n" for name in files)


def _is_unchanged(directory: Path, root: Path, config: CorpusConfig, verify: bool) -> bool:
    try:
        files = _all(_files_by_split(root, config))
    except UserError as error:
        log.warning("corpus %s: %s", root, error)
        return False
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
