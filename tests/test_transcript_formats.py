import os
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.scoring.transcript_formats import ResultFiles, find_results, read_transcripts

TEXTS = {"spk1-u1": "hello world", "spk1-u2": "", "spk2-é": "grüße, john's"}


@pytest.mark.parametrize(
    "content",
    [
        "spk1-u1 hello world\nspk1-u2\nspk2-é grüße, john's\n",
        "spk1-u1\thello world\nspk1-u2\t\nspk2-é\tgrüße, john's\n",
        "hello world (spk1-u1)\n;; a comment\n (spk1-u2)\ngrüße, john's (spk2-é)\n",
        "hello world\t(spk1-u1)\n\t(spk1-u2)\ngrüße, john's\t(spk2-é)\n",  # ESPnet
        "spk1-u1:\thyp=['hello', 'world']\nspk1-u2:\thyp=[]\nspk2-é:\thyp=['grüße,', \"john's\"]\n",
        'ID,wav,wrd\nspk1-u1,1.wav,hello world\nspk1-u2,2.wav,\nspk2-é,3.wav,"grüße, john\'s"\n',
        "utt_id\ttext\r\nspk1-u1\thello world\r\nspk1-u2\t\r\nspk2-é\tgrüße, john's\r\n",
        "text;id\nhello world;spk1-u1\n;spk1-u2\n\ngrüße, john's;spk2-é\n",
        '{"id": "spk1-u1", "text": "hello world"}\n{"id": "spk1-u2", "text": ""}\n'
        '{"text": "grüße, john\'s", "id": "spk2-é"}\n',
        "\ufeffspk1-u1 hello world\nspk1-u2\nspk2-é grüße, john's",
    ],
    ids=["kaldi", "tabs", "trn", "espnet", "icefall", "csv", "tsv", "semicolons", "jsonl", "bom"],
)
def test_each_format_gives_the_same_texts(tmp_path, content):
    (tmp_path / "hyp").write_text(content, encoding="utf-8")
    assert read_transcripts(tmp_path / "hyp") == TEXTS


@pytest.mark.parametrize(
    "content",
    [
        "u1:\tref=['said']\nu1:\thyp=['heard']\nu2:\tref=['a']\nu2:\thyp=[]\n",
        "id,ref,hyp\nu1,said,heard\nu2,a,\n",
        '{"audio_filepath": "u1", "text": "said", "pred_text": "heard"}\n'
        '{"audio_filepath": "u2", "text": "a", "pred_text": ""}\n',
    ],
    ids=["icefall", "csv", "nemo"],
)
def test_a_file_that_holds_both_sides_gives_the_one_asked_for(tmp_path, content):
    (tmp_path / "both").write_text(content)
    assert read_transcripts(tmp_path / "both", "ref") == {"u1": "said", "u2": "a"}
    assert read_transcripts(tmp_path / "both", "hyp") == {"u1": "heard", "u2": ""}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("u1 a\nu2 b\nu1 c\n", r":3: .*'u1' already stands in line 1"),
        ("a (u1)\nb (u1)\n", r":2: .*'u1' already stands in line 1"),
        ("id,text\nu1,a\nu1,b\n", r":3: .*'u1' already stands in line 2"),
        ("id,text\nu1,yes, I do\n", r":2: 3 fields, .* names 2; .*double quotes"),
        ("id,words\nu1,a\n", r":1: none of hyp, .*text.* among id, words"),
        ('{"id": "u1", "text": "a"}\n\n{"id": "u2"}\n', r":3: none of hyp, .* among id"),
        ('{"id": "u1", "text": null}\n', r':1: text is no text; write ""'),
        ('{"id": "u1", "text": ["a", "b"]}\n', r":1: text is no text"),
        ('{"id": null, "text": "a"}\n', r":1: id is no text"),
        ('{"id": "u1", "text": "a"}\nno json\n', r":2: not valid JSON"),
        ('{"id": "u1", "text": "a"}\n["u2"]\n', r":2: expected an object"),
        ("u1:\thyp=['a']\nu2 hello\n", r":2: expected \"<id>:<tab>hyp="),
        ("u1:\thyp=['a']\nu2:\thyp=[b]\n", r":2: not a list of words"),
        ("the { cat / hat } (u1)\n", r":1: alternatives"),
        ("u1 a\n\nu2 b\n", r":2: empty line"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "hyp.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"hyp\.txt{message}"):
        read_transcripts(path)


def test_a_file_that_is_missing_or_not_utf_8_is_named(tmp_path):
    with pytest.raises(UserError, match=r"hyp\.txt: no such file"):
        read_transcripts(tmp_path / "hyp.txt")
    (tmp_path / "hyp.txt").write_bytes("u1 grün\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"hyp\.txt: not UTF-8"):
        read_transcripts(tmp_path / "hyp.txt")
    (tmp_path / "hyp.txt").write_text("")
    assert read_transcripts(tmp_path / "hyp.txt") == {}


def test_a_pipe_is_read_once(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"u1 a\nu2 b\n")
    os.close(writing)
    assert read_transcripts(Path(f"/dev/fd/{reading}")) == {"u1": "a", "u2": "b"}
    os.close(reading)


def test_parentheses_at_the_end_of_some_lines_do_not_make_a_trn(tmp_path):
    (tmp_path / "hyp.txt").write_text("u1 hello (noise)\nu2 hello\n")
    assert read_transcripts(tmp_path / "hyp.txt") == {"u1": "hello (noise)", "u2": "hello"}


def test_a_sentence_with_a_comma_is_no_header(tmp_path):
    (tmp_path / "hyp.txt").write_text("u1 look for the,key\nu2 a\n")
    assert read_transcripts(tmp_path / "hyp.txt") == {"u1": "look for the,key", "u2": "a"}


def test_a_column_without_a_name_is_passed_over(tmp_path):
    (tmp_path / "hyp.csv").write_text(",id,text\n0,u1,a b\n1,u2,c\n")  # as pandas writes
    assert read_transcripts(tmp_path / "hyp.csv") == {"u1": "a b", "u2": "c"}


def test_a_csv_without_a_header_is_not_taken_for_kaldi_text(tmp_path):
    (tmp_path / "hyp.csv").write_text("u1,hello world\nu2,a\n")
    with pytest.raises(UserError, match=r"hyp\.csv:1: names no columns; .* id,text"):
        read_transcripts(tmp_path / "hyp.csv")
    (tmp_path / "hyp.csv").write_text("")
    assert read_transcripts(tmp_path / "hyp.csv") == {}


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("u1 a\n")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["ref.txt", "hyp.txt", "ref.trn", "hyp.trn"], {"": ("ref.txt", "hyp.txt")}),
        (
            ["ref.wrd.trn", "hyp.wrd.trn", "ref.trn", "hyp.trn"],
            {"": ("ref.wrd.trn", "hyp.wrd.trn")},
        ),
        (["text", "hyp.csv"], {"": ("text", "hyp.csv")}),
        (
            ["test/ref.trn", "test/hyp.trn", "other/ref", "other/hyp", "log/run.txt"],
            {"test": ("test/ref.trn", "test/hyp.trn"), "other": ("other/ref", "other/hyp")},
        ),
        (
            [f"t/score_{unit}/{side}.trn" for unit in ("cer", "wer") for side in ("ref", "hyp")],
            {"t": ("t/score_wer/ref.trn", "t/score_wer/hyp.trn")},  # ESPnet 2
        ),
        (["recogs-test-clean-x.txt"], {"": ("recogs-test-clean-x.txt",) * 2}),
        (
            ["greedy/recogs-a.txt", "greedy/recogs-b.txt"],
            {
                "greedy/a": ("greedy/recogs-a.txt",) * 2,
                "greedy/b": ("greedy/recogs-b.txt",) * 2,
            },
        ),
    ],
)
def test_results_are_found_as_toolkits_lay_them_out(tmp_path, names, found):
    touch(tmp_path, *names)
    assert find_results(tmp_path) == {
        name: ResultFiles(tmp_path / ref, tmp_path / hyp) for name, (ref, hyp) in found.items()
    }


def test_kept_results_share_references_of_a_folder_above(tmp_path):
    names = ["a.ref.txt", "seeds/1/new/a.hyp.txt", "seeds/1/new/b.hyp.txt", "seeds/1/b.ref.txt"]
    touch(tmp_path, *names, "seeds/1/new/without.hyp.txt")
    assert find_results(tmp_path / "seeds/1/new") == {
        "a": ResultFiles(tmp_path / names[0], tmp_path / names[1]),
        "b": ResultFiles(tmp_path / names[3], tmp_path / names[2]),
    }


@pytest.mark.parametrize("names", [[], ["ref.txt"], ["a.hyp.txt"], ["a/b/ref.txt", "a/b/hyp.txt"]])
def test_a_folder_without_results_is_named(tmp_path, names):
    touch(tmp_path, *names)
    with pytest.raises(UserError, match=r"no results; expected ref\.txt and hyp\.txt"):
        find_results(tmp_path)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        find_results(tmp_path / "nowhere")
