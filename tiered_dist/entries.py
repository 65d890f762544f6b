"""How quanta travel: one entry each, in 32 bits or in 16.

In 32 bits an entry is ``flat index << 1 | sign``. In 16 bits the model is cut into stretches of
2**15 elements; a message first says how many entries each stretch has, 16 bits a stretch, then come
the entries, stretch by stretch, as ``index in the stretch << 1 | sign``. Which form is smaller
follows from the message's capacity, which all ranks of a subgroup know.
"""

import torch
from torch import Tensor

from tiered_dist import codec, native
from tiered_dist.native import NotThisModel

STRETCH_BITS = 15
STRETCH = 1 << STRETCH_BITS
# An entry is positive as a 32-bit integer.
MAX_ELEMENTS = 1 << 30
# Entries of a stretch that its 16-bit count can tell.
MOST_IN_STRETCH = (1 << 16) - 1


def words(count: int, total: int, capacity: int) -> int:
    """32-bit words that ``count`` entries take in a message for ``capacity`` of them.

    ``total`` is the number of elements of the model.
    """
    return (_stretches(total) + count + 1) // 2 if _is_short(total, capacity) else count


def fit(positions: Tensor, quanta: Tensor, total: int, capacity: int) -> Tensor:
    """``quanta`` ``(E,)``, at most ``capacity`` of them, less what the form cannot tell.

    That is nothing unless a stretch sends two quanta an element.
    """
    if not _is_short(total, capacity) or capacity <= MOST_IN_STRETCH:
        return quanta
    stretch = positions >> STRETCH_BITS
    crowded = _count_in_stretches(stretch, quanta.abs(), total) > MOST_IN_STRETCH
    for number in crowded.nonzero().flatten().tolist():
        inside = stretch == number
        quanta = quanta.clone()
        quanta[inside] = codec.limit(quanta[inside], MOST_IN_STRETCH, first=0)
    return quanta


def to_words(positions: Tensor, quanta: Tensor, total: int, capacity: int) -> Tensor:
    """The entries as int32 words, ``words(sum |quanta|, ...)`` of them; positions ascend."""
    size = quanta.abs()
    entries = ((positions << 1) | (quanta < 0)).repeat_interleave(size)
    if not _is_short(total, capacity):
        return entries.to(torch.int32)
    stretches = _stretches(total)
    halves = entries.new_zeros(2 * words(len(entries), total, capacity))
    halves[:stretches] = _count_in_stretches(positions >> STRETCH_BITS, size, total)
    halves[stretches : stretches + len(entries)] = entries & (2 * STRETCH - 1)
    return _wrap(halves).view(torch.int32)


def decode(
    bodies: Tensor,
    counts: list[int],
    capacity: int,
    ends: Tensor,
    values: Tensor,
    scratch: Tensor,
    out: Tensor,
) -> None:
    """Sum the entries of all workers' ``bodies`` ``(S, words)`` into ``out``.

    ``out`` ``(P,)`` float32 becomes, where there are entries, their sum times the value of the
    parameter, and 0 elsewhere. Worker w has ``counts[w]`` entries. ``ends`` (int64) are where the
    parameters end in the flat model, ``values`` (float32) one each, both on the CPU. ``scratch``,
    ``(P,)`` int32 zeros, is left as zeros. ValueError for entries that the model does not have.
    """
    total = out.numel()
    out.zero_()
    stretches = _stretches(total) if _is_short(total, capacity) else 0
    if native.decode(bodies, counts, stretches, ends, values, scratch, out):
        return
    decoded = [
        from_words(body, count, total, capacity) for body, count in zip(bodies, counts, strict=True)
    ]
    positions, signs = (torch.cat(parts) for parts in zip(*decoded, strict=True))
    if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < total:
        raise NotThisModel
    sums = codec.count(positions, signs, scratch)
    parameter = torch.searchsorted(ends.to(out.device), positions, right=True)
    out[positions] = sums * values.to(out.device)[parameter]


def from_words(body: Tensor, count: int, total: int, capacity: int) -> tuple[Tensor, Tensor]:
    """The inverse of ``to_words``: position (int64) and sign (int32) of each of ``count`` entries.

    ValueError if a body's stretches do not have that many.
    """
    if not _is_short(total, capacity):
        entries = body[:count]
        if len(entries) != count:
            raise NotThisModel
        return (entries >> 1).long(), _sign(entries)
    stretches = _stretches(total)
    halves = body.view(torch.int16)[: stretches + count].to(torch.int32) & MOST_IN_STRETCH
    if int(halves[:stretches].sum()) != count or len(halves) != stretches + count:
        raise NotThisModel
    numbers = torch.arange(stretches, device=body.device)
    entries = halves[stretches:]
    first = numbers.repeat_interleave(halves[:stretches].long()) << STRETCH_BITS
    return first + (entries >> 1), _sign(entries)


def _is_short(total: int, capacity: int) -> bool:
    return _stretches(total) + capacity < 2 * capacity


def _stretches(total: int) -> int:
    return -(-total // STRETCH)


def _count_in_stretches(stretch: Tensor, size: Tensor, total: int) -> Tensor:
    counts = torch.zeros(_stretches(total), dtype=torch.int64, device=size.device)
    return counts.index_add_(0, stretch, size.long())


def _wrap(halves: Tensor) -> Tensor:
    """Numbers below 2**16 as int16 with the same bits."""
    return torch.where(halves < 1 << 15, halves, halves - (1 << 16)).to(torch.int16)


def _sign(entries: Tensor) -> Tensor:
    return (1 - ((entries & 1) << 1)).to(torch.int32)
