"""128 real ranks on this machine: the paper's layout, 16 subgroups of 8."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import hashlib, json, os, sys, torch
from tiered_dist import BMUF, GTC, TargetDensity, TieredTrainer, Topology, init_process_group

init_process_group(timeout_seconds=300)
topology = Topology.build(8, timeout_seconds=300)
torch.manual_seed(topology.rank)
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
gtc = GTC(TargetDensity(end=0.1, start=0.25, ramp_steps=8), max_quanta=8)
trainer = TieredTrainer(model, optimizer, topology, gtc, BMUF(4), clip=1.0)
digests, losses = [], []
for step in range(8):
    inputs = torch.randn(6, 20)
    loss = (model(inputs) - inputs[:, :5].sin()).square().mean()
    loss.backward()
    report = trainer.step(samples=6)
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digests.append(hashlib.sha256(bits).hexdigest())
    losses.append(float(loss))
with open(os.path.join(sys.argv[1], f"{topology.rank}.json"), "w") as file:
    json.dump({"pid": os.getpid(), "subgroup": topology.subgroup, "digests": digests,
               "samples": report.block.samples, "losses": losses}, file)
"""


def test_128_ranks_in_16_subgroups_of_8(tmp_path):
    script, results = tmp_path / "train.py", tmp_path / "results"
    script.write_text(SCRIPT)
    results.mkdir()
    command = [sys.executable, "-m", "tiered_dist.launch", "--workers", "128"]
    launched = subprocess.run(
        [*command, str(script), str(results)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert launched.returncode == 0, launched.stderr[-3000:]
    ranks = [json.loads((results / f"{rank}.json").read_text()) for rank in range(128)]
    assert len({rank["pid"] for rank in ranks}) == 128
    assert [rank["subgroup"] for rank in ranks] == [rank // 8 for rank in range(128)]
    for step in range(8):
        digests = [rank["digests"][step] for rank in ranks]
        assert len(set(digests)) == (1 if step in (3, 7) else 16)
        assert all(digests[rank] == digests[rank // 8 * 8] for rank in range(128))
    assert {rank["samples"] for rank in ranks} == {128 * 4 * 6}
    first, last = (sum(rank["losses"][step] for rank in ranks) for step in (0, 7))
    assert last < first
