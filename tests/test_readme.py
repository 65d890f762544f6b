"""What README shows is what runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run_example(text, workers, tmp_path):
    """What a page's first example prints, on both streams; the others are at least Python."""
    example, *others = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for other in others:
        compile(other, "example", "exec")
    script = tmp_path / "example.py"
    script.write_text(example)
    command = [sys.executable, "-m", "tiered_dist.launch", "--workers", str(workers), str(script)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_the_example_trains_on_eight_ranks(tmp_path):
    lines = re.findall(r"rank \d: (\d+) steps", run_example(README, 8, tmp_path))
    assert len(lines) == 8 and len(set(lines)) == 1


def test_the_documentations_example_learns(tmp_path):
    text = (ROOT / "docs/tiered_dist.md").read_text(encoding="utf-8")
    said = run_example(text, 2, tmp_path)
    losses = re.findall(r"^step \d+: loss ([\d.]+), density 0", said, re.MULTILINE)
    assert len(losses) == 20 and float(losses[-1]) < 0.1 * float(losses[0])


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z0-9-]*)", README, re.MULTILINE))
    assert named and named <= targets


def test_tiered_dist_knows_nothing_of_speech():
    code = "import sys, tiered_dist; print([m for m in sys.modules if m.split('.')[0] in "
    code += "('asr', 'lhotse', 'torchaudio', 'sentencepiece', 'jiwer', 'soundfile', 'yaml')])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert result.stdout.strip() == "[]", result.stderr
