"""``native.c`` for GPUs, in Triton.

It has run in Triton's interpreter only, not on a GPU; ``native`` compares what it can with torch's
bits before it is used. Import it only where Triton is installed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _accumulate(residual, gradient, weight, tau, n, found, count, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    value = tl.fma(
        tl.load(gradient + offsets, mask=inside, other=0.0),
        weight,
        tl.load(residual + offsets, mask=inside, other=0.0),
    )
    tl.store(residual + offsets, value, mask=inside)
    passes = ((tl.abs(value) >= tau) & inside).to(tl.int32)
    # A block reserves its places with one atomic addition; their order is put right afterwards.
    first = tl.atomic_add(count, tl.sum(passes))
    tl.store(found + first + tl.cumsum(passes) - 1, offsets.to(tl.int32), mask=passes == 1)


def accumulate(
    residual: Tensor, gradient: Tensor, weight: float, tau: float
) -> tuple[Tensor, Tensor]:
    """Add ``weight * gradient`` to ``residual``, both ``(n,)`` float32, in place.

    Returns the ascending positions (int64) where its magnitude is now ``tau`` or more, and its
    values there.
    """
    n = residual.numel()
    found = torch.empty(n, dtype=torch.int32, device=residual.device)
    count = torch.zeros(1, dtype=torch.int32, device=residual.device)
    if n:
        grid = (triton.cdiv(n, BLOCK),)
        _accumulate[grid](residual, gradient, weight, tau, n, found, count, BLOCK=BLOCK)
    positions = found[: int(count)].sort().values.long()
    return positions, residual[positions]


@triton.jit
def _first_beyond(ends, number, values, steps):  # noqa: ANN001, ANN202
    """The first of ``number`` ascending ``ends`` that is greater, for each of ``values``."""
    low = tl.zeros_like(values)
    high = low + number
    for _ in range(steps):
        middle = (low + high) // 2
        open = low < high
        beyond = tl.load(ends + middle, mask=open, other=0) > values
        high = tl.where(open & beyond, middle, high)
        low = tl.where(open & (beyond == 0), middle + 1, low)
    return low


@triton.jit
def _add_signs(  # noqa: ANN202
    body,  # noqa: ANN001
    stride,  # noqa: ANN001
    counts,  # noqa: ANN001
    stretches,  # noqa: ANN001
    stretch_ends,  # noqa: ANN001
    steps,  # noqa: ANN001
    scratch,  # noqa: ANN001
    positions,  # noqa: ANN001
    longest,  # noqa: ANN001
    BLOCK: tl.constexpr,
):
    worker = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = number < tl.load(counts + worker)
    here = body + worker * stride + stretches + number
    entry = tl.load(here, mask=inside, other=0).to(tl.int64)
    position = entry >> 1
    if stretches > 0:
        stretch = _first_beyond(stretch_ends + worker * stretches, stretches, number, steps)
        position = (stretch << 15) + ((entry & 0xFFFF) >> 1)
    sign = (1 - ((entry & 1) << 1)).to(tl.int32)
    tl.atomic_add(scratch + position, sign, mask=inside)
    tl.store(positions + worker * longest + number, position, mask=inside)


@triton.jit
def _write(positions, n, ends, parameters, values, steps, scratch, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = number < n
    position = tl.load(positions + number, mask=inside, other=-1)
    inside = position >= 0
    parameter = _first_beyond(ends, parameters, position, steps)
    count = tl.load(scratch + position, mask=inside, other=0)
    value = tl.load(values + parameter, mask=inside, other=0.0)
    tl.store(out + position, count.to(tl.float32) * value, mask=inside)


def decode(
    bodies: Tensor,
    counts: list[int],
    stretches: int,
    ends: Tensor,
    values: Tensor,
    scratch: Tensor,
    out: Tensor,
) -> None:
    """See ``native.decode``; but a body that does not fit the model is not noticed."""
    device, longest = out.device, max(counts)
    if longest == 0:
        return
    body = bodies.view(torch.int16) if stretches else bodies
    in_stretches = body[:, :stretches].long() & 0xFFFF
    positions = torch.full((len(counts), longest), -1, dtype=torch.int64, device=device)
    _add_signs[(len(counts), triton.cdiv(longest, BLOCK))](
        body,
        body.stride(0),
        torch.tensor(counts, device=device),
        stretches,
        in_stretches.cumsum(dim=1),
        stretches.bit_length(),
        scratch,
        positions,
        longest,
        BLOCK=BLOCK,
    )
    _write[(triton.cdiv(positions.numel(), BLOCK),)](
        positions,
        positions.numel(),
        ends.to(device),
        len(ends),
        values.to(device),
        len(ends).bit_length(),
        scratch,
        out,
        BLOCK=BLOCK,
    )
    scratch[positions[positions >= 0]] = 0
