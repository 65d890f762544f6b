"""What people type: the recipe driver's options, the order of its stages, make's targets."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "recipes/mini/run.sh"
VERBS = [
    "corpus",
    "manifests",
    "features",
    "tokens",
    "train --system bmuf",
    "train --system two_tier",
    "decode",
    "score",
    "compare",
]


class Driver:
    """Runs run.sh with a stand-in for the interpreter that records what it is called with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "python"
        self.stand_in("exit 0")

    def stand_in(self, ending: str) -> None:
        self.python.write_text(f'#!/bin/sh\necho "$*" >> "{self.directory}/calls"\n{ending}\n')
        self.python.chmod(0o755)

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        variables = {key: value for key, value in os.environ.items() if key != "VENV"}
        return subprocess.run(
            [RUN, "--python", str(self.python), *words],
            cwd=self.directory,
            env=variables | environment,
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def calls(self) -> list[str]:
        """The interpreter's arguments, call by call."""
        calls = self.directory / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def verbs(self) -> list[str]:
        return [re.sub(r"^-m asr (.*?) --recipe .*", r"\1", call) for call in self.calls]


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path)


def test_all_stages_in_order(driver):
    result = driver("--dir", "out")
    assert result.returncode == 0, result.stderr
    assert driver.verbs == VERBS
    assert driver.calls[0] == f"-m asr corpus --recipe {ROOT}/recipes/mini --dir out"
    headers = re.findall(r"^stage (\d): \w+", result.stdout, re.MULTILINE)
    assert headers == list("012345789")
    assert result.stdout.endswith("\nreport: out/compare/report.html\n")


def test_single_worker_reference_is_stage_6(driver):
    assert driver("--single", "true").returncode == 0
    assert driver.verbs == [*VERBS[:6], "train --system single", *VERBS[6:]]


@pytest.mark.parametrize(
    ("words", "verbs"),
    [
        (["--stage", "3", "--stop-stage", "5"], VERBS[3:6]),
        (["--stage=08"], VERBS[7:]),
        (["--stop-stage", "0"], VERBS[:1]),
        (["--stage", "6", "--stop-stage", "7"], VERBS[6:7]),
        (["--stage", "6", "--stop-stage", "6", "--single", "true"], ["train --system single"]),
    ],
)
def test_ranges_of_stages(driver, words, verbs):
    result = driver(*words)
    assert result.returncode == 0, result.stderr
    assert driver.verbs == verbs


def test_options_and_settings_reach_the_stage(driver):
    one_stage = ["--stage", "2", "--stop-stage", "2", "--dir", "a directory"]
    settings = ["--set", "jobs=2", "--set", "note=two words"]
    result = driver(*one_stage, "--force", "true", "--verify", "true", *settings, "--", "bins=40")
    assert result.returncode == 0, result.stderr
    (call,) = driver.calls
    assert call.endswith(" --dir a directory --force --verify jobs=2 note=two words bins=40")


def test_where_the_corpus_is_goes_to_stage_0_alone(driver):
    words = ["--mirror", "/archives", "--corpus-dir", "/corpus", "--stop-stage", "1"]
    assert driver(*words).returncode == 0
    assert driver.calls[0].endswith(" corpus_dir=/corpus mirror=/archives")
    assert "corpus_dir" not in driver.calls[1] and "mirror" not in driver.calls[1]


def test_false_is_false(driver):
    driver("--stop-stage", "0", "--force", "false", "--verify", "false")
    assert "--force" not in driver.calls[0]
    assert "--verify" not in driver.calls[0]


def test_default_directory_is_the_recipes_own(driver):
    driver("--stop-stage", "0")
    assert driver.calls[0].endswith(f" --dir {ROOT}/exp/mini")


def test_package_is_found_and_threads_are_one_from_any_directory(driver):
    names = ("PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    driver.stand_in("echo " + " ".join(f'"${name}"' for name in names))
    result = driver(
        "--stop-stage", "0", PYTHONPATH="/other", OMP_NUM_THREADS="", OPENBLAS_NUM_THREADS="2"
    )
    assert f"\n{ROOT}:/other 1 2\n" in result.stdout


def test_failed_stage_stops_the_recipe(driver):
    driver.stand_in('case "$3" in features) exit 3;; esac')
    result = driver()
    assert result.returncode == 3
    assert driver.verbs == VERBS[:3]
    assert "stage 2 did not finish (status 3); go on from it with: --stage 2" in result.stderr
    assert "report:" not in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stge", "3"], "unknown option --stge"),
        (["--stge=3"], "unknown option --stge"),
        (["--=3"], "unknown option --"),
        (["stage=3"], "unexpected word 'stage=3'"),
        (["--force", "maybe"], "--force takes true or false, not 'maybe'"),
        (["--verify", ""], "--verify takes true or false, not ''"),
        (["--stage", "three"], "--stage takes a number, not 'three'"),
        (["--stage", "-1"], "--stage takes a number, not '-1'"),
        (["--dir"], "--dir needs a value"),
    ],
)
def test_mistaken_options_list_the_options(driver, words, message):
    result = driver(*words)
    assert result.returncode == 2
    assert result.stderr.endswith(f"\nerror: {message}\n")
    for option in ("--stage NUMBER", "--stop-stage NUMBER", "--force BOOLEAN", "--set LIST"):
        assert f"  {option} " in result.stderr
    assert driver.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stage", "5", "--stop-stage", "3"], "--stage 5 comes after --stop-stage 3"),
        (["--stop-stage", "10"], "--stop-stage 10: the last stage is 9"),
        (["--stage", "4", "--set", "seed=1"], "settings belong to one stage"),
        (["--stage", "4", "--stop-stage", "4", "--", "seed"], "'seed' is not key=value"),
        (["--stage", "6", "--stop-stage", "6"], "add --single true"),
        (["--recipe", "no/such"], "no/such: no such folder"),
        (["--python", "no-such-python"], "no-such-python: no such program"),
        (["--python", "", "VENV"], "VENV=no/such has no bin/python"),
    ],
)
def test_impossible_requests_run_nothing(driver, words, message):
    environment = {"VENV": "no/such"} if words[-1] == "VENV" else {}
    result = driver(*[word for word in words if word != "VENV"], **environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert driver.calls == []


def test_help_shows_each_option_with_its_default(driver):
    result = driver("--help", "--no-such-option")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"--stop-stage NUMBER +last stage to run \(default: 9\)", result.stdout)
    assert driver.calls == []


def test_interpreter_of_the_chosen_environment(driver, tmp_path):
    (tmp_path / "venv/bin").mkdir(parents=True)
    shutil.copy(driver.python, tmp_path / "venv/bin/python")
    result = driver("--python", "", "--stop-stage", "0", VENV=str(tmp_path / "venv"))
    assert result.returncode == 0, result.stderr
    assert driver.verbs == ["corpus"]


def make(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_make_help_lists_every_target():
    targets = re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint", "train-two-tier", "report", "clean"} < set(targets)
    listed = make().stdout
    assert [line.split()[0] for line in listed.splitlines()[: len(targets)]] == targets
    assert all(re.search(rf"^{target} +\w", listed, re.MULTILINE) for target in targets)


def test_make_target_of_each_stage(tmp_path):
    """With an environment whose stamp says it is complete: each target runs its own stage."""
    driver = Driver(tmp_path)
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    shutil.copy(driver.python, environment / "bin/python")
    (environment / ".installed").touch()
    targets = "corpus manifests features tokens train-bmuf train-two-tier decode score compare"
    result = make(*targets.split(), "train-single", f"VENV={environment}", f"DIR={tmp_path}/out")
    assert result.returncode == 0, result.stderr
    assert driver.verbs == [*VERBS, "train --system single"]


def test_old_python_is_refused(tmp_path):
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n")  # as sys.exit(sys.version_info < (3, 11)) would
    old.chmod(0o755)
    result = make("setup", f"VENV={tmp_path}/venv", f"PYTHON={old}")
    assert result.returncode != 0
    assert "is not Python 3.11 or newer" in result.stderr
    assert not (tmp_path / "venv").exists()
