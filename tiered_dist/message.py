"""The tier-1 message: a header, the counts a tensor wanted to send, and the entries.

One int32 tensor of a size that all ranks of the subgroup know before they send, so that a step
takes one collective and no message is ever empty.

    word   0      1        2     3            4        5      6        7-8
           magic  lasted   step  fingerprint  tau CRC  ranks  entries  samples (float64)

``magic`` has the format's version in it. ``lasted`` is how many microseconds the sender spent in
the exchange of the step before: the least of them is what it takes, the rest was waiting. ``ranks``
counts those whose gradient was left out (a NaN or an infinity) in its low half, in the high half
those that will bring no more batches.

    then   one word a parameter: quanta it wanted to send, before the capacity cut any
    then   one word an element of the parameters that are sent as they are: float32
    then   the body: room for as many entries as the capacity says, in one of two forms
"""

import dataclasses
import zlib

import torch
from torch import Tensor

from tiered_dist.exchange import ExchangeError

MAGIC = 0x47544303  # "GTC", version 3
HEADER_WORDS = 9
LONGEST = (1 << 31) - 1  # microseconds that a header can tell
_CHECKED = {0: "message format", 2: "step", 3: "parameters", 4: "thresholds"}


@dataclasses.dataclass(frozen=True)
class Received:
    """All workers' messages of one step.

    ``counts`` are the entries in each of the ``bodies`` ``(S, words)``, ``wanted`` ``(S,
    parameters)`` the quanta before the capacity cut, ``exact`` ``(S, E)`` what was sent as it is,
    ``samples`` their sum. ``active`` counts workers with samples, ``not_finite`` and
    ``out_of_data`` the ranks that they said. ``lasted`` are seconds, one a worker.
    """

    counts: list[int]
    bodies: Tensor
    wanted: Tensor
    exact: Tensor
    samples: float
    active: int
    not_finite: int
    out_of_data: int
    lasted: list[float]


def pack(
    step: int,
    fingerprint: int,
    taus: Tensor,
    not_finite: int,
    out_of_data: int,
    lasted: float,
    samples: float,
    wanted: Tensor,
    exact: Tensor,
    count: int,
    body: Tensor,
    body_words: int,
) -> Tensor:
    """Build the message, ``(HEADER_WORDS + parameters + E + body_words,)`` int32.

    It is made on the CPU, ``exact`` ``(E,)`` float32 and ``body`` int32 included. ``body`` holds
    ``count`` entries in at most ``body_words`` words. ``lasted`` is in seconds.
    """
    parts = (wanted, exact.view(torch.int32), body)
    words = HEADER_WORDS + wanted.numel() + exact.numel() + body_words
    message = torch.zeros(words, dtype=torch.int32)
    microseconds = min(round(1e6 * lasted), LONGEST)
    ranks = not_finite | out_of_data << 16
    head = [MAGIC, microseconds, step & 0x7FFFFFFF, fingerprint, _crc(taus), ranks, count]
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
    own = headers[index]
    for word, what in _CHECKED.items():
        for rank, header in zip(ranks, headers, strict=True):
            if header[word] != own[word]:
                raise ExchangeError(_explain(what, (rank, header[word]), (ranks[index], own[word])))
    samples = [float(row[7:9].clone().view(torch.float64)) for row in messages]
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
        not_finite=sum(header[5] & 0xFFFF for header in headers),
        out_of_data=sum(header[5] >> 16 for header in headers),
        lasted=[1e-6 * header[1] for header in headers],
    )


def _explain(what: str, theirs: tuple[int, int], ours: tuple[int, int]) -> str:
    """What is wrong between two ranks, each with its value."""
    if what == "message format":
        return (
            f"what rank {theirs[0]} sent to rank {ours[0]} is no message of tier 1: it is in "
            "another collective (finish, save_checkpoint), or has taken another number of steps; "
            "loop over trainer.batches(loader) where ranks have unequal data"
        )
    return (
        f"rank {theirs[0]} is at odds with rank {ours[0]}: {what} {theirs[1]} against {ours[1]}; "
        "they do not train the same model in step"
    )


def _crc(taus: Tensor) -> int:
    return zlib.crc32(taus.cpu().numpy().tobytes()) & 0x7FFFFFFF
