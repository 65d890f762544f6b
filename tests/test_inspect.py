"""What ``python -m tiered_dist inspect`` prints of a real checkpoint."""

import pytest
import torch
from tiered_helpers import Vector, hand_trainer, noise

from tiered_dist import BMUF, GTC, TargetDensity, save_checkpoint
from tiered_dist.__main__ import main


@pytest.fixture
def checkpoints(tmp_path):
    trainer = hand_trainer(Vector((30, 20)), 1, GTC(TargetDensity(0.1, 0.1), momentum=0.5), BMUF(3))
    for step in range(4):
        for part in trainer.model.parts:
            part.grad = noise(step, size=len(part))
        trainer.step(samples=7)
    save_checkpoint(tmp_path, trainer, {"note": 1}, {})
    return tmp_path


def test_says_what_is_in_it(checkpoints, capsys):
    assert main(["inspect", str(checkpoints)]) == 0
    by_name = capsys.readouterr().out
    assert main(["inspect", str(checkpoints / "step-00000004")]) == 0
    assert capsys.readouterr().out == by_name
    norm = torch.load(checkpoints / "step-00000004/rank-000.pt", weights_only=True)
    residual = torch.cat(list(norm["inner"]["residual"].values())).norm()
    for line in (
        "4 steps, 1 blocks; the running one began at step 3",
        "subgroups of ranks: [[0]]",
        "W: 50 elements in 2 tensors",
        "the caller's: note",
        "7 samples a batch",
        f"rank 0: residual: 50 elements in 2 tensors, norm {residual:.4g}, velocity: 50",
    ):
        assert line in by_name


def test_where_there_is_none(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 2
    assert "no checkpoint" in capsys.readouterr().err
