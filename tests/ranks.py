"""Run a function on several real ranks: processes of their own, joined by gloo over sockets."""

import contextlib
import multiprocessing
import os
import pickle
import traceback

# Forking from a server that has imported torch once makes four ranks start in a blink (and what an
# optimizer imports when it is made, torch._dynamo). The server has a single thread; pytest's own
# process may not.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed", "torch._dynamo", "tiered_dist"])
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"


def run_ranks(world_size, function, tmp_path, *arguments, timeout=120, hanging=()):
    """Call ``function(*arguments)`` on every rank; the results, in rank order.

    A rank that raises hands over its exception in place of a result; one that dies, None, and so
    does one that is meant to be ``hanging`` when the others have ended.
    """
    meeting = tmp_path / f"ranks-{os.urandom(4).hex()}"
    meeting.mkdir()
    processes = [
        _context.Process(target=_rank, args=(rank, world_size, meeting, function, arguments))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        for rank, process in enumerate(processes):
            if rank not in hanging:
                process.join(timeout)
                assert not process.is_alive(), "a rank hangs"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    files = [meeting / f"result-{rank}" for rank in range(world_size)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def _rank(rank, world_size, meeting, function, arguments):
    import torch.distributed as dist

    import tiered_dist

    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        TIERED_DIST_STORE=str(meeting / "store"),
    )
    try:
        tiered_dist.init_process_group(timeout_seconds=20)
        result = function(*arguments)
    except Exception as error:
        traceback.print_exc()
        result = RuntimeError(f"{type(error).__name__}: {error}")
    (meeting / f"result-{rank}").write_bytes(pickle.dumps(result))
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
