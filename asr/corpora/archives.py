"""A corpus' archives: from a mirror or its own site, checked, and unpacked inside a folder."""

import dataclasses
import hashlib
import itertools
import logging
import lzma
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from tqdm import tqdm

from asr.errors import UserError
from asr.files import read_json, write_json

BLOCK = 1 << 20
TAR = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2?|txz)$")
ATTEMPTS = 5
PAUSE_SECONDS = 5.0  # before another attempt, and longer each time
TIMEOUT_SECONDS = 60.0

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class Archive:
    """Where an archive is published, and its checksum if one is: SHA-256 or MD5.

    What is not named as tar archives are is a plain file, which belongs beside the unpacked ones.
    """

    url: str
    sha256: str | None = None
    md5: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not self.name:
            raise ValueError(f"archives: url={self.url!r} is no http(s) address of a file")
        for kind, digits in (("sha256", 64), ("md5", 32)):
            value = getattr(self, kind)
            if value is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
                raise ValueError(f"archives: {kind}={value!r} is not {digits} hexadecimal digits")

    @property
    def name(self) -> str:
        """The file's name."""
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def is_plain(self) -> bool:
        """Whether it is no archive, but one file of the corpus."""
        return TAR.search(self.name) is None


def obtain(archives: Sequence[Archive], mirror: Path | None, downloads: Path) -> list[Path]:
    """The archives as files, checked: out of the folder ``mirror``, else downloaded.

    A download goes on where an earlier one stopped. UserError, with the remedy, for a file that the
    mirror lacks, a download that fails, a full disk, or contents that are not the published ones.
    """
    return [_obtain(archive, mirror, downloads) for archive in archives]


def _obtain(archive: Archive, mirror: Path | None, downloads: Path) -> Path:
    if mirror is None:
        path = downloads / archive.name
        if not path.exists():
            downloads.mkdir(parents=True, exist_ok=True)
            _download(archive, path)
        _check(archive, path, f"delete {path} and run the stage again")
        return path
    path = mirror / archive.name
    if not path.is_file():
        raise UserError(
            f"{path}: the mirror has no such archive; {archive.url} is where it is from"
        )
    # A mirror may hold a repack of its own: what it holds is the user's word.
    log.info("%s: taken from the mirror, not compared with what %s publishes", path, archive.url)
    return path


def _download(archive: Archive, path: Path) -> None:
    partial = path.with_name(f".partial-{path.name}")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _continue_download(archive.url, partial)
            partial.rename(path)
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            fatal = isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500
            if fatal or attempt == ATTEMPTS:
                raise UserError(
                    f"{archive.url}: {error}; run the stage again to go on from "
                    f"{_size(partial)} bytes, or give corpus_dir=, or mirror=<folder with "
                    f"{archive.name}>"
                ) from None
            log.warning("%s: %s; attempt %d of %d", archive.url, error, attempt + 1, ATTEMPTS)
            time.sleep(PAUSE_SECONDS * attempt)


def _continue_download(url: str, partial: Path) -> None:
    """Append to ``partial`` what it lacks; ConnectionError if the server stops short."""
    have = _size(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        if answer.status != 206:  # the server sends all of it
            have = 0
        left = int(answer.headers.get("Content-Length", 0))
        if left > shutil.disk_usage(partial.parent).free:
            raise UserError(f"{partial.parent}: no room for the {left} bytes of {url}")
        with open(partial, "ab" if have else "wb") as file, _bar(partial, have + left, have) as bar:
            while block := answer.read(BLOCK):
                file.write(block)
                bar.update(len(block))
    if left and _size(partial) != have + left:
        raise ConnectionError(f"the connection ended after {_size(partial)} of {have + left} bytes")


def _bar(path: Path, total: int, initial: int = 0) -> tqdm:
    name = path.name.removeprefix(".partial-")
    return tqdm(desc=name, total=total or None, initial=initial, unit="B", unit_scale=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check(archive: Archive, path: Path, remedy: str) -> None:
    """Compare the file with its published checksum, once; UserError if they differ."""
    kind = "sha256" if archive.sha256 else "md5"
    expected = archive.sha256 or archive.md5
    if expected is None:
        log.warning(
            "%s: %d bytes; no checksum is published for it. Unpacking and stage 1 read all of it",
            *(path, _size(path)),
        )
        return
    status = path.stat()
    facts = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, kind: expected}
    record = path.with_name(path.name + ".checked.json")
    if record.exists() and read_json(record) == facts:
        return
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != expected:
        raise UserError(f"{path}: its {kind} is {found}, published is {expected}; {remedy}")
    write_json(record, facts)


def unpack(archives: Sequence[Path], into: Path, plain: Sequence[Path] = ()) -> None:
    """Unpack tar archives into the new folder ``into``, which is there when all of it is.

    The files ``plain`` are copied into it. UserError for a member that would leave the folder, or
    is neither file, folder nor link in it; for a damaged archive; and for a disk without the room.
    """
    partial = into.with_name(f".partial-{into.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in [*archives, *plain]:
        try:
            if path in plain:
                shutil.copyfile(path, partial / path.name)
                continue
            with open(path, "rb") as file, _bar(path, _size(path)) as bar:
                _unpack(path, file, partial, bar)
        except (
            tarfile.TarError,
            EOFError,
            OSError,
            ValueError,
            zlib.error,
            lzma.LZMAError,
        ) as error:
            raise UserError(f"{path}: cannot be unpacked: {error}") from None
    partial.rename(into)


def _unpack(path: Path, file: IO[bytes], into: Path, bar: tqdm) -> None:
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for member in archive:
            if not _stays_inside(member, into):
                raise UserError(
                    f"{path}: its member {member.name!r} would leave {into}; not unpacked"
                )
            if not (member.isfile() or member.isdir() or member.issym()):
                raise UserError(f"{path}: its member {member.name!r} is neither file nor folder")
            if member.size > shutil.disk_usage(into).free:
                raise UserError(f"{into}: no room for the {member.size} bytes of {member.name}")
            archive.extract(member, into, set_attrs=False)
            bar.update(file.tell() - bar.n)
        _check_end(archive, is_plain=archive.fileobj is file)


def _stays_inside(member: tarfile.TarInfo, into: Path) -> bool:
    """Whether neither what is written, nor where a link points, lies outside the folder.

    Nothing is written through a link. A link climbs only as far as its own folder is deep, and
    only before it descends: so wherever other links lead it, it stays inside.
    """
    place = PurePosixPath(member.name)
    above = [into / place, *(into / folder for folder in place.parents)][: len(place.parts)]
    if place.is_absolute() or ".." in place.parts or any(path.is_symlink() for path in above):
        return False
    if not member.issym():
        return True
    target = PurePosixPath(member.linkname)
    climbs = list(itertools.takewhile(lambda part: part == "..", target.parts))
    descent = target.parts[len(climbs) :]
    return not target.is_absolute() and ".." not in descent and len(climbs) < len(place.parts)


def _check_end(archive: tarfile.TarFile, is_plain: bool) -> None:
    """Raise for what tarfile passes over.

    It takes a damaged header for the end, and leaves a compressed archive's checksum unread; a
    plain one has none, but ends in blocks of zeros.
    """
    stream = archive.fileobj
    assert stream is not None
    ends = True
    if is_plain:
        stream.seek(archive.offset)
        ends = stream.read(tarfile.BLOCKSIZE) == tarfile.NUL * tarfile.BLOCKSIZE
    while stream.read(BLOCK):
        pass
    if not ends or not archive.getmembers():
        raise tarfile.ReadError("damaged or cut short: it does not end as a tar archive does")
