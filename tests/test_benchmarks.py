"""The benchmarks and the GPU check run, at a size that measures nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from speech_helpers import RECIPE, small_corpus, workspace
from test_decode import add_system

from asr import features, tokens

ROOT = Path(__file__).resolve().parents[1]
STEP = ["-m", "tiered_dist.launch", "--workers", "2", "benchmarks/step.py", "--hidden", "8"]
ADAM = ["-m", "tiered_dist.launch", "--workers", "2", "benchmarks/adam.py", "--out", os.devnull]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["benchmarks/codec.py", "--elements", "50000", "--repeats", "1"], "encode, torch"),
        ([*STEP, "--layers", "1", "--settle", "2", "--rounds", "1"], "GTC + BMUF"),
        ([*ADAM, "--optimizers", "adam", "--steps", "10", "--seeds", "1"], "adam      GTC 0.01"),
        (["benchmarks/loading.py", "--utterances", "2000", "--speeds", "3"], "restore s"),
        (["benchmarks/scoring.py", "--utterances", "50", "--many", "100"], "jiwer's check"),
        (["benchmarks/report.py", "--utterances", "9", "--repeats", "1"], "report.html"),
        (["scripts/gpu_check.py", "--device", "cpu", "--elements", "200000"], "ok      training"),
    ],
)
def test_runs(command, said):
    run(command, said)


def test_benchmarks_of_a_corpus_run(tmp_path):
    small_corpus(tmp_path)
    features.run(workspace(tmp_path))
    tokens.run(workspace(tmp_path))
    audio, once = str(tmp_path / "audio"), ["--seconds", "5", "--rounds", "1"]
    run(["benchmarks/features.py", audio, *once], "whole     kaldi-native-fbank")
    run(["benchmarks/storage.py", audio, *once], "float16")
    stages = ["--recipe", str(RECIPE), "--dir", str(tmp_path), "--steps", "1"]
    run(["benchmarks/loading.py", *stages], "memory at")
    add_system(tmp_path, "single", seed=1)
    model = str(tmp_path / "train/single/model.pt")
    options = ["--model", model, "--minutes", "0.1"]
    run(["benchmarks/transcribe.py", audio, *options], "same text                    True")
    options = [*stages[:4], "--system", "single", "--split", "test-a"]
    run(["benchmarks/wrong_transcripts.py", *options], "10% with a wrong word")


def run(command, said):
    result = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0 and said in result.stdout, result.stdout + result.stderr
