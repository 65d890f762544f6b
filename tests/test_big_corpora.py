"""The adapters of TED-LIUM, VoxPopuli, Fisher and Switchboard."""

import gzip

import pytest
from corpus_trees import (
    HEADER,
    lines,
    make_fisher,
    make_switchboard,
    make_tedlium,
    make_voxpopuli,
    vox_row,
)

from asr.corpora import conversations, fisher, switchboard, tedlium, voxpopuli
from asr.errors import UserError

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
