"""Stage 0: the corpus, made on the spot, downloaded or found, and the listing of its files.

An adapter, a module of this package named for the corpus' layout, turns it into utterances and
lists its files. Everything after stage 0 sees utterances only, and does not know where a corpus
came from.
"""

import dataclasses
import heapq
import importlib
import logging
import re
import stat
from collections.abc import Iterable, Iterator
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

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a split or a part
Layout = Literal["librispeech", "tedlium", "voxpopuli", "fisher", "switchboard", "an4", "data_dir"]

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class Utterance:
    """One utterance as the corpus claims it to be; nothing about it has been checked.

    ``audio`` is where the audio stands or ought to stand; ``text`` is the transcript as written,
    or None if there is none; ``source`` is the place of the transcript, ``file:line``. ``start``
    and ``end`` are seconds into the audio (None: its end), ``channel`` counts from 0 (None: what
    the recipe says). ``excluded`` is why the corpus itself leaves it out, if it does; ``corpus`` is
    the part that it is of.
    """

    id: str
    audio: Path
    text: str | None
    speaker: str
    source: str
    start: float = 0.0
    end: float | None = None
    channel: int | None = None
    excluded: str | None = None
    corpus: str = ""


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
            if not NAME.fullmatch(name):
                raise ValueError(f"splits: {name!r} cannot be a split; use letters, digits, . _ -")
            if names.count(name) > 1:
                raise ValueError(f"splits: {name!r} is named twice; a split has one purpose")

    def names(self) -> list[str]:
        """All splits: train, dev, and the test sets in their order."""
        return [self.train, self.dev, *self.tests]


@dataclasses.dataclass(frozen=True)
class PartConfig:
    """One of the corpora that a recipe joins; where it lies is said as in ``CorpusConfig``.

    ``splits`` names, for each of the recipe's splits that the part has a share in, its own.
    """

    source: Layout
    splits: dict[str, list[str]]
    corpus_dir: str | None = None
    archives: list[Archive] = dataclasses.field(default_factory=list)
    root: str = "."


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """Which corpus a recipe uses, and in which layout (``source``).

    It lies in ``corpus_dir``; or in the folder ``root`` of ``archives``, which are taken from the
    folder ``mirror``, else downloaded to ``downloads`` beside the stages' folders; or made here.
    Source ``parts`` joins several corpora, the ``parts``: ``corpus_dir`` then holds a folder for
    each of them, called as it is (of one alone it is that folder), and ``mirror`` the archives of
    all.
    """

    source: Literal["synthetic", "parts", Layout] = "synthetic"
    name: str = "mini"
    corpus_dir: str | None = None
    archives: list[Archive] = dataclasses.field(default_factory=list)
    mirror: str | None = None
    root: str = "."
    splits: Splits = dataclasses.field(default_factory=Splits)
    synthetic: SyntheticConfig = dataclasses.field(default_factory=SyntheticConfig)
    parts: dict[str, PartConfig] = dataclasses.field(default_factory=dict)

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
        if (self.source == "parts") != bool(self.parts):
            raise ValueError("source=parts and parts need each other: set both, or neither")
        if self.parts:
            self._check_parts()
        elif self.source != "synthetic" and self.corpus_dir is None and not self.archives:
            raise ValueError(f"source={self.source} needs corpus_dir=<folder of the corpus>")
        if self.mirror is not None and not any(part.archives for part in self.members().values()):
            raise ValueError(
                f"mirror={self.mirror!r}, but the recipe names no archives to take there"
            )

    def _check_parts(self) -> None:
        if self.archives or self.root != ".":
            raise ValueError("archives and root belong to each of the parts")
        for name, part in self.parts.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"parts: {name!r} cannot be a part; use letters, digits, . _ -")
            for split in part.splits:
                if split not in self.splits.names():
                    raise ValueError(
                        f"parts.{name}.splits: {split!r} is none of the recipe's splits, "
                        f"{', '.join(self.splits.names())}"
                    )
            if part.corpus_dir is None and self.corpus_dir is None and not part.archives:
                raise ValueError(
                    f"parts.{name} needs parts.{name}.corpus_dir=<folder of that corpus>, or "
                    f"corpus_dir=<folder with {'/, '.join(self.parts)}/>"
                )
        for split in self.splits.names():
            if not any(part.splits.get(split) for part in self.parts.values()):
                raise ValueError(f"parts: none of them has a share in the split {split!r}")
        archives = [archive.name for part in self.parts.values() for archive in part.archives]
        if len(set(archives)) < len(archives):
            raise ValueError("parts: two archives have the same file name")

    def members(self) -> dict[str, PartConfig]:
        """The corpora by name; for a recipe of one, that one."""
        if not self.parts:
            layout: Layout = "librispeech"
            if self.source != "synthetic" and self.source != "parts":
                layout = self.source
            splits = {split: [split] for split in self.splits.names()}
            one = PartConfig(layout, splits, self.corpus_dir, self.archives, self.root)
            return {self.name: one}
        if self.corpus_dir is None:
            return self.parts
        alone = len(self.parts) == 1
        return {
            name: replace(
                part,
                corpus_dir=part.corpus_dir or str(Path(self.corpus_dir, "." if alone else name)),
            )
            for name, part in self.parts.items()
        }


@dataclasses.dataclass(frozen=True)
class Part:
    """One corpus on disk; ``splits`` are its own by the recipe's."""

    name: str
    source: str
    root: Path
    splits: dict[str, list[str]]

    def utterances(self, split: str) -> Iterator[Utterance]:
        """Its share of the recipe's split, sorted bytewise by id.

        UserError, with the part and its split, if there is nothing in one of its own splits.
        """
        for utterance in _merge(self._own(own) for own in self.splits.get(split, [])):
            yield replace(utterance, corpus=self.name)

    def _own(self, split: str) -> Iterator[Utterance]:
        """One of its own splits."""
        found = False
        for utterance in _adapter(self.source).utterances(self.root, split):
            found = True
            yield utterance
        if not found:
            raise UserError(
                f"part {self.name!r}: its split {split!r} has no utterances; look into "
                f"{self.root}, or mend the part's splits in conf/corpus.yaml"
            )

    def files(self, split: str) -> list[str]:
        """Files of its share of the recipe's split, relative to ``root`` if they lie in it."""
        adapter = _adapter(self.source)
        return [
            name for own in self.splits.get(split, []) for name in adapter.files(self.root, own)
        ]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What a recipe trains on; ``splits`` is ``{"train": ..., "dev": ..., "tests": [...]}``."""

    parts: list[Part]
    splits: dict[str, Any]

    def split_names(self) -> list[str]:
        """All splits: train, dev, and the test sets in their order."""
        return [self.splits["train"], self.splits["dev"], *self.splits["tests"]]

    def utterances(self, split: str) -> Iterator[Utterance]:
        """The split's utterances, sorted bytewise by id; UserError if its layout is not right."""
        return _merge(part.utterances(split) for part in self.parts)


def _merge(sorted_parts: Iterable[Iterator[Utterance]]) -> Iterator[Utterance]:
    return heapq.merge(*sorted_parts, key=lambda utterance: utterance.id.encode())


class Adapter(Protocol):
    """What a module of this package does for one corpus' layout."""

    def utterances(self, root: Path, split: str) -> Iterator[Utterance]:
        """The split's utterances, sorted bytewise by id."""

    def files(self, root: Path, split: str) -> list[str]:
        """Paths of the files that the split is made of, relative to ``root`` if they lie in it."""


def _adapter(layout: str) -> Adapter:
    return importlib.import_module(f"asr.corpora.{layout}")


def open_corpus(workspace: Workspace) -> Corpus:
    """The corpus that stage 0 made or found; UserError if stage 0 has not run."""
    counts = workspace.require(STAGE)["counts"]
    # A corpus that was made or unpacked lies in its workspace, wherever that was moved since.
    stage = workspace.directory(STAGE)
    parts = [
        Part(name, part["source"], (stage / part["root"]).resolve(), part["splits"])
        for name, part in counts["parts"].items()
    ]
    return Corpus(parts, counts["splits"])


def run(workspace: Workspace) -> None:
    """Make the corpus or get it, and list its files, so that a change to one is noticed."""
    config = workspace.config(CorpusConfig, "corpus")
    places = {name: _place(config, name, part) for name, part in config.members().items()}
    stage = workspace.directory(STAGE)
    corpus = Corpus(
        [
            Part(name, part.source, (stage / places[name]).resolve(), part.splits)
            for name, part in config.members().items()
        ],
        to_dict(config.splits),
    )

    def build(directory: Path) -> StageResult:
        made = None
        if config.source == "synthetic":
            made = make_corpus(directory, config.synthetic)
        else:
            # What there is to complain about in the user's folders comes before hours of unpacking.
            there = [part for part in corpus.parts if Path(places[part.name]).is_absolute()]
            _files_by_split(corpus, there)
            _get(config, directory, workspace.root / DOWNLOADS)
        return _list(directory, corpus, places, config, workspace.verify, made)

    def fresh(directory: Path) -> bool:
        return _is_unchanged(directory, corpus, workspace.verify)

    # How many processes make the corpus, where its archives lie and how its folder is written
    # change nothing.
    request = replace(
        config,
        synthetic=replace(config.synthetic, jobs=None),
        mirror=None,
        corpus_dir=_resolved(config.corpus_dir),
        parts={
            name: replace(part, corpus_dir=_resolved(part.corpus_dir))
            for name, part in config.parts.items()
        },
    )
    run_stage(workspace, STAGE, request, inputs=[], build=build, fresh=fresh)


def _unpacked(config: CorpusConfig, name: str) -> str:
    """Where a part's archives are unpacked, from the stage's folder on."""
    return f"{UNPACKED}/{name}" if config.parts else UNPACKED


def _resolved(folder: str | None) -> str | None:
    """The same place, however it was written."""
    return None if folder is None else str(Path(folder).expanduser().resolve())


def _place(config: CorpusConfig, name: str, part: PartConfig) -> str:
    """Where a part lies: absolute, or from the stage's folder on."""
    if part.corpus_dir is not None:
        return str(_resolved(part.corpus_dir))
    return "." if config.source == "synthetic" else str(Path(_unpacked(config, name), part.root))


def _get(config: CorpusConfig, directory: Path, downloads: Path) -> None:
    """Unpack what lies neither in a folder of the user's nor here already."""
    mirror = None if config.mirror is None else Path(config.mirror).expanduser()
    for name, part in config.members().items():
        folder = directory / _unpacked(config, name)
        if part.corpus_dir is None and not folder.exists():
            paths = obtain(part.archives, mirror, downloads)
            plain = [path for path, one in zip(paths, part.archives, strict=True) if one.is_plain]
            unpack([path for path in paths if path not in plain], folder, plain)


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
    corpus: Corpus,
    places: dict[str, str],
    config: CorpusConfig,
    verify: bool,
    made: dict[str, Any] | None,
) -> StageResult:
    by_split = _files_by_split(corpus, corpus.parts)
    files = _all(by_split)
    write_text(directory / LISTING, _describe(files))
    if verify:
        write_text(directory / CONTENTS, _digests(files))
    counts: dict[str, Any] = {
        "splits": corpus.splits,
        "parts": {
            part.name: {"source": part.source, "root": places[part.name], "splits": part.splits}
            for part in corpus.parts
        },
        "audio_files": {
            split: sum(Path(name).suffix.lower() in AUDIO_SUFFIXES for name in names)
            for split, names in by_split.items()
        },
        "bytes": sum(path.stat().st_size for path in files.values()),
    }
    for split, number in counts["audio_files"].items():
        log.info("corpus %s: %s: %d audio files", config.name, split, number)
    if made is not None:
        counts["synthetic"] = made
    return StageResult(counts=counts, outputs=[directory / LISTING])


Files = dict[str, Path]  # by the name in the listing


def _files_by_split(corpus: Corpus, parts: Iterable[Part]) -> dict[str, Files]:
    return {
        split: {name: path for part in parts for name, path in _files_of(corpus, part, split)}
        for split in corpus.split_names()
    }


def _files_of(corpus: Corpus, part: Part, split: str) -> Iterator[tuple[str, Path]]:
    several = len(corpus.parts) > 1
    try:
        names = part.files(split)
    except UserError as error:
        if not several:
            raise
        raise UserError(f"part {part.name}: {error} (parts.{part.name}.corpus_dir)") from None
    for name in names:
        if not name.isprintable():  # so are tabs, line ends, and bytes that are not UTF-8
            raise UserError(
                f"{part.root}: the file name {name!r} is not printable UTF-8; rename it"
            )
        shown = f"{part.name}/{name}" if several and not Path(name).is_absolute() else name
        yield shown, part.root / name


def _all(by_split: dict[str, Files]) -> Files:
    """The files of all splits, each once, sorted bytewise by name."""
    together = {name: path for files in by_split.values() for name, path in files.items()}
    return {name: together[name] for name in sorted(together, key=str.encode)}


def _describe(files: Files) -> str:
    """One line a file: name, size in bytes, time of modification in ns."""
    lines = []
    for name, path in files.items():
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: not a regular file; take it out of the corpus")
        except FileNotFoundError:  # a link to nowhere
            raise UserError(f"{path}: the link points nowhere; mend or delete it") from None
        lines.append(f"{name}\t{status.st_size}\t{status.st_mtime_ns}\n")
    return "".join(lines)


def _digests(files: Files) -> str:
    """The files' SHA-256 in the format of ``sha256sum``."""
    return "".join(f"{sha256(path)}  {name}\n" for name, path in files.items())


def _is_unchanged(directory: Path, corpus: Corpus, verify: bool) -> bool:
    try:
        files = _all(_files_by_split(corpus, corpus.parts))
        described = _describe(files)
    except UserError as error:
        log.warning("corpus: %s", error)
        return False
    return _is_same(directory / LISTING, described) and (
        not verify or _has_same_contents(directory / CONTENTS, files)
    )


def _has_same_contents(recorded: Path, files: Files) -> bool:
    digests = _digests(files)
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
