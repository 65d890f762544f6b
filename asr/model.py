"""The acoustic model: normalisation, frame stacking, a deep LSTM, and token log-probabilities."""

import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.errors import UserError
from asr.files import atomic_write
from asr.filterbank.frames import STACKED_FRAMES, stacked_length

FORMAT_VERSION = 1

# Hidden and cell values, (layers, N, D) each.
LstmState = tuple[Tensor, Tensor]


@dataclasses.dataclass
class ModelConfig:
    """Size and shape of the LSTM. ``projection`` 0 means none; ``dropout`` is between layers.

    ``utterance_mean`` true takes each utterance's own mean from its features, which hides
    differences between microphones and voices, and needs the whole utterance to begin with.
    """

    layers: int = 3
    hidden: int = 256
    projection: int = 0
    bidirectional: bool = False
    dropout: float = 0.0
    utterance_mean: bool = False

    def __post_init__(self) -> None:
        if self.layers < 1 or self.hidden < 1:
            raise ValueError(f"model.layers={self.layers}, model.hidden={self.hidden}: at least 1")
        if not 0 <= self.projection < self.hidden:
            raise ValueError(f"model.projection={self.projection}: from 0 to hidden - 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout={self.dropout}: from 0 to below 1")

    @property
    def streams(self) -> bool:
        """Whether the model hears without knowing what comes."""
        return not (self.bidirectional or self.utterance_mean)


class AcousticModel(nn.Module):
    """Log-mel features to token log-probabilities, for CTC.

    The training set's ``mean`` and ``std``, both ``(F,)``, are buffers: they travel with the
    model. An utterance's output does not depend on what it is batched with: the forward
    direction never sees the padding behind it, the backward one reads the utterance alone.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig, vocabulary: int, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", mean.float())
        self.register_buffer("std", std.float())
        self.lstm = nn.LSTM(
            input_size=mean.numel() * STACKED_FRAMES,
            hidden_size=config.hidden,
            num_layers=config.layers,
            batch_first=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
            bidirectional=config.bidirectional,
            proj_size=config.projection,
        )
        width = (config.projection or config.hidden) * (2 if config.bidirectional else 1)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``(N, T, F)`` and their ``lengths`` ``(N,)`` to ``(N, T // 3, V)`` and lengths.

        The result is float32 log-probabilities, whatever autocast computes the LSTM in.
        """
        stacks, out_lengths = stacked_length(features.shape[1]), stacked_length(lengths)
        normalised = (features[:, : stacks * STACKED_FRAMES] - self.mean) / self.std
        if self.config.utterance_mean:
            normalised = without_mean(normalised, out_lengths * STACKED_FRAMES)
        stacked = normalised.reshape(
            len(features), stacks, self.lstm.input_size
        )  # (N, T // 3, 3 F)
        if self.config.bidirectional:
            # Packed sequences are cuDNN's own; on a CPU they cost twice the time of padded ones.
            both = self._packed if stacked.is_cuda else self._forward_and_back
            hidden = both(stacked, out_lengths)
        else:
            hidden, _ = self.lstm(stacked)
        return self._log_probs(hidden), out_lengths

    def go_on(self, features: Tensor, state: LstmState | None) -> tuple[Tensor, LstmState]:
        """Features ``(N, T, F)`` that follow those which left ``state`` (None: the first ones).

        T is a multiple of 3. Gives log-probabilities ``(N, T // 3, V)`` and the state after them.
        ValueError for a model that must know what comes (``streams`` false).
        """
        if not self.config.streams:
            raise ValueError("a model that needs the whole utterance cannot go on from a state")
        normalised = (features - self.mean) / self.std
        stacked = normalised.reshape(len(features), -1, self.lstm.input_size)  # (N, T // 3, 3 F)
        hidden, after = self.lstm(stacked, state)
        return self._log_probs(hidden), after

    def _log_probs(self, hidden: Tensor) -> Tensor:
        return self.output(hidden).float().log_softmax(dim=-1)  # (N, T // 3, V)

    def _packed(self, stacked: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            stacked, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        hidden, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=stacked.shape[1]
        )
        return hidden

    def _forward_and_back(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """What ``_packed`` gives, but for values behind the lengths, from two plain LSTMs a layer:
        the backward one reads every utterance reversed within its length."""
        weights = self.lstm.all_weights
        for layer in range(self.config.layers):
            if layer:
                hidden = nn.functional.dropout(hidden, self.config.dropout, self.training)
            forward = self._one_direction(hidden, weights[2 * layer])
            back = self._one_direction(reverse(hidden, lengths), weights[2 * layer + 1])
            hidden = torch.cat([forward, reverse(back, lengths)], dim=-1)
        return hidden

    def _one_direction(self, sequence: Tensor, weights: Sequence[Tensor]) -> Tensor:
        batch = sequence.shape[0]
        h = sequence.new_zeros(1, batch, self.config.projection or self.config.hidden)
        c = sequence.new_zeros(1, batch, self.config.hidden)
        # One layer, with biases, without dropout, one direction, batch first.
        return torch.lstm(
            sequence, (h, c), list(weights), True, 1, 0.0, self.training, False, True
        )[0]


def check_bf16(device: torch.device) -> None:
    """UserError where an LSTM cannot run in bf16: on CPUs without AVX-512, oneDNN has none."""
    try:
        with torch.autocast(device.type, torch.bfloat16), torch.no_grad():
            nn.LSTM(2, 2, device=device)(torch.zeros(1, 1, 2, device=device))
    except RuntimeError as error:
        raise UserError(
            f"bf16=true: this {device.type} has no LSTM in bf16 ({error}); set bf16=false"
        ) from None


def without_mean(features: Tensor, lengths: Tensor) -> Tensor:
    """Features ``(N, T, F)`` less the mean over each one's ``lengths`` ``(N,)``; 0 behind them."""
    inside = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
    inside = inside[:, :, None]  # (N, T, 1)
    total = torch.where(inside, features, 0.0).sum(dim=1, keepdim=True)
    mean = total / lengths.clamp(min=1)[:, None, None]
    return torch.where(inside, features - mean, 0.0)


def reverse(sequence: Tensor, lengths: Tensor) -> Tensor:
    """Sequences ``(N, T, D)`` back to front within their ``lengths`` ``(N,)``; the rest stays."""
    position = torch.arange(sequence.shape[1], device=sequence.device)
    source = lengths[:, None] - 1 - position  # (N, T)
    source = torch.where(source < 0, position, source)
    return sequence.gather(1, source[:, :, None].expand_as(sequence))


def save_model(path: Path, model: AcousticModel, travels_with: dict[str, Any]) -> None:
    """Write the model and what must travel with it (feature and token settings), atomically."""
    with atomic_write(path) as partial:
        torch.save(
            {
                "format_version": FORMAT_VERSION,
                "model": dataclasses.asdict(model.config),
                "state": {name: value.cpu() for name, value in model.state_dict().items()},
                "travels_with": travels_with,
            },
            partial,
        )


def load_model(path: Path) -> tuple[AcousticModel, dict[str, Any]]:
    """Read a model file: the model in eval mode, and the settings that travel with it.

    UserError when the file is missing or is not a model file of this format.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["format_version"] != FORMAT_VERSION:
            raise UserError(f"{path}: model format {saved['format_version']}, not {FORMAT_VERSION}")
        state = saved["state"]
        vocabulary = state["output.weight"].shape[0]
        model = AcousticModel(
            ModelConfig(**saved["model"]), vocabulary, state["mean"], state["std"]
        )
        model.load_state_dict(state)
    except FileNotFoundError:
        raise UserError(f"{path}: no such model; train the system first") from None
    except (KeyError, RuntimeError, TypeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise UserError(f"{path}: not a model file that this version wrote ({error})") from None
    return model.eval(), saved["travels_with"]
