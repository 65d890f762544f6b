"""What only a GPU can show, in a few minutes on one: ``make gpu-check``.

Checks, one line each: Triton against torch, bit for bit, and its speed against ``add_``; GTC's step
on the GPU against the CPU's; a cuDNN LSTM's weights after a filter step; NCCL with one rank; gloo
ranks that hold CUDA tensors; a short training in bf16. The exit status is 1 if a check fails.
``--device cpu`` runs what can run without a GPU, to try the script itself.
"""

import argparse
import copy
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    DenseInHost,
    TargetDensity,
    TieredTrainer,
    Topology,
    codec,
    entries,
    native,
)

FINE = GTC(TargetDensity(end=0.01, start=0.1, ramp_steps=10), max_quanta=16)


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--elements", type=int, default=24_000_000)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("error: no GPU here (torch.cuda.is_available() is False)", file=sys.stderr)
        return 2
    place = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU, a dry run"
    print(f"torch {torch.__version__} on {place}")
    device = torch.device(arguments.device)
    checks: dict[str, Callable[[], str]] = {
        "native code": lambda: check_native(device, arguments.elements),
        "step, against the CPU": lambda: check_step(device),
        "LSTM after a filter step": lambda: check_lstm(device),
        "one rank": lambda: check_ranks(device, 1, "nccl" if device.type == "cuda" else "gloo"),
        "gloo ranks": lambda: check_ranks(device, 4, "gloo"),
        "training": lambda: check_training(device),
    }
    failed = [name for name, check in checks.items() if not passes(name, check)]
    return 1 if failed else 0


def passes(name: str, check: Callable[[], str]) -> bool:
    """Run one check, and print how it went."""
    begin = time.perf_counter()
    try:
        result = check()
    except Exception:  # the others go on
        traceback.print_exc()
        result = None
    state = "FAILED" if result is None else "ok"
    print(f"{state:<7} {name}: {result or ''} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return result is not None


def check_native(device: torch.device, elements: int) -> str:
    """The same bits as torch's at every density, and the time that both take."""
    assert native.available(device.type), "no native code here; the log says why"
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(elements, generator=generator).to(device)
    start = torch.randn(elements, generator=generator).to(device)
    rows = [f"add_ {1e3 * seconds(lambda: start.clone().add_(gradient), device):.2f} ms"]
    for density in (1e-4, 1e-3, 1e-2, 1e-1):
        tau = float((start[:100_000] + gradient[:100_000]).abs().cpu().quantile(1 - density))
        results, times = [], []
        for switch in (native._native, lambda device_type: None):
            with mock.patch.object(native, "_native", switch):
                result, taken = encode_and_decode(start, gradient, tau)
                results.append(result)
                times.append(taken)
        for ours, torchs in zip(*results, strict=True):
            assert torch.equal(ours, torchs), f"other bits at density {density}"
        rows.append(
            f"{density:g}: encode {times[0][0]:.2f} ms, by torch {times[1][0]:.2f}, "
            f"decode {times[0][1]:.2f}, by torch {times[1][1]:.2f}"
        )
    return "; ".join(rows)


def encode_and_decode(
    start: torch.Tensor, gradient: torch.Tensor, tau: float
) -> tuple[list[torch.Tensor], list[float]]:
    """All that the codec makes of a residual and a gradient, and the milliseconds both ways take.

    Four workers' entries are decoded, two of them the negatives of the others' quanta.
    """
    device, elements = start.device, start.numel()
    residual = start.clone()
    positions, quanta = codec.accumulate(residual, gradient, 1.0, tau, 4)
    count = int(quanta.abs().sum())
    words = [entries.to_words(positions, sign * quanta, elements, count) for sign in (1, -1, 1, 1)]
    bodies, counts = torch.stack(words), [count] * 4
    ends, value = torch.tensor([elements // 3, elements]), torch.tensor([tau, 2 * tau])
    scratch = torch.zeros(elements, dtype=torch.int32, device=device)
    out = torch.empty_like(start)

    def decode() -> None:
        entries.decode(bodies, counts, count, ends, value, scratch, out)

    decode()
    assert not scratch.any()
    times = [
        1e3 * seconds(lambda: codec.accumulate(start.clone(), gradient, 1.0, tau, 4), device),
        1e3 * seconds(decode, device),
    ]
    return [residual, positions, quanta, out], times


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """The least of five."""
    taken = []
    for _ in range(5):
        _wait(device)
        begin = time.perf_counter()
        action()
        _wait(device)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def trainer_on(device: torch.device, model: nn.Module, lr: float = 0.1) -> TieredTrainer:
    """A trainer of a model on the device, in blocks of three steps."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return TieredTrainer(model, optimizer, Topology.build(1), FINE, BMUF(3, 0.5), clip=1.0)


def check_step(device: torch.device) -> str:
    """Given the same gradients, the device and the CPU send the same and arrive at the same."""
    torch.manual_seed(0)
    here = nn.Linear(300, 200)
    trainers = trainer_on(device, copy.deepcopy(here)), trainer_on(torch.device("cpu"), here)
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        gradients = [torch.randn(p.shape, generator=generator) for p in here.parameters()]
        reports = []
        for trainer in trainers:
            for parameter, gradient in zip(trainer.model.parameters(), gradients, strict=True):
                parameter.grad = gradient.to(parameter.device, copy=True)
            reports.append(trainer.step(samples=5))
        assert abs(reports[0].density - reports[1].density) < 1e-4
    there, here = (t.model_for_eval().weight.detach().cpu() for t in trainers)
    difference = float((there - here).norm() / here.norm())
    assert difference < 1e-3, difference
    return f"relative difference after 12 steps {difference:.1e}"


def check_lstm(device: torch.device) -> str:
    """After a filter step an LSTM computes with its new weights, where they were."""
    torch.manual_seed(0)
    model = nn.LSTM(40, 64, 3)
    trainer = trainer_on(device, model)
    addresses = [p.data_ptr() for p in model.parameters()]
    inputs = torch.randn(20, 4, 40, device=device)
    for _ in range(3):
        model(inputs)[0].square().mean().backward()
        report = trainer.step(samples=80)
    assert report.block is not None
    assert [p.data_ptr() for p in model.parameters()] == addresses
    fresh = nn.LSTM(40, 64, 3).to(device)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        difference = float((fresh(inputs)[0] - model(inputs)[0]).abs().max())
    assert difference < 1e-5, difference
    return f"difference to a fresh LSTM of the same weights {difference:.1e}"


def check_ranks(device: torch.device, ranks: int, back_end: str) -> str:
    """Ranks of one world train in two tiers; all hold tensors on the device."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            _rank, (ranks, back_end, device, os.path.join(folder, "store")), nprocs=ranks
        )
    return f"{ranks} with {back_end}"


def _rank(rank: int, ranks: int, back_end: str, device: torch.device, store: str) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(
        back_end, store=dist.FileStore(store, ranks), rank=rank, world_size=ranks
    )
    every = torch.full((4,), float(rank), device=device)
    dist.all_reduce(every)
    assert every[0].item() == ranks * (ranks - 1) / 2
    two_levels = Topology.build(max(1, ranks // 2))
    three_levels = Topology.build(ranks, ranks_per_host=max(1, ranks // 2))
    for topology, inner in (
        (two_levels, Dense()),
        (two_levels, Dense("bf16")),
        (two_levels, FINE),
        (three_levels, DenseInHost(FINE, "bf16")),
    ):
        torch.manual_seed(0)
        model = nn.Linear(30, 20).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = TieredTrainer(model, optimizer, topology, inner, BMUF(4))
        generator = torch.Generator().manual_seed(rank)
        for _ in range(8):
            inputs = torch.randn(5, 30, generator=generator).to(device)
            model(inputs).square().mean().backward()
            trainer.step(samples=5 + rank)
        weights = model.weight.detach().cpu().contiguous()
        assert all(torch.equal(w, weights) for w in topology.world.gather_objects(weights))
    dist.destroy_process_group()


def check_training(device: torch.device) -> str:
    """An LSTM learns to repeat its input's sign, in bf16 on a GPU, with GTC and BMUF."""
    torch.manual_seed(0)
    lstm, output = nn.LSTM(16, 128, 2, batch_first=True), nn.Linear(128, 2)
    trainer = trainer_on(device, nn.ModuleList([lstm, output]), lr=0.3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(300):
        inputs = torch.randn(16, 30, 16, generator=generator).to(device)
        # A dry run stays in fp32: CPUs without AVX-512 have no LSTM in bf16.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):
            logits = output(lstm(inputs)[0])
        targets = (inputs[..., 0] > 0).long().flatten()
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets)
        loss.backward()
        trainer.step(samples=480)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses[::50]
    return f"loss from {losses[0]:.3f} to {losses[-1]:.3f}"


if __name__ == "__main__":
    sys.exit(main())
