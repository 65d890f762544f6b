"""The codec's one pass over all elements for GPUs, in Triton: see ``native.c``.

It has run in Triton's interpreter only, not on a GPU; ``native`` compares it with torch's bits
before it is used. Import it only where Triton is installed.
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
