"""The compiled pass against torch's operations, bit for bit; and what happens without it."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from tiered_dist import codec, native


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    native._function.cache_clear()
    yield tmp_path
    native._function.cache_clear()


def compiled():
    if not native.available():
        pytest.skip("no native code here: no C compiler, or one that rounds otherwise than torch")


def both(residual, gradient, weight, tau, max_quanta, monkeypatch):
    """Residual, positions and quanta by native code, then by torch."""
    results = []
    for use in (True, False):
        left = residual.clone()
        with monkeypatch.context() as patch:
            if not use:
                patch.setattr(native, "_function", lambda device_type: None)
            results.append((left, *codec.accumulate(left, gradient, weight, tau, max_quanta)))
    return results


@pytest.mark.parametrize("density", [1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("max_quanta", [1, 5])
def test_same_bits_as_torch(density, max_quanta, monkeypatch):
    compiled()
    generator = torch.Generator().manual_seed(11)
    residual, gradient = torch.randn(2, 300_001, generator=generator).unbind()
    tau = float(residual.add(gradient, alpha=0.7).abs().quantile(1 - density))
    ours, torchs = both(residual, gradient, 0.7, tau, max_quanta, monkeypatch)
    assert ours[1].numel() == pytest.approx(density * 300_001, rel=0.1)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_every_size_and_alignment(size, first, monkeypatch):
    compiled()
    values = torch.randn(2, size + first, generator=torch.Generator().manual_seed(size))
    residual, gradient = values[0, first:], values[1, first:]
    ours, torchs = both(residual, gradient, 1.0, 0.5, 2, monkeypatch)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("value", [0.0, -0.75, 0.75, 0.5, -0.5, 1e-42, float("inf"), 3e38])
def test_odd_values(value, monkeypatch):
    compiled()
    gradient = torch.full((70,), value)
    ours, torchs = both(torch.zeros(70), gradient, 1.0, 0.5, 4, monkeypatch)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    assert ours[1].numel() == (70 if abs(value) >= 0.5 else 0)


def test_what_it_cannot_do_is_left_to_torch():
    spread = torch.zeros(20)[::2]
    assert native.accumulate(spread, torch.ones(10), 1.0, 0.5) is None
    assert native.accumulate(torch.zeros(10).double(), torch.ones(10).double(), 1.0, 0.5) is None
    assert not spread.any()
    positions, _ = codec.accumulate(spread, torch.ones(10), 1.0, 0.5, 1)
    assert positions.tolist() == list(range(10)) and spread.tolist() == [1.0] * 10


def test_triton_in_its_interpreter(tmp_path):
    """No GPU here: Triton's interpreter runs the kernel on the CPU, with exact products."""
    pytest.importorskip("triton")
    script = tmp_path / "interpret.py"
    script.write_text(
        "import torch\n"
        "from tiered_dist import triton_kernel\n"
        "for n in (0, 1, 1023, 1024, 1025, 5000):\n"
        "    residual, gradient = torch.randn(2, n).unbind()\n"
        "    expected = residual.add(gradient, alpha=0.5)\n"
        "    for tau in (1.0, 1e9):\n"
        "        left = residual.clone()\n"
        "        positions, values = triton_kernel.accumulate(left, gradient, 0.5, tau)\n"
        "        assert torch.equal(left, expected) and torch.equal(values, left[positions])\n"
        "        assert torch.equal(positions, (expected.abs() >= tau).nonzero().squeeze(1))\n"
        "print('equal')\n"
    )
    result = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(native.SOURCE.parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.stdout == "equal\n", result.stderr


def test_compiled_once(fresh):
    compiled()
    (library,) = fresh.glob("cache/tiered_dist/*.so")
    before = library.stat().st_mtime_ns
    native._function.cache_clear()
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


def test_code_that_gives_other_bits_is_not_used(fresh, monkeypatch, caplog):
    wrong = fresh / "wrong.c"
    wrong.write_text(native.SOURCE.read_text().replace("+ weight *", "+ 1.001f * weight *"))
    monkeypatch.setattr(native, "SOURCE", wrong)
    with caplog.at_level(logging.INFO, "tiered_dist"):
        assert not native.available()
    assert "rounds otherwise" in caplog.text or "cannot be had" in caplog.text
