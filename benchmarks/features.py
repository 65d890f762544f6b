"""From FLAC to stored features on one core: ours and what the libraries do by themselves.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/features.py FOLDER [--seconds 1200]

FOLDER holds FLAC files of speech, anywhere below; of them, in the order of their names, the first
``--seconds`` are taken. Each way runs ``--rounds`` times, in turn with the others, so that all of
them see the same state of the machine; printed are the medians, as times real time, and their
ratios to ours. All compute 64 log-mel bins each 10 ms by Kaldi's definition, one utterance after
the other.

    decode    FLAC to float32 by libsndfile, which all use
    compute   samples to features
    whole     FLAC files to stored features: ours is a worker's task of stage 2, with the
              statistics on train; Lhotse's ``CutSet.compute_and_store_features``; the others
              decode with soundfile and save an .npy file an utterance

Lhotse stores by lilcom where that is installed (pip install lilcom), else as .npy files.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import kaldi_native_fbank
import lhotse
import numpy as np
import soundfile
import torch
import torchaudio
from lhotse import CutSet, Fbank, FbankConfig, Recording
from lhotse.features.io import LilcomChunkyWriter, NumpyFilesWriter

from asr.audio.utterance import Utterance
from asr.features import Task, _run
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig, kaldi_options

CONFIG = LogMelFbankConfig()
RATE = CONFIG.sampling_rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    lhotse.set_audio_duration_mismatch_tolerance(0.0)
    paths = take(arguments.folder, arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        audio = Audio(paths, Path(folder))
        print(f"{len(paths)} utterances, {audio.seconds:.0f} s, one thread")
        rows = {"decode": {"libsndfile": audio.decode}} | audio.computing() | audio.wholes()
        taken: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.rounds):
            for part, ways in rows.items():
                for name, way in ways.items():
                    begin = time.perf_counter()
                    way()
                    taken.setdefault((part, name), []).append(time.perf_counter() - begin)
        show(taken, audio.seconds)


def take(folder: Path, seconds: float) -> list[Path]:
    """The first FLAC files of that many seconds."""
    taken, left = [], seconds
    for path in sorted(folder.rglob("*.flac")):
        if left > 0 and (info := soundfile.info(path)).samplerate == RATE:
            taken.append(path)
            left -= info.duration
    if not taken:
        raise SystemExit(f"{folder}: no FLAC files of {RATE} Hz")
    return taken


def show(taken: dict[tuple[str, str], list[float]], seconds: float) -> None:
    """One row a way."""
    print(f"{'':<10}{'way':<20}{'x real time':>12}{'of ours':>10}")
    median = {way: statistics.median(values) for way, values in taken.items()}
    for (part, name), value in median.items():
        ratio = f"{median[part, 'ours'] / value:>10.2f}" if (part, "ours") in median else ""
        print(f"{part:<10}{name:<20}{seconds / value:>12,.0f}{ratio}")


Ways = dict[str, dict[str, Callable[[], object]]]


class Audio:
    """The utterances as files and as samples, and the ways to make features of them."""

    def __init__(self, paths: list[Path], folder: Path) -> None:
        self.paths, self.folder = paths, folder
        self.samples = [soundfile.read(path, dtype="float32")[0] for path in paths]
        self.seconds = sum(map(len, self.samples)) / RATE
        self.runs = 0
        cuts = [Recording.from_file(path).to_cut() for path in paths]
        self.cuts = CutSet.from_cuts(cuts)
        self.utterances = [Utterance.of(cut) for cut in cuts]
        self.fbank = Fbank(
            FbankConfig(num_filters=CONFIG.bins, dither=0.0, snip_edges=False, high_freq=-400.0)
        )
        self.options = kaldi_options(CONFIG)
        self.extractor = LogMelFbank(CONFIG)

    def decode(self) -> None:
        """FLAC to float32."""
        for path in self.paths:
            soundfile.read(path, dtype="float32")

    def computing(self) -> Ways:
        """Samples to features."""

        def each(way: Callable[[np.ndarray], object]) -> Callable[[], object]:
            return lambda: [way(samples) for samples in self.samples]

        return {
            "compute": {
                "ours": each(lambda samples: self.extractor.extract(samples, RATE)),
                "Lhotse": each(lambda samples: self.fbank.extract(samples, RATE)),
                "torchaudio": each(by_torchaudio),
                "kaldi-native-fbank": each(self.by_kaldi),
            }
        }

    def wholes(self) -> Ways:
        """FLAC files to stored features."""
        return {
            "whole": {
                "ours": self.ours,
                "Lhotse": self.lhotse,
                "torchaudio": lambda: self.saved(by_torchaudio),
                "kaldi-native-fbank": lambda: self.saved(self.by_kaldi),
            }
        }

    def place(self) -> Path:
        """Where nothing is yet."""
        self.runs += 1
        place = self.folder / str(self.runs)
        place.mkdir()
        return place

    def ours(self) -> None:
        """As stage 2's workers do."""
        _run(Task(self.utterances, 1.0, CONFIG, self.place() / "00000.f32", counted=True))

    def lhotse(self) -> None:
        """Its own loop, of one job."""
        self.cuts.compute_and_store_features(
            self.fbank, self.place() / "store", storage_type=lhotse_store(), progress_bar=False
        )

    def saved(self, compute: Callable[[np.ndarray], np.ndarray]) -> None:
        """The loop that one writes oneself."""
        place = self.place()
        for number, path in enumerate(self.paths):
            samples, _ = soundfile.read(path, dtype="float32")
            np.save(place / f"{number}.npy", compute(samples))

    def by_kaldi(self, samples: np.ndarray) -> np.ndarray:
        """kaldi-native-fbank hands over one frame at a time."""
        fbank = kaldi_native_fbank.OnlineFbank(self.options)
        fbank.accept_waveform(RATE, samples * np.float32(CONFIG.sample_scale))
        fbank.input_finished()
        return np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])


def by_torchaudio(samples: np.ndarray) -> np.ndarray:
    """torchaudio's Kaldi-compliant function."""
    return torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(samples * np.float32(CONFIG.sample_scale))[None],
        num_mel_bins=CONFIG.bins,
        sample_frequency=RATE,
        low_freq=CONFIG.low_freq,
        high_freq=CONFIG.high_freq,
        dither=0.0,
        snip_edges=CONFIG.snip_edges,
    ).numpy()


def lhotse_store() -> type:
    """Its usual one, or the one that needs no package."""
    try:
        import lilcom  # noqa: F401
    except ImportError:
        return NumpyFilesWriter
    return LilcomChunkyWriter


if __name__ == "__main__":
    main()
