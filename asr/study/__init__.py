"""``python -m asr study FILE``: many systems on one corpus, and what the comparison says of them.

``FILE`` is ``recipes/<corpus>/conf/<study>.yaml``. Sweeps come first, the best point of each on dev
is the system; then all systems with their first seed, then with their second, and so on. Every run
is a training of real ranks on this machine that goes on from its checkpoints; what a finished one
gives is kept beside the recipe, where a later call finds it and does not run it again. The tables
and figures are made anew after each run.
"""

import dataclasses
import itertools
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from asr import decode, score
from asr.errors import UserError
from asr.files import write_json, write_text
from asr.pictures import save_rates_by_workers
from asr.stages import Workspace
from asr.study.config import Run, Study
from asr.study.kept import KeptResults, forget_training
from asr.study.summary import Numbers, points_by_title, summarise
from asr.study.sweeps import Sweeps
from asr.study.table import format_study
from asr.study.time_left import Work, in_words, seconds_left
from asr.train import train_system

log = logging.getLogger("asr")


def run(
    workspace: Workspace,
    study: Path,
    only: Sequence[str] = (),
    later: bool = False,
    listed: bool = False,
    commit: bool = False,
) -> None:
    """Run what is not finished yet of the systems ``only`` (none: all but those for later).

    ``listed``: say which runs there are, and run none. ``commit``: git has each run's kept files
    as it ends. UserError, when all others have run, for a run that came to no model; that of a
    sweep is a point that is not the best.
    """
    runner = _Runner(workspace, Study(study), only, later, commit)
    if listed:
        print("\n".join(runner.listing()))
    else:
        runner.run()


class _Runner:
    """The runs of the chosen systems, one after another."""

    def __init__(
        self, workspace: Workspace, study: Study, only: Sequence[str], later: bool, commit: bool
    ) -> None:
        self.workspace = dataclasses.replace(workspace, recipe=study.recipe)
        self.study, self.commit = study, commit
        self.chosen = study.chosen(list(only), later)
        self.kept = KeptResults(study.results)
        self.sweeps = Sweeps(study, self.kept)

    def run(self) -> None:
        self.test_sets = self.workspace.require("corpus")["counts"]["splits"]["tests"]
        self.workspace.require("tokens")
        self.kept.keep_test_sets(self.workspace, self.test_sets)
        self.numbers = Numbers(self.study.config, self.kept, self.test_sets)
        for name in self.chosen:
            for run in self._sweep_runs(name):
                self._run_once(run)
            self.sweeps.choose(name)
        failed = [run.name for run in self._by_seed() if not self._run_once(run)]
        self._report()
        if failed:
            raise UserError(f"no model came of {', '.join(failed)}; the lines above say why")

    def listing(self) -> list[str]:
        """A line a run, and whether it is kept."""
        lines = []
        for name in self.chosen:
            lines += [self._state(run) for run in self._sweep_runs(name)]
            if self.sweeps.settled(name):
                lines += [self._state(run) for run in self._seed_runs(name)]
            else:
                lines.append(
                    f"after a sweep  {name}, seeds {self.study.config.systems[name].seeds}"
                )
        return lines

    def _state(self, run: Run) -> str:
        return f"{'kept' if self.kept.has(run) else 'to run'}  {run.name}"

    def _sweep_runs(self, name: str) -> list[Run]:
        return self.study.sweep_runs(name, self.sweeps.tuned)

    def _seed_runs(self, name: str) -> list[Run]:
        return self.study.seed_runs(name, self.sweeps.tuned)

    def _by_seed(self) -> Iterator[Run]:
        """All systems with their first seed, then with their second: a whole table soon."""
        for runs in itertools.zip_longest(*map(self._seed_runs, self.chosen)):
            yield from filter(None, runs)

    def _run_once(self, run: Run) -> bool:
        """Train, decode and score a run unless it is kept; whether it came to a model."""
        if self.kept.has(run):
            return not self.kept.failed(run)
        log.info("study: %s, %s", run.name, in_words(self._seconds_left()))
        try:
            train_system(self.workspace, run.name, run.config)
        except UserError as error:
            log.error("study: %s: %s", run.name, error)
            if run.point is not None:
                folder = self.kept.keep_failure(run, str(error))
                log.error("study: kept as failed; remove %s to try it again", folder)
            return False
        test_sets = self.test_sets if run.point is None else []
        if test_sets:
            decode.run(self.workspace, [run.name])
            score.run(self.workspace, [run.name])
        self.kept.keep(run, self.workspace, test_sets)
        forget_training(self.workspace, run)
        self._report()
        if self.commit:
            self.kept.commit(f"{self.study.recipe.name}: study run {run.name}")
        return True

    def _seconds_left(self) -> float | None:
        """Runs of systems whose sweep is not done yet are taken to be as they stand now."""
        runs = [
            run for name in self.chosen for run in [*self._sweep_runs(name), *self._seed_runs(name)]
        ]
        return seconds_left([self._work(run) for run in runs if not self._has_failed(run)])

    def _has_failed(self, run: Run) -> bool:
        return run.point is not None and self.kept.failed(run)

    def _work(self, run: Run) -> Work:
        config = run.config
        if not self.sweeps.settled(run.system) and run.point is None:
            return Work(config.workers, config.epochs)
        if not self.kept.has(run):
            return Work(config.workers, config.epochs)
        seconds = self.kept.summary(run)["train_seconds"]
        return Work(config.workers, config.epochs, seconds)

    def _report(self) -> None:
        """Tables and figures of all systems that have a finished run, chosen now or not."""
        finished = {}
        for name in filter(self.sweeps.settled, self.study.config.systems):
            runs = [run for run in self._seed_runs(name) if self.kept.has(run)]
            if runs:
                finished[name] = runs
        if not finished:
            return
        config, results = self.study.config, self.study.results
        content = summarise(config, finished, self.numbers)
        write_json(results / "study.json", content)
        text = format_study(config, content, self.sweeps, self._command())
        write_text(results / "study.md", text)
        for test_set in self.test_sets:
            series = points_by_title(content["systems"], test_set)
            save_rates_by_workers(results / f"workers-{test_set}.svg", series, test_set)
        log.info("study: %s", results / "study.md")

    def _command(self) -> str:
        words = ["python", "-m", "asr", "study", str(self.study.path), "--dir"]
        return shlex.join([*words, str(self.workspace.root)])
