"""Kaldi data directories whose ``wav.scp`` has commands in place of files, made into ones of files.

    python -m asr.corpora.commands FOLDER NEW_FOLDER

runs every command of the data directories in FOLDER once, which nothing else here does, and writes
what it prints to a file below NEW_FOLDER. That is then the corpus (``corpus_dir``).
"""

import argparse
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from asr.corpora.data_dir import KALDI, read_pairs
from asr.errors import UserError
from asr.files import atomic_write, write_text
from asr.processes import cores

MESSAGE_CHARACTERS = 2000  # of what a command that failed had to say


def run_all(source: Path, target: Path, jobs: int | None = None) -> None:
    """Make ``target`` a copy of the folder ``source`` of data directories, commands run.

    ``jobs`` commands run at a time (None: one a core), by bash, where this process is. What is
    there from an earlier run of the same command is kept. UserError, with the line and what the
    command said, for one that fails or prints nothing; and for ``jobs`` below 1.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs={jobs}; it must be 1 or more; without it, one a core")
    folders = sorted(path.parent for path in source.glob("*/wav.scp"))
    if not folders:
        raise UserError(f"{source}: has no data directories, i.e. folders with a wav.scp")
    for folder in folders:
        _run_folder(folder, target / folder.name, jobs or cores())


def _run_folder(folder: Path, target: Path, jobs: int) -> None:
    recordings = read_pairs(folder / "wav.scp")
    files: dict[str, Path] = {}
    tasks: dict[Path, tuple[str, str]] = {}
    for recording, (name, place) in recordings.items():
        files[recording] = (folder / name).resolve()
        if name.endswith("|"):
            command = name[:-1].strip()
            digest = hashlib.sha256(command.encode()).hexdigest()[:12]
            files[recording] = (target / "audio" / f"{digest}.wav").resolve()
            tasks.setdefault(files[recording], (command, place))
    with ThreadPoolExecutor(jobs) as pool:
        try:
            done = [
                pool.submit(_run, command, path, place) for path, (command, place) in tasks.items()
            ]
            for future in tqdm(done, desc=folder.name, unit="command", dynamic_ncols=True):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    for name in KALDI[1:]:
        if (folder / name).exists():
            with atomic_write(target / name) as partial:
                partial.write_bytes((folder / name).read_bytes())
    # The last: without it there is no data directory.
    write_text(target / "wav.scp", "".join(f"{name} {path}\n" for name, path in files.items()))


def _run(command: str, path: Path, place: str) -> None:
    if path.exists():
        return
    with atomic_write(path) as partial:
        with open(partial, "wb") as output:
            ended = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
            )
        said = ended.stderr.decode(errors="replace").strip()[-MESSAGE_CHARACTERS:]
        if ended.returncode != 0:
            raise UserError(f"{place}: {command!r} ended with status {ended.returncode}: {said}")
        if partial.stat().st_size == 0:
            raise UserError(f"{place}: {command!r} printed nothing: {said or 'nor an error'}")


def main(words: list[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m asr.corpora.commands")
    parser.add_argument("source", type=Path, help="folder with a data directory for each split")
    parser.add_argument("target", type=Path, help="where the same goes, with files")
    parser.add_argument("--jobs", type=int, help="commands at a time; else one a core")
    arguments = parser.parse_args(words)
    try:
        run_all(arguments.source, arguments.target, arguments.jobs)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
