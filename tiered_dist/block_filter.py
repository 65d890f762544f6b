"""Blockwise Model-Update Filtering on tensors alone (Chen and Huo, ICASSP 2016).

At a block's end, with G the mean over subgroups of how far each has moved from the point W_g at
which the block started:

    D <- eta * D + zeta * G        block momentum eta, block learning rate zeta
    W <- W + D
    classical (CBM):  W_g <- W
    Nesterov  (NBM):  W_g <- W + eta * D

W is the model to evaluate and keep; W_g is where the next block starts.
"""

import dataclasses

from torch import Tensor


@dataclasses.dataclass
class BlockFilter:
    """The filter's constants and its two vectors ``(P,)``: ``model`` W and ``update`` D."""

    momentum: float
    learning_rate: float
    nesterov: bool
    model: Tensor
    update: Tensor

    def start_point(self) -> Tensor:
        """W_g, ``(P,)``, where all subgroups start the next block. Do not write into it."""
        return self.model + self.momentum * self.update if self.nesterov else self.model

    def apply(self, mean_move: Tensor) -> None:
        """Filter the mean move G ``(P,)`` of a block into W and D."""
        self.update.mul_(self.momentum).add_(mean_move, alpha=self.learning_rate)
        self.model.add_(self.update)
