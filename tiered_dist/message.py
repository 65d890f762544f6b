"""The tier-1 message: a header, the counts a tensor wanted to send, and the entries.

One int32 tensor of a size that all ranks of the subgroup know before they send, so that a step
takes one collective and no message is ever empty.

    word   0        1        2     3            4        5      6        7-8
           magic    version  step  fingerprint  tau CRC  flags  entries  samples (float64)
    then   one word a parameter: quanta it wanted to send, before the capacity cut any
    then   one word an element of the parameters that are sent as they are: float32
    then   the body: room for as many entries as the capacity says, in one of two forms
"""

import dataclasses
import zlib

import torch
from torch import Tensor

from tiered_dist.exchange import ExchangeError

MAGIC = 0x47544331  # "GTC1"
VERSION = 2
HEADER_WORDS = 9
NOT_FINITE = 1  # this worker's gradient had a NaN or an infinity, and was left out
OUT_OF_DATA = 2  # this worker will bring no more batches
_CHECKED = {0: "magic number", 1: "format version", 2: "step", 3: "parameters", 4: "thresholds"}


@dataclasses.dataclass(frozen=True)
class Received:
    """All workers' messages of one step.

    ``counts`` are the entries in each of the ``bodies`` ``(S, words)``, ``wanted`` ``(S,
    parameters)`` the quanta before the capacity cut, ``exact`` ``(S, E)`` what was sent as it is,
    ``samples`` their sum. ``active`` (with samples), ``not_finite`` and ``out_of_data`` count
    workers.
    """

    counts: list[int]
    bodies: Tensor
    wanted: Tensor
    exact: Tensor
    samples: float
    active: int
    not_finite: int
    out_of_data: int


def pack(
    step: int,
    fingerprint: int,
    taus: Tensor,
    flags: int,
    samples: float,
    wanted: Tensor,
    exact: Tensor,
    count: int,
    body: Tensor,
    body_words: int,
) -> Tensor:
    """Build the message, ``(HEADER_WORDS + parameters + E + body_words,)`` int32.

    It is made on the CPU, ``exact`` ``(E,)`` float32 and ``body`` int32 included. ``body`` holds
    ``count`` entries in at most ``body_words`` words.
    """
    parts = (wanted, exact.view(torch.int32), body)
    words = HEADER_WORDS + wanted.numel() + exact.numel() + body_words
    message = torch.zeros(words, dtype=torch.int32)
    head = [MAGIC, VERSION, step & 0x7FFFFFFF, fingerprint, _crc(taus), flags, count]
    message[: len(head)] = torch.tensor(head, dtype=torch.int32)
    message[7:9] = torch.tensor([samples], dtype=torch.float64).view(torch.int32)
    filled = torch.cat(parts)
    message[HEADER_WORDS : HEADER_WORDS + filled.numel()] = filled
    return message


def unpack(
    messages: Tensor, parameters: int, exact: int, ranks: tuple[int, ...], index: int
) -> Received:
    """Check and open the gathered messages ``(S, words)``; ``index`` is this worker's row.

    ``exact`` is E, the number of elements sent as they are. ExchangeError names the rank whose
    header disagrees with ours, the field and both values.
    """
    headers = messages[:, :HEADER_WORDS].tolist()
    for word, what in _CHECKED.items():
        for rank, header in zip(ranks, headers, strict=True):
            if header[word] != headers[index][word]:
                raise ExchangeError(
                    f"rank {rank} is at odds with rank {ranks[index]}: {what} {header[word]} "
                    f"against {headers[index][word]}; they do not train the same model in step"
                )
    samples = [float(row[7:9].clone().view(torch.float64)) for row in messages]
    flags = [header[5] for header in headers]
    sections = [
        HEADER_WORDS,
        parameters,
        exact,
        messages.shape[1] - HEADER_WORDS - parameters - exact,
    ]
    _, wanted, values, bodies = messages.split(sections, dim=1)
    return Received(
        counts=[header[6] for header in headers],
        bodies=bodies,
        wanted=wanted,
        exact=values.contiguous().view(torch.float32),
        samples=sum(samples),
        active=sum(count > 0 for count in samples),
        not_finite=sum(bool(flag & NOT_FINITE) for flag in flags),
        out_of_data=sum(bool(flag & OUT_OF_DATA) for flag in flags),
    )


def _crc(taus: Tensor) -> int:
    return zlib.crc32(taus.cpu().numpy().tobytes()) & 0x7FFFFFFF
