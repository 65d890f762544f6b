"""The content of the report, and that its three forms say the same."""

import contextlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from asr import __main__
from asr.compare import write_report
from asr.errors import UserError
from asr.report import breakdown
from asr.report.content import CompareConfig, difference, make_report
from asr.report.curves import dev_curve, read_curves, thin
from asr.report.inputs import Corpus, Results, of_folders
from asr.report.plots import draw_all
from asr.report.text import columns
from asr.report.verdict import claim
from asr.scoring.align import align
from asr.scoring.significance import bootstrap_interval, paired_bootstrap
from asr.scoring.texts import score_texts

CONFIG = CompareConfig(baseline="old", replicas=500)
REFERENCES = {f"u{i:02}": text for i, text in enumerate(["one two three", "four five", "six"] * 8)}


def compared(system, hypotheses, references=REFERENCES, **fields):
    return Results(system, {}, {"t": score_texts(references, hypotheses)}, **fields)


def summary(system, **changes):
    sent = {"inner_wire": 1_500_000, "inner_payload": 1_200_000, "outer": 20_000_000}
    return {
        "title": f"system {system}", "workers": 4, "subgroups": 2, "inner": "gtc",
        "outer": "bmuf", "block_steps": 10, "block_momentum": 0.5, "parameters": 1_234_567,
        "samples": 7_654_321, "epochs": 3, "steps": 200, "blocks": 20, "train_seconds": 3723.0,
        "frames_per_second": 2056, "bytes_per_worker": sent, "density": 0.0087,
        "best_dev_wer": 0.1234, "seed": 7, "config": {"title": system, "model": {"hidden": 8}},
        **changes,
    }  # fmt: skip


def damaged(every, references=REFERENCES, word="wrong"):
    return {
        name: f"{word} {text}" if i % every == 0 else text
        for i, (name, text) in enumerate(references.items())
    }


@pytest.fixture
def three():
    rows = {name: {"speaker": f"s{i % 3}", "corpus": "c"} for i, name in enumerate(REFERENCES)}
    results = [
        Results("old", summary("old"), {"t": score_texts(REFERENCES, damaged(2))}, commit="a" * 40),
        Results(
            "new",
            summary("new", train_seconds=4000.0, workers=8),
            {"t": score_texts(REFERENCES, damaged(5))},
        ),
        compared("foreign", damaged(3)),
    ]
    return results, Corpus(rows={"t": rows})


class Tables(HTMLParser):
    """Titles of sections, and in each the cells of its table, and all text."""

    def __init__(self):
        super().__init__()
        self.tables, self.title, self.inside, self.text = {}, "", None, []

    def handle_starttag(self, tag, attributes):
        if tag == "h2":
            self.inside, self.title = "h2", ""
        elif tag == "table" and "sortable" in dict(attributes).get("class", ""):
            self.tables[self.title] = []
        elif tag == "tr" and self.title in self.tables:
            self.tables[self.title].append([])
        elif tag in ("td", "th") and self.tables.get(self.title):
            self.inside = "cell"
            self.tables[self.title][-1].append("")

    def handle_endtag(self, tag):
        if tag in ("h2", "table"):
            self.inside = None

    def handle_data(self, data):
        self.text.append(data)
        if self.inside == "h2":
            self.title += data
        elif self.inside == "cell":
            self.tables[self.title][-1][-1] += data.strip("\n")


def text_tables(text):
    """Title -> rows of report.txt: what stands above and below a line of dashes."""
    lines, tables = text.splitlines(), {}
    for i, line in enumerate(lines):
        if re.fullmatch(r"-+(  -+)*", line):
            end = next(j for j in range(i, len(lines)) if not lines[j])
            rows = [lines[i - 1], *lines[i + 1 : end]]
            tables[lines[i - 3]] = [re.split(r" {2,}", row) for row in rows]
    return tables


def test_all_numbers_agree_in_the_three_forms(three, tmp_path):
    results, corpus = three
    write_report(tmp_path, results, corpus, CONFIG, ["python -m asr compare"])
    report = json.loads((tmp_path / "report.json").read_text())
    text, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("txt", "html"))
    parser = Tables()
    parser.feed(page)
    tables = text_tables(text)
    assert tables == parser.tables and len(tables) >= 9
    for sentence in [*report["verdicts"], report["caveat"]]:
        assert sentence in " ".join(text.split()) and sentence in "".join(parser.text)

    rates = {row[0]: row for row in tables["Word error rates"][1:]}
    training = {row[0]: row for row in tables["Training"][1:]}
    speakers = tables["Word error rates by speaker, %"][1:]
    for number, system in enumerate(report["systems"]):
        rate = system["rates"]["t"]
        ends, by_speaker = rate["interval"], rate["interval_by_speaker"]
        assert rates[system["system"]] == [
            system["system"], "t", f"{rate['wer']:.2f}", f"{ends['low']:.2f} to {ends['high']:.2f}",
            f"{by_speaker['low']:.2f} to {by_speaker['high']:.2f}",
            f"{rate['errors']} / {rate['words']}", str(rate["insertions"]),
            str(rate["deletions"]), str(rate["substitutions"]),
            f"{rate['sentence_errors']} / {rate['utterances']}", str(rate["missing"]),
        ]  # fmt: skip
        described = f"{system['system']} on t: {rate['wer']:.2f} %"
        assert described in page  # of the plot
        for row, shown in zip(report["speakers"], speakers, strict=True):
            one = row["rates"][system["system"]]
            assert shown[3 + 2 * number :][:2] == [f"{one['wer']:.2f}", str(one["errors"])]
        if system["train_seconds"]:
            shown = training[system["system"]]
            assert shown[4:7] == [
                f"{system['samples']:,}",
                "1:02:03" if system["system"] == "old" else "1:06:40",
                str(system["frames_per_second"]),
            ]
            sent = system["bytes_per_worker"]
            assert shown[8:12] == [f"{x / 1e6:.1f}" for x in (*sent.values(), system["bytes_sent"])]
            assert shown[12] == f"{100 * system['best_dev_wer']:.2f}"
    assert "foreign" not in training
    differences = {row[0]: row for row in tables["Differences to old, paired"][1:]}
    for row in report["differences"]:
        assert differences[row["system"]][2:] == [
            f"{row['difference']:+.2f}", f"{row['low']:+.2f} to {row['high']:+.2f}",
            f"{row['relative']:+.1f}", f"{row['relative_low']:+.1f} to {row['relative_high']:+.1f}",
            f"{row['probability_better']:.1%}", "yes" if row["not_worse"] else "no",
            str(row["matched_pairs"]["segments"]), f"{row['matched_pairs']['p']:.3f}",
        ]  # fmt: skip
    shown_errors = re.findall(r'<li data-e="([\d,]+)"', page)
    assert shown_errors == [
        ",".join(map(str, row["errors"].values())) for row in report["utterances"]
    ]
    words = {row[0]: row[1:] for row in tables["Words that cost most errors"][1:]}
    for row in report["words"]:
        pairs = zip(row["wrong"].values(), row["inserted"].values(), strict=True)
        assert words[row["word"]] == [str(n) for n in (row["said"], *(n for p in pairs for n in p))]


def test_figures_are_those_of_the_statistics(three):
    results, corpus = three
    report = make_report(results, corpus, CONFIG)
    old, new = (
        np.array([(u.counts.errors, u.counts.words) for u in result.scores["t"].utterances])
        for result in results[:2]
    )
    drawn = paired_bootstrap(new, old, 500, 0)
    row = report["differences"][0]
    assert row["difference"] == pytest.approx(drawn.difference, abs=1e-4)
    assert row["relative_high"] == pytest.approx(drawn.relative_interval.high, abs=1e-4)
    assert row["not_worse"] == (drawn.relative_interval.high < 2)
    interval = bootstrap_interval(old, 500, 0)
    assert report["systems"][0]["rates"]["t"]["interval"]["high"] == round(interval.high, 4)
    assert report["training"][0] == {
        "system": "new", "baseline": "old", "seconds": 7.44, "bytes": 0.0,
    }  # fmt: skip
    assert "trained in 1:06:40, the baseline in 1:02:03 (+7.4 %)" in report["verdicts"][0]
    assert "trained" not in report["verdicts"][1]  # nothing is known of it


def test_different_references_cannot_be_compared():
    other = compared("new", {"u": "y"}, {"u": "y"})
    with pytest.raises(UserError, match="t: 'new' and 'old' were scored on different .*'u'"):
        make_report([compared("old", {"u": "x"}, {"u": "x"}), other], Corpus(), CONFIG)


def test_pairing_takes_away_what_is_hard_for_both():
    references = {f"u{i}": "a b c d" for i in range(200)}
    hard = {name: "x y z w" if i % 4 == 0 else "a b c d" for i, name in enumerate(references)}
    better = {**hard, "u1": "a b c d", **{f"u{i}": "x y z d" for i in range(0, 80, 4)}}
    new, old = compared("new", better, references), compared("old", hard, references)
    row = difference(new, old, "t", None, CompareConfig())
    # Each system's own rate varies by about 6 points, their paired difference by about 1.
    assert row["difference"] == pytest.approx(-2.5)
    assert -4 < row["low"] < row["high"] < -1.2


def test_equal_systems_show_no_difference():
    report = make_report(
        [compared("old", damaged(2)), compared("new", damaged(2))], Corpus(), CONFIG
    )
    (row,) = report["differences"]
    assert (row["low"], row["high"], row["probability_better"]) == (0, 0, 0.5)
    assert row["not_worse"] and "no difference shown on t" in report["verdicts"][0]


@pytest.mark.parametrize(
    ("references", "reason"),
    [({"u1": "", "u2": ""}, "no reference words"), ({"u1": "a b"}, "one utterance alone")],
)
def test_where_nothing_can_be_compared_the_report_says_why(references, reason, tmp_path):
    results = [compared("old", {}, references), compared("new", {"u1": "x"}, references)]
    write_report(tmp_path, results, Corpus(), CONFIG, [])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["differences"][0]["difference"] is None
    assert report["differences"][0]["not_worse"] is None
    assert reason in report["verdicts"][0]
    assert reason in (tmp_path / "report.html").read_text()


def test_a_baseline_without_errors_and_one_system_alone(tmp_path):
    perfect = compared("old", REFERENCES)
    report = make_report([perfect, compared("new", damaged(2))], Corpus(), CONFIG)
    row = report["differences"][0]
    assert (row["relative"], row["relative_high"], row["not_worse"]) == (None, None, False)
    assert row["difference"] > 0 and "more errors on t (" in report["verdicts"][0]
    write_report(tmp_path, [perfect], Corpus(), CONFIG, [])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdicts"] == report["differences"] == report["words"] == []
    assert "All have every word right" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.5, -0.1, "fewer errors"),
        (0.1, 0.5, "more errors"),
        (-0.5, 0.1, "no difference shown"),
        (-0.5, 0.0, "no difference shown"),
    ],
)
def test_the_verdict_claims_what_the_interval_allows(low, high, said):
    assert claim({"low": low, "high": high}) == said


def test_alignments_of_several_systems_share_columns():
    reference = ["a", "b", "c"]
    alignments = [align(reference, text.split()) for text in ("a x y b c", "a b", "z a q b c w")]
    words, hypotheses = breakdown.columns(alignments)
    assert words == [None, "a", None, None, "b", "c", None]
    lines = [words, *hypotheses]
    assert len({len(line) for line in lines}) == 1
    for alignment, line in zip(alignments, hypotheses, strict=True):
        assert [word for word in line if word] == [word for _, word in alignment if word]
        for word, heard in alignment:  # each word of the reference above what was heard
            if word is not None:
                assert line[words.index(word)] == heard
    assert [word for word in words if word] == reference


def test_long_utterances_are_wrapped():
    text = "alpha bravo charlie delta echo foxtrot " * 30
    result = compared("old", {"u": text.replace("echo", "x")}, {"u": text})
    (worst,) = breakdown.worst([result], 1)
    assert max(map(len, worst["lines"])) <= 120
    words = [word for line in worst["lines"] if line.startswith("ref") for word in line.split()[1:]]
    assert words == text.split()


def test_words_confusions_and_disagreements():
    references = {"u1": "a b", "u2": "c", "u3": "d"}
    old = compared("old", {"u1": "a x", "u2": "c", "u3": "e"}, references)
    new = compared("new", {"u1": "a b", "u2": "c c", "u3": ""}, references)
    words = {row["word"]: row for row in breakdown.words([old, new], 10)}
    assert list(words) == ["d", "b", "c"]
    assert words["d"]["wrong"] == {"old": 1, "new": 1}
    assert (words["c"]["said"], words["c"]["inserted"]) == (1, {"old": 0, "new": 1})
    pairs = {
        (r["reference"], r["hypothesis"]): r["counts"] for r in breakdown.confusions([old, new], 9)
    }
    assert pairs[None, "c"] == {"old": 0, "new": 1}
    assert pairs["d", "e"] == {"old": 1, "new": 0} and pairs["d", None] == {"old": 0, "new": 1}
    (row,) = breakdown.disagreements(old, [new])
    assert (row["only_system_right"], row["only_baseline_right"]) == (["u1"], ["u2"])
    assert (row["both_right"], row["both_wrong"]) == (0, 1)


def test_curves_of_a_training(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 1001):
            writer.add_scalar("train/loss_per_frame", 1 / step, step)
        for step in (500, 1000):
            writer.add_scalar("dev/wer", 0.5 - step / 4000, step)
            for name in ("samples", "seconds", "bytes"):
                writer.add_scalar(f"dev/{name}", 8 * step, step)
    curves = read_curves("old", tmp_path, {})
    assert len(curves["loss"]["step"]) <= 200 and "density" not in curves
    assert curves["loss"]["step"][0] < 9 and curves["loss"]["step"][-1] > 991
    assert curves["totals_measured"]
    assert curves["dev"] == {
        "step": [500, 1000], "wer": [37.5, 25.0],
        **{name: [4000, 8000] for name in ("samples", "seconds", "bytes")},
    }  # fmt: skip


def test_totals_that_were_not_written_are_in_proportion_to_steps():
    known = {"samples": 1000, "train_seconds": 50.0, "steps": 10, "bytes_per_worker": None}
    curve = dev_curve({5: 30.0, 10: 20.0, 11: 10.0}, {}, known)
    assert not curve["totals_measured"]
    assert curve["dev"]["samples"] == [500, 1000, 1000] and curve["dev"]["bytes"] is None


def test_thinning_keeps_means_and_drops_what_is_not_finite():
    points = [(step, float(step)) for step in range(100)] + [(100, float("nan"))]
    assert thin(points, 4) == {"step": [12.0, 37.0, 62.0, 87.0], "value": [12.0, 37.0, 62.0, 87.0]}
    assert thin([], 4) == {"step": [], "value": []}


def test_plots_are_of_what_is_known(three):
    results, corpus = three
    report = make_report(results, corpus, CONFIG) | {"curves": []}
    titles = [plot["title"] for plot in draw_all(report)]
    assert titles == ["Word error rates", "WER against number of workers"]
    curve = {"step": [1.0, 2.0], "value": [0.5, 0.25]}
    dev = {name: [1.0, 2.0] for name in ("step", "samples", "seconds", "bytes", "wer")}
    kinds = ("loss", "density", "residual", "spread")
    report["curves"] = [
        {"system": "new", "dev": dev, "totals_measured": False, **dict.fromkeys(kinds, curve)}
    ]
    plots = draw_all(report)
    assert len(plots) == 9
    assert "In proportion to steps for new" in plots[1]["caption"]
    ids = [name for plot in plots for name in re.findall(r'\bid="([^"]*)"', plot["svg"])]
    assert len(set(ids)) == len(ids)
    assert all(
        re.search(r"(?<!&)#0[123]0", plot["svg"]) is None for plot in plots
    )  # page's colours
    (loss,) = [plot["svg"] for plot in plots if plot["title"] == "Training loss"]
    assert ">0.5</text>" in loss and "mathdefault" not in loss


def test_names_are_no_formulas_and_no_markup(tmp_path):
    odd = compared("$x_{<b>", damaged(3))
    write_report(tmp_path, [compared("old", damaged(2)), odd], Corpus(), CONFIG, [])
    page = (tmp_path / "report.html").read_text()
    assert page.count("$x_{&lt;b&gt;") > 5 and "$x_{<b>" not in page


def test_of_very_many_utterances_the_page_has_the_worst(tmp_path):
    few = CompareConfig(baseline="old", replicas=200, listed=5)
    write_report(tmp_path, [compared("old", damaged(5))], Corpus(), few, [])
    page = (tmp_path / "report.html").read_text()
    assert page.count("<li data-e=") == page.count('<li data-e="1"') == 5
    assert "The 5 with most errors, of 24; report.json has all." in page
    assert len(json.loads((tmp_path / "report.json").read_text())["utterances"]) == 24


def test_table_columns_are_aligned():
    assert columns(["name", "n"], [["a", "12"], ["longer", "3"]], left=1) == [
        "name     n",
        "------  --",
        "a       12",
        "longer   3",
    ]


# Folders of other toolkits.


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def kaldi(tmp_path):
    return write(
        tmp_path / "kaldi", {"text": "u1 one two\nu2 three\n", "hyp.txt": "u1 one\nu2 three\n"}
    )


@pytest.fixture
def icefall(tmp_path):
    lines = "u1:\tref=['ONE', 'TWO']\nu1:\thyp=['ONE', 'TWO']\nu2:\tref=['THREE']\nu2:\thyp=[]\n"
    return write(tmp_path / "icefall", {"recogs-greedy.txt": lines})


def test_folders_of_two_toolkits_are_compared(kaldi, icefall, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["compare", str(kaldi), str(icefall), "--baseline", str(icefall), "--out", str(out)]
    assert __main__.main([*words, "replicas=200"]) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["baseline"] == "icefall" and report["test_sets"] == ["test"]
    assert [row["system"] for row in report["systems"]] == ["icefall", "kaldi"]
    assert [row["rates"]["test"]["errors"] for row in report["systems"]] == [1, 1]
    assert report["systems"][0]["title"] is None and report["speakers"] == []
    assert capsys.readouterr().out.endswith(f"report: {out / 'report.html'}\n")


def test_mistakes_with_folders_say_what_to_do(kaldi, icefall, tmp_path, capsys):
    assert __main__.main(["compare", str(kaldi), str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert __main__.main(["compare", str(kaldi), str(icefall), "--baseline", "x"]) == 1
    assert "scored are: kaldi, icefall. Give its folder, too" in capsys.readouterr().err
    with pytest.raises(UserError, match="given twice"):
        of_folders([kaldi, tmp_path / "icefall/../kaldi"])
    one = write(
        tmp_path / "one",
        {"a/ref.txt": "u x", "a/hyp.txt": "u x"} | {"b/ref.txt": "u x", "b/hyp.txt": "u x"},
    )
    two = write(
        tmp_path / "two",
        {"c/ref.txt": "u x", "c/hyp.txt": "u x"} | {"d/ref.txt": "u x", "d/hyp.txt": "u x"},
    )
    with pytest.raises(UserError, match="no test set is in all"):
        of_folders([one, two])
    for words in (["compare"], ["compare", "--recipe", "x"], ["compare", str(kaldi), "--dir", "x"]):
        with pytest.raises(SystemExit):
            __main__.main(words)
        assert "folders" in capsys.readouterr().err


def test_a_folder_may_have_any_name_and_the_baseline_be_any_path_of_it(tmp_path, monkeypatch):
    files = {"ref.txt": "u1 x\nu2 y\n", "hyp.txt": "u1 x\nu2 x\n"}
    for name in ("1", "null", "a: [b"):
        write(tmp_path / name, files)
    monkeypatch.chdir(tmp_path)
    words = ["compare", "1", "null", "a: [b", "replicas=100"]
    for baseline, option in (
        ("1", []),
        ("null", ["--baseline", "./null/"]),
        ("1", ["--baseline=1"]),
    ):
        assert __main__.main([*words, *option]) == 0
        assert json.loads(Path("comparison/report.json").read_text())["baseline"] == baseline


@pytest.mark.parametrize("name", ["report.html", "report.json", "audio/0000.wav"])
def test_a_report_is_not_written_over_other_files(kaldi, tmp_path, capsys, name):
    out = write(tmp_path / "mine", {name: '{"my": "own"}', "other.txt": "x"})
    assert __main__.main(["compare", str(kaldi), "--out", str(out), "replicas=100"]) == 1
    assert f"{name.partition('/')[0]} that no comparison wrote" in capsys.readouterr().err
    assert (out / name).read_text() == '{"my": "own"}' and len(list(out.iterdir())) == 2
    assert __main__.main(["compare", str(kaldi), "--out", str(out / "other.txt")]) == 1
    assert "no folder" in capsys.readouterr().err
    (out / name).unlink()
    for _ in range(2):  # beside other files, and over an earlier report
        if (out / "audio").exists():
            (out / "audio").rmdir()
        assert __main__.main(["compare", str(kaldi), "--out", str(out), "replicas=100"]) == 0


def test_a_killed_report_is_written_anew(kaldi, tmp_path, monkeypatch):
    def killed(utterances, folder, converted):
        write(folder / "audio", {"0000.wav": "half a clip"})
        raise KeyboardInterrupt

    words = ["compare", str(kaldi), "--out", str(tmp_path / "out"), "replicas=100"]
    with monkeypatch.context() as patch:
        patch.setattr("asr.report.clips.link_audio", killed)
        with contextlib.suppress(KeyboardInterrupt):
            __main__.main(words)
    assert (tmp_path / "out/audio/0000.wav").exists()
    assert not (tmp_path / "out/report.html").exists()
    assert __main__.main(words) == 0
    assert (tmp_path / "out/report.html").exists()


def test_systems_are_called_by_what_tells_them_apart(tmp_path):
    files = {"ref.txt": "u x\n", "hyp.txt": "u x\n"}
    folders = [write(tmp_path / name / "decode/single", files) for name in ("exp1", "exp2")]
    assert [result.system for result in of_folders(folders)] == ["exp1", "exp2"]
    write(tmp_path / "exp2/train/single", {"summary.json": json.dumps(summary("single"))})
    assert of_folders(folders)[1].summary["title"] == "system single"
