"""Time to make the report, the size of its page, and the time a browser takes to load it.

    PYTHONPATH=. python benchmarks/report.py [--utterances 2600] [--systems 4] [--repeats 5]

Utterances of about 20 words, as LibriSpeech's, with 8 % of the words wrong. The browser is
Debian's chromium, without a window; loading ends with the page's load event, after which its
script has run; of that, "its CPU" is what the page's main thread ran, on a busy machine the better
figure. Without chromium these lines are left out.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from asr.compare import REPORTS, write_report
from asr.report.content import CompareConfig
from asr.report.inputs import Corpus, Results
from asr.scoring.texts import score_texts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

WORDS = 5000
WRONG = 0.08


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--utterances", type=int, default=2600)
    parser.add_argument("--systems", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5, help="of loading, of which the median")
    parser.add_argument("--out", type=Path, help="keep the report in this folder")
    arguments = parser.parse_args()
    results, corpus = made_up(arguments.utterances, arguments.systems)
    words = results[0].scores["test"].total.words
    print(f"{arguments.systems} systems, {arguments.utterances} utterances, {words} words")
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder)
        begin = time.perf_counter()
        write_report(out, results, corpus, CompareConfig(baseline="system0"), [])
        print(f"written in {time.perf_counter() - begin:.2f} s")
        for name in REPORTS:
            print(f"{name:<12} {(out / name).stat().st_size / 1e6:6.2f} MB")
        load(out / "report.html", arguments.repeats)


def load(page: Path, repeats: int) -> None:
    """Print how long a browser takes to load the page, and to sort and filter it."""
    from browser import CHROMIUM, MISSING, visit

    if CHROMIUM is None:
        print(MISSING)
        return
    timed = """(() => {{ const begin = performance.now();
        const field = document.getElementById('find').elements.{}; field.value = '{}';
        field.dispatchEvent(new Event('input', {{bubbles: true}}));
        document.body.offsetHeight; return (performance.now() - begin) / 1000; }})()"""
    visits = [
        visit(page, [timed.format("words", "w12"), timed.format("order", "rate")])
        for _ in range(repeats)
    ]
    for what, seconds in {
        "loaded": [one.load_seconds for one in visits],
        "its CPU": [one.cpu_seconds for one in visits],
        "searched": [one.values[0] for one in visits],
        "sorted": [one.values[1] for one in visits],
    }.items():
        print(f"{what:<12} {statistics.median(seconds):6.2f} s, at most {max(seconds):.2f} s")


def made_up(utterances: int, systems: int) -> tuple[list[Results], Corpus]:
    """References of random words, and each system's own mistakes in them."""
    generator = random.Random(0)
    vocabulary = [f"w{i}" + "xyz"[: i % 4] for i in range(WORDS)]
    references = {
        f"1089-134686-{i:04d}": " ".join(generator.choices(vocabulary, k=generator.randint(4, 36)))
        for i in range(utterances)
    }
    results = []
    for number in range(systems):
        heard = {
            name: " ".join(
                generator.choice(vocabulary) if generator.random() < WRONG else word
                for word in text.split()
            )
            for name, text in references.items()
        }
        results.append(Results(f"system{number}", {}, {"test": score_texts(references, heard)}))
    rows = {name: {"speaker": f"s{i % 40:02d}"} for i, name in enumerate(references)}
    return results, Corpus(rows={"test": rows})


if __name__ == "__main__":
    main()
