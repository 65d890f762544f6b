"""An exponential moving average of the weights that training goes through."""

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from asr.model import AcousticModel


class WeightAverage:
    """The first model given, then ``decay`` x the average + (1 - ``decay``) x the next one.

    Every rank keeps one: it is given models that all ranks have alike, and so stays alike.
    """

    def __init__(self, model: AcousticModel, decay: float) -> None:
        self._average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @property
    def model(self) -> AcousticModel | None:
        """The average in eval mode; None before the first update."""
        if not self._average.n_averaged:
            return None
        module = self._average.module.eval()
        assert isinstance(module, AcousticModel)
        return module

    def update(self, model: nn.Module) -> None:
        """Take in the next model's weights."""
        self._average.update_parameters(model)

    def state_dict(self) -> dict[str, Any]:
        """Its state, for a checkpoint."""
        return dict(self._average.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave."""
        self._average.load_state_dict(state)
