"""What a training run is asked, and the check that it was what it is named for."""

from types import SimpleNamespace

import pytest
import torch

from asr.errors import Stopped, UserError
from asr.train import check_tiers
from asr.training.config import InnerConfig, OptimizerConfig, OuterConfig, TrainConfig
from asr.training.schedule import ScheduleConfig
from asr.training.trainer import SystemTrainer
from tiered_dist import BMUF, GTC, Dense, DenseInHost, TargetDensity

CONFIG = TrainConfig(
    title="x", workers=4, subgroup_size=2, inner=InnerConfig("gtc"), outer=OuterConfig("bmuf")
)
GOOD = {
    "system": "two_tier",
    "inner": "gtc",
    "outer": "bmuf",
    "density": 0.01,
    "blocks": 20,
    "block_momentum": 0.5,
    "subgroups": 2,
    "least_spread": 0.001,
}


def test_a_run_in_two_tiers_passes():
    check_tiers(GOOD, CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"density": 0.0101}, "density after the ramp 0.0101, not 0.01 or less"),
        ({"density": None}, "density after the ramp None"),
        ({"blocks": 19}, "19 blocks, fewer than 10/.1 - eta. = 20"),
        ({"block_momentum": 0.75}, "20 blocks, fewer than 10/.1 - eta. = 40"),
        ({"least_spread": 0.0}, "did not differ before a block's end"),
        ({"least_spread": None}, "did not differ before a block's end"),
        ({"inner": "none"}, "GTC had nobody to exchange with"),
        ({"subgroups": 1}, "BMUF had nothing to average"),
    ],
)
def test_a_run_that_was_not_fails_with_the_figures(change, message):
    with pytest.raises(UserError, match=message):
        check_tiers({**GOOD, **change}, CONFIG)


def test_the_check_asks_of_a_system_only_the_tiers_it_has():
    bmuf = TrainConfig(title="x", workers=4, outer=OuterConfig("bmuf"))
    check_tiers({**GOOD, "inner": "none", "density": None, "subgroups": 4}, bmuf)
    check_tiers({**GOOD, "blocks": 0, "least_spread": None}, TrainConfig(title="x"))


def test_the_learning_rate_warms_up_holds_and_decays():
    schedule = ScheduleConfig(warmup=0.1, hold=0.5, start=0.2, final=0.0)
    factors = [schedule.factor(done) for done in (0.0, 0.05, 0.1, 0.3, 0.5, 0.75, 1.0)]
    assert factors == pytest.approx([0.2, 0.6, 1.0, 1.0, 1.0, 0.5, 0.0])
    assert ScheduleConfig(warmup=0, hold=1).factor(1.0) == 1.0


def test_settings_become_tiers_of_the_library():
    assert InnerConfig().make(steps=100) == Dense()
    inner = InnerConfig("gtc", density=0.02, density_start=0.1, ramp=0.3, max_quanta=2)
    assert inner.make(steps=100) == GTC(TargetDensity(0.02, 0.1, 30), 2, "keep")
    levels = InnerConfig("dense_in_host", dtype="bf16", max_quanta=2)
    assert levels.make(1) == DenseInHost(GTC(TargetDensity(0.01, 0.25, 0), 2), "bf16")
    assert OuterConfig().make() is None
    outer = OuterConfig("bmuf", 7, 0.8, 0.9, True, "keep")
    assert outer.make() == BMUF(7, 0.8, 0.9, True, "keep")


def test_optimizers_by_name():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    sgd = OptimizerConfig(learning_rate=0.3, momentum=0.8).make(parameters)
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["lr"], sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (
        0.3,
        0.8,
        True,
    )
    assert not OptimizerConfig(momentum=0.0).make(parameters).defaults["nesterov"]
    adam = OptimizerConfig(kind="adam", learning_rate=1e-3).make(parameters)
    assert isinstance(adam, torch.optim.Adam) and adam.defaults["lr"] == 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 4, "subgroup_size": 3}, "subgroup_size=3 does not divide workers=4"),
        ({"workers": 4, "subgroup_size": 2}, "several subgroups that never meet"),
        ({"epochs": 0}, "epochs=0"),
        ({"clip": 0.0}, "clip=0"),
        ({"outer": OuterConfig("bmuf", block_steps=0)}, "block_steps=0"),
        ({"outer": OuterConfig("bmuf", momentum=1.0)}, "momentum=1"),
        ({"inner": InnerConfig("gtc", density=0.5, density_start=0.1)}, "density from start"),
        ({"inner": InnerConfig("gtc", ramp=-1)}, "ramp=-1"),
        ({"optimizer": OptimizerConfig(learning_rate=-1)}, "learning_rate=-1"),
    ],
)
def test_impossible_runs_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(title="x", **settings)
    with pytest.raises(ValueError, match="warmup"):
        ScheduleConfig(warmup=0.5, hold=0.4)


class OneBatch:
    """A stream whose largest batch is known."""

    remaining = 1

    def largest_batch(self):
        return SimpleNamespace(features=torch.zeros(4, 300, 64))


def trainer_of_one_batch(loss):
    """As much of a SystemTrainer as trying a batch takes."""
    trainer = object.__new__(SystemTrainer)
    weight = torch.nn.Parameter(torch.ones(3))
    trainer.system, trainer.device = "bmuf", torch.device("cpu")
    trainer.config = TrainConfig(title="", batch_frames=1200)
    trainer.stream = OneBatch()
    trainer.optimizer = torch.optim.SGD([weight], lr=1.0)
    trainer._loss = lambda batch: loss(weight)
    return trainer, weight


def test_the_largest_batch_is_tried_and_leaves_no_trace():
    tried = []

    def loss(weight):
        tried.append(torch.rand(1))
        return (weight.sum() * tried[0].sum(), 1, 0)

    trainer, weight = trainer_of_one_batch(loss)
    torch.manual_seed(5)
    trainer._try_largest_batch()
    assert len(tried) == 1 and weight.grad is None
    assert torch.equal(torch.rand(1), tried[0])  # the random state is what it was


def test_a_batch_that_does_not_fit_into_memory_is_named_with_the_remedy():
    def loss(weight):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    trainer, _ = trainer_of_one_batch(loss)
    with pytest.raises(UserError, match=r"\(4, 300, 64\).*3 GiB; lower batch_frames, now 1200"):
        trainer._try_largest_batch()


def test_ranks_that_agree_to_stop_where_a_checkpoint_is_due_write_it_once():
    trainer, _ = trainer_of_one_batch(lambda weight: None)
    saved = []
    trainer._save = lambda: saved.append(1)
    trainer.clock = SimpleNamespace(agree=lambda stop: (True, True))
    trainer.topology = SimpleNamespace(world=SimpleNamespace(barrier=lambda: None))
    trainer.trainer, trainer.steps = SimpleNamespace(steps=7), 9
    with pytest.raises(Stopped, match="step 7 of 9"):
        trainer._save_if_due(None, due=True)
    assert len(saved) == 1
