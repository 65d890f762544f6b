"""Log-mel filterbank features in Kaldi's definition, behind one Lhotse feature extractor."""

import dataclasses
from typing import Any, Literal

import kaldi_native_fbank
import numpy as np
import torch
from lhotse.features.base import FeatureExtractor, register_extractor
from lhotse.features.kaldi.layers import Wav2LogFilterBank


@dataclasses.dataclass(frozen=True)
class LogMelFbankConfig:
    """What the features are; travels with the model, so that decoding computes the same.

    ``sample_scale`` multiplies samples in [-1, 1] (32768: Kaldi's int16 range). A ``high_freq``
    of 0 or less counts from the Nyquist frequency. Back-end ``lhotse`` is the fast one,
    ``kaldi`` (kaldi-native-fbank) the reference; both stream. They agree within
    2e-4 in bins up to 70 dB below the frame's loudest, and beyond that within what float32
    spectra resolve (about 2e-3 at 90 dB). Raises
    ValueError for a frequency range outside the sampling rate's.
    """

    back_end: Literal["lhotse", "kaldi"] = "lhotse"
    sampling_rate: int = 16000
    bins: int = 64
    frame_length: float = 0.025
    frame_shift: float = 0.010
    window: Literal["povey", "hanning", "hamming", "rectangular"] = "povey"
    preemphasis: float = 0.97
    remove_dc: bool = True
    low_freq: float = 20.0
    high_freq: float = -400.0
    sample_scale: float = 32768.0
    # Fixed, since the rest of the recipe relies on them; listed, since the model's user must know.
    dither: Literal[0] = 0
    snip_edges: Literal[False] = False

    def __post_init__(self) -> None:
        nyquist = self.sampling_rate / 2
        high = self.high_freq if self.high_freq > 0 else nyquist + self.high_freq
        if not 0 <= self.low_freq < high <= nyquist:
            raise ValueError(
                f"low_freq={self.low_freq} and high_freq={self.high_freq} leave no range below "
                f"the Nyquist frequency of {nyquist} Hz"
            )

    @property
    def shift_samples(self) -> int:
        """Samples from one frame to the next."""
        return round(self.frame_shift * self.sampling_rate)

    @property
    def window_samples(self) -> int:
        """Samples in one frame."""
        return round(self.frame_length * self.sampling_rate)

    def frames(self, num_samples: int) -> int:
        """Frames that ``num_samples`` samples give (Kaldi, snip_edges false)."""
        return (num_samples + self.shift_samples // 2) // self.shift_samples

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain types."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "LogMelFbankConfig":
        """The inverse of ``to_dict``."""
        return LogMelFbankConfig(**values)


@register_extractor
class LogMelFbank(FeatureExtractor):
    """Lhotse extractor: samples in [-1, 1] to natural-log mel energies ``(T, bins)`` float32.

    Utterances are computed one by one, also by ``extract_batch``: that is what makes a result
    independent of its batch (a padded batch gives the last frames zeros where Kaldi mirrors the
    signal), and on a CPU it is faster than padding, which only moves more memory.
    """

    name = "log-mel-fbank"
    config_type = LogMelFbankConfig

    def __init__(self, config: LogMelFbankConfig | None = None) -> None:
        super().__init__(config)
        kaldi = self.config.back_end == "kaldi"
        self._compute = _KaldiFbank(self.config) if kaldi else LhotseFbank(self.config)

    @property
    def frame_shift(self) -> float:
        """Seconds from one frame to the next."""
        return self.config.frame_shift

    def feature_dim(self, sampling_rate: int) -> int:
        """Number of mel bins."""
        return self.config.bins

    def extract(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Features of one utterance.

        ``samples`` is float32 in [-1, 1], ``(num_samples,)`` or ``(1, num_samples)``. Raises
        ValueError for another sampling rate than configured, several channels, or audio too
        short for one frame.
        """
        if sampling_rate != self.config.sampling_rate:
            raise ValueError(
                f"audio at {sampling_rate} Hz, but features are for {self.config.sampling_rate} Hz"
            )
        samples = np.asarray(samples, dtype=np.float32)
        if samples.ndim == 2 and samples.shape[0] == 1:
            samples = samples[0]
        if samples.ndim != 1:
            raise ValueError(f"one channel expected, got samples of shape {samples.shape}")
        if self.config.frames(len(samples)) == 0:
            raise ValueError(f"{len(samples)} samples are too short for one frame")
        return self._compute(samples * np.float32(self.config.sample_scale))


class LhotseFbank:
    """Lhotse's torch layers, a few seconds at a time."""

    # 4 s of frames and their spectra fit a core's cache: 2,900 x real time against 2,100 x for
    # whole utterances of 12 s.
    CHUNK_FRAMES = 400

    def __init__(self, config: LogMelFbankConfig) -> None:
        self.config = config
        self.layer = Wav2LogFilterBank(
            sampling_rate=config.sampling_rate,
            frame_length=config.frame_length,
            frame_shift=config.frame_shift,
            window_type=config.window,
            preemph_coeff=config.preemphasis,
            remove_dc_offset=config.remove_dc,
            low_freq=config.low_freq,
            high_freq=config.high_freq,
            num_filters=config.bins,
            dither=float(config.dither),
            snip_edges=config.snip_edges,
        ).eval()
        # Lhotse's takes the root of the power and squares it, a fifth of the time of all this.
        self.layer._to_spec = _power

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        shift, window = self.config.shift_samples, self.config.window_samples
        frames = self.config.frames(len(samples))
        # Kaldi mirrors the signal at both ends. Mirroring here leaves the layer nothing to pad:
        # its own padding only ever meets the two frames that are cut off below.
        before = (window - shift) // 2
        after = (frames - 1) * shift + window - before - len(samples)
        mirrored = np.pad(samples, (before + shift, max(after, 0) + shift), mode="symmetric")
        features = np.empty((frames, self.config.bins), dtype=np.float32)
        for first in range(0, frames, self.CHUNK_FRAMES):
            last = min(first + self.CHUNK_FRAMES, frames)
            begin = before + first * shift
            stretch = mirrored[begin : begin + (last - first + 2) * shift]
            features[first:last] = self.of_stretch(stretch)
        return features

    def of_stretch(self, signal: np.ndarray) -> np.ndarray:
        """Features ``(n, bins)`` of the n frames in the middle of ``signal``, whose n + 2 shifts
        begin a shift before that of the first frame."""
        with torch.inference_mode():
            return self.layer(torch.from_numpy(signal)[None])[0, 1:-1].numpy()


def _power(spectrum: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag)


class _KaldiFbank:
    """kaldi-native-fbank, which hands over one frame at a time."""

    def __init__(self, config: LogMelFbankConfig) -> None:
        self.config = config
        self.options = kaldi_options(config)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        fbank = kaldi_native_fbank.OnlineFbank(self.options)
        fbank.accept_waveform(self.config.sampling_rate, samples)
        fbank.input_finished()
        return np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])


def kaldi_options(config: LogMelFbankConfig) -> kaldi_native_fbank.FbankOptions:
    """The same features as options of kaldi-native-fbank.

    Its stream takes samples multiplied by ``config.sample_scale``.
    """
    options = kaldi_native_fbank.FbankOptions()
    frame = options.frame_opts
    frame.samp_freq = config.sampling_rate
    frame.frame_length_ms = config.frame_length * 1000
    frame.frame_shift_ms = config.frame_shift * 1000
    frame.window_type = config.window
    frame.preemph_coeff = config.preemphasis
    frame.remove_dc_offset = config.remove_dc
    frame.dither = config.dither
    frame.snip_edges = config.snip_edges
    options.mel_opts.num_bins = config.bins
    options.mel_opts.low_freq = config.low_freq
    options.mel_opts.high_freq = config.high_freq
    return options
