"""A model's trainable parameters as one flat vector, in an order fixed once."""

import dataclasses
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and places of the parameters in a flat float32 vector of ``total`` elements.

    The list is fixed when the trainer is made: which parameters have a gradient may differ from
    rank to rank and step to step, this list may not. Tied parameters count once.
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
        """The inverse of ``to_named``; KeyError names a parameter that is missing."""
        return self.flatten((named[name] for name in self.names), out)


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
