"""Our TRN, STM and matched pairs against NIST's sclite and sc_stats (Debian: apt install sctk)."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asr.score import score_files
from asr.scoring.files import stm_text, trn_text
from asr.scoring.significance import mapsswe, segment_pairs
from asr.scoring.texts import score_texts

TOOLS = f"/usr/lib/sctk/bin:{os.environ.get('PATH', '')}"
pytestmark = pytest.mark.skipif(
    shutil.which("sclite", path=TOOLS) is None, reason="sclite is not installed (apt install sctk)"
)
RECIPES = Path(__file__).parents[1] / "recipes"
SCLITE_TRN = (
    *("-r", "a.reference.trn", "trn", "-h", "a.hypothesis.trn", "trn"),
    *("-i", "spu_id", "-e", "utf-8", "-o", "rsum", "stdout"),
)
HYPOTHESES = sorted(RECIPES.glob("*/results/*/*.hyp.txt"))


def run(tool, *arguments, folder, stdin=None):
    return subprocess.run(
        [shutil.which(tool, path=TOOLS), *arguments],
        cwd=folder,
        stdin=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    ).stdout


def reference_of(hypotheses):
    """results/<set>.ref.txt of results/<system>/<set>.hyp.txt."""
    return hypotheses.parents[1] / hypotheses.name.replace(".hyp.", ".ref.")


def write_trn(folder, score, name):
    for side in ("reference", "hypothesis"):
        texts = {item.id: getattr(item, side) for item in score.utterances}
        (folder / f"{name}.{side}.trn").write_text(trn_text(texts), encoding="utf-8")


def sums(report):
    """Utterances, words, right, substituted, deleted, inserted, errors, sentence errors."""
    return [int(number) for number in re.findall(r"\d+", re.search(r"\| Sum .*", report)[0])]


def our_sums(score):
    total = score.total
    return [
        *(len(score.utterances), total.words, total.hits, total.substitutions),
        *(total.deletions, total.insertions, total.errors, score.sentence_errors),
    ]


@pytest.mark.parametrize("hypotheses", HYPOTHESES, ids=lambda path: str(path.relative_to(RECIPES)))
def test_totals_agree_on_real_results(tmp_path, hypotheses):
    score = score_files(reference_of(hypotheses), hypotheses)
    write_trn(tmp_path, score, "a")
    found, ours = sums(run("sclite", *SCLITE_TRN, folder=tmp_path)), our_sums(score)
    # Utterances, words and sentence errors; kinds of error may differ where costs tie.
    assert [found[i] for i in (0, 1, 7)] == [ours[i] for i in (0, 1, 7)]
    assert_no_better_alignment(found, ours)


def assert_no_better_alignment(found, ours):
    """sclite weighs substitutions 4 and the others 3: it may count an error more, in a thousand."""
    assert 0 <= found[6] - ours[6] <= 0.001 * ours[6]


def test_sclite_finds_no_better_alignment(tmp_path):
    generator = random.Random(1)
    words = [f"w{i}" for i in range(30)]
    references, hypotheses = {}, {}
    for number in range(1000):
        name, text = f"s-{number}", generator.choices(words, k=generator.randint(0, 20))
        heard = [generator.choice([[word], [word], [], ["w1"], [word, "w2"]]) for word in text]
        references[name], hypotheses[name] = " ".join(text), " ".join(sum(heard, []))
    score = score_texts(references, hypotheses)
    write_trn(tmp_path, score, "a")
    found, ours = sums(run("sclite", *SCLITE_TRN, folder=tmp_path)), our_sums(score)
    assert found[:2] == ours[:2] and found[7] == ours[7]
    assert_no_better_alignment(found, ours)


def test_matched_pairs_agree_on_real_results(tmp_path):
    results = RECIPES / "an4/results"
    scores = []
    with open(tmp_path / "both.sgml", "w") as file:
        for system in ("single", "bmuf"):
            scores.append(score_files(results / "test.ref.txt", results / system / "test.hyp.txt"))
            write_trn(tmp_path, scores[-1], system)
            command = f"-r {system}.reference.trn trn -h {system}.hypothesis.trn trn {system} "
            command += "-i spu_id -f 0 -o sgml stdout"
            file.write(run("sclite", *command.split(), folder=tmp_path))
    with open(tmp_path / "both.sgml") as file:
        run("sc_stats", *["-p", "-t", "mapsswe", "-v", "-n", "out"], folder=tmp_path, stdin=file)
    (report,) = tmp_path.glob("out*mapsswe")
    line = re.search(r"MTCH_PR_RESULTS .*", report.read_text())[0]
    segments, mean, deviation, z = (
        float(re.search(rf"\({name}: *([-.\d]+)\)", line)[1])
        for name in ("# segs", "mean", "std dev", "Z Stat")
    )
    found = mapsswe(
        segment_pairs(*([item.alignment for item in score.utterances] for score in scores))
    )
    assert found.segments == segments > 50
    ours = (found.mean, found.deviation, found.z)
    assert ours == pytest.approx((mean, deviation, z), abs=6e-4)


def test_sclite_reads_the_stm(tmp_path):
    references = {"é-1": "grüße aus köln", "u2": "one two", "u3": ""}
    hypotheses = {"é-1": "grüße köln", "u2": "one three two", "u3": "uh"}
    rows = {name: {"speaker": f"s{name}", "duration": 4.0} for name in references}
    (tmp_path / "ref.stm").write_text(stm_text(references, rows), encoding="utf-8")
    words = [
        f"{name} 1 {place + 0.5:.2f} 0.20 {word}\n"
        for name, text in hypotheses.items()
        for place, word in enumerate(text.split())
    ]
    (tmp_path / "hyp.ctm").write_text("".join(words), encoding="utf-8")
    command = "-r ref.stm stm -h hyp.ctm ctm -e utf-8 -o rsum stdout"
    found = sums(run("sclite", *command.split(), folder=tmp_path))
    assert found == our_sums(score_texts(references, hypotheses))
