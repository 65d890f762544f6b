"""Averages of models: over evaluations, and over the steps of training."""

import logging
import math

import pytest
import torch
from speech_helpers import prepare_noise, small_recipe

from asr import average, decode
from asr.__main__ import main
from asr.config import dump_yaml
from asr.errors import Stopped, UserError
from asr.files import read_json
from asr.model import AcousticModel, ModelConfig, load_model
from asr.stages import Workspace
from asr.train import _run_stage
from asr.training import trainer as training
from asr.training.config import OuterConfig, TrainConfig
from asr.training.ema import WeightAverage
from asr.training.evaluated_models import choose, evaluated_models, forget_after, keep_model
from asr.training.trainer import SystemTrainer

SMALL = ModelConfig(layers=1, hidden=8)


def model_of(value):
    model = AcousticModel(SMALL, 5, torch.zeros(4), torch.ones(4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def weight(model):
    return model.output.weight[0, 0].item()


def test_the_newest_models_are_kept_with_their_dev_wer(tmp_path):
    for step, wer in [(10, 0.5), (20, 0.25), (30, 0.3), (40, 0.12345)]:
        keep_model(tmp_path, step, wer, model_of(step), {"features": {}}, keep=3)
    kept = evaluated_models(tmp_path)
    assert [(model.step, model.dev_wer) for model in kept] == [(20, 25.0), (30, 30.0), (40, 12.35)]
    assert weight(load_model(kept[1].path)[0]) == 30
    keep_model(tmp_path, 30, 0.2, model_of(3), {}, keep=3)  # a run that went on from step 20
    assert [(model.step, model.dev_wer) for model in evaluated_models(tmp_path)] == [
        *((20, 25.0), (30, 20.0))
    ]
    forget_after(tmp_path, 20)
    assert [model.step for model in evaluated_models(tmp_path)] == [20]
    keep_model(tmp_path, 40, 0.2, model_of(1), {}, keep=0)
    assert evaluated_models(tmp_path) == evaluated_models(tmp_path / "none") == []


def test_the_last_or_the_best_are_chosen(tmp_path):
    for step, wer in [(10, 0.2), (20, 0.1), (30, 0.4), (40, 0.2)]:
        keep_model(tmp_path, step, wer, model_of(0), {}, keep=9)
    kept = evaluated_models(tmp_path)

    def steps(last, best):
        return [model.step for model in choose(kept, last, best)]

    assert steps(2, None) == [30, 40]
    assert steps(None, 2) == [10, 20]
    assert steps(None, 3) == [10, 20, 40]
    assert steps(9, None) == steps(None, 9) == [10, 20, 30, 40]


def test_the_mean_of_weights():
    states = [model_of(value).state_dict() for value in (1.0, 2.0, 6.0)]
    states[1]["output.bias"][2] = 5.0
    mean = average.mean_weights(states)
    assert torch.equal(mean["output.weight"], torch.full((5, 8), 3.0))
    assert mean["output.bias"][2] == 4.0 and mean["output.bias"].dtype == torch.float32
    assert torch.equal(average.mean_weights(states[:1])["mean"], states[0]["mean"])


def test_an_exponential_moving_average_by_hand():
    moving = WeightAverage(model_of(9.0), 0.75)
    assert moving.model is None
    for value, expected in [(1.0, 1.0), (2.0, 1.25), (4.0, 1.9375)]:
        moving.update(model_of(value))
        assert weight(moving.model) == pytest.approx(expected)
    again = WeightAverage(model_of(0.0), 0.75)
    again.load_state_dict(moving.state_dict())
    again.update(model_of(8.0))
    assert weight(again.model) == pytest.approx(0.75 * 1.9375 + 0.25 * 8.0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("exp")
    recipe = small_recipe(tmp_path_factory.mktemp("recipe"), {})
    prepare_noise(root, recipe)
    return Workspace(recipe, root)


CONFIG = TrainConfig(
    title="small", epochs=6, batch_frames=600, evaluations=4, keep_models=3, model=SMALL
)


def train(workspace, system, monkeypatch, stop_at=(), **changes):
    """Train in this process; what is evaluated, and (step, model) whenever ranks are alike."""
    config = TrainConfig(**{**CONFIG.__dict__, "max_density": 1.0, **changes})
    seen, stops = [], list(stop_at)
    monkeypatch.setattr(training, "STEPS_BETWEEN_QUESTIONS", 1)
    monkeypatch.setattr(
        training, "asked_to_stop", lambda: bool(stops) and seen and seen[-1][0] >= stops[0]
    )

    def run():
        trainer = SystemTrainer(workspace, system)
        step = trainer.trainer.step

        def watched(samples):
            report = step(samples=samples)
            if trainer.trainer.at_block_start:
                seen.append((report.step, trainer.trainer.model_for_eval()))
            return report

        monkeypatch.setattr(trainer.trainer, "step", watched)
        finish = trainer.trainer.finish

        def last_block():
            block = finish()
            if block is not None:
                seen.append((trainer.trainer.steps, trainer.trainer.model_for_eval()))
            return block

        monkeypatch.setattr(trainer.trainer, "finish", last_block)
        trainer.run()

    while True:
        try:
            _run_stage(workspace, system, config, run)
            assert not stops
            return seen
        except Stopped:
            stops.pop(0)


def states_equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("outer", [OuterConfig(), OuterConfig("bmuf", 4, nesterov=True)])
def test_training_follows_the_average_and_resumes_exactly(prepared, monkeypatch, outer):
    name = f"ema-{outer.kind}"
    seen = train(prepared, name, monkeypatch, outer=outer, ema=0.9)
    moving = WeightAverage(seen[0][1], 0.9)
    for _, model in seen:
        moving.update(model)
    kept = evaluated_models(prepared.directory(f"train/{name}") / "models")
    assert len(kept) == 3 and kept[-1].step == seen[-1][0]
    assert states_equal(load_model(kept[-1].path)[0], moving.model)
    assert not states_equal(seen[-1][1], moving.model)
    train(prepared, f"{name}-stopped", monkeypatch, stop_at=[5, 30], outer=outer, ema=0.9)
    again = evaluated_models(prepared.directory(f"train/{name}-stopped") / "models")
    assert [model[:2] for model in again] == [model[:2] for model in kept]
    for one, other in zip(kept, again, strict=True):
        assert states_equal(load_model(one.path)[0], load_model(other.path)[0])


@pytest.mark.parametrize("outer", [OuterConfig(), OuterConfig("bmuf", 1, nesterov=True)])
def test_the_average_leaves_out_steps_that_do_not_move_the_model(prepared, monkeypatch, outer):
    loss_of = SystemTrainer._loss

    def spoiled(self, batch):
        loss, *others = loss_of(self, batch)
        return loss * (math.nan if self.trainer.steps in (3, 4) else 1.0), *others

    monkeypatch.setattr(SystemTrainer, "_loss", spoiled)
    name = f"ema-spoiled-{outer.kind}"
    seen = train(prepared, name, monkeypatch, outer=outer, ema=0.9, max_not_finite=1.0)
    seen = [model for step, model in seen if step not in (4, 5)]
    moving = WeightAverage(seen[0], 0.9)
    for model in seen:
        moving.update(model)
    kept = evaluated_models(prepared.directory(f"train/{name}") / "models")
    assert states_equal(load_model(kept[-1].path)[0], moving.model)


def test_an_averaged_system_is_a_system(prepared, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    seen = dict(train(prepared, "plain", monkeypatch))
    command = ["average", "--recipe", str(prepared.recipe), "--dir", str(prepared.root)]
    assert main([*command, "--system", "plain", "--last", "2"]) == 0
    assert main([*command, "--system", "plain", "--best", "1"]) == 0
    steps = [model.step for model in evaluated_models(prepared.directory("train/plain/models"))]
    assert len(steps) == 3 and all(step in seen for step in steps)
    model, _ = load_model(prepared.directory("train/plain-avg-last2") / "model.pt")
    expected = average.mean_weights([seen[step].state_dict() for step in steps[-2:]])
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    summary = read_json(prepared.directory("train/plain-avg-last2") / "summary.json")
    assert summary["averaged_steps"] == steps[-2:] and summary["system"] == "plain-avg-last2"
    decode.run(prepared)
    for system in ("plain", "plain-avg-last2", "plain-avg-best1"):
        assert (prepared.directory(f"decode/{system}/test-a") / "hyp.txt").exists()
    with pytest.raises(UserError, match=r"plain/models has 3 models, not 4; ask for fewer"):
        average.run(prepared, "plain", last=None, best=4)
    assert not prepared.directory("train/plain-avg-best4").exists()
    with pytest.raises(UserError, match="--last 0: at least 1"):
        average.run(prepared, "plain", last=0, best=None)
    with pytest.raises(UserError, match="'train/other' has not run yet"):
        average.run(prepared, "other", last=1, best=None)


def test_impossible_settings_are_refused():
    for settings, message in [({"ema": 1.0}, "ema=1.0"), ({"keep_models": -1}, "keep_models=-1")]:
        with pytest.raises(ValueError, match=message):
            TrainConfig(title="x", **settings)
    assert "keep_models: 8" in dump_yaml(TrainConfig(title="x"))
