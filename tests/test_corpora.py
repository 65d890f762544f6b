"""The adapters of real corpora, on trees of a few utterances in the originals' layouts."""

import json

import numpy as np
import pytest
import soundfile

from asr import manifests
from asr.__main__ import main
from asr.audio.validation import Rules, examine
from asr.corpora import an4, commands, data_dir
from asr.corpora.trees import SPLITS
from asr.errors import UserError
from asr.files import read_json, read_jsonl
from asr.filterbank.storage import load_cuts


def sound(path, seconds=0.5, channels=1, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(round(seconds * 16000)) / 16000
    samples = np.stack([0.3 * np.sin(2000 * (c + 1) * times) for c in range(channels)], axis=1)
    soundfile.write(path, samples, 16000, **options)
    return path


def lines(path, *written):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in written))


# ---- AN4 -----------------------------------------------------------------------------------


def make_an4(root, speakers=14):
    """Two utterances a speaker in train, two of one in test; as the archive has it."""
    for listing, folder, names in (
        ("train", "an4_clstk", [f"m{i:02}x" for i in range(speakers)]),
        ("test", "an4test_clstk", ["fcaw"]),
    ):
        identifiers = [(f"an{n}-{name}-b", name) for name in names for n in (251, 253)]
        for identifier, name in identifiers:
            sound(root / "wav" / folder / name / f"{identifier}.sph", format="NIST")
        lines(root / f"etc/an4_{listing}.fileids", *(f"{folder}/{n}/{i}" for i, n in identifiers))
        wrap = "<s> {} </s>" if listing == "train" else "{}"
        lines(
            root / f"etc/an4_{listing}.transcription",
            *(f"{wrap.format('RUBOUT G M E')} ({i})" for i, _ in identifiers),
        )


def test_an4_is_read_and_a_twelfth_of_its_speakers_is_dev(tmp_path):
    make_an4(tmp_path)
    found = {split: list(an4.utterances(tmp_path, split)) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [26, 2, 2]
    assert {u.speaker for u in found["dev"]} == {"m05x"}
    assert all(u.text == "RUBOUT G M E" and u.audio.exists() for us in found.values() for u in us)
    assert found["test"][0].source.endswith("etc/an4_test.transcription:1")
    assert len(an4.files(tmp_path, "test")) == 4


def test_an4_lists_that_disagree_are_for_validation_to_reject(tmp_path):
    make_an4(tmp_path)
    path = tmp_path / "etc/an4_test.transcription"
    lines(path, "YES (an251-fcaw-b)", "NO (an999-fcaw-b)")
    by_id = {u.id: u for u in an4.utterances(tmp_path, "test")}
    assert by_id["an253-fcaw-b"].text is None
    assert not by_id["an999-fcaw-b"].audio.exists() and by_id["an999-fcaw-b"].speaker == "fcaw"


@pytest.mark.parametrize(
    ("listing", "line", "message"),
    [
        ("transcription", "YES an251", r"transcription:1: 'YES an251' is not '<words>"),
        ("transcription", "YES (../../etc/hostname)", r"transcription:1: .* is not '<words>"),
        ("transcription", "YES (/etc/passwd)", r"transcription:1: .* is not '<words>"),
        ("fileids", "an251", r"fileids:1: 'an251' is not <folder>/<speaker>"),
        ("fileids", "../../etc/x", r"fileids:1: .* is not <folder>/<speaker>"),
    ],
)
def test_bad_an4_lists_are_named_by_line(tmp_path, listing, line, message):
    make_an4(tmp_path)
    lines(tmp_path / f"etc/an4_test.{listing}", line)
    with pytest.raises(UserError, match=message):
        list(an4.utterances(tmp_path, "test"))
    with pytest.raises(UserError, match="AN4 has no split 'eval'"):
        list(an4.utterances(tmp_path, "eval"))


# ---- the user's own ------------------------------------------------------------------------


def make_kaldi(folder):
    """Two recordings, one of two channels with two segments."""
    sound(folder / "one.flac")
    both = sound(folder.parent / "audio" / "two.wav", seconds=2, channels=2)
    lines(folder / "wav.scp", "one one.flac", f"two {both}")
    lines(folder / "text", "one hello there", "two-a good morning", "two-b bye")
    lines(folder / "utt2spk", "one s1", "two-a s2", "two-b s2")
    lines(folder / "segments", "one one 0 0.5", "two-a two 0.25 1.0", "two-b two 1.0 2.004")


def test_a_kaldi_data_directory(tmp_path):
    make_kaldi(tmp_path / "train")
    one, first, second = data_dir.utterances(tmp_path, "train")
    assert (one.id, one.text, one.speaker) == ("one", "hello there", "s1")
    assert (first.start, first.end, second.end) == (0.25, 1.0, 2.004)
    assert first.audio == second.audio and first.source.endswith("text:2")
    names = data_dir.files(tmp_path, "train")
    assert "train/one.flac" in names and "audio/two.wav" in names and "train/segments" in names


def test_without_segments_and_speakers_recordings_are_utterances(tmp_path):
    make_kaldi(tmp_path / "train")
    for name in ("segments", "utt2spk"):
        (tmp_path / "train" / name).unlink()
    found = {u.id: u for u in data_dir.utterances(tmp_path, "train")}
    assert found["one"].end is None and found["one"].speaker == "one"
    assert found["two"].text is None
    assert "not in wav.scp" in str(found["two-a"].audio)


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        ("wav.scp", ["one sph2pipe -f wav x.sph |"], r"wav.scp:1: a command in place of a file"),
        ("wav.scp", ["one a", "one b"], r"wav.scp:2: 'one' stands in .*wav.scp:1, too"),
        ("text", ["one x", "one y"], r"text:2: 'one' stands in .*text:1, too"),
        ("segments", ["one three 0 1"], r"segments:1: recording 'three' does not stand in wav.scp"),
        ("segments", ["one one 0"], r"segments:1: .* is not '<recording> <start> <end>'"),
        ("segments", ["one one 1 0.5"], r"segments:1: from 1 s to 0.5 s is no stretch"),
        ("segments", ["one one -1 0.5"], r"segments:1: from -1 s"),
        ("segments", ["one one 0 inf"], r"segments:1: from 0 s to inf s"),
        ("segments", ["one one 0 1e308"], r"segments:1: from 0 s"),
    ],
)
def test_bad_kaldi_lists_are_named_by_line(tmp_path, name, written, message):
    make_kaldi(tmp_path / "train")
    lines(tmp_path / "train" / name, *written)
    with pytest.raises(UserError, match=message):
        list(data_dir.utterances(tmp_path, "train"))


def test_commands_are_run_once_and_their_output_is_the_corpus(tmp_path, capsys):
    make_kaldi(tmp_path / "old/train")
    count = tmp_path / "count"
    lines(
        tmp_path / "old/train/wav.scp",
        f"one echo x >> {count}; cat '{tmp_path}/old/train/one.flac' |",
        f"two {tmp_path}/old/audio/two.wav",
        "three cat /nowhere/three | cat |",
        "four cat /nowhere/three | cat |",
    )
    words = [str(tmp_path / "old"), str(tmp_path / "new"), "--jobs", "1"]
    assert commands.main(words) == 1
    said = capsys.readouterr().err
    assert "wav.scp:3: 'cat /nowhere/three | cat' ended with status 1: cat: /nowhere/three" in said
    assert not (tmp_path / "new/train/wav.scp").exists()
    lines(
        tmp_path / "old/train/wav.scp",
        *(tmp_path / "old/train/wav.scp").read_text().splitlines()[:2],
    )
    assert commands.main(words) == 0
    assert count.read_text() == "x\n"
    one, first, _ = data_dir.utterances(tmp_path / "new", "train")
    assert one.audio.read_bytes() == (tmp_path / "old/train/one.flac").read_bytes()
    assert first.audio == tmp_path / "old/audio/two.wav" and first.start == 0.25
    assert len(list((tmp_path / "new/train/audio").iterdir())) == 1  # and nothing half-written


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_commands_need_a_job(tmp_path, capsys, jobs):
    lines(tmp_path / "old/train/wav.scp", "one echo x |")
    assert commands.main([str(tmp_path / "old"), str(tmp_path / "new"), "--jobs", jobs]) == 1
    assert f"error: jobs={jobs}; it must be 1 or more" in capsys.readouterr().err


def test_a_command_that_prints_nothing_and_a_folder_without_lists_are_errors(tmp_path):
    lines(tmp_path / "old/train/wav.scp", "one true |")
    with pytest.raises(UserError, match=r"wav.scp:1: 'true' printed nothing: nor an error"):
        commands.run_all(tmp_path / "old", tmp_path / "new")
    with pytest.raises(UserError, match=r"has no data directories"):
        commands.run_all(tmp_path / "new", tmp_path / "newer")


def table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        lines(path, *map(json.dumps, rows))
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    body = [",".join(f'"{row.get(column, "")}"' for column in columns) for row in rows]
    path.write_text("\ufeff" + "\r\n".join([",".join(columns), *body]) + "\r\n", encoding="utf-8")


ROWS = [
    {"path": "clips/a.flac", "text": "hello, there", "speaker": "s1"},
    {"path": "clips/b.flac", "text": "bye", "id": "b2", "start": 0.5, "end": 1.5, "channel": 1},
]


@pytest.mark.parametrize("name", data_dir.TABLES)
def test_a_table(tmp_path, name):
    table(tmp_path / "train" / name, ROWS)
    second, first = data_dir.utterances(tmp_path, "train")
    assert (first.id, first.text, first.speaker) == ("clips-a", "hello, there", "s1")
    assert first.audio == tmp_path / "train/clips/a.flac" and first.end is None
    assert (second.id, second.start, second.end, second.channel) == ("b2", 0.5, 1.5, 1)
    assert second.source.endswith(f"{name}:{3 if name.endswith('csv') else 2}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("utterances.csv", "file,text\na.flac,x\n", r"csv:2: columns are path, .*not 'file'"),
        ("utterances.csv", "path,text\na.flac,x,y\n", r"csv:2: 3 fields, but 2 columns"),
        ("utterances.csv", "path,path\na.flac,x\n", r"csv:1: a column is named twice"),
        ("utterances.csv", 'path,text\na.flac,"x\nb.flac,y\n', r"csv:2: not a row of CSV"),
        ("utterances.csv", f"path,text\na.flac,{'x' * 200_000}\n", r"csv:2: not a row of CSV"),
        ("utterances.csv", "path,start\na.flac,early\n", r"csv:2: start 'early' .* not seconds"),
        ("utterances.csv", "path,start\na.flac,nan\n", r"csv:2: from nan s"),
        ("utterances.csv", "path,end\na.flac,1e308\n", r"csv:2: from 0.0 s to 1e308"),
        ("utterances.csv", "path,start,end\na.flac,-1,1\n", r"csv:2: from -1 s"),
        ("utterances.csv", "path,channel\na.flac,0.9\n", r"csv:2: channel '0.9' is not a number"),
        ("utterances.jsonl", '{"path": "a", "start": 1' + "0" * 400 + "}\n", r"jsonl:1: "),
        ("utterances.jsonl", '{"path": "a", "channel": true}\n', r"jsonl:1: channel True is not"),
        ("utterances.jsonl", '{"path": "a", "text": NaN}\n', r"jsonl:1: text nan is not a string"),
        ("utterances.jsonl", '{"path": "a", "id": 0}\n', r"jsonl:1: id 0 is not a string"),
        ("utterances.jsonl", '{"path": "\\ud800"}\n', r"jsonl:1: path .* not a string of Unicode"),
        ("utterances.jsonl", "[" * 100_000 + "\n", r"jsonl:1: not JSON"),
        ("utterances.jsonl", '{"path": "a"\n', r"jsonl:1: not JSON"),
        ("utterances.jsonl", '["a"]\n', r"jsonl:1: not a JSON object"),
        ("utterances.jsonl", '{"text": "a"}\n', r"jsonl:1: .*it is empty"),
    ],
)
def test_bad_tables_are_named_by_line(tmp_path, name, text, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / name).write_text(text)
    with pytest.raises(UserError, match=message):
        list(data_dir.utterances(tmp_path, "train"))


def test_names_that_no_file_can_have_are_for_validation_to_reject(tmp_path):
    rows = [{"path": "nul\0.flac", "text": "x"}, {"path": "a" * 300, "text": "y"}]
    table(tmp_path / "train" / "utterances.jsonl", rows)
    found = list(data_dir.utterances(tmp_path, "train"))
    assert data_dir.files(tmp_path, "train") == ["train/utterances.jsonl"]
    rules = Rules(16000, 0.1, 30.0)
    reasons = [examine([(utterance, False)], rules)[0].reason for utterance in found]
    assert sorted(reasons) == ["unreadable", "unreadable"]


def test_white_space_in_a_file_name_is_none_in_the_id_and_in_an_id_is_refused(tmp_path):
    table(tmp_path / "train" / "utterances.csv", [{"path": "my clip.flac", "text": "x"}])
    assert [u.id for u in data_dir.utterances(tmp_path, "train")] == ["my_clip"]
    table(tmp_path / "train" / "utterances.csv", [{"path": "a.flac", "id": "v 1"}])
    with pytest.raises(UserError, match="'v 1' has white space"):
        manifests._check_ids({"train": list(data_dir.utterances(tmp_path, "train"))})


def test_a_folder_needs_one_listing(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match=r"needs one of wav.scp .*; it has none"):
        list(data_dir.utterances(tmp_path, "train"))
    make_kaldi(tmp_path / "train")
    table(tmp_path / "train/utterances.csv", ROWS)
    with pytest.raises(UserError, match="it has utterances.csv, wav.scp"):
        list(data_dir.utterances(tmp_path, "train"))


# ---- through the stages --------------------------------------------------------------------


def configure(recipe, **stages):
    for stage, settings in stages.items():
        lines(
            recipe / "conf" / f"{stage}.yaml",
            *(f"{k}: {json.dumps(v)}" for k, v in settings.items()),
        )


def test_the_users_corpus_goes_through_to_features(tmp_path):
    for split in ("train", "dev", "test"):
        make_kaldi(tmp_path / "corpus" / split)
        for name in ("text", "utt2spk", "segments"):
            path = tmp_path / "corpus" / split / name
            lines(path, *(f"{split}-{line}" for line in path.read_text().splitlines()))
    recipe, exp = tmp_path / "recipe", tmp_path / "exp"
    configure(
        recipe,
        corpus={
            "source": "data_dir",
            "name": "mine",
            "corpus_dir": str(tmp_path / "corpus"),
            "splits": {"train": "train", "dev": "dev", "tests": ["test"]},
        },
        manifests={"channel": 1, "max_rejected": 0.5},
        features={"jobs": 1, "speeds": [1.0]},
    )
    arguments = ["--recipe", str(recipe), "--dir", str(exp)]
    assert main(["corpus", *arguments]) == 0
    assert main(["manifests", *arguments]) == 0
    (rejected, *others) = read_jsonl(exp / "manifests/rejected.jsonl")
    assert (rejected["id"], rejected["reason"], len(others)) == ("train-one", "no-channel", 2)
    assert main(["features", *arguments]) == 0
    cuts = list(load_cuts(exp / "features/train.jsonl.gz"))
    assert [cut.id for cut in cuts] == ["train-two-a", "train-two-b"]
    assert [cut.duration for cut in cuts] == [0.75, 1.0]  # 4 ms of overhang are cut
    assert [cut.num_frames for cut in cuts] == [75, 100]


def test_an_archive_of_an4_goes_through_from_the_mirror(tmp_path):
    import tarfile

    make_an4(tmp_path / "an4")
    mirror, recipe, exp = tmp_path / "mirror", tmp_path / "recipe", tmp_path / "exp"
    mirror.mkdir()
    with tarfile.open(mirror / "an4_sphere.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "an4", "an4")
    configure(
        recipe,
        corpus={
            "source": "an4",
            "name": "an4",
            "archives": [{"url": "http://example.invalid/an4_sphere.tar.gz"}],
            "root": "an4",
            "splits": {"train": "train", "dev": "dev", "tests": ["test"]},
        },
        manifests={},
    )
    arguments = ["--recipe", str(recipe), "--dir", str(exp)]
    assert main(["corpus", *arguments, f"mirror={mirror}"]) == 0
    assert read_json(exp / "corpus/stage.json")["counts"]["audio_files"] == {
        "train": 26,
        "dev": 2,
        "test": 2,
    }
    assert main(["manifests", *arguments]) == 0
    before = (exp / "corpus/stage.json").read_bytes()
    moved = tmp_path / "moved"
    exp.rename(moved)
    (mirror / "an4_sphere.tar.gz").unlink()
    arguments = ["--recipe", str(recipe), "--dir", str(moved)]
    assert main(["corpus", *arguments]) == 0  # done before, wherever the archive was from
    assert (moved / "corpus/stage.json").read_bytes() == before
    assert main(["manifests", *arguments, "--force"]) == 0
