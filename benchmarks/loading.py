"""What it costs a rank to know its batches, at any number of ranks, for a 2000-hour corpus.

    PYTHONPATH=. python benchmarks/loading.py [--utterances 700000] [--workers 1 8 32 128]

No audio and no features are read: an index of utterances as long as LibriSpeech's is planned, and
every step's batch asked for, by one rank. Printed are the seconds to plan an epoch (once an epoch),
the microseconds a step to know one's batch, the steps of an epoch, the share of them in which this
rank has no batch, the seconds to go to the middle of epoch 3 that another number of ranks had
reached, and the largest memory that the process has had.
"""

import argparse
import resource
import time

import numpy as np

from asr.data import NO_BATCH, BatchStream

FRAMES_A_SECOND = 100


class Index:
    """As much of ``UtteranceSet`` as planning needs: durations like LibriSpeech's, and ids."""

    def __init__(self, utterances: int, speeds: int) -> None:
        seconds = np.random.default_rng(0).triangular(1.5, 15.0, 17.0, utterances)
        factors = np.array([1.0, 0.9, 1.1][:speeds])
        self.speed_frames = (seconds[:, None] / factors * FRAMES_A_SECOND).astype(np.int64)
        self.frames = self.speed_frames[:, 0]

    def __len__(self) -> int:
        return len(self.frames)

    def id(self, index: int) -> str:
        """An id of LibriSpeech's kind."""
        return f"1000-{index // 100:06}-{index % 100:04}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--utterances", type=int, default=700_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--batch-seconds", type=float, default=60.0)
    parser.add_argument("--speeds", type=int, choices=[1, 2, 3], default=1)
    arguments = parser.parse_args()
    index = Index(arguments.utterances, arguments.speeds)
    hours = index.frames.sum() / FRAMES_A_SECOND / 3600
    print(f"{len(index):,} utterances, {hours:,.0f} h, batches of {arguments.batch_seconds:g} s")
    columns = ("ranks", "plan s", "us a step", "steps", "idle %", "restore s")
    print("".join(f"{column:>12}" for column in columns))
    for workers in arguments.workers:
        row = measure(index, workers, arguments.batch_seconds)
        print(f"{workers:>12}" + "".join(f"{value:>12,.4g}" for value in row))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"largest memory of the process: {peak:,.0f} MiB")


def measure(index: Index, workers: int, batch_seconds: float) -> tuple[float, ...]:
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
    halfway = {"epoch": 2, "step": len(plan) // 4, "workers": 2 * workers, "before": []}
    resumed.load_state_dict(halfway)
    resumed.plan(2)
    return planned, 1e6 * each, len(plan), 100 * idle, time.perf_counter() - begin


def make_stream(index: Index, workers: int, batch_seconds: float) -> BatchStream:
    """The last rank's stream."""
    return BatchStream(
        index,  # type: ignore[arg-type]
        worker=workers - 1,
        workers=workers,
        epochs=4,
        seed=0,
        batch_frames=round(batch_seconds * FRAMES_A_SECOND),
    )


if __name__ == "__main__":
    main()
