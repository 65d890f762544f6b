"""What ``python -m asr transcribe`` takes for a long file, and whether it hears the same in parts.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/transcribe.py FOLDER --model MODEL \\
        [--minutes 10]

FOLDER holds audio at the model's rate, anywhere below, which is joined to one FLAC file of
``--minutes``; a second of it is another. Each is transcribed by a process of its own, and printed
is the most memory that each had at a time: what the long file takes more is not the model's. Then
the long file is heard in one piece, as the decode stage hears an utterance, and what was heard is
compared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch

from asr.decode import greedy_search
from asr.filterbank.fbank import LogMelFbank
from asr.recognition.finished_model import FinishedModel, open_model
from asr.recognition.streaming import log_probs_of

SUFFIXES = {".flac", ".wav", ".sph"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        finished = open_model(arguments.model)
        samples = join(arguments.folder, 60 * arguments.minutes, finished.fbank.sampling_rate)
        measure(finished, arguments.model, samples, Path(folder))


def measure(finished: FinishedModel, model: Path, samples: np.ndarray, folder: Path) -> None:
    """Transcribe a second and all of ``samples``, and hear them in one piece."""
    rate = finished.fbank.sampling_rate
    soundfile.write(folder / "second.flac", samples[:rate], rate)
    soundfile.write(folder / "all.flac", samples, rate)
    _, least, _ = transcribe(model, folder / "second.flac")
    text, most, seconds = transcribe(model, folder / "all.flac")
    duration = len(samples) / rate
    print(f"audio                  {duration:10.1f} s, streams: {finished.model.config.streams}")
    print(f"memory for a second    {least:10.1f} MiB")
    print(f"memory for all         {most:10.1f} MiB, {most - least:.1f} MiB more")
    print(f"time on the core       {seconds:10.1f} s, real-time factor {seconds / duration:.4f}")
    # As soundfile gives them back: 16 bits a sample.
    samples = soundfile.read(folder / "all.flac", dtype="float32")[0]
    features = torch.from_numpy(LogMelFbank(finished.fbank).extract(samples, rate))
    with torch.inference_mode():
        log_probs, lengths = finished.model(features[None], torch.tensor([len(features)]))
    whole = finished.tokenizer.decode(greedy_search(log_probs, lengths)[0])
    parts = torch.cat(list(log_probs_of(finished, [samples])))
    difference = (parts - log_probs[0]).abs().max().item()
    print(f"words                  {len(text.split()):10}, in one piece {len(whole.split())}")
    print(f"characters             {len(text):10}, in one piece {len(whole)}")
    print(f"same text              {text == whole!s:>10}")
    print(f"log-probabilities      {difference:10.2g} is the greatest difference")


def transcribe(model: Path, audio: Path) -> tuple[str, float, float]:
    """The text, the most memory the process had (MiB), and its CPU seconds, loading included."""
    command = [sys.executable, "-m", "asr", "transcribe", "--model", model, audio]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"transcribe failed with status {process.returncode}")
    return (
        out.rstrip("\n").partition("\t")[2],
        usage.ru_maxrss / 1024,
        usage.ru_utime + usage.ru_stime,
    )


def join(folder: Path, seconds: float, rate: int) -> np.ndarray:
    """The files' samples one after the other, from the first again where they are too few."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    parts, wanted = list[np.ndarray](), round(seconds * rate)
    while sum(map(len, parts)) < wanted:
        for path in files:
            samples, found = soundfile.read(path, dtype="float32")
            if found != rate:
                sys.exit(f"{path}: {found} Hz, not the model's {rate}")
            parts.append(samples)
            if sum(map(len, parts)) >= wanted:
                break
        if not parts:
            sys.exit(f"{folder}: no audio there")
    return np.concatenate(parts)[:wanted]


if __name__ == "__main__":
    main()
