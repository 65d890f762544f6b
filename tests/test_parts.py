"""Recipes of several corpora, and adapters, on trees of a few utterances in the layouts."""

import gzip
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.__main__ import main
from asr.config import load_config
from asr.corpora import CorpusConfig, conversations, fisher, switchboard, tedlium, voxpopuli
from asr.errors import UserError
from asr.feature_storage import load_cuts
from asr.files import read_json, read_jsonl

SPLITS = ("train", "dev", "test")


def sound(path, seconds=2.0, rate=16000, channels=1, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(round(seconds * rate)) / rate
    samples = np.stack([0.3 * np.sin(1500 * (c + 1) * times) for c in range(channels)], axis=1)
    soundfile.write(path, samples, rate, **options)
    return path


def lines(path, *written):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in written))


def make_librispeech(root, folders=("train-clean", "train-other", "dev-clean", "test-clean")):
    """Two utterances in each of the folders."""
    for number, split in enumerate(folders):
        names = [f"{number}-7-000{i}" for i in range(2)]
        for name in names:
            sound(root / split / f"{number}" / "7" / f"{name}.flac", seconds=0.5)
        path = root / split / f"{number}" / "7" / f"{number}-7.trans.txt"
        lines(path, *(f"{name} CHAPTER 7" for name in names))


def make_tedlium(root):
    """A talk a split, as in the release's legacy distribution."""
    for split in SPLITS:
        talk = f"Ann{split.title()}_2010"
        sound(root / "legacy" / split / "sph" / f"{talk}.sph", format="NIST")
        lines(
            root / "legacy" / split / "stm" / f"{talk}.stm",
            ";; a comment",
            f"{talk} 1 inter_segment_gap 0 0.20 <o,,unknown> ignore_time_segment_in_scoring",
            f"{talk} 1 {talk} 0.20 1.00 <o,f0,female> it 's {{NOISE}} what i don 't(2) know",
            f"{talk} 1 {talk} 1.00 2.01 <o,f0,female> and so on(Ann-0012)",
        )


HEADER = (
    "id_|paragraph_id|session_id|speaker_id|original_text|normed_text|decoded|start_time|end_time"
    "|cer|wer|vad|split|gender"
)


def vox_row(name, session, split, start, end, text="the floor is yours", original="The floor.."):
    return (
        f"{name}|p|{session}|1234|{original}|{text}||{start}|{end}|0|0|[[{start}, {end}]]|{split}|m"
    )


def make_voxpopuli(root, *more):
    """A session of one year with all splits in it, as VoxPopuli's scripts leave it."""
    session = "2013-0900-PLENARY-15-en"
    sound(
        root / "raw_audios/original/2013" / f"{session}_original.ogg",
        format="OGG",
        subtype="VORBIS",
    )
    rows = [
        HEADER,
        *(vox_row(f"en_{i}", session, s, i * 0.5, i * 0.5 + 0.5) for i, s in enumerate(SPLITS)),
        *more,
    ]
    path = root / "transcribed_data/en/asr_en.tsv.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(row + "\n" for row in rows).encode()))
    return path


CALLS = {"train": 1, "dev": 200, "test": 400}


def make_fisher(root):
    """A call a split, as LDC's releases lie on disk."""
    for number in CALLS.values():
        call = f"fe_03_{number:05}"
        audio = root / f"LDC2004S13/fe_03_p1_sph1/audio/{number // 100:03}/{call}.sph"
        sound(audio, rate=8000, channels=2, format="NIST", subtype="ULAW")
        lines(
            root / f"LDC2004T19/fe_03_p1_tran/data/trans/{number // 100:03}/{call}.txt",
            f"# {call}.sph",
            "# Transcribed at the LDC",
            "",
            "0.10 0.90 A: an- so the topic [laughter] is",
            "",
            "0.80 1.70 B: yeah [noise]",
            "1.00 1.20 A: ((mhm))",
            "1.20 1.40 A: [laugh]",
        )
    lines(
        root / "LDC2004T19/fe_03_p1_tran/doc/fe_03_p1_calldata.tbl",
        "CALL_ID,DATE_TIME,TOPICID,SIG_GRADE,CNV_GRADE,APIN,ASX.DL,APHNUM,APHSET,APHTYP,"
        "BPIN,BSX.DL,BPHNUM,BPHSET,BPHTYP",
        *(f"{n:05},x,ENG01,3,3,{n}11,f.a,0,1,1,{n}22,m.a,0,1,1" for n in CALLS.values()),
    )


CONVERSATIONS = {"train": 2001, "dev": 2050, "test": 2100}


def make_switchboard(root):
    for number in CONVERSATIONS.values():
        sound(root / f"swb1/d1/data/sw0{number}.sph", rate=8000, channels=2, format="NIST")
        for side in "AB":
            name = f"sw{number}{side}-ms98-a"
            lines(
                root / f"swb_ms98_transcriptions/{number // 100}/{number}/{name}-trans.text",
                f"{name}-0001 0.000000 0.400000 [silence]",
                f"{name}-0002 0.400000 1.500000 [laughter-well] abso[lutely]- them_1 <b_aside> hi",
            )


# ---- TED-LIUM ------------------------------------------------------------------------------


def test_tedlium_is_read(tmp_path):
    make_tedlium(tmp_path)
    gap, first, second = tedlium.utterances(tmp_path, "legacy/train")
    assert (first.id, first.speaker, first.start, first.end) == (
        "AnnTrain_2010-00003",
        "AnnTrain_2010",
        0.2,
        1.0,
    )
    assert first.text == "it 's [NOISE] what i don 't know" and second.text == "and so on"
    assert gap.excluded and not first.excluded and first.audio.exists()
    assert first.source.endswith("AnnTrain_2010.stm:3")
    assert tedlium.files(tmp_path, "legacy/dev") == [
        "legacy/dev/stm/AnnDev_2010.stm",
        "legacy/dev/sph/AnnDev_2010.sph",
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"talk 1 talk 0 <o> words\n", r"stm:1: .* is not '<talk> <channel>"),
        (b";; x\ntalk 1 talk 0 nan <o,f0,m> words\n", r"stm:2: .* is not '<talk> <channel>"),
        (b"../talk 1 talk 0 1 <o,f0,m> words\n", r"stm:1: .* is not '<talk> <channel>"),
        (b"talk 1 talk 0 1 <o,f0,m> caf\xe9\n", r"AnnTest_2010.stm: not UTF-8"),
    ],
)
def test_bad_stm_is_named_by_line(tmp_path, written, message):
    make_tedlium(tmp_path)
    (tmp_path / "legacy/test/stm/AnnTest_2010.stm").write_bytes(written)
    with pytest.raises(UserError, match=message):
        list(tedlium.utterances(tmp_path, "legacy/test"))


def test_recordings_and_transcripts_of_tedlium_that_have_no_other_are_for_validation(tmp_path):
    make_tedlium(tmp_path)
    folder = tmp_path / "legacy/test"
    (folder / "stm/AnnTest_2010.stm").rename(folder / "stm/Bob_2010.stm")
    lines(folder / "stm/Bob_2010.stm", "Bob_2010 1 Bob 0 1 <o,f0,male> hello")
    alone, bob = tedlium.utterances(tmp_path, "legacy/test")
    assert (alone.id, alone.text) == ("AnnTest_2010", None)
    assert bob.audio == folder / "sph/Bob_2010.sph" and not bob.audio.exists()
    (folder / "sph/AnnTest_2010.wav").write_bytes(b"x")
    with pytest.raises(UserError, match=r"'AnnTest_2010' has two audio files, .*delete one"):
        list(tedlium.utterances(tmp_path, "legacy/test"))


# ---- VoxPopuli -----------------------------------------------------------------------------


def test_voxpopuli_is_read_where_its_scripts_or_its_archives_leave_it(tmp_path):
    table = make_voxpopuli(tmp_path)
    (one,) = voxpopuli.utterances(tmp_path, "dev")
    assert (one.id, one.speaker) == ("2013-0900-PLENARY-15-en-en_1", "1234")
    assert (one.start, one.end, one.text) == (0.5, 1.0, "the floor is yours")
    assert one.audio.exists() and one.source.endswith("asr_en.tsv.gz:3")
    assert len(voxpopuli.files(tmp_path, "dev")) == 2
    (tmp_path / "raw_audios/original").rename(tmp_path / "original")
    table.rename(tmp_path / "asr_en.tsv.gz")
    (tmp_path / "raw_audios").rmdir()
    (again,) = voxpopuli.utterances(tmp_path, "dev")
    assert again.audio == tmp_path / "original/2013/2013-0900-PLENARY-15-en_original.ogg"


def test_lines_of_voxpopuli_that_are_none_are_for_validation(tmp_path):
    make_voxpopuli(
        tmp_path,
        'an open "quote|and|too|few',
        vox_row("en_9", "../../../etc", "train", 0, 1),
        vox_row("en_8", "2014-x", "train", 0, 1, text="", original="Not normalised"),
    )
    found = {u.id: u for u in voxpopuli.utterances(tmp_path, "train")}
    assert found["2014-x-en_8"].text == "Not normalised"
    assert not found["2014-x-en_8"].audio.exists()
    assert {"voxpopuli-line-5", "voxpopuli-line-6"} < set(found) and len(found) == 4
    assert found["voxpopuli-line-6"].text is None
    assert "not a line of this table" in str(found["voxpopuli-line-6"].audio)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.write_bytes(table.read_bytes()[:-9]), "cannot be read .*download it"),
        (lambda table: table.write_bytes(b"no gzip"), "cannot be read .*download it"),
        (lambda table: table.write_bytes(gzip.compress(b"a|b\n")), "column 'session_id' is miss"),
        (lambda table: table.unlink(), "has no asr_en.tsv.gz"),
        (
            lambda table: table.write_bytes(
                gzip.compress(f"{HEADER}\n{vox_row('a', '2013', 'train', 'x', 1)}\n".encode())
            ),
            "gz:2: start 'x' and end '1' are not seconds",
        ),
    ],
)
def test_a_bad_table_of_voxpopuli_is_an_error(tmp_path, change, message):
    change(make_voxpopuli(tmp_path))
    with pytest.raises(UserError, match=message):
        list(voxpopuli.utterances(tmp_path, "train"))


# ---- Fisher and Switchboard ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("an- so the topic is", "an- so the topic is"),
        ("[laughter] yeah [NOISE] [vocalized-noise]", "yeah"),
        ("[laughter-yeah] [Laughter-abso[lutely]-]", "yeah abso-"),
        ("abso[lutely]- -[an]y ammu[n]it-", "abso- -y ammuit-"),
        ("[it'n/isn't] [ex[specially]-/especially]", "it'n ex-"),
        ("{yuppiedom} them_1 them_1's", "yuppiedom them them's"),
        ("<b_aside> hold on <e_aside>", "hold on"),
        ("t._v. [unheard-of] <unk>", "t._v. [unheard-of] <unk>"),
    ],
)
def test_what_transcribers_write(written, said):
    assert conversations.spoken(written) == (said, None)


@pytest.mark.parametrize("written", ["", "[silence]", "[laughter] [noise]", "yes ((no idea))"])
def test_what_is_of_no_use(written):
    assert conversations.spoken(written)[1]


def test_fisher_is_read(tmp_path):
    make_fisher(tmp_path)
    a, guess, laugh, b = fisher.utterances(tmp_path, "train")
    assert (a.id, a.text, a.speaker, a.channel) == (
        "fe_03_00001-A-0004",
        "an- so the topic is",
        "fisher-111",
        0,
    )
    assert (b.start, b.end, b.channel, b.speaker) == (0.8, 1.7, 1, "fisher-122")
    assert guess.excluded and laugh.excluded and not b.excluded
    assert a.audio.name == "fe_03_00001.sph" and len(fisher.files(tmp_path, "dev")) == 3
    (tmp_path / "LDC2004T19/fe_03_p1_tran/doc/fe_03_p1_calldata.tbl").unlink()
    assert next(fisher.utterances(tmp_path, "train")).speaker == "fe_03_00001-A"


def test_switchboard_is_read(tmp_path):
    make_switchboard(tmp_path)
    silence, a, _, b = switchboard.utterances(tmp_path, "dev")
    assert silence.excluded and a.text == "well abso- them hi"
    assert (a.id, a.speaker, a.channel, b.channel) == ("sw2050A-ms98-a-0002", "sw2050-A", 0, 1)
    assert a.audio == b.audio and a.audio.exists()
    assert len(switchboard.files(tmp_path, "test")) == 3


@pytest.mark.parametrize(
    ("adapter", "make", "name", "written", "message"),
    [
        (fisher, make_fisher, "fe_03_00001.txt", "0.1 0.2 C: x", r"txt:1: .* is not '<start> <end"),
        (fisher, make_fisher, "fe_03_p1_calldata.tbl", "A,B\n1,2", r"tbl:2: lacks one of CALL_ID"),
        (fisher, make_fisher, "elsewhere/fe_03_00001.sph", "", r"'fe_03_00001' has two files of"),
        (switchboard, make_switchboard, "sw2001A-ms98-a-trans.text", "x", r"text:1: 'x' is not"),
        (switchboard, make_switchboard, "SW2001.WAV", "", r"'2001' has two files of the kind 'rec"),
    ],
)
def test_bad_telephone_corpora(tmp_path, adapter, make, name, written, message):
    make(tmp_path)
    path = next(tmp_path.rglob(name), tmp_path / name)
    lines(path, written)
    with pytest.raises(UserError, match=message):
        list(adapter.utterances(tmp_path, "train"))


@pytest.mark.parametrize("adapter", [fisher, switchboard])
def test_a_folder_of_another_corpus_is_an_error(tmp_path, adapter):
    with pytest.raises(UserError, match=r"has no transcripts"):
        list(adapter.utterances(tmp_path, "train"))
    with pytest.raises(UserError, match=r"no such corpus folder; set corpus_dir"):
        list(adapter.utterances(tmp_path / "nowhere", "train"))


def test_recordings_without_transcript_are_for_validation(tmp_path):
    make_fisher(tmp_path)
    next(tmp_path.rglob("fe_03_00001.txt")).unlink()
    (one,) = fisher.utterances(tmp_path, "train")
    assert (one.id, one.text) == ("fe_03_00001", None)
    make_switchboard(tmp_path)
    next(tmp_path.rglob("sw02001.sph")).unlink()
    assert not any(u.audio.exists() for u in switchboard.utterances(tmp_path, "train"))


# ---- Several parts, through the stages -----------------------------------------------------


def tar(path, folder, name):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, name)


class English:
    """LibriSpeech, VoxPopuli and TED-LIUM in one recipe, each from where the recipe may find it."""

    def __init__(self, root):
        self.root, self.recipe, self.exp = root, root / "recipe", root / "exp"
        make_librispeech(root / "made" / "LibriSpeech")
        make_tedlium(root / "made" / "TEDLIUM_release-3")
        make_voxpopuli(root / "voxpopuli")
        (root / "mirror").mkdir()
        tar(root / "mirror/train.tar.gz", root / "made/LibriSpeech", "LibriSpeech")
        tar(root / "mirror/TEDLIUM.tgz", root / "made/TEDLIUM_release-3", "TEDLIUM_release-3")
        self.corpus = {
            "source": "parts",
            "name": "english",
            "splits": {"train": "train", "dev": "dev", "tests": ["test-clean", "test-ted"]},
            "parts": {
                "librispeech": {
                    "source": "librispeech",
                    "archives": [{"url": "http://example.invalid/train.tar.gz"}],
                    "root": "LibriSpeech",
                    "splits": {
                        "train": ["train-clean", "train-other"],
                        "dev": ["dev-clean"],
                        "test-clean": ["test-clean"],
                    },
                },
                "tedlium": {
                    "source": "tedlium",
                    "archives": [{"url": "http://example.invalid/TEDLIUM.tgz"}],
                    "root": "TEDLIUM_release-3",
                    "splits": {
                        "train": ["legacy/train"],
                        "dev": ["legacy/dev"],
                        "test-ted": ["legacy/test"],
                    },
                },
                "voxpopuli": {
                    "source": "voxpopuli",
                    "corpus_dir": str(root / "voxpopuli"),
                    "splits": {"train": ["train"]},
                },
            },
        }
        self.write()

    def write(self):
        for stage, settings in (
            ("corpus", self.corpus),
            ("manifests", {"jobs": 1}),
            ("features", {"jobs": 1}),
            ("tokens", {"kind": "char"}),
        ):
            lines(
                self.recipe / "conf" / f"{stage}.yaml",
                *(f"{key}: {json.dumps(value)}" for key, value in settings.items()),
            )

    def verb(self, *words):
        return main([words[0], "--recipe", str(self.recipe), "--dir", str(self.exp), *words[1:]])

    def counts(self, stage):
        return read_json(self.exp / stage / "stage.json")["counts"]


@pytest.fixture
def english(tmp_path):
    return English(tmp_path)


def test_parts_from_archives_and_folders_go_through_to_tokens(english):
    assert english.verb("corpus", f"mirror={english.root / 'mirror'}") == 0
    counts = english.counts("corpus")
    assert counts["audio_files"] == {"train": 6, "dev": 3, "test-clean": 2, "test-ted": 1}
    listing = (english.exp / "corpus/files.tsv").read_text()
    assert "librispeech/train-clean/0/7/0-7-0000.flac\t" in listing
    assert "tedlium/legacy/train/sph/AnnTrain_2010.sph\t" in listing
    assert english.verb("manifests") == 0
    train = english.counts("manifests")["splits"]["train"]
    assert {name: part["utterances"] for name, part in train["corpora"].items()} == {
        "librispeech": 4,
        "tedlium": 2,
        "voxpopuli": 1,
    }
    assert train["with_digits"] == 4 and train["rejected"] == 1
    rejected = read_jsonl(english.exp / "manifests/rejected.jsonl")
    assert {row["reason"] for row in rejected} == {"excluded"} and len(rejected) == 3
    assert english.verb("features") == 0
    cuts = {cut.id: cut for cut in load_cuts(english.exp / "features/train.jsonl.gz")}
    assert len(cuts) == 7
    vox, ted = cuts["2013-0900-PLENARY-15-en-en_0"], cuts["AnnTrain_2010-00003"]
    assert (vox.custom["corpus"], vox.num_frames) == ("voxpopuli", 50)
    assert (ted.custom["corpus"], ted.num_frames) == ("tedlium", 80)
    assert ted.supervisions[0].text == "it's what i don't know"
    assert english.verb("tokens") == 0


def test_parts_in_one_folder_are_found_without_their_archives(english, monkeypatch):
    folder = english.root / "all"
    folder.mkdir()
    for name, made in (("librispeech", "LibriSpeech"), ("tedlium", "TEDLIUM_release-3")):
        (english.root / "made" / made).rename(folder / name)
    assert english.verb("corpus", f"corpus_dir={folder}") == 0
    roots = {name: part["root"] for name, part in english.counts("corpus")["parts"].items()}
    assert roots == {
        "librispeech": str(folder / "librispeech"),
        "tedlium": str(folder / "tedlium"),
        "voxpopuli": str(english.root / "voxpopuli"),
    }
    assert not (english.exp / "corpus/unpacked").exists()


def test_a_change_in_any_part_is_noticed_and_contents_on_request(english):
    where = f"parts.tedlium.corpus_dir={english.root / 'made/TEDLIUM_release-3'}"
    words = ("corpus", f"mirror={english.root / 'mirror'}", where)
    assert english.verb(*words, "--verify") == 0
    marker = english.exp / "corpus/stage.json"
    digests = (english.exp / "corpus/contents.sha256").read_text()
    assert "  voxpopuli/transcribed_data/en/asr_en.tsv.gz\n" in digests
    first = marker.stat().st_mtime_ns
    assert english.verb(*words) == 0 and marker.stat().st_mtime_ns == first
    sound(english.root / "made/TEDLIUM_release-3/legacy/train/sph/New.sph", format="NIST")
    assert english.verb(*words) == 0 and marker.stat().st_mtime_ns > first
    assert english.counts("corpus")["audio_files"]["train"] == 7


def test_a_missing_part_is_named_with_the_remedy(english, capsys):
    words = (f"mirror={english.root / 'mirror'}", "parts.voxpopuli.corpus_dir=/nowhere")
    assert english.verb("corpus", *words) == 1
    said = capsys.readouterr().err
    assert "part voxpopuli: /nowhere: no such corpus folder" in said
    assert "parts.voxpopuli.corpus_dir" in said


def test_an_id_in_two_parts_is_an_error_with_both_places(english, capsys):
    text = "0-7-0000 1 Ann 0 1 <o,f0,female> hello"
    path = english.root / "made/TEDLIUM_release-3/legacy/train/stm/AnnTrain_2010.stm"
    lines(path, text.replace("0-7-0000", "0-7"))
    chapter = english.root / "made/LibriSpeech/train-clean/0/7/0-7.trans.txt"
    lines(chapter, "0-7-00001 AGAIN")
    for name in ("librispeech", "tedlium"):
        english.corpus["parts"][name].pop("archives")
        english.corpus["parts"][name].pop("root")
    english.corpus["parts"]["librispeech"]["corpus_dir"] = str(english.root / "made/LibriSpeech")
    english.corpus["parts"]["tedlium"]["corpus_dir"] = str(english.root / "made/TEDLIUM_release-3")
    english.write()
    assert english.verb("corpus") == 0
    assert english.verb("manifests") == 1
    said = capsys.readouterr().err
    assert "utterance id '0-7-00001' occurs twice" in said
    assert "0-7.trans.txt:1" in said and "AnnTrain_2010.stm:1" in said


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parts.tedlium.splits.tests=[x]"], "parts.tedlium.splits: 'tests' is none of the rec"),
        (["source=librispeech"], "source=parts and parts need each other"),
        (["root=x"], "archives and root belong to each of the parts"),
        (["parts.voxpopuli.corpus_dir=null"], "parts.voxpopuli needs parts.voxpopuli.corpus_dir="),
        (["splits.dev=dev2"], "parts.librispeech.splits: 'dev' is none"),
        (["splits.tests=[test-clean,test-ted,x]"], "none of them has a share in the split 'x'"),
        (["parts.ted/lium={source: tedlium, splits: {}}"], "cannot be a part"),
        (["parts.tedlium.souce=x"], "did you mean 'parts.tedlium.source'"),
        (["source=libri"], "choose one of: synthetic, parts, librispeech"),
        (
            ["parts.tedlium.archives=[{url: http://example.invalid/other/train.tar.gz}]"],
            "two archives have the same file name",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(english, overrides, message):
    with pytest.raises(UserError, match=message):
        load_config(CorpusConfig, [english.recipe / "conf/corpus.yaml"], overrides)


def test_two_channels_of_telephone_speech_go_through_at_8_khz(tmp_path, english):
    make_fisher(tmp_path / "ldc/fisher")
    make_switchboard(tmp_path / "ldc/switchboard")
    splits = {split: [split] for split in SPLITS}
    english.corpus = {
        "source": "parts",
        "name": "fisher_swbd",
        "splits": {"train": "train", "dev": "dev", "tests": ["test"]},
        "parts": {name: {"source": name, "splits": splits} for name in ("fisher", "switchboard")},
    }
    english.write()
    where = f"corpus_dir={tmp_path / 'ldc'}"
    assert english.verb("corpus", where) == 0
    assert english.verb("manifests", "sample_rate=8000") == 0
    counts = english.counts("manifests")
    assert counts["splits"]["train"]["utterances"] == 4
    assert counts["rejected"] == {"excluded": {"utterances": 12, "hours": 0.001}}
    fbank = ("fbank.sampling_rate=8000", "fbank.high_freq=3700", "fbank.bins=40")
    assert english.verb("features", *fbank) == 0
    cuts = {cut.id: cut for cut in load_cuts(english.exp / "features/train.jsonl.gz")}
    a, b = cuts["fe_03_00001-A-0004"], cuts["fe_03_00001-B-0006"]
    assert (a.channel, b.channel, a.num_frames, b.num_frames) == (0, 1, 80, 90)
    loudest = [np.argmax(cut.load_features().mean(axis=0)) for cut in (a, b)]
    assert loudest[0] < loudest[1]  # each channel has a tone of its own


def test_shortened_recordings_are_rejected_with_the_tool(tmp_path, english, capsys):
    test_two_channels_of_telephone_speech_go_through_at_8_khz(tmp_path, english)
    path = next((tmp_path / "ldc/fisher").rglob("fe_03_00001.sph"))
    content = path.read_bytes()
    coded = content.replace(b"sample_coding -s4 ulaw", b"sample_coding -s4 ulaw,embedded-shorten")
    path.write_bytes(coded)
    where = f"corpus_dir={tmp_path / 'ldc'}"
    assert english.verb("corpus", where) == 0
    assert english.verb("manifests", "sample_rate=8000", "max_rejected=0") == 1
    said = capsys.readouterr().err
    assert "2 of 4 utterances rejected" in said and "sph2pipe -f wav" in said


# ---- The recipes' own settings -------------------------------------------------------------

RECIPES = Path(__file__).parents[1] / "recipes"
LIBRISPEECH = (
    *("train-clean-100", "train-clean-360", "train-other-500"),
    *("dev-clean", "dev-other", "test-clean", "test-other"),
)


def run_stages(recipe, exp, *words, last=("manifests", "features")):
    common = ["--recipe", str(RECIPES / recipe), "--dir", str(exp)]
    assert main(["corpus", *common, *words]) == 0
    for stage in last:
        assert main([stage, *common, "jobs=1"]) == 0
    counts = read_json(exp / "manifests/stage.json")["counts"]["splits"]
    return {split: counts[split]["utterances"] for split in counts}


def test_the_recipe_librispeech_goes_through(tmp_path):
    make_librispeech(tmp_path / "LibriSpeech", LIBRISPEECH)
    where = f"corpus_dir={tmp_path / 'LibriSpeech'}"
    counts = run_stages("librispeech", tmp_path / "exp", where)
    assert counts == {"train": 6, "dev": 4, "test-clean": 2, "test-other": 2}
    assert (tmp_path / "exp/features/train-sp0.9.jsonl.gz").exists()


def test_the_recipe_english2k_goes_through(tmp_path):
    make_librispeech(tmp_path / "librispeech", LIBRISPEECH)
    make_tedlium(tmp_path / "tedlium")
    make_voxpopuli(tmp_path / "voxpopuli")
    counts = run_stages("english2k", tmp_path / "exp", f"corpus_dir={tmp_path}")
    tests = {"librispeech-clean": 2, "librispeech-other": 2, "tedlium": 2, "voxpopuli": 1}
    assert counts == {"train": 9, "dev": 7, **tests}


def test_the_recipe_fisher_swbd_goes_through(tmp_path):
    make_fisher(tmp_path / "fisher")
    make_switchboard(tmp_path / "switchboard")
    counts = run_stages("fisher_swbd", tmp_path / "exp", f"corpus_dir={tmp_path}")
    assert counts == {"train": 4, "dev": 4, "fisher": 2, "switchboard": 2}


def test_what_is_wrong_in_a_part_is_listed_with_its_reason(tmp_path):
    make_librispeech(tmp_path / "librispeech", LIBRISPEECH)
    make_tedlium(tmp_path / "tedlium")
    make_voxpopuli(
        tmp_path / "voxpopuli", vox_row("en_7", "2015-x", "train", 0, 1), "too|few", HEADER
    )
    talk = "AnnTrain_2010"
    with open(tmp_path / f"tedlium/legacy/train/stm/{talk}.stm", "a") as file:
        for start, end, text in ((1.5, 2.3, "past"), (1.9, 1.5, "back"), (0, 1, "the <unk> sat")):
            file.write(f"{talk} 1 {talk} {start} {end} <o,f0,female> {text}\n")
    common = ["--recipe", str(RECIPES / "english2k"), "--dir", str(tmp_path / "exp")]
    assert main(["corpus", *common, f"corpus_dir={tmp_path}"]) == 0
    assert main(["manifests", *common, "jobs=1", "max_rejected=0.5"]) == 0
    rows = read_jsonl(tmp_path / "exp/manifests/rejected.jsonl")
    reasons = {row["id"]: row["reason"] for row in rows if row["reason"] != "excluded"}
    assert reasons == {
        f"{talk}-00005": "past-end",
        f"{talk}-00006": "too-short",
        f"{talk}-00007": "unsafe-text",
        "2015-x-en_7": "missing-audio",
        "voxpopuli-line-6": "missing-audio",
    }
