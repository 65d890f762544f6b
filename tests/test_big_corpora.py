"""The adapters of TED-LIUM, VoxPopuli, Fisher and Switchboard."""

import gzip

import pytest
from corpus_trees import (
    lines,
    make_fisher,
    make_switchboard,
    make_tedlium,
    make_voxpopuli,
    vox_row,
)

from asr.corpora import conversations, fisher, switchboard, tedlium, voxpopuli
from asr.errors import UserError
from asr.text import UnsafeText, normalise

CALLDATA = "CALL_ID,APIN,BPIN"

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


def test_lines_of_tedlium_that_are_no_stm_are_for_validation(tmp_path):
    make_tedlium(tmp_path)
    path = tmp_path / "legacy/test/stm/AnnTest_2010.stm"
    odd = [
        b"talk 1 talk 0 <o> words",
        b"AnnTest_2010 1 Ann 0 nan <o,f0,m> words",
        b"../talk 1 talk 0 1 <o,f0,m> words",
        b"AnnTest_2010 1 Ann -1.0 1.0 <o,f0,m> words",
        b"AnnTest_2010 1 Ann 0 1 words",
        b"AnnTest_2010 1 Ann\xe9 0 1 <o,f0,m> words",
        b"AnnTest_2010 1 Ann 0 " + b"9" * 400 + b" <o,f0,m> words",
    ]
    before = path.read_bytes()
    path.write_bytes(before + b"".join(line + b"\n" for line in odd))
    found = list(tedlium.utterances(tmp_path, "legacy/test"))
    assert len(found) == 3 + len(odd)
    refused = [utterance for utterance in found if utterance.text is None]
    assert [u.id for u in refused] == [f"AnnTest_2010-line-{n}" for n in (10, 11, 5, 6, 7, 8, 9)]
    assert refused[2].source == f"{path}:5"
    assert str(refused[2].audio).startswith(f"{path}:5 (not '<talk> <channel> <speaker>")
    path.write_bytes(before + b"AnnTest_2010 1 Ann 0 1 <o,f0,m> caf\xe9\n")
    last = list(tedlium.utterances(tmp_path, "legacy/test"))[-1]
    with pytest.raises(UnsafeText, match="wrong encoding"):
        normalise(last.text)


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
    assert (one.id, one.speaker) == ("2013-0900-PLENARY-15-en-en_1", "voxpopuli-1234")
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


def test_rows_of_voxpopuli_without_times_name_or_split_are_for_validation(tmp_path):
    table = make_voxpopuli(
        tmp_path,
        vox_row("en_3", "2013", "train", "None", 1),
        vox_row("en_4", "2013", "dev", 0, "1e1"),
        vox_row("en 5", "2013", "train", 0, 1),
        vox_row("en_6", "2013", "", 0, 1),
        vox_row("en_7", "2013", "trian", 0, 1),
        vox_row("en_8", "2013", "train", 0, 1, text="caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
    )
    table.write_bytes(gzip.compress(gzip.decompress(table.read_bytes()).replace(b"\xc3", b"")))
    train = {u.id: u for u in voxpopuli.utterances(tmp_path, "train")}
    assert len(train) == 6 and train["2013-en_8"].text == "caf\udca9"
    odd = {name: str(u.audio).partition(" (")[2] for name, u in train.items() if u.text is None}
    assert odd == {
        "voxpopuli-line-5": "start and end are not seconds)",
        "voxpopuli-line-7": "id or speaker cannot be printed)",
        "voxpopuli-line-8": "of none of the splits train, dev, test)",
        "voxpopuli-line-9": "of none of the splits train, dev, test)",
    }
    # Rows that VoxPopuli left out itself are none of the copy's faults.
    assert [name for name, u in train.items() if u.excluded] == ["voxpopuli-line-8"]
    assert "voxpopuli-line-6" in {u.id for u in voxpopuli.utterances(tmp_path, "dev")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.write_bytes(table.read_bytes()[:-9]), "cannot be read .*download it"),
        (lambda table: table.write_bytes(b"no gzip"), "cannot be read .*download it"),
        (lambda table: table.write_bytes(gzip.compress(b"a|b\n")), "column 'session_id' is miss"),
        (lambda table: table.unlink(), "has no asr_en.tsv.gz"),
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
    ("written", "message"),
    [
        (["A,B", "1,2"], "tbl:1: lacks one of the columns CALL_ID, APIN, BPIN"),
        ([CALLDATA, "abc,1,2"], "tbl:2: CALL_ID 'abc' is not a call's number"),
        ([CALLDATA, "", ",1,2"], "tbl:3: CALL_ID '' is not a call's number"),
        ([CALLDATA, f"1,{'x' * 140_000},2"], "tbl:2: not a row of CSV: field larger than"),
        ([CALLDATA, '1,"1,2'], r"tbl:\d: not a row of CSV: unexpected end"),
    ],
)
def test_a_bad_table_of_fisher_is_an_error(tmp_path, written, message):
    make_fisher(tmp_path)
    lines(next(tmp_path.rglob("*.tbl")), *written)
    with pytest.raises(UserError, match=message):
        list(fisher.utterances(tmp_path, "train"))


@pytest.mark.parametrize(
    ("adapter", "make", "name", "message"),
    [
        (fisher, make_fisher, "fe_03_00001.sph", r"'fe_03_00001' has two files of"),
        (switchboard, make_switchboard, "SW2001.WAV", r"'2001' has two files of the kind 'rec"),
    ],
)
def test_two_recordings_of_one_call_are_an_error(tmp_path, adapter, make, name, message):
    make(tmp_path)
    lines(tmp_path / name, "")
    with pytest.raises(UserError, match=message):
        list(adapter.utterances(tmp_path, "train"))


@pytest.mark.parametrize(
    ("adapter", "make", "name", "odd", "refused"),
    [
        (
            fisher,
            make_fisher,
            "fe_03_00001.txt",
            [b"1.0 1.2 B", b"0.1 0.2 C: x", b"-1.0 1.0 A: x", b"0 " + b"9" * 400 + b" A: x"],
            [f"fe_03_00001-line-{number}" for number in (10, 11, 12, 9)],
        ),
        (
            switchboard,
            make_switchboard,
            "sw2001A-ms98-a-trans.text",
            [b"x", b"sw2001A-1 -1.0 1.0 x", b"sw2001A-\xe9 0 1 x"],
            [f"sw2001A-line-{number}" for number in (3, 4, 5)],
        ),
    ],
)
def test_lines_of_telephone_corpora_that_are_none_are_for_validation(
    tmp_path, adapter, make, name, odd, refused
):
    make(tmp_path)
    path = next(tmp_path.rglob(name))
    before = len(list(adapter.utterances(tmp_path, "train")))
    path.write_bytes(path.read_bytes() + b"".join(line + b"\n" for line in odd))
    found = list(adapter.utterances(tmp_path, "train"))
    assert len(found) == before + len(odd)
    assert [utterance.id for utterance in found if utterance.text is None] == refused


@pytest.mark.parametrize(
    ("adapter", "make", "name", "line"),
    [
        (fisher, make_fisher, "fe_03_00001.txt", b"1.5 1.7 B: caf\xe9"),
        (switchboard, make_switchboard, "sw2001A-ms98-a-trans.text", b"sw2001A-3 0 1 caf\xe9"),
    ],
)
def test_a_byte_that_is_not_utf_8_spoils_its_line_alone(tmp_path, adapter, make, name, line):
    make(tmp_path)
    before = len(list(adapter.utterances(tmp_path, "train")))
    path = next(tmp_path.rglob(name))
    path.write_bytes(path.read_bytes() + line + b"\n")
    found = list(adapter.utterances(tmp_path, "train"))
    assert len(found) == before + 1
    assert [u.text for u in found if u.text and "\udce9" in u.text] == ["caf\udce9"]


def test_speakers_that_fisher_does_not_know_are_the_sides_of_a_call(tmp_path):
    make_fisher(tmp_path)
    table = next(tmp_path.rglob("*.tbl"))
    lines(table, CALLDATA, "00001,,122")
    assert {utterance.speaker for utterance in fisher.utterances(tmp_path, "train")} == {
        "fe_03_00001-A",
        "fisher-122",
    }


@pytest.mark.parametrize(
    ("adapter", "make"),
    [(fisher, make_fisher), (switchboard, make_switchboard), (voxpopuli, make_voxpopuli)],
)
def test_a_split_that_the_corpus_does_not_have_is_an_error(tmp_path, adapter, make):
    make(tmp_path)
    for asked in (adapter.files, adapter.utterances):
        with pytest.raises(UserError, match="has no split 'training'; it has train, dev, test"):
            list(asked(tmp_path, "training"))


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
