"""The compiled pass against torch's operations, bit for bit; and what happens without it."""

import contextlib
import logging
import os
import subprocess
import sys

import pytest
import torch

from tiered_dist import codec, entries, native


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    native._native.cache_clear()
    yield tmp_path
    native._native.cache_clear()


def compiled():
    if not native.available():
        pytest.skip("no native code here: no C compiler, or one that rounds otherwise than torch")


@contextlib.contextmanager
def torch_alone():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_native", lambda device_type: None)
        yield


def both(residual, gradient, weight, tau, max_quanta):
    """Residual, positions and quanta by native code, then by torch."""
    results = []
    for way in (contextlib.nullcontext, torch_alone):
        left = residual.clone()
        with way():
            results.append((left, *codec.accumulate(left, gradient, weight, tau, max_quanta)))
    return results


@pytest.mark.parametrize("density", [1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("max_quanta", [1, 5])
def test_same_bits_as_torch(density, max_quanta):
    compiled()
    generator = torch.Generator().manual_seed(11)
    residual, gradient = torch.randn(2, 300_001, generator=generator).unbind()
    tau = float(residual.add(gradient, alpha=0.7).abs().quantile(1 - density))
    ours, torchs = both(residual, gradient, 0.7, tau, max_quanta)
    assert ours[1].numel() == pytest.approx(density * 300_001, rel=0.1)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_every_size_and_alignment(size, first):
    compiled()
    values = torch.randn(2, size + first, generator=torch.Generator().manual_seed(size))
    residual, gradient = values[0, first:], values[1, first:]
    ours, torchs = both(residual, gradient, 1.0, 0.5, 2)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("value", [0.0, -0.75, 0.75, 0.5, -0.5, 1e-42, float("inf"), 3e38])
def test_odd_values(value):
    compiled()
    gradient = torch.full((70,), value)
    ours, torchs = both(torch.zeros(70), gradient, 1.0, 0.5, 4)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    assert ours[1].numel() == (70 if abs(value) >= 0.5 else 0)


def messages(density, sizes, workers, quanta=3):
    """Bodies of random quanta, their counts of entries and the capacity."""
    generator, total = torch.Generator().manual_seed(5), sum(sizes)
    sent = []
    for _ in range(workers):
        positions = (torch.rand(total, generator=generator) < density).nonzero().squeeze(1)
        values = torch.randint(1, quanta + 1, positions.shape, generator=generator)
        sign = 2 * torch.randint(0, 2, positions.shape, generator=generator) - 1
        sent.append((positions, (values * sign).to(torch.int32)))
    counts = [int(values.abs().sum()) for _, values in sent]
    capacity = max(*counts, 1) + 5
    bodies = torch.full((workers, entries.words(capacity, total, capacity) + 3), 77).int()[:, 3:]
    for row, (positions, values) in zip(bodies, sent, strict=True):
        words = entries.to_words(positions, values, total, capacity)
        row[: len(words)] = words
    return bodies, counts, capacity


def decode(bodies, counts, capacity, sizes, use=contextlib.nullcontext):
    """The result, and what is left in the scratch."""
    ends = torch.tensor(sizes).cumsum(0)
    values = torch.arange(1, len(sizes) + 1) / 7
    out = torch.full((sum(sizes),), float("nan"))
    scratch = torch.zeros(sum(sizes), dtype=torch.int32)
    with use():
        entries.decode(bodies, counts, capacity, ends, values, scratch, out)
    return out, scratch


@pytest.mark.parametrize("density", [0, 1e-4, 1e-3, 1e-2, 1e-1, 1])
@pytest.mark.parametrize("sizes", [(200_000, 0, 1, 99_999, 0), (70,), (32_768, 32_768)])
@pytest.mark.parametrize("workers", [1, 4])
def test_decodes_as_torch_does(density, sizes, workers):
    compiled()
    sent = messages(density, sizes, workers, quanta=1 if density == 1 else 3)
    (ours, left), (torchs, _) = decode(*sent, sizes), decode(*sent, sizes, torch_alone)
    assert torch.equal(ours, torchs) and not left.any()
    assert ours.any() == (sum(sent[1]) > 0)


def test_entries_that_cancel_leave_a_zero():
    compiled()
    quanta = torch.tensor([2], dtype=torch.int32)
    bodies = [entries.to_words(torch.tensor([3]), sign * quanta, 9, 2) for sign in (1, -1)]
    out, left = decode(torch.stack(bodies), [2, 2], 2, (9,))
    assert not out.any() and not left.any()


@pytest.mark.parametrize("use", [contextlib.nullcontext, torch_alone])
@pytest.mark.parametrize(
    "fault",
    ["32 bits, too far", "16 bits, too far", "counts", "32 bits, too many", "16 bits, too many"],
)
def test_a_body_that_does_not_fit_the_model_is_refused(fault, use):
    if fault == "32 bits, too far":
        bodies, count, capacity, total = torch.tensor([[2 * 50]]), 1, 1, 50
    else:  # 40,000 elements are two stretches of 32,768; the second has 7,232
        capacity, total = 8, 40_000
        positions = torch.tensor([5, 32_768 + 7_231])
        bodies = entries.to_words(positions, torch.tensor([1, 1]), total, capacity).view(1, -1)
        count = 2 if fault == "16 bits, too far" else 3
        if count == 2:
            bodies.view(torch.int16)[0, 3] = 2 * 7_232
    if fault == "32 bits, too many":
        bodies, count, capacity = torch.tensor([[2, 4]]), 3, 3
    elif fault == "16 bits, too many":
        count = 5
        bodies.view(torch.int16)[0, :2] = torch.tensor([4, 1], dtype=torch.int16)
    with pytest.raises(native.NotThisModel, match="do not fit the model"):
        decode(bodies.int(), [count], capacity, (total,), use)


def test_what_it_cannot_do_is_left_to_torch():
    spread = torch.zeros(20)[::2]
    assert native.accumulate(spread, torch.ones(10), 1.0, 0.5) is None
    assert native.accumulate(torch.zeros(10).double(), torch.ones(10).double(), 1.0, 0.5) is None
    assert not spread.any()
    positions, _ = codec.accumulate(spread, torch.ones(10), 1.0, 0.5, 1)
    assert positions.tolist() == list(range(10)) and spread.tolist() == [1.0] * 10


TRITON = """
import torch
from tiered_dist import entries, native, triton_kernel
from test_native import decode, messages, torch_alone
for n in (0, 1, 1023, 1024, 1025, 5000):
    residual, gradient = torch.randn(2, n).unbind()
    expected = residual.add(gradient, alpha=0.5)
    for tau in (1.0, 1e9):
        left = residual.clone()
        positions, values = triton_kernel.accumulate(left, gradient, 0.5, tau)
        assert torch.equal(left, expected) and torch.equal(values, left[positions])
        assert torch.equal(positions, (expected.abs() >= tau).nonzero().squeeze(1))
native._native = lambda device_type: native.Native(triton_kernel.accumulate, triton_kernel.decode)
for sizes in ((70,), (40_000, 0, 1, 29_999)):
    for density in (0, 1e-3, 1e-2, 1e-1):
        sent = messages(density, sizes, workers=3)
        (ours, left), (torchs, _) = decode(*sent, sizes), decode(*sent, sizes, torch_alone)
        assert torch.equal(ours, torchs) and not left.any()
print("equal")
"""


def test_triton_in_its_interpreter(tmp_path):
    """No GPU here: Triton's interpreter runs the kernels on the CPU, with exact products."""
    pytest.importorskip("triton")
    script = tmp_path / "interpret.py"
    script.write_text(TRITON)
    paths = [str(native.SOURCE.parents[1]), os.path.dirname(__file__)]
    result = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.stdout == "equal\n", result.stderr


def test_compiled_once(fresh):
    compiled()
    (library,) = fresh.glob("cache/tiered_dist/*.so")
    before = library.stat().st_mtime_ns
    native._native.cache_clear()
    assert native.available()
    assert library.stat().st_mtime_ns == before


@pytest.mark.parametrize("lack", ["compiler", "cache", "switched off"])
def test_without_it_torch_does_the_work(lack, fresh, monkeypatch, caplog):
    if lack == "compiler":
        monkeypatch.setenv("PATH", str(fresh))
    elif lack == "cache":
        (fresh / "cache").write_text("in the way")
    else:
        monkeypatch.setenv(native.SWITCH, "0")
    residual = torch.zeros(100)
    with caplog.at_level(logging.INFO, "tiered_dist"):
        positions, quanta = codec.accumulate(residual, torch.ones(100), 2.0, 1.5, 1)
    assert not native.available()
    assert ("native code cannot be had" in caplog.text) == (lack != "switched off")
    assert positions.tolist() == list(range(100)) and quanta.tolist() == [1] * 100


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("+ weight *", "+ 1.001f * weight *"), ("scratch[e.position] +=", "scratch[e.position] -=")],
)
def test_code_that_gives_other_bits_is_not_used(right, wrong, fresh, monkeypatch, caplog):
    source = native.SOURCE.read_text()
    assert right in source
    changed, wrong = source.replace(right, wrong), fresh / "wrong.c"
    wrong.write_text(changed)
    monkeypatch.setattr(native, "SOURCE", wrong)
    with caplog.at_level(logging.INFO, "tiered_dist"):
        assert not native.available()
    assert "rounds otherwise" in caplog.text or "cannot be had" in caplog.text
