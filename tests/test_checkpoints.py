"""Saving and resuming on several real ranks, on the same world and on another."""

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import GTC_TEST, backward, flat, hand_trainer, make_trainer, only_entries
from torch import nn

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    FixedThreshold,
    TargetDensity,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)

TIERS = (GTC_TEST, BMUF(4, nesterov=True), 0.9)
OTHER_TIERS = (
    GTC(TargetDensity(0.05, 0.25, 10), 4, "keep", 8.0, dense_below=17, momentum=0.8),
    BMUF(block_samples=90, warmup_steps=3, inner_state="keep"),
    0.0,
)


def run_with_checkpoints(root, steps, save_at, subgroups=2, tiers=TIERS, residuals="drop"):
    inner, outer, momentum = tiers
    trainer = make_trainer(subgroups, inner, outer, clip=1.0, momentum=momentum)
    saved = list_checkpoints(root)
    if saved:
        shared, rank = load_checkpoint(saved[-1], trainer, residuals)
        assert shared == {"note": "shared"}
        assert rank is None or rank == {"place": trainer.topology.rank}
    for step in range(trainer.steps, steps):
        # The subgroups' shares of the samples change from step to step.
        size = 4 + step * (trainer.topology.rank + 2) % 5
        trainer.step(samples=backward(trainer, step, size))
        if trainer.steps in save_at:
            save_checkpoint(root, trainer, {"note": "shared"}, {"place": trainer.topology.rank})
    trainer.finish()
    residual = trainer.state_dict()["rank"]["inner"]["residual"]
    return (
        flat(trainer.model),
        flat(trainer.model_for_eval()),
        torch.cat([torch.zeros(0), *(value.flatten() for value in residual.values())]),
    )


@pytest.mark.parametrize(
    ("tiers", "stop_at"),  # within a block, at its end, and in warm-up
    [(TIERS, 6), (TIERS, 8), (OTHER_TIERS, 2)],
)
def test_stop_and_resume_is_bitwise(tmp_path, tiers, stop_at):
    straight = run_ranks(4, run_with_checkpoints, tmp_path, tmp_path / "none", 15, (), 2, tiers)
    root = tmp_path / "checkpoints"
    run_ranks(4, run_with_checkpoints, tmp_path, root, stop_at, (stop_at,), 2, tiers)
    resumed = run_ranks(4, run_with_checkpoints, tmp_path, root, 15, (), 2, tiers)
    for one, other in zip(straight, resumed, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert torch.equal(ours, theirs)


def tell_what_is_wrong(root):
    """The errors of saving and loading what cannot be, one after the other."""
    trainer = make_trainer(1, GTC_TEST, BMUF(4))
    told = []
    for shared in ({"f": {"of": trainer.optimizer}}, {"list": [1, lambda: 0]}):
        with pytest.raises(ValueError) as caught:
            save_checkpoint(str(root), trainer, shared, {})
        told.append(str(caught.value))
    path = str(save_checkpoint(str(root), trainer, {"step": (1, None, {"a": 2.0})}, {}))
    for model in (nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 17))):
        with pytest.raises(ValueError) as caught:
            load_checkpoint(path, hand_trainer(model, 1, GTC_TEST, BMUF(4)))
        told.append(str(caught.value))
    with pytest.raises(FileNotFoundError) as caught:
        load_checkpoint(str(root), trainer)
    return [*told, str(caught.value), load_checkpoint(path, trainer)[0]]


def test_what_cannot_be_saved_or_loaded_is_named(tmp_path):
    (told,) = run_ranks(1, tell_what_is_wrong, tmp_path, tmp_path / "checkpoints")
    assert "shared['f']['of'] is a SGD: save plain values" in told[0]
    assert "shared['list'][1] is a function" in told[1]
    assert "parameter 'weight' is not in the state" in told[2]
    assert "parameter '0.weight' has shape (16, 8) in the state, (17, 8) in the model" in told[3]
    assert "list_checkpoints(root)[-1]" in told[4]
    assert told[5] == {"step": (1, None, {"a": 2.0})}


def keep_beside_another_model(root):
    """Saved with brackets in a name; loaded by another world in which a layer is frozen."""
    model = nn.ParameterDict({"a[0:3]": nn.Parameter(torch.zeros(5)), "b": torch.zeros(4)})
    loads = list_checkpoints(root)
    if loads:
        model["b"].requires_grad_(False)
    trainer = hand_trainer(model, 2 if loads else 4, GTC(FixedThreshold(1e3)))
    only_entries(trainer)
    if loads:
        load_checkpoint(loads[-1], trainer, "keep")
    else:
        for parameter in model.values():
            parameter.grad = torch.full_like(parameter, 0.5)
        trainer.step(samples=1)
        save_checkpoint(root, trainer, {}, {})
    return {k: v.tolist() for k, v in trainer.state_dict()["rank"]["inner"]["residual"].items()}


def test_names_with_brackets_and_frozen_parameters_do_not_confuse_residuals(tmp_path):
    run_ranks(4, keep_beside_another_model, tmp_path, tmp_path / "saved")
    loaded = run_ranks(2, keep_beside_another_model, tmp_path, tmp_path / "saved")
    assert loaded == [{"a[0:3]": [0.5] * 5}] * 2


def load_an_old_format(root):
    run_with_checkpoints(root, 2, (2,), 1)
    path = list_checkpoints(root)[-1] / "shared.pt"
    shared = torch.load(path)
    del shared["residual_holders"]
    torch.save({**shared, "format_version": 1}, path)
    run_with_checkpoints(root, 4, (), 1)


def test_another_formats_checkpoint_is_refused(tmp_path):
    (result,) = run_ranks(1, load_an_old_format, tmp_path, tmp_path / "checkpoints")
    assert "state of format 1, not 2" in str(result)


def test_two_checkpoints_are_kept_and_a_torn_one_is_not_taken(tmp_path):
    root = tmp_path / "checkpoints"
    run_ranks(2, run_with_checkpoints, tmp_path, root, 9, (2, 4, 6, 8), 1)
    (root / ".partial-step-00000009").mkdir()
    assert [path.name for path in list_checkpoints(root)] == ["step-00000006", "step-00000008"]


def test_another_world_size_resumes_without_residuals(tmp_path):
    root = tmp_path / "checkpoints"
    run_ranks(4, run_with_checkpoints, tmp_path, root, 6, (6,))
    results = run_ranks(2, run_with_checkpoints, tmp_path, root, 10, (), 1)
    assert torch.equal(results[0][1], results[1][1])
    resumed = run_ranks(2, run_with_checkpoints, tmp_path, root, 6, (), 1)
    assert all(len(residual) == 0 for _, _, residual in resumed)


@pytest.mark.parametrize("world_size", [2, 6])
def test_another_world_size_may_keep_or_redistribute_residuals(tmp_path, world_size):
    root = tmp_path / "checkpoints"
    saved = [r for _, _, r in run_ranks(4, run_with_checkpoints, tmp_path, root, 6, (6,))]
    mean = sum(saved) / 4
    for policy in ("keep", "redistribute"):
        arguments = (tmp_path, root, 6, (), 1, TIERS, policy)
        for rank, (_, _, residual) in enumerate(
            run_ranks(world_size, run_with_checkpoints, *arguments)
        ):
            if policy == "redistribute":
                torch.testing.assert_close(residual, mean)
            else:
                assert torch.equal(residual, saved[rank] if rank < 4 else torch.zeros(0))


def load_with(root, inner, outer):
    trainer = make_trainer(2 if outer else 4, inner, outer)
    load_checkpoint(list_checkpoints(root)[-1], trainer)
    model = flat(trainer.model)
    trainer.step(samples=backward(trainer, 0))
    return model, len(trainer.optimizer.state)


def test_tiers_may_come_and_go_between_checkpoints(tmp_path):
    root = tmp_path / "checkpoints"
    run_ranks(4, run_with_checkpoints, tmp_path, root, 6, (6,))
    saved = torch.load(root / "step-00000006/shared.pt", weights_only=True)["filter_model"]
    w = torch.cat([value.flatten() for value in saved.values()])
    for inner in (Dense(), GTC_TEST):
        for model, _ in run_ranks(4, load_with, tmp_path, root, inner, None):
            assert torch.equal(model, w)
    root = tmp_path / "dense"
    run_ranks(4, save_dense, tmp_path, root)
    for model, _ in run_ranks(4, load_with, tmp_path, root, GTC_TEST, BMUF(2)):
        assert bool(model.isfinite().all())


def save_dense(root):
    trainer = make_trainer(4, Dense())
    trainer.step(samples=backward(trainer, 0))
    save_checkpoint(root, trainer, {}, {})


def save_an_earlier_step(root):
    trainer = make_trainer(1, Dense())
    for number in (800, 1000):
        trainer.steps = number
        save_checkpoint(root, trainer, {}, {})
    trainer.steps = 100
    return save_checkpoint(root, trainer, {}, {}).exists()


def test_a_new_checkpoint_survives_older_ones_with_larger_numbers(tmp_path):
    assert run_ranks(1, save_an_earlier_step, tmp_path, tmp_path / "checkpoints") == [True]


def load_from(root):
    trainer = make_trainer(1, GTC_TEST, BMUF(4))
    state = trainer.state_dict()
    state["rank"] = {**state["rank"], "rank": 1 - trainer.topology.rank}
    trainer.load_state_dict(state)


def test_another_ranks_state_is_refused(tmp_path):
    for result in run_ranks(2, load_from, tmp_path, tmp_path):
        assert "given to subgroup" in str(result)
