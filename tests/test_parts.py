"""Recipes of several corpora, through the stages, on trees of a few utterances."""

import gzip
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from corpus_trees import (
    HEADER,
    SPLITS,
    lines,
    make_fisher,
    make_librispeech,
    make_switchboard,
    make_tedlium,
    make_voxpopuli,
    sound,
    vox_row,
)

from asr.__main__ import main
from asr.config import load_config
from asr.corpora import CorpusConfig
from asr.errors import UserError
from asr.files import read_json, read_jsonl
from asr.filterbank.storage import load_cuts

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


def test_a_part_without_utterances_in_its_split_is_named(english, capsys):
    words = [f"mirror={english.root / 'mirror'}", "parts.voxpopuli.splits.dev=[dev]"]
    table = english.root / "voxpopuli/transcribed_data/en/asr_en.tsv.gz"
    rows = [
        line for line in gzip.decompress(table.read_bytes()).splitlines() if b"|dev|" not in line
    ]
    table.write_bytes(gzip.compress(b"\n".join(rows)))
    assert english.verb("corpus", *words) == 0
    assert english.verb("manifests") == 1
    assert "part 'voxpopuli': its split 'dev' has no utterances" in capsys.readouterr().err


def test_a_missing_part_is_named_with_the_remedy(english, capsys):
    words = (f"mirror={english.root / 'mirror'}", "parts.voxpopuli.corpus_dir=/nowhere")
    assert english.verb("corpus", *words) == 1
    assert not (english.exp / "corpus/unpacked").exists()  # nor was time spent on the others
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
    path = tmp_path / f"tedlium/legacy/train/stm/{talk}.stm"
    with open(path, "a", errors="surrogateescape") as file:
        for start, end, text in ((1.5, 2.3, "past"), (1.9, 1.5, "back"), (0, 1, "the <unk> sat")):
            file.write(f"{talk} 1 {talk} {start} {end} <o,f0,female> {text}\n")
        file.write(f"{talk} 1 {talk} 0 1 a line without its label\n")
        file.write(f"{talk} 1 {talk} 0 1 <o,f0,female> caf\udce9\n")
    common = ["--recipe", str(RECIPES / "english2k"), "--dir", str(tmp_path / "exp")]
    assert main(["corpus", *common, f"corpus_dir={tmp_path}"]) == 0
    assert main(["manifests", *common, "jobs=1", "max_rejected=0.5"]) == 0
    rows = read_jsonl(tmp_path / "exp/manifests/rejected.jsonl")
    reasons = {row["id"]: row["reason"] for row in rows if row["reason"] != "excluded"}
    assert reasons == {
        f"{talk}-00005": "past-end",
        f"{talk}-00006": "too-short",
        f"{talk}-00007": "unsafe-text",
        f"{talk}-00009": "unsafe-text",
        f"{talk}-line-8": "missing-audio",
        "2015-x-en_7": "missing-audio",
        "voxpopuli-line-6": "missing-audio",
        "voxpopuli-line-7": "missing-audio",  # a second header
    }
