"""What stays of a finished run: small files beside the recipe, which outlive its workspace.

A run's folder has its resolved configuration, training's summary and curves, and the hypotheses
packed; references and speakers lie above, once for all runs.
"""

import gzip
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asr.config import dump_yaml
from asr.errors import UserError
from asr.files import (
    atomic_write,
    format_id_text,
    read_id_text,
    read_json,
    read_jsonl,
    write_json,
    write_text,
)
from asr.report.curves import read_curves
from asr.report.inputs import CURVES
from asr.stages import Workspace
from asr.study.config import Run
from asr.training.trainer import CONFIG, SUMMARY

FAILED = "failed.txt"


class KeptResults:
    """The folder of a study's finished runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, run: Run) -> bool:
        """Whether a run with these settings is kept, finished or failed.

        UserError where other settings ran under its name.
        """
        config = self.folder / run.name / CONFIG
        if not config.exists():
            return False
        if config.read_text(encoding="utf-8") != dump_yaml(run.config):
            raise UserError(
                f"{config}: a run of other settings is kept under this name; move its folder away, "
                "or give the study another folder (results)"
            )
        return self.failed(run) or (self.folder / run.name / SUMMARY).exists()

    def failed(self, run: Run) -> bool:
        """Whether the run came to no model."""
        return (self.folder / run.name / FAILED).exists()

    def summary(self, run: Run) -> dict[str, Any]:
        """What training says of a finished run."""
        return read_json(self.folder / run.name / SUMMARY)

    def texts(self, run: Run, test_set: str) -> dict[str, str]:
        """What the run's model heard, by utterance."""
        return read_id_text(self.folder / run.name / f"{test_set}.hyp.txt.gz")

    def references(self, test_set: str) -> dict[str, str]:
        """What was said, by utterance."""
        return read_id_text(self.folder / f"{test_set}.ref.txt.gz")

    def speakers(self, test_set: str) -> dict[str, str]:
        """Who said it, by utterance."""
        return read_id_text(self.folder / f"{test_set}.utt2spk.gz")

    def keep_test_sets(self, workspace: Workspace, test_sets: Iterable[str]) -> None:
        """Keep references and speakers; UserError if other ones are kept."""
        for name in test_sets:
            rows = read_jsonl(workspace.directory("tokens") / f"{name}.jsonl")
            self._keep_alike(f"{name}.ref.txt.gz", {row["id"]: row["text"] for row in rows})
            self._keep_alike(f"{name}.utt2spk.gz", {row["id"]: row["speaker"] for row in rows})

    def keep(self, run: Run, workspace: Workspace, test_sets: Iterable[str]) -> None:
        """Keep a finished run; the last file, which says that it is finished, is the summary."""
        trained, folder = workspace.directory(f"train/{run.name}"), self.folder / run.name
        summary = read_json(trained / SUMMARY)
        write_text(folder / CONFIG, dump_yaml(run.config))
        write_json(folder / CURVES, read_curves(run.name, trained / "tensorboard", summary))
        for name in test_sets:
            decoded = workspace.directory(f"decode/{run.name}") / name / "hyp.txt"
            _pack(folder / f"{name}.hyp.txt.gz", decoded.read_bytes())
        write_json(folder / SUMMARY, summary)

    def keep_failure(self, run: Run, reason: str) -> Path:
        """Keep that a run came to no model, and why; the folder."""
        folder = self.folder / run.name
        write_text(folder / CONFIG, dump_yaml(run.config))
        write_text(folder / FAILED, reason + "\n")
        return folder

    def commit(self, what: str) -> None:
        """Commit the folder to git, and nothing else; UserError where git refuses."""
        for command in (["add", "--", "."], ["commit", "--quiet", "-m", what, "--", "."]):
            done = subprocess.run(
                ["git", *command], cwd=self.folder, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise UserError(
                    f"git {command[0]} in {self.folder} failed: {done.stderr or done.stdout}"
                )

    def _keep_alike(self, name: str, rows: Mapping[str, str]) -> None:
        path = self.folder / name
        if not path.exists():
            _pack(path, format_id_text(rows.items()).encode())
        elif read_id_text(path) != rows:
            raise UserError(
                f"{path}: the test set has other utterances now than when the first runs were "
                "kept; give the study another folder (results)"
            )


def forget_training(workspace: Workspace, run: Run) -> None:
    """Remove what a kept run does not need: checkpoints of many ranks take much room."""
    for name in ("checkpoints", "models", "logs"):
        shutil.rmtree(workspace.directory(f"train/{run.name}") / name, ignore_errors=True)


def _pack(path: Path, content: bytes) -> None:
    """Write a gzip file that is the same, bit for bit, whenever it is written."""
    with atomic_write(path) as partial:
        partial.write_bytes(gzip.compress(content, mtime=0))
