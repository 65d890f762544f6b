"""The controller that makes a density come true."""

import pytest
import torch

from tiered_dist import FixedThreshold, TargetDensity, codec


def test_target_falls_geometrically_and_stays():
    threshold = TargetDensity(end=0.01, start=0.25, ramp_steps=100)
    assert threshold.target_density(0) == 0.25
    assert threshold.target_density(50) == pytest.approx(0.05)
    assert threshold.target_density(100) == pytest.approx(0.01)
    assert threshold.target_density(10_000) == pytest.approx(0.01)


def test_first_tau_lets_the_target_share_pass():
    gradients = [torch.randn(5000), torch.randn(300) * 1e-4]
    threshold = TargetDensity(end=0.01, start=0.1, ramp_steps=10)
    for gradient, tau in zip(gradients, threshold.initial(gradients, step=0), strict=True):
        assert int((gradient.abs() >= tau).sum()) == pytest.approx(0.1 * gradient.numel(), abs=1)


def test_first_tau_of_a_tensor_without_gradient_is_positive():
    taus = TargetDensity().initial([torch.zeros(10), torch.ones(10)], step=0)
    assert taus[0] == taus[1] == 1
    assert TargetDensity().initial([torch.zeros(10), torch.zeros(0)], step=0)[0] > 0


def test_fixed_tau_never_moves():
    threshold = FixedThreshold(0.5)
    taus = threshold.initial([torch.ones(3), torch.zeros(2)], step=0)
    assert taus.tolist() == [0.5, 0.5]
    assert torch.equal(threshold.update(taus, torch.tensor([1.0, 0.0]), 3), taus)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("drift_over_noise", [0.0, 0.1, 0.5])
def test_density_settles_at_the_target(scale, drift_over_noise):
    """Closed loop through the codec: a drifting gradient with noise, tensors of any scale."""
    generator = torch.Generator().manual_seed(2)
    threshold = TargetDensity(end=0.01, start=0.25, ramp_steps=200)
    size = 20_000
    drift = torch.randn(size, generator=generator) * drift_over_noise
    residual, taus, seen = torch.zeros(size), None, []
    for step in range(1000):
        gradient = (drift + torch.randn(size, generator=generator)) * scale
        if taus is None:
            taus = threshold.initial([gradient], step)
        residual.add_(gradient)
        positions, quanta = codec.quantise(residual, float(taus[0]), 1)
        codec.subtract(residual, positions, quanta, taus.expand(len(positions)))
        density = torch.tensor([int(quanta.abs().sum()) / size])
        taus = threshold.update(taus, density, step)
        seen.append(float(density))
    falling = [seen[step] / threshold.target_density(step) for step in range(50, 200)]
    assert sum(falling) / 150 == pytest.approx(1, rel=0.15)  # tau rises ahead of the target's fall
    assert sum(seen[500:]) / 500 == pytest.approx(0.01, rel=0.1)
    assert max(seen[500:]) < 0.02


@pytest.mark.parametrize("settings", [{"end": 0}, {"end": 0.5, "start": 0.1}, {"ramp_steps": -1}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError):
        TargetDensity(**settings)


def test_the_first_tau_is_what_the_targets_share_of_elements_reaches():
    gradients = [torch.arange(-10.0, 0.0), torch.tensor([0.5])]
    assert TargetDensity(end=0.3, start=0.3).initial(gradients, 0).tolist() == [8.0, 0.5]
