"""What it costs a rank to know its batches, and to load them.

    PYTHONPATH=. python benchmarks/loading.py [--utterances 700000] [--workers 1 8 32 128]
    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/loading.py \\
        --recipe recipes/mini_librispeech --dir exp/mini_librispeech --system single

The first way reads no audio and no features: manifests of utterances as long as LibriSpeech's are
written, joined as stage 3 does, their index read as the trainer reads it, and an epoch is planned,
and every step's batch asked for, by one rank. Printed are the seconds to join the manifests, the
memory that the process has more afterwards, and the most that it had; the seconds to read the
index; then the seconds to plan an epoch (once an epoch), the
microseconds a step to know one's batch, the steps of an epoch, the share of them in which this rank
has no batch, and the seconds to go to the middle of epoch 3 that another number of ranks had
reached.

The second way takes a recipe whose stages 0 to 3 have run, and trains its system of one worker for
``--steps`` steps on real features: printed are the frames (10 ms) a second of loading (reading or
computing features, masks, collating) and of training (all the rest of a step), and how many times
as fast loading is. Then it loads a whole epoch, and prints the memory of the process after each
quarter.
"""

import argparse
import dataclasses
import gc
import gzip
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from asr.config import dump_yaml
from asr.filterbank.storage import Extent, FlatFeaturesWriter
from asr.stages import Workspace
from asr.training.config import TrainConfig
from asr.training.data import NO_BATCH, BatchStream, UtteranceSet
from asr.training.trainer import CONFIG, SystemTrainer

FRAMES_A_SECOND = 100


SHARD_UTTERANCES = 300  # about an hour
TOKENS_A_SECOND = 5  # BPE pieces


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--utterances", type=int, default=700_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--batch-seconds", type=float, default=60.0)
    parser.add_argument("--speeds", type=int, choices=[1, 2, 3], default=1)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--system", default="single")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    if arguments.recipe is not None:
        feed(Workspace(arguments.recipe, arguments.dir), arguments.system, arguments.steps)
        return
    index = read(arguments.utterances, arguments.speeds)
    hours = index.frames.sum() / FRAMES_A_SECOND / 3600
    print(f"{len(index):,} utterances, {hours:,.0f} h, batches of {arguments.batch_seconds:g} s")
    columns = ("ranks", "plan s", "us a step", "steps", "idle %", "restore s")
    print("".join(f"{column:>12}" for column in columns))
    for workers in arguments.workers:
        row = measure(index, workers, arguments.batch_seconds)
        print(f"{workers:>12}" + "".join(f"{value:>12,.4g}" for value in row))
    print(f"largest memory of the process: {peak():,.0f} MiB")


def read(utterances: int, speeds: int) -> UtteranceSet:
    """The trainer's view of a corpus, read from files; what that takes is printed."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, manifests = write_manifests(Path(folder), utterances, speeds)
        gc.collect()
        before, begin = resident(), time.perf_counter()
        files = UtteranceSet.of_files(tokens, manifests)
        joined = time.perf_counter() - begin
        gc.collect()
        more = resident() - before
        files.write_index(Path(folder, "index.npz"))
        begin = time.perf_counter()
        index = UtteranceSet.of_index(Path(folder, "index.npz"), Path(folder))
        seconds = time.perf_counter() - begin
        size = Path(folder, "index.npz").stat().st_size / 2**20
    print(
        f"manifests of {speeds} speeds: {joined:.1f} s for stage 3 to join, {more:,.0f} MiB more "
        f"afterwards ({more * 2**20 / utterances:,.0f} bytes an utterance), at most "
        f"{peak():,.0f} MiB; their index of {size:,.0f} MiB: {seconds:.2f} s for a rank to read"
    )
    return index


def write_manifests(folder: Path, utterances: int, speeds: int) -> tuple[Path, list[Path]]:
    """Tokens and features of utterances with LibriSpeech's durations, as stages 2 and 3 do."""
    random = np.random.default_rng(0)
    seconds = random.triangular(1.5, 15.0, 17.0, utterances)
    with open(folder / "tokens.jsonl", "w") as file:
        for number, duration in enumerate(seconds.tolist()):
            pieces = random.integers(2, 500, int(TOKENS_A_SECOND * duration)).tolist()
            file.write(json.dumps({"id": name(number), "corpus": "x", "tokens": pieces}) + "\n")
    manifests = []
    for speed in (1.0, 0.9, 1.1)[:speeds]:
        manifests.append(folder / f"{speed}.jsonl.gz")
        offset = 0
        with gzip.open(manifests[-1], "wt", compresslevel=1) as file:
            for number, frames in enumerate((seconds / speed * FRAMES_A_SECOND).astype(int)):
                shard, place = divmod(number, SHARD_UTTERANCES)
                offset = offset if place else 0
                row = {
                    "storage_type": FlatFeaturesWriter.name,
                    "storage_path": f"train/{shard:05}.f32",
                    "storage_key": Extent(offset, int(frames), 64).key,
                }
                file.write(json.dumps({"id": name(number), "features": row}) + "\n")
                offset += int(frames) * 64 * 4
    return folder / "tokens.jsonl", manifests


def name(index: int) -> str:
    """An id of LibriSpeech's kind."""
    return f"1000-{index // 100:06}-{index % 100:04}"


def resident() -> float:
    """MiB that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def peak() -> float:
    """MiB that the process had at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def feed(workspace: Workspace, system: str, steps: int) -> None:
    """Loading against training, and an epoch's memory."""
    torch.set_num_threads(1)
    config = workspace.config(TrainConfig, "train", f"systems/{system}")
    config = dataclasses.replace(config, epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for stage in ("corpus", "features", "tokens"):
            (root / stage).symlink_to(workspace.directory(stage).resolve())
        (root / "train" / system).mkdir(parents=True)
        (root / "train" / system / CONFIG).write_text(dump_yaml(config))
        trainer = SystemTrainer(Workspace(workspace.recipe, root), system)
        loading, training, frames = train(trainer, steps)
        print(
            f"{steps} steps of {frames / steps:,.0f} frames: loading {frames / loading:,.0f} "
            f"frames a second, training {frames / training:,.0f}; loading is "
            f"{training / loading:.1f} times as fast"
        )
        walk(trainer.stream)


def train(trainer: SystemTrainer, steps: int) -> tuple[float, float, int]:
    """Seconds of loading and of training, and the frames, of ``steps`` steps after two."""
    loading = training = 0.0
    frames = 0
    batches = iter(trainer.stream)
    for step in range(steps + 2):
        begin = time.perf_counter()
        batch = next(batches)
        loaded = time.perf_counter()
        trainer._step(batch)
        if step >= 2:
            loading += loaded - begin
            training += time.perf_counter() - loaded
            frames += int(batch.feature_lengths.sum()) if batch is not None else 0
    return loading, training, frames


def walk(stream: BatchStream) -> None:
    """Load an epoch."""
    stream.load_state_dict(stream.state_dict() | {"epoch": 0, "step": 0})
    memory, steps, begin = [resident()], len(stream), time.perf_counter()
    for step, _ in enumerate(stream, start=1):
        if step * 4 // steps > (step - 1) * 4 // steps:
            memory.append(resident())
    quarters = ", ".join(f"{value:,.1f}" for value in memory)
    seconds = time.perf_counter() - begin
    print(f"an epoch of {len(stream.utterances)} utterances, loaded in {seconds:.1f} s: memory at")
    print(f"its beginning and after each quarter {quarters} MiB")


def measure(index: UtteranceSet, workers: int, batch_seconds: float) -> tuple[float, ...]:
    """The columns of one row, for the last of ``workers`` ranks."""
    stream = make_stream(index, workers, batch_seconds)
    begin = time.perf_counter()
    plan = stream.plan(0)
    planned = time.perf_counter() - begin
    begin = time.perf_counter()
    batches = [plan.batch(step, workers - 1) for step in range(len(plan))]
    each = (time.perf_counter() - begin) / len(plan)
    idle = sum(batch is None for batch in batches) / len(plan)
    assert (plan.steps != NO_BATCH).sum() == len(plan.starts) - 1  # every batch is somebody's
    begin = time.perf_counter()
    resumed = make_stream(index, workers, batch_seconds)
    halfway = {"epoch": 2, "step": len(plan) // 4, "workers": 2 * workers}
    resumed.load_state_dict(resumed.state_dict() | halfway)
    resumed.plan(2)
    return planned, 1e6 * each, len(plan), 100 * idle, time.perf_counter() - begin


def make_stream(index: UtteranceSet, workers: int, batch_seconds: float) -> BatchStream:
    """The last rank's stream."""
    return BatchStream(
        index,
        worker=workers - 1,
        workers=workers,
        epochs=4,
        seed=0,
        batch_frames=round(batch_seconds * FRAMES_A_SECOND),
    )


if __name__ == "__main__":
    main()
