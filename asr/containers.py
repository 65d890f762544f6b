"""What an audio file's bytes say before a decoder is asked, which is silent about these faults."""

import io
import os
import struct
from pathlib import Path

# From here on a WAV header's number of bytes means "not known yet": 2^31 or 2^32, less a header.
STREAMED = 0x7FFF_F000
SPHERE_HEADER = 1024  # bytes, as all known files have
OGG_TAIL = 1 << 17  # more than an Ogg page's greatest length, 65,307 bytes
OGG_LAST_PAGE = 0x04


class Fault(Exception):
    """One utterance's first fault; ``seconds`` as in ``Verdict``."""

    def __init__(self, reason: str, detail: str, seconds: float | None = None) -> None:
        super().__init__(reason, detail, seconds)
        self.reason, self.detail, self.seconds = reason, detail, seconds


def check_container(path: Path) -> None:
    """Raise Fault for a file that is not there, empty, cut short, or of a kind without decoder."""
    try:
        size = path.stat().st_size
        if size == 0:
            raise Fault("empty-file", "0 bytes", 0.0)
        with open(path, "rb") as file:
            start = file.read(12)
            if start[:4] == b"RIFF" and start[8:] == b"WAVE":
                _check_wav(file, size)
            elif start[:4] == b"OggS":
                _check_ogg(file, size)
            elif start[:7] == b"NIST_1A":
                _check_sphere(file, size)
    except FileNotFoundError:
        raise Fault("missing-audio", f"{path} does not exist") from None
    except OSError as error:
        raise Fault("unreadable", str(error)) from None


def _check_wav(file: io.BufferedReader, size: int) -> None:
    """Raise Fault if the data chunk claims more bytes than the file has.

    libsndfile shortens such a file to what is there. A claim near 2^31 or 2^32 is what programs
    write that stream and do not know the length: there the decoded length is the true one.
    """
    while len(header := file.read(8)) == 8:
        name, claim = struct.unpack("<4sI", header)
        if name == b"data":
            there = size - file.tell()
            if there < claim < STREAMED:
                raise Fault("truncated", f"the header claims {claim} bytes, {there} are there")
            return
        file.seek(claim + claim % 2, os.SEEK_CUR)


def _check_sphere(file: io.BufferedReader, size: int) -> None:
    """Raise Fault for NIST sphere that shorten compressed, or that claims more than it has.

    Its header is text: a line with its length, then ``name -type value`` lines.
    """
    file.seek(0)
    length = file.read(16).split()
    header = int(length[1]) if len(length) > 1 and length[1].isdigit() else SPHERE_HEADER
    file.seek(0)
    fields = {}
    for line in file.read(header).decode("latin-1").splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3:
            fields[parts[0]] = parts[2].strip()
    if "shorten" in fields.get("sample_coding", ""):
        raise Fault("shortened", f"sample_coding {fields['sample_coding']}")
    numbers = [fields.get(name, "") for name in ("sample_count", "sample_n_bytes", "channel_count")]
    if all(number.isdigit() for number in numbers):
        claim = int(numbers[0]) * int(numbers[1]) * int(numbers[2])
        if claim > size - header:
            raise Fault("truncated", f"the header claims {claim} bytes, {size - header} are there")


def _check_ogg(file: io.BufferedReader, size: int) -> None:
    """Raise Fault if the stream's last page is not there, up to its last byte.

    A decoder takes the last page it finds for the end, so that its lengths always agree.
    """
    file.seek(max(0, size - OGG_TAIL))
    tail = file.read()
    page = tail.rfind(b"OggS\0")
    header = tail[page : page + 27]
    if page < 0 or len(header) < 27 or not header[5] & OGG_LAST_PAGE:
        raise Fault("truncated", "the page that ends an Ogg stream is missing")
    segments = tail[page + 27 : page + 27 + header[26]]
    if page + 27 + header[26] + sum(segments) > len(tail):
        raise Fault("truncated", "the last Ogg page is cut short")
