"""Stage markers: what is skipped, what runs again, what a killed stage leaves."""

import dataclasses
import json
import subprocess
import sys

import pytest

from asr.__main__ import main
from asr.errors import UserError
from asr.files import atomic_write, read_id_text, read_jsonl, write_id_text, write_text
from asr.stages import StageResult, Workspace, run_stage


@dataclasses.dataclass
class Settings:
    size: int = 1


@pytest.fixture
def recipe(tmp_path):
    class Recipe:
        runs: list[str] = []
        crash = False

        def run(self, stage="two", size=1, inputs=("one",), seconds=0.0, **options):
            workspace = Workspace(tmp_path / "recipe", tmp_path / "exp", **options)

            def build(directory):
                self.runs.append(stage)
                write_text(directory / "result.txt", f"{stage} {size}")
                if self.crash:
                    raise RuntimeError("crash")
                return StageResult({"size": size}, [directory / "result.txt"], {"speed": seconds})

            return run_stage(workspace, stage, Settings(size), list(inputs), build)

        def file(self, stage, name="result.txt"):
            return tmp_path / "exp" / stage / name

    recipe = Recipe()
    recipe.runs = []
    recipe.run("one", inputs=())
    recipe.run("two")
    recipe.runs.clear()
    return recipe


def test_a_finished_stage_is_skipped(recipe):
    assert not recipe.run("one", inputs=())
    assert not recipe.run("two")
    assert recipe.runs == []


def test_a_changed_parameter_reruns_the_stage_and_what_follows(recipe):
    assert recipe.run("one", size=2, inputs=())
    assert recipe.run("two")
    assert not recipe.run("two")


def test_force_reruns_and_an_equal_result_leaves_the_next_stage_alone(recipe):
    assert recipe.run("one", inputs=(), force=True, seconds=9.9)
    assert not recipe.run("two")


@pytest.mark.parametrize("damage", ["delete", "shorten"])
def test_a_missing_or_short_output_reruns(recipe, damage):
    path = recipe.file("two")
    path.unlink() if damage == "delete" else path.write_text("")
    assert recipe.run("two")
    assert path.read_text() == "two 1"


def test_other_contents_of_the_same_size_are_found_by_verify(recipe):
    recipe.file("two").write_text("two 9")
    assert not recipe.run("two")
    assert recipe.run("two", verify=True)


def test_a_stage_before_its_predecessor_is_refused(recipe):
    with pytest.raises(UserError, match="stage 'zero' has not run yet.*run.sh"):
        recipe.run("three", inputs=("zero",))
    assert not recipe.file("three").parent.exists()


def test_a_killed_stage_goes_on_in_place_unless_it_was_asked_something_else(recipe):
    recipe.crash = True
    with pytest.raises(RuntimeError):
        recipe.run("three", inputs=())
    leftover = recipe.file("three", "half-done")
    leftover.touch()
    torn = recipe.file("three", ".partial-1-file")
    torn.touch()
    with pytest.raises(RuntimeError):
        recipe.run("three", inputs=())
    assert leftover.exists() and not torn.exists()
    recipe.crash = False
    assert recipe.run("three", size=5, inputs=())
    assert not leftover.exists()


def test_a_rerun_that_fails_leaves_no_marker_behind(recipe):
    recipe.crash = True
    with pytest.raises(RuntimeError):
        recipe.run("two", size=7)
    recipe.crash = False
    assert recipe.run("two")


def test_a_directory_that_no_stage_wrote_is_left_alone(recipe, tmp_path):
    precious = tmp_path / "exp/three/precious.flac"
    precious.parent.mkdir()
    precious.touch()
    for force in (False, True):
        with pytest.raises(UserError, match="holds files that no stage wrote"):
            recipe.run("three", inputs=(), force=force)
    assert precious.exists()


def test_large_outputs_are_compared_by_content_where_they_were_hashed(recipe, monkeypatch):
    monkeypatch.setattr("asr.stages.HASHED_BYTES", 2)
    recipe.run("three", inputs=(), verify=True)
    recipe.file("three").write_text("three 9")
    assert recipe.run("three", inputs=(), verify=True)
    recipe.run("four", inputs=())
    assert not recipe.run("four", inputs=(), verify=True)


def test_two_processes_cannot_run_one_stage_at_once(recipe, tmp_path):
    lock = tmp_path / "exp/.two.lock"
    holds = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
    process = subprocess.Popen(
        [sys.executable, "-c", holds + "print('held', flush=True); sys.stdin.read()", str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match="stage 'two' is being run by another process"):
        recipe.run("two", size=3)
    process.communicate()
    assert recipe.run("two", size=3)


def test_an_unreadable_marker_says_what_to_do(recipe):
    recipe.file("two", "stage.json").write_text("{")
    with pytest.raises(UserError, match="stage.json: not valid JSON.*--force"):
        recipe.run("two")
    assert recipe.run("two", force=True)


def test_a_marker_says_what_was_done(recipe):
    marker = json.loads(recipe.file("two", "stage.json").read_text())
    assert marker["parameters"] == {"size": 1}
    assert marker["counts"] == {"size": 1}
    assert set(marker["inputs"]) == {"one"}
    assert marker["outputs"]["result.txt"]["bytes"] == 5
    assert marker["measured"]["wall_seconds"] >= 0


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_texts_by_id_are_sorted_bytewise_and_may_be_empty(tmp_path):
    path = tmp_path / "text"
    write_id_text(path, [("b", "two words"), ("a", ""), ("B", "ü")])
    assert path.read_text() == "B ü\na\nb two words\n"
    assert read_id_text(path) == {"B": "ü", "a": "", "b": "two words"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a x\na y\n", "text:2: utterance id 'a' already stands in line 1"),
        ("a x\n\nb\n", "text:2: empty"),
    ],
)
def test_doubtful_texts_are_refused_with_their_line(tmp_path, text, message):
    path = tmp_path / "text"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_id_text(path)


def test_a_bad_json_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(UserError, match="rows.jsonl:2: not valid JSON"):
        read_jsonl(path)
    with pytest.raises(UserError, match="no such file"):
        read_jsonl(tmp_path / "none")


def test_the_command_line_tells_mistakes_in_one_line(tmp_path, capsys):
    missing = ["--recipe", str(tmp_path / "none"), "--dir", str(tmp_path)]
    assert main(["tokens", *missing]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/none: no such recipe folder (--recipe)\n"
    with pytest.raises(SystemExit) as usage:
        main(["transcribe", *missing])
    assert usage.value.code == 2
