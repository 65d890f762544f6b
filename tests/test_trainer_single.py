"""Identities of the two-tier trainer that need one process only."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    FixedThreshold,
    TargetDensity,
    TieredTrainer,
    Topology,
)


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def make_sgd(model, lr=0.1, momentum=0.9):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def make_trainer(model, inner, outer=None, clip=None, **sgd):
    return TieredTrainer(model, make_sgd(model, **sgd), Topology.build(1), inner, outer, clip)


def backward(model, step):
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
    nn.functional.mse_loss(model(inputs), inputs[:, :3]).backward()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_dense_alone_is_bitwise_the_plain_optimizer():
    model, plain = make_model(), make_model()
    trainer, optimizer = make_trainer(model, Dense()), make_sgd(plain)
    for step in range(10):
        backward(model, step)
        trainer.step(samples=5)
        backward(plain, step)
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(flat(model), flat(plain))


def test_dense_clips_the_mean_gradient():
    model = make_model()
    before = flat(model).clone()
    trainer = make_trainer(model, Dense(), clip=0.01, lr=1.0, momentum=0.0)
    backward(model, 0)
    trainer.step()
    assert float((flat(model) - before).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("momentum", "nesterov", "masking"),
    [(0.0, False, True), (0.5, False, True), (0.5, True, True), (0.5, False, False)],
)
@pytest.mark.parametrize("max_quanta", [1, 3])
def test_gtc_alone_is_bitwise_an_error_feedback_loop(max_quanta, momentum, nesterov, masking):
    tau = 0.05
    model, other = make_model(), make_model()
    inner = GTC(
        FixedThreshold(tau),
        max_quanta,
        momentum=momentum,
        nesterov=nesterov,
        factor_masking=masking,
    )
    own = 0.0 if momentum else 0.9
    trainer, optimizer = make_trainer(model, inner, momentum=own), make_sgd(other, momentum=own)
    tau32, sent_any = np.float32(tau), False
    residuals = [np.zeros(tuple(p.shape), np.float32) for p in other.parameters()]
    velocities = [np.zeros_like(residual) for residual in residuals]
    for step in range(20):
        backward(model, step)
        trainer.step(samples=5)
        backward(other, step)
        parts = zip(residuals, velocities, other.parameters(), strict=True)
        for residual, velocity, parameter in parts:
            gradient = parameter.grad.numpy()
            velocity *= np.float32(momentum)
            velocity += gradient
            residual += gradient + np.float32(momentum) * velocity if nesterov else velocity
            quanta = np.minimum(np.floor(np.abs(residual) / tau32), max_quanta) * np.sign(residual)
            residual -= tau32 * quanta.astype(np.float32)
            if masking:
                velocity[quanta != 0] = 0
            parameter.grad = torch.from_numpy(tau32 * quanta.astype(np.float32))
            sent_any |= bool(quanta.any())
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(flat(model), flat(other))
    assert sent_any


def test_momentum_correction_without_masking_is_sgds_momentum_once_everything_has_gone():
    """What each step's velocity brings is only late, so in the end the sums are equal."""
    model, plain = nn.Linear(20, 5, bias=False), nn.Linear(20, 5, bias=False)
    plain.load_state_dict(model.state_dict())
    inner = GTC(FixedThreshold(0.01), max_quanta=5000, momentum=0.9, factor_masking=False)
    trainer, optimizer = make_trainer(model, inner, momentum=0.0), make_sgd(plain, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for step in range(60):
        gradient = torch.randn(5, 20, generator=generator) * (step < 10)
        model.weight.grad, plain.weight.grad = gradient.clone(), gradient.clone()
        trainer.step(samples=5)
        optimizer.step()
    torch.testing.assert_close(model.weight, plain.weight, rtol=0, atol=0.1 * 0.01 * 1.01)


def scaled_trainer(inner):
    model = make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    return TieredTrainer(model, make_sgd(model), Topology.build(1), inner, scaler=scaler), scaler


@pytest.mark.parametrize("inner", [Dense(), GTC(FixedThreshold(0.05))])
def test_a_loss_scale_changes_nothing_and_an_overflow_lowers_it(inner):
    """Powers of two scale exactly, so the bits are those of unscaled training."""
    trainer, scaler = scaled_trainer(inner)
    plain = make_trainer(make_model(), inner)
    scales = []
    for step in range(12):
        inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(trainer.model(inputs), inputs[:, :3])
        scaler.scale(loss).backward()
        overflows = step == 6
        if overflows:
            trainer.model[0].weight.grad[0, 0] = float("inf")
        report = trainer.step(samples=5)
        assert (report.stepped, report.not_finite) == (not overflows, int(overflows))
        scales.append(scaler.get_scale())
        if not overflows:
            backward(plain.model, step)
            plain.step(samples=5)
    trainer.step(samples=0)  # a rank without a batch has nothing to unscale
    assert scales[2:8] == [1024, 2048, 2048, 2048, 1024, 1024]
    assert torch.equal(flat(trainer.model), flat(plain.model))
    other, other_scaler = scaled_trainer(inner)
    other.load_state_dict(trainer.state_dict())
    assert other_scaler.get_scale() == scaler.get_scale() != 1024


def test_momentum_twice_is_refused():
    with pytest.raises(ValueError, match="momentum"):
        make_trainer(make_model(), GTC(momentum=0.9), momentum=0.9)


def test_the_velocity_goes_with_the_optimizers_state_at_a_blocks_end():
    def velocity(policy):
        model = make_model()
        inner = GTC(FixedThreshold(10.0), momentum=0.9)
        trainer = make_trainer(model, inner, BMUF(2, inner_state=policy), momentum=0.0)
        for step in range(2):
            backward(model, step)
            trainer.step(samples=5)
        return sum(
            float(v.norm()) for v in trainer.state_dict()["rank"]["inner"]["velocity"].values()
        )

    assert velocity("keep") > 0
    assert velocity("reset") == 0


def test_a_bound_keeps_a_residual_from_growing():
    def largest(bound):
        model = nn.Linear(10, 1, bias=False)
        inner = GTC(FixedThreshold(1.0), residual_bound=bound)
        trainer = make_trainer(model, inner)
        for _ in range(20):
            model.weight.grad = torch.full((1, 10), -2.5)
            report = trainer.step(samples=5)
        return report.residual_ratio

    assert largest(None) == pytest.approx(30)
    assert largest(3.0) == 3.0


def test_one_subgroup_without_momentum_is_no_filter():
    model, plain = make_model(), make_model()
    outer = BMUF(3, momentum=0.0, inner_state="keep")
    trainer, optimizer = make_trainer(model, Dense(), outer), make_sgd(plain)
    for step in range(12):
        backward(model, step)
        trainer.step(samples=5)
        backward(plain, step)
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-6, atol=1e-6)


def test_block_of_one_step_with_block_momentum_is_sgd_with_momentum():
    model, plain = make_model().double(), make_model().double()
    trainer = make_trainer(model, Dense(), BMUF(1, momentum=0.8), lr=0.1, momentum=0.0)
    optimizer = make_sgd(plain, lr=0.1, momentum=0.8)
    for step in range(20):
        for net in (model, plain):
            inputs = torch.randn(
                5, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
            nn.functional.mse_loss(net(inputs), inputs[:, :3]).backward()
        trainer.step(samples=5)
        optimizer.step()
        optimizer.zero_grad()
    assert float((flat(model) - flat(plain)).norm() / flat(plain).norm()) < 1e-6


def test_partial_last_block_is_filtered_once():
    model = make_model()
    trainer = make_trainer(model, Dense(), BMUF(4, momentum=0.0))
    for step in range(6):
        backward(model, step)
        trainer.step(samples=5)
    live = flat(model).clone()
    assert not torch.equal(flat(trainer.model_for_eval()), live)
    assert trainer.finish().block == 2
    torch.testing.assert_close(flat(trainer.model_for_eval()), live)
    assert trainer.finish() is None


def test_model_for_eval_is_w_not_the_look_ahead_and_is_a_copy():
    model = make_model()
    trainer = make_trainer(model, Dense(), BMUF(2, momentum=0.5, nesterov=True))
    start = flat(model).clone()
    for step in range(2):
        backward(model, step)
        trainer.step(samples=5)
    evaluated = trainer.model_for_eval()
    assert not evaluated.training
    # After the first block D = G and W = W0 + G, and the next block starts at W + eta * D.
    move = flat(evaluated) - start
    torch.testing.assert_close(flat(model), start + 1.5 * move)
    with torch.no_grad():
        evaluated[0].weight.zero_()
    assert model[0].weight.abs().sum() > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("inner", [Dense(), GTC(FixedThreshold(0.05))])
def test_non_finite_gradient_takes_no_step_and_leaves_no_trace(inner, bad):
    model, other = make_model(), make_model()
    trainer, clean = make_trainer(model, inner), make_trainer(other, inner)
    for step in range(6):
        backward(model, step)
        if step == 3:
            model[0].weight.grad[1, 1] = bad
        report = trainer.step(samples=5)
        assert report.stepped == (step != 3)
        assert report.not_finite == (step == 3)
        if step != 3:
            backward(other, step)
            clean.step(samples=5)
    assert torch.equal(flat(model), flat(other))


def test_residual_reset_at_block_end_is_an_option():
    def residual_norm(policy):
        model = make_model()
        inner = GTC(FixedThreshold(10.0), residual=policy)
        trainer = make_trainer(model, inner, BMUF(2))
        for step in range(4):
            backward(model, step)
            trainer.step(samples=5)
        residual = trainer.state_dict()["rank"]["inner"]["residual"]
        return sum(float(r.norm()) for r in residual.values())

    assert residual_norm("keep") > 0
    assert residual_norm("reset") == 0


def test_inner_optimizer_state_is_reset_or_kept():
    def momentum_buffers(policy):
        model = make_model()
        trainer = make_trainer(model, Dense(), BMUF(2, inner_state=policy))
        for step in range(2):
            backward(model, step)
            trainer.step(samples=5)
        return len(trainer.optimizer.state)

    assert momentum_buffers("reset") == 0
    assert momentum_buffers("keep") == 4


def test_state_is_keyed_by_parameter_name_and_saving_is_pure():
    model = make_model()
    trainer = make_trainer(model, GTC(TargetDensity(0.1, 0.3, 5)), BMUF(3))
    for step in range(4):
        backward(model, step)
        trainer.step(samples=5)
    before = copy.deepcopy(trainer.state_dict())
    again = trainer.state_dict()
    assert set(again["rank"]["inner"]["residual"]) == {n for n, _ in model.named_parameters()}
    for part, values in again["shared"]["filter_model"].items():
        assert torch.equal(values, before["shared"]["filter_model"][part])
    assert torch.equal(
        flat(model), torch.cat([v.flatten() for v in again["subgroup"]["model"].values()])
    )


def plain(state):
    """Tensors as lists, so that states can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list | tuple) else state


def test_all_state_survives_a_round_trip():
    gtc = GTC(TargetDensity(0.2, 0.3, 20), max_quanta=3, momentum=0.5)

    def make():
        return make_trainer(nn.Linear(60, 50), gtc, BMUF(4, 0.5, nesterov=True), momentum=0.0)

    ours, other = make(), make()
    for step in range(6):
        for parameter in ours.model.parameters():
            torch.manual_seed(step)
            parameter.grad = torch.randn_like(parameter)
        ours.step(samples=3)
    state = ours.state_dict()
    assert state["subgroup"]["inner"]["capacity"] > ours._inner.MIN_CAPACITY
    other.load_state_dict(state)
    assert plain(other.state_dict()) == plain(state)


def test_frozen_tied_unused_and_transposed_parameters():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.tied = nn.Linear(4, 4)
            self.again = self.tied
            self.frozen = nn.Linear(4, 4)
            self.frozen.requires_grad_(False)
            self.unused = nn.Parameter(torch.ones(3))
            self.transposed = nn.Parameter(torch.randn(5, 4).t())

        def forward(self, inputs):
            return self.frozen(self.again(self.tied(inputs))) @ self.transposed

    results = []
    for outer in (None, BMUF(1, momentum=0.0)):
        model = Odd()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        trainer = TieredTrainer(model, optimizer, Topology.build(1), Dense(), outer)
        frozen = model.frozen.weight.clone()
        for step in range(3):
            inputs = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
            model(inputs).square().mean().backward()
            trainer.step()
        assert torch.equal(model.frozen.weight, frozen)
        assert model.unused.tolist() == [1, 1, 1]
        assert not model.transposed.is_contiguous()
        results.append(flat(model))
    torch.testing.assert_close(results[0], results[1])


def test_parameters_frozen_or_replaced_afterwards_are_noticed():
    for change in ("freeze", "replace"):
        model = make_model()
        trainer = make_trainer(model, Dense(), BMUF(1))
        if change == "freeze":
            model[0].bias.requires_grad_(False)
        else:
            model[0].bias = nn.Parameter(torch.zeros(10))
        backward(model, 0)
        with pytest.raises(ValueError, match="no longer those"):
            trainer.step()


def test_adam_keeps_its_moments_by_default():
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    trainer = TieredTrainer(model, optimizer, Topology.build(1), Dense(), BMUF(1))
    backward(model, 0)
    trainer.step()
    assert len(optimizer.state) == 4


def test_few_samples_do_not_blow_up_what_the_residual_holds():
    """A step of one sample after full batches delivers no more than a full batch would."""
    model = nn.Linear(100, 1, bias=False)
    nn.init.zeros_(model.weight)
    trainer = make_trainer(model, GTC(FixedThreshold(1.0)), lr=1.0, momentum=0.0)
    moves = []
    for samples in (1000, 1000, 1):
        before = model.weight.detach().clone()
        model.weight.grad = torch.full((1, 100), 0.6)
        trainer.step(samples=samples)
        moves.append(float((model.weight.detach() - before).abs().max()))
    assert moves == [0.0, 1.0, 0.0]
    model.weight.grad = torch.full((1, 100), 0.9)
    before = model.weight.detach().clone()
    trainer.step(samples=900)
    assert float((model.weight.detach() - before).abs().max()) == pytest.approx(1000 / 1000)


def test_a_first_gradient_of_zeros_does_not_set_the_thresholds():
    model = make_model()
    trainer = make_trainer(model, GTC(TargetDensity(0.1, 0.1)))
    trainer.step(samples=5)
    assert trainer.state_dict()["subgroup"]["inner"]["taus"] == {}
    backward(model, 0)
    assert trainer.step(samples=5).density > 0


def test_one_poor_step_does_not_starve_the_next_message():
    model = nn.Linear(200, 200, bias=False)
    trainer = make_trainer(model, GTC(TargetDensity(0.05, 0.05)))
    generator = torch.Generator().manual_seed(0)
    overflow = []
    for step in range(40):
        model.weight.grad = torch.randn(200, 200, generator=generator) * 1e-3
        overflow.append(trainer.step(samples=1 if step == 30 else 100).overflow)
    assert max(overflow[20:]) == 0


def test_a_burst_is_spread_over_the_next_steps():
    model = nn.Linear(200, 200, bias=False)
    trainer = make_trainer(model, GTC(TargetDensity(0.01, 0.01), max_quanta=8))
    generator = torch.Generator().manual_seed(0)
    reports = []
    for step in range(80):
        model.weight.grad = torch.randn(200, 200, generator=generator) * (1 if step == 40 else 1e-3)
        reports.append(trainer.step(samples=5))
    assert max(report.density for report in reports[10:]) <= 0.02
    assert reports[40].overflow > 10_000
    assert reports[45].density > 0.01


def test_leaving_batches_early_leaves_no_trace():
    model = make_model()
    trainer = make_trainer(model, Dense())
    for _ in trainer.batches([None, 1]):
        trainer.step(samples=5)
        break
    backward(model, 0)
    assert trainer.step(samples=5).samples == 5


def test_finish_within_the_loop_does_not_end_the_data():
    model = make_model()
    trainer = make_trainer(model, Dense(), BMUF(4))
    taken = 0
    for step in trainer.batches(range(10)):
        backward(model, step)
        trainer.step(samples=5)
        taken += 1
        if step == 1:
            trainer.finish()
    assert taken == 10


def test_lstm_weights_stay_in_place_after_a_block():
    model = nn.LSTM(4, 5, num_layers=2)
    addresses = [p.data_ptr() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = TieredTrainer(model, optimizer, Topology.build(1), Dense(), BMUF(1))
    model(torch.ones(3, 2, 4))[0].sum().backward()
    trainer.step()
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_batches_end_at_once_in_a_world_of_one():
    trainer = make_trainer(make_model(), Dense())
    seen = []
    for item in trainer.batches([1, None, 2]):
        seen.append(item)
        if item is not None:
            backward(trainer.model, item)
        report = trainer.step(samples=5)
        assert report.stepped == (item is not None)
    assert seen == [1, None, 2]


def test_habits_of_other_trainers_are_noticed(caplog):
    model = make_model()
    trainer = make_trainer(model, Dense())
    backward(model, 0)
    trainer.optimizer.step()
    with pytest.raises(RuntimeError, match=r"optimizer.step\(\) was called outside"):
        trainer.step(samples=5)
    trainer = make_trainer(model, Dense())
    backward(model, 0)
    trainer.optimizer.zero_grad()
    for _ in range(2):
        trainer.step(samples=5)
    assert caplog.text.count("step 0 has samples but no gradient") == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner": "gtc"}, r"inner='gtc': Dense\(\), GTC"),
        ({"inner": GTC}, r"inner=<class .*: Dense\(\), GTC"),
        ({"inner": BMUF(4)}, r"inner=BMUF\(.*: Dense\(\), GTC"),
        ({"outer": GTC()}, r"outer=GTC\(.*: BMUF"),
        ({"clip": "1.0"}, r"clip='1.0': must be a positive number"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS"),
    ],
)
def test_what_would_fail_in_the_first_step_is_refused(settings, message):
    model = make_model()
    optimizer = settings.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.1)
    arguments = {"inner": Dense(), **settings}
    with pytest.raises((TypeError, ValueError), match=message):
        TieredTrainer(model, optimizer, Topology.build(1), **arguments)
    with pytest.raises(TypeError, match=r"threshold=0.01: TargetDensity\(density\) or"):
        GTC(0.01)


def test_messages_that_stay_full_are_told_once(caplog):
    model = nn.Linear(100, 100, bias=False)
    trainer = make_trainer(model, GTC(TargetDensity(0.05, 0.05), max_quanta=4), momentum=0.0)
    trainer._inner._dense_is_smaller = lambda capacity: False
    for step in range(60):
        torch.manual_seed(step)
        model.weight.grad = torch.randn(100, 100) * 1.3**step
        report = trainer.step(samples=1)
    assert report.overflow > 0
    assert caplog.text.count("GTC's messages have been full for 20 steps") == 1


def test_settings_that_do_not_fit_are_refused():
    model = make_model()
    partial = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"2\.weight"):
        TieredTrainer(model, partial, Topology.build(1), Dense())
    with pytest.raises(ValueError, match="no parameter"):
        TieredTrainer(nn.Identity(), partial, Topology.build(1), Dense())
    for samples in (-1, float("nan")):
        with pytest.raises(ValueError, match="negative"):
            make_trainer(model, Dense()).step(samples=samples)
    for clip in (0.0, -1.0):
        with pytest.raises(ValueError, match="clip"):
            make_trainer(model, Dense(), clip=clip)
    for settings in (
        {"max_quanta": 0},
        {"residual": "lose"},
        {"residual_bound": 0.5},
        {"dense_below": -1},
        {"momentum": 1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            GTC(**settings)
    with pytest.raises(ValueError, match="dtype"):
        Dense("fp16")
    with pytest.raises(ValueError, match="positive"):
        FixedThreshold(0.0)
