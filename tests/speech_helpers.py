"""Speech-like audio and the stages before features, made on the spot."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import yaml
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

from asr import tokens
from asr.audio.utterance import Utterance
from asr.features import Part, Task, _with_features, manifest_name
from asr.filterbank.cuts import write_cuts
from asr.filterbank.fbank import LogMelFbankConfig
from asr.filterbank.storage import FlatFeaturesWriter
from asr.stages import Workspace

RATE = 16000
RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "mini"
SPLITS = {"train": "train", "dev": "dev", "tests": ["test-a"]}


def speech_like(seconds: float, seed: int = 0) -> np.ndarray:
    """Pulses through three moving resonances, with pauses and microphone noise; int16 values."""
    random = np.random.default_rng(seed)
    size = round(seconds * RATE)
    time = np.arange(size) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time + seed)
    pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0.0)
    voiced = np.zeros(size)
    for centre, width in ((500, 80), (1500, 120), (2700, 200)):
        decay = np.arange(400) / RATE
        response = np.exp(-np.pi * width * decay) * np.sin(2 * np.pi * centre * decay)
        voiced += np.convolve(pulses, response)[:size]
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * time + seed), 0, 1)
    signal = 6000 * voiced * syllables + random.normal(0, 12, size)
    return np.clip(np.round(signal), -32768, 32767).astype(np.int16)


def write_utterance(folder: Path, name: str, seconds: float, text: str, seed: int) -> MonoCut:
    """One FLAC file and its cut, the path relative to a sibling of ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = speech_like(seconds, seed)
    soundfile.write(folder / f"{name}.flac", samples, RATE)
    return make_cut(name, len(samples), text, f"../{folder.name}/{name}.flac")


def make_cut(name: str, num_samples: int, text: str, source: str) -> MonoCut:
    duration = num_samples / RATE
    return MonoCut(
        id=name,
        start=0.0,
        duration=duration,
        channel=0,
        recording=Recording(
            id=name,
            sources=[AudioSource(type="file", channels=[0], source=source)],
            sampling_rate=RATE,
            num_samples=num_samples,
            duration=duration,
        ),
        supervisions=[
            SupervisionSegment(
                id=name, recording_id=name, start=0.0, duration=duration, text=text, speaker="s"
            )
        ],
        custom={"corpus": "test"},
    )


def finish_stage(root: Path, stage: str, counts: dict) -> None:
    """A marker as a stage that has run leaves it."""
    (root / stage).mkdir(parents=True, exist_ok=True)
    marker = {"counts": counts, "parameters": {"sample_rate": RATE}}
    (root / stage / "stage.json").write_text(json.dumps(marker))


def write_manifests(root: Path, cuts: dict[str, list[MonoCut]]) -> None:
    """Stages 0 and 1 as if they had run."""
    finish_stage(root, "corpus", {"splits": SPLITS})
    finish_stage(root, "manifests", {})
    for split, members in cuts.items():
        write_cuts(root / "manifests" / f"{split}.jsonl.gz", members)


def small_corpus(root: Path) -> dict[str, list[MonoCut]]:
    """Train, dev and test-a with 7, 2 and 2 utterances, and their manifests."""
    texts = ["call anna", "the second of may", "turn left", "yes", "no", "stop now", "go on"]
    cuts: dict[str, list[MonoCut]] = {}
    for split, number in (("train", 7), ("dev", 2), ("test-a", 2)):
        cuts[split] = [
            write_utterance(root / "audio", f"{split}-{i}", 1.0 + 0.7137 * i, texts[i], seed=i)
            for i in range(number)
        ]
    write_manifests(root, cuts)
    return cuts


def write_features(root, utterances, speeds=(1.0,)):
    """Stages 0 to 2 as if they had run; ``utterances``: split -> {id: (frames, text)}."""
    finish_stage(root, "corpus", {"splits": SPLITS})
    finish_stage(root, "features", {"speeds": list(speeds)})
    folder = root / "features"
    config = LogMelFbankConfig()
    for split, members in utterances.items():
        source = root / f"{split}.jsonl.gz"
        cuts = [make_cut(i, frames * 160, text, "x") for i, (frames, text) in members.items()]
        write_cuts(source, cuts)
        for speed in speeds if split == "train" else (1.0,):
            utterances = [Utterance.of(cut) for cut in cuts]
            shard = folder / f"{split}-{speed:g}" / "00000.f32"
            task = Task(utterances, speed, config, shard, counted=False)
            shard.parent.mkdir()
            with FlatFeaturesWriter(shard) as writer:
                for extent in task.extents:
                    writer.write("", made_up_features(extent.frames, split, speed))
            part = Part(split, speed, False, [task])
            write_cuts(folder / manifest_name(split, speed), _with_features(source, part))


def made_up_features(frames: int, split: str, speed: float) -> np.ndarray:
    """Features whose values tell the utterance (by its length) and the speed."""
    random = np.random.default_rng([frames, len(split), round(100 * speed)])
    return random.normal(size=(frames, 64)).astype(np.float32)


def workspace(root: Path, *overrides: str, force: bool = False) -> Workspace:
    return Workspace(RECIPE, root, overrides=overrides, force=force)


def block(audio: Path) -> None:
    """Put a pipe in place of an audio file: whoever reads it waits."""
    audio.rename(audio.with_suffix(".kept"))
    os.mkfifo(audio)


@contextlib.contextmanager
def readers_of(audio: Path) -> Iterator[list[int]]:
    """The processes that wait for a ``block``ed file; whoever opens it later finds the audio.

    There may be two: an utterance's speeds are tasks of their own.
    """
    with open(audio, "wb") as pipe:  # waits for the first reader
        audio.with_suffix(".kept").replace(audio)
        blocked = os.fstat(pipe.fileno())
        yield [
            int(link.parts[2])
            for link in Path("/proc").glob("[0-9]*/fd/*")
            if link.parts[2] != str(os.getpid()) and _is_open_on(link, blocked)
        ]


def _is_open_on(descriptor: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), file)
    except OSError:
        return False


def start_stage(root: Path, stage: str, *overrides: str) -> subprocess.Popen:
    """``python -m asr``, with its folder in ``STAGE_TEST`` of its environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "asr", stage, "--recipe", RECIPE, "--dir", root, *overrides],
        cwd=RECIPE.parent.parent,
        env={**os.environ, "STAGE_TEST": str(root)},
        stderr=subprocess.PIPE,
        text=True,
    )


def small_recipe(folder: Path, changes: dict[str, dict]) -> Path:
    """recipes/mini's configuration in ``folder``, changed: file -> key -> value."""
    shutil.copytree(RECIPE / "conf", folder / "conf")
    for name, new in changes.items():
        file = folder / "conf" / name
        values = yaml.safe_load(file.read_text())
        for key, value in new.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        file.write_text(yaml.safe_dump(values))
    return folder


def prepare_noise(root: Path, recipe: Path) -> None:
    """Stages 0 to 3 of a corpus of noise, at two speeds, without audio."""
    words = ["one", "two", "three four", "five"]
    train = {f"u{i:02}": (60 + 3 * (i % 40), words[i % 4]) for i in range(80)}
    dev = {"d1": (70, "one"), "d2": (90, "two")}
    write_features(
        root, {"train": train, "dev": dev, "test-a": {"t1": (80, "five")}}, speeds=(0.9, 1.0)
    )
    fbank = LogMelFbankConfig().to_dict()
    statistics = {"mean": [0.0] * 64, "std": [1.0] * 64, "features": fbank}
    (root / "features/statistics.json").write_text(json.dumps(statistics))
    hours = {"train": (80, 0.03), "dev": (2, 0.001), "test-a": (1, 0.0003)}
    splits = {name: {"utterances": n, "hours": h} for name, (n, h) in hours.items()}
    finish_stage(root, "manifests", {"splits": splits})
    tokens.run(Workspace(recipe, root))
