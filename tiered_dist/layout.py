"""A model's trainable parameters as one flat vector, in an order fixed once."""

import dataclasses
import re
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and places of the parameters in a flat float32 vector of ``total`` elements.

    The list is fixed when the trainer is made: which parameters have a gradient may differ from
    rank to rank and step to step, this list may not. Tied parameters count once. A layout may be
    a ``part`` of a model's: its entries are pieces of parameters, named ``name..first:end`` (torch
    lets no name have two dots in a row).
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    total: int

    @classmethod
    def of(cls, model: nn.Module) -> "ParameterLayout":
        """The layout of ``model``'s trainable parameters; ValueError if it has none."""
        named = trainable(model)
        if not named:
            raise ValueError("the model has no parameter that requires a gradient")
        sizes = tuple(parameter.numel() for parameter in named.values())
        shapes = tuple(tuple(parameter.shape) for parameter in named.values())
        return cls(tuple(named), shapes, sizes, sum(sizes))

    def part(self, first: int, end: int) -> "ParameterLayout":
        """The layout of the elements from ``first`` to before ``end`` of the flat vector."""
        names, sizes, begin = [], [], 0
        for name, size in zip(self.names, self.sizes, strict=True):
            start, stop = max(first - begin, 0), min(end - begin, size)
            if start < stop:
                names.append(f"{name}..{start}:{stop}")
                sizes.append(stop - start)
            begin += size
        return ParameterLayout(
            tuple(names), tuple((size,) for size in sizes), tuple(sizes), sum(sizes)
        )

    @property
    def fingerprint(self) -> int:
        """31 bits that differ when names, order or shapes differ."""
        return zlib.crc32(repr((self.names, self.shapes)).encode()) & 0x7FFFFFFF

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """One-dimensional views of a flat vector, a parameter each."""
        return flat.split(self.sizes)

    def flatten(self, tensors: Iterable[Tensor | None], out: Tensor) -> Tensor:
        """Copy tensors in layout order into ``out``, ``(total,)``; None counts as zeros."""
        for view, tensor in zip(self.split(out), tensors, strict=True):
            if tensor is None:
                view.zero_()
            else:
                view.copy_(tensor.detach().reshape(-1))
        return out

    def to_named(self, flat: Tensor) -> dict[str, Tensor]:
        """Copies of a flat vector's parts by parameter name, in the parameters' shapes."""
        parts = zip(self.names, self.shapes, self.split(flat), strict=True)
        return {name: part.reshape(shape).clone() for name, shape, part in parts}

    def from_named(self, named: dict[str, Tensor], out: Tensor) -> Tensor:
        """The inverse of ``to_named``; ValueError names a parameter that is missing or differs.

        A part finds its pieces in what a whole layout has named, too.
        """
        found = [_find(named, name) for name in self.names]
        for name, shape, tensor in zip(self.names, self.shapes, found, strict=True):
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"parameter {name!r} has shape {tuple(tensor.shape)} in the state, {shape} in "
                    "the model: it is another model's"
                )
        return self.flatten(found, out)


def join_pieces(
    named: Iterable[dict[str, Tensor]], shapes: dict[str, torch.Size]
) -> dict[str, Tensor]:
    """Whole parameters, of ``shapes``, from vectors by name, of whole and of partial layouts.

    Where several hold an element, the mean of them; zeros where none does. Parameters that are not
    wanted are passed over.
    """
    sums = {name: torch.zeros(shape.numel()) for name, shape in shapes.items()}
    holders = {name: torch.zeros(shape.numel()) for name, shape in shapes.items()}
    for vectors in named:
        for piece, values in vectors.items():
            name, first, end = _parse(piece) or (piece, 0, values.numel())
            if name not in shapes:
                continue
            sums[name][first:end] += values.flatten()
            holders[name][first:end] += 1
    return {
        name: (sums[name] / holders[name].clamp(min=1)).view(shape)
        for name, shape in shapes.items()
    }


def _find(named: dict[str, Tensor], name: str) -> Tensor:
    piece = _parse(name)
    if name in named:
        return named[name]
    if piece is None or piece[0] not in named:
        raise ValueError(f"parameter {name!r} is not in the state: it is another model's")
    return named[piece[0]].flatten()[piece[1] : piece[2]]


def _parse(piece: str) -> tuple[str, int, int] | None:
    """Name, first and end of a piece; None for a whole parameter."""
    match = re.fullmatch(r"(.*)\.\.(\d+):(\d+)", piece)
    return (match[1], int(match[2]), int(match[3])) if match else None


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def write_parameters(model: nn.Module, layout: ParameterLayout, flat: Tensor) -> None:
    """Copy a flat vector into the model's parameters.

    In place: an LSTM's parameters alias cuDNN's flat weights, and a re-pointed ``.data`` would
    leave those behind.
    """
    for parameter, view in zip(trainable(model).values(), layout.split(flat), strict=True):
        parameter.copy_(view.view_as(parameter))
