"""What an audio file's bytes say before a decoder is asked, which is silent about these faults."""

import io
import os
import re
import stat
import struct
import zlib
from pathlib import Path

# From here on a WAV header's number of bytes means "not known yet": 2^31 or 2^32, less a header.
STREAMED = 0x7FFF_F000
OGG_HEADER, OGG_FIRST_PAGE, OGG_LAST_PAGE = 27, 0x02, 0x04
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class Fault(Exception):
    """One utterance's first fault; ``seconds`` as in ``Verdict``."""

    def __init__(self, reason: str, detail: str, seconds: float | None = None) -> None:
        super().__init__(reason, detail, seconds)
        self.reason, self.detail, self.seconds = reason, detail, seconds


def check_container(path: Path) -> float | None:
    """Raise Fault for a file that is missing, empty, no file, cut short, or without a decoder.

    Returns the seconds that an Ogg stream says it lasts, None for other kinds.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Fault("unreadable", "not a regular file")
        if status.st_size == 0:
            raise Fault("empty-file", "0 bytes", 0.0)
        with open(path, "rb") as file:
            return _check(file, status.st_size)
    except FileNotFoundError:
        raise Fault("missing-audio", f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise Fault("unreadable", str(error)) from None


def _check(file: io.BufferedReader, size: int) -> float | None:
    start = file.read(12)
    kind, form = start[:4], start[8:]
    if kind in (b"RIFF", b"RIFX", b"RF64") and form == b"WAVE":
        _check_wav(file, size, ">" if kind == b"RIFX" else "<")
    elif kind == b"FORM" and form in (b"AIFF", b"AIFC"):
        _check_claim(file, size, b"SSND", ">")
    elif kind in (b".snd", b"dns.") and len(start) == 12:
        order = ">" if kind == b".snd" else "<"
        offset, claim = struct.unpack(f"{order}II", start[4:12])
        _compare(claim, size - offset, unknown=0xFFFF_FFFF)
    elif kind == b"OggS":
        return _check_ogg(file)
    elif start[:7] == b"NIST_1A":
        _check_sphere(file, size)
    return None


def _compare(claim: int, there: int, unknown: int) -> None:
    """Raise Fault if a header claims more bytes than there are; ``unknown`` and more: no claim."""
    if there < claim < unknown:
        raise Fault("truncated", f"the header claims {claim} bytes, {there} are there")


def _check_wav(file: io.BufferedReader, size: int, order: str) -> None:
    """The data chunk, whose size RF64 tells in a chunk of its own.

    libsndfile shortens a file that claims more to what is there. A claim near 2^31 or 2^32 is what
    programs write that stream and do not know the length: there the decoded length is the true one.
    """
    file.seek(12)
    header = file.read(8)
    if header[:4] == b"ds64":
        sizes = file.read(16)
        if len(sizes) == 16:
            _check_claim(file, size, b"data", order, struct.unpack("<QQ", sizes)[1])
        return
    _check_claim(file, size, b"data", order)


def _check_claim(
    file: io.BufferedReader, size: int, wanted: bytes, order: str, claimed: int | None = None
) -> None:
    """Look for a chunk, and compare what it, or ``claimed``, says of its size with the file's."""
    file.seek(12)
    while len(header := file.read(8)) == 8:
        name, claim = struct.unpack(f"{order}4sI", header)
        if name == wanted:
            if claimed is not None:
                _compare(claimed, size - file.tell(), unknown=1 << 62)
            else:
                _compare(claim, size - file.tell(), unknown=STREAMED)
            return
        file.seek(claim + claim % 2, os.SEEK_CUR)


def _check_sphere(file: io.BufferedReader, size: int) -> None:
    """Raise Fault for NIST sphere that shorten compressed, or of another length than it claims.

    Its header is text: a line with its length, then ``name -type value`` lines.
    """
    file.seek(8)
    length = file.read(8).strip()
    header = int(length) if re.fullmatch(rb"[1-9][0-9]{0,6}", length) else 0
    file.seek(0)
    fields = {}
    for line in file.read(header).decode("latin-1").splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3:
            fields[parts[0]] = parts[2].strip()
    if "shorten" in fields.get("sample_coding", ""):
        raise Fault("shortened", f"sample_coding {fields['sample_coding']}")
    names = ("sample_count", "sample_n_bytes", "channel_count")
    numbers = [fields.get(name, "") for name in names]
    if not all(re.fullmatch(r"[0-9]{1,12}", number) for number in numbers):
        raise Fault("truncated", f"the header lacks a number for one of {', '.join(names)}")
    claim, there = int(numbers[0]) * int(numbers[1]) * int(numbers[2]), size - header
    if claim != there:
        raise Fault("truncated", f"the header claims {claim} bytes, {there} are there")


def _check_ogg(file: io.BufferedReader) -> float | None:
    """Walk through the pages of an Ogg file; the seconds that its last one tells.

    Raise Fault for a page that is missing, damaged or cut short, and for several streams, of which
    a decoder reads the first.
    """
    file.seek(0)
    first, number, last_granule, ended = b"", 0, 0, False
    while len(header := file.read(OGG_HEADER)) == OGG_HEADER:
        magic, _, flags, granule, _, sequence, _, segments = struct.unpack("<4sBBqIIIB", header)
        sizes = file.read(segments)
        body = file.read(sum(sizes))
        if len(body) < sum(sizes) or len(sizes) < segments:
            raise Fault("truncated", "the last Ogg page is cut short")
        if magic != b"OggS" or _ogg_checksum(header, sizes, body) != header[22:26]:
            raise Fault("truncated", f"Ogg page {number} is damaged")
        if flags & OGG_FIRST_PAGE and number:
            raise Fault("chained", "a second stream begins after the first")
        if sequence != number:
            raise Fault("truncated", f"Ogg page {number} is missing")
        first = first or body
        number, last_granule, ended = number + 1, granule, bool(flags & OGG_LAST_PAGE)
    if not ended:
        raise Fault("truncated", "the page that ends an Ogg stream is missing")
    if first[:8] == b"OpusHead" and len(first) >= 12:
        return max(0, last_granule - struct.unpack("<H", first[10:12])[0]) / 48_000
    if first[:7] == b"\x01vorbis" and len(first) >= 16:
        return last_granule / max(1, struct.unpack("<I", first[12:16])[0])
    return None


def _ogg_checksum(header: bytes, sizes: bytes, body: bytes) -> bytes:
    """A page's checksum as it stands in its header: CRC-32 of the other bit order than zlib's."""
    page = b"".join((header[:22], bytes(4), header[26:], sizes, body)).translate(REVERSED)
    checksum = zlib.crc32(page, 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    return checksum.to_bytes(4, "big").translate(REVERSED)
