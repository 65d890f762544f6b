"""Trees of a few utterances in the layouts and formats of real corpora, with tones for speech."""

import gzip

import numpy as np
import soundfile

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
