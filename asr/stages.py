"""Stage markers: what makes a recipe resumable, and a second run a matter of seconds.

A stage owns one directory. When it starts it writes ``stage.started.json``, what it is about to
do; when it has ended, ``stage.json``, the marker: format version, resolved parameters, the
digests of the markers it builds on, counts, outputs and wall time. On the next run:

- the marker matches and its outputs are there: the stage is skipped;
- no marker, but the start record matches (the stage was killed): it runs again in place, and
  may take up its own finished files, each of which was written atomically;
- anything else (a parameter or an input changed, ``--force``): the directory is emptied first,
  so that nothing of the old run can be taken for a result of the new one.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from asr.config import load_config, to_dict
from asr.errors import UserError
from asr.files import read_json, sha256, write_json

FORMAT_VERSION = 1
MARKER = "stage.json"
STARTED = "stage.started.json"
# Larger outputs enter a marker by size alone, unless their stage runs with --verify.
HASHED_BYTES = 64 << 20

log = logging.getLogger("asr")
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Where a recipe's configuration lies, where its outputs go, and how to run its stages.

    ``recipe`` is ``recipes/<corpus>``; ``root`` holds one directory a stage; ``overrides`` are
    the command line's ``key=value`` words; ``force`` reruns a finished stage; ``verify`` checks
    outputs by content rather than by size; ``resume`` lets a stage go on from what it has
    although its parameters or inputs have changed since.
    """

    recipe: Path
    root: Path
    overrides: tuple[str, ...] = ()
    force: bool = False
    verify: bool = False
    resume: bool = False

    def config(self, kind: type[Config], *names: str) -> Config:
        """Dataclass ``kind`` from ``conf/<name>.yaml`` of the recipe, and the overrides."""
        files = [self.recipe / "conf" / f"{name}.yaml" for name in names]
        return load_config(kind, files, self.overrides)

    def directory(self, stage: str) -> Path:
        """The directory that stage ``stage`` (say ``features`` or ``train/bmuf``) owns."""
        return self.root / stage

    def has_run(self, stage: str) -> bool:
        """Whether a stage has ended in this directory, with whatever settings."""
        return (self.directory(stage) / MARKER).exists()

    def require(self, stage: str) -> dict[str, Any]:
        """The marker of a stage that must have run; UserError names the stage when it has not."""
        path = self.directory(stage) / MARKER
        if not self.has_run(stage):
            raise UserError(
                f"stage '{stage}' has not run yet ({path} is missing); run it first: "
                f"{self.recipe}/run.sh, or python -m asr {stage.partition('/')[0]}"
            )
        return read_json(path)


@dataclasses.dataclass(frozen=True)
class StageResult:
    """What a stage did: ``counts`` for people, ``outputs`` (files) for the stages after it.

    What would not repeat, such as speeds, is ``measured``: no later stage reruns for its sake.
    """

    counts: Mapping[str, Any]
    outputs: Sequence[Path]
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run_stage(
    workspace: Workspace,
    stage: str,
    config: Any,
    inputs: Sequence[str],
    build: Callable[[Path], StageResult],
    fresh: Callable[[Path], bool] = lambda directory: True,
) -> bool:
    """Run ``build(directory)`` unless the stage's marker says that it has been done.

    ``inputs`` names the stages it builds on; UserError if one of them has not run. ``fresh``
    may look at more than the listed outputs (a corpus checks its thousands of files). Returns
    whether the stage ran.
    """
    with _locked(workspace.directory(stage), stage):
        return _run_locked(workspace, stage, config, inputs, build, fresh)


def _run_locked(
    workspace: Workspace,
    stage: str,
    config: Any,
    inputs: Sequence[str],
    build: Callable[[Path], StageResult],
    fresh: Callable[[Path], bool],
) -> bool:
    directory = workspace.directory(stage)
    request = {
        "stage": stage,
        "format_version": FORMAT_VERSION,
        "parameters": to_dict(config),
        "inputs": {name: digest(workspace.require(name)) for name in inputs},
    }
    request = json.loads(json.dumps(request))  # as it will be read back
    if not workspace.force and _is_done(directory, request, workspace.verify) and fresh(directory):
        log.info("stage %s: done before, skipped (--force reruns it)", stage)
        return False
    _prepare(directory, request, workspace)
    log.info("stage %s: started", stage)
    begin = time.monotonic()
    result = build(directory)
    _remove_half_written(directory)  # by a worker that was killed while others went on
    seconds = time.monotonic() - begin
    marker = {
        **request,
        "counts": dict(result.counts),
        "outputs": {
            _name(path, directory): _describe(path, workspace.verify) for path in result.outputs
        },
        "measured": {
            **result.measured,
            "wall_seconds": round(seconds, 3),
            "git_commit": _git_commit(),
        },
    }
    write_json(directory / MARKER, marker)
    (directory / STARTED).unlink()
    log.info("stage %s: done in %.1f s", stage, seconds)
    return True


@contextlib.contextmanager
def _locked(directory: Path, stage: str) -> Iterator[None]:
    """Hold the stage against other processes: two at once would write over each other."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.parent / f".{directory.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"stage '{stage}' is being run by another process in {directory}; "
                "wait for it, or end it"
            ) from None
        yield


def _is_done(directory: Path, request: dict[str, Any], verify: bool) -> bool:
    if not (directory / MARKER).exists():
        return False
    marker = read_json(directory / MARKER)
    if any(marker.get(key) != value for key, value in request.items()):
        return False
    for name, description in marker["outputs"].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != description["bytes"]:
            log.warning("%s is missing or not as its stage left it: the stage runs again", path)
            return False
        if verify and description["sha256"] not in (None, sha256(path)):
            log.warning("%s has other contents than its stage wrote: the stage runs again", path)
            return False
    return True


def _prepare(directory: Path, request: dict[str, Any], workspace: Workspace) -> None:
    started, marker = directory / STARTED, directory / MARKER
    interrupted = started.exists() and not marker.exists()
    goes_on = workspace.resume or (interrupted and read_json(started) == request)
    if directory.exists() and (workspace.force or not goes_on):
        _empty(directory)
    directory.mkdir(parents=True, exist_ok=True)
    _remove_half_written(directory)
    write_json(started, request)
    marker.unlink(missing_ok=True)


def _remove_half_written(directory: Path) -> None:
    for half_written in list(directory.rglob(".partial-*")):
        if half_written.is_dir():
            shutil.rmtree(half_written)
        else:
            half_written.unlink(missing_ok=True)


def _empty(directory: Path) -> None:
    """Remove what a stage wrote; UserError for a directory that no stage has written."""
    ours = any((directory / name).exists() for name in (MARKER, STARTED))
    if not ours and any(directory.iterdir()):
        raise UserError(
            f"{directory} holds files that no stage wrote, and would be emptied; "
            "choose another --dir, or move them away"
        )
    if ours:
        log.info("%s: made with other settings or inputs, emptied", directory)
    shutil.rmtree(directory)


def _name(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


def _describe(path: Path, verify: bool) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size, "sha256": sha256(path) if verify or size <= HASHED_BYTES else None}


def _git_commit() -> str | None:
    """The commit that this code is at, None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def digest(marker: dict[str, Any]) -> str:
    """Digest of what a marker says was done; what was measured is left out, as it never repeats."""
    lasting = {key: value for key, value in marker.items() if key != "measured"}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()
