"""report.html: safe to open, and what it does in a real browser."""

import re

import numpy as np
import pytest
import soundfile
from browser import CHROMIUM, MISSING, visit

from asr.audio.utterance import Utterance
from asr.compare import write_report
from asr.report.content import CompareConfig
from asr.report.inputs import Corpus, Results
from asr.scoring.texts import score_texts

IN_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
EVIL = "<script>alert(1)</script>"
REFERENCES = {f"u{i}": f"alpha bravo{i} charlie" for i in range(6)}
OLD = {**REFERENCES, "u1": "x y z", "u2": f"alpha {EVIL} charlie", "u3": "alpha"}
NEW = {**REFERENCES, "u2": "alpha bravo2", "u5": "alpha bravo5 charlie &amp; 'more'"}
SHOWN = "[...document.querySelectorAll('#list li')].filter(li => !li.hidden)"
IDS = f"{SHOWN}.map(li => li.querySelector('code').textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two systems, one of whose hypotheses is an attack; audio as WAV and as what must be made."""
    folder = tmp_path_factory.mktemp("report")
    tone = np.sin(np.arange(8000) / 9).astype(np.float32) / 2
    audio = {}
    for name, suffix in {"u1": "wav", "u2": "sph"}.items():
        path = folder / f"{name} #1.{suffix}"
        soundfile.write(path, tone, 8000, format="NIST" if suffix == "sph" else "WAV")
        audio[name] = Utterance(name, path, 0, 0, 8000, 8000, 8000)
    results = [
        Results(system, {}, {"t": score_texts(REFERENCES, texts)})
        for system, texts in (("old", OLD), (f"new{EVIL}", NEW))
    ]
    rows = {name: {"speaker": f"s{i % 2}", "corpus": "c"} for i, name in enumerate(REFERENCES)}
    write_report(
        folder / "out",
        results,
        Corpus(rows={"t": rows}, audio={"t": audio}),
        CompareConfig(baseline="old", replicas=200),
        [f"python {EVIL}"],
    )
    return folder / "out/report.html"


def choose(name, value):
    return (
        f"(() => {{ const field = document.getElementById('find').elements.{name};"
        f"field.value = {value!r};"
        "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_the_page_needs_nothing_from_elsewhere_and_shows_attacks_as_text(page):
    text = page.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and EVIL not in text
    assert text.count("<script") == 1
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text.replace("xlink:", ""))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"https?:|\*|script-src[^;]*unsafe", policy)
    assert not re.search(r"<[^>]+\son[a-z]+=", text)  # handlers would not run


def test_audio_is_linked_or_made(page):
    text = page.read_text()
    assert 'href="../u1%20%231.wav"' in text and 'href="audio/0000.wav"' in text
    made, rate = soundfile.read(page.parent / "audio/0000.wav")
    assert (len(made), rate) == (8000, 8000)


@IN_BROWSER
def test_in_a_browser_nothing_is_fetched_and_nothing_goes_wrong(page, tmp_path):
    picture = tmp_path / "page.png"
    titles = "[...document.querySelectorAll('h2')].map(title => title.textContent)"
    hypothesis = f"document.body.textContent.includes({EVIL!r})"
    width = "document.documentElement.scrollWidth"
    seen = visit(page, [titles, hypothesis, width], picture, size=(360, 800), dark=True)
    assert seen.messages == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [page.as_uri()]
    assert {"Verdict", "Word error rates", "Plots", "Utterances"} <= set(seen.values[0])
    assert seen.values[1:] == [True, 360]  # nothing is wider than a phone
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000


@IN_BROWSER
def test_finding_and_sorting(page):
    clicked = (
        "(() => {{ const table = document.querySelector('#words table');"
        "table.querySelectorAll('thead button')[{}].click();"
        "return [...table.tBodies[0].rows].map(row => row.cells[{}].textContent); }})()"
    )
    seen = visit(
        page,
        [
            IDS,
            choose("words", "BRAVO3 alpha"), IDS,
            choose("words", ""), choose("show", "1,0"), IDS,
            choose("show", "none"), IDS,
            choose("show", ""), choose("order", "id"), IDS,
            choose("order", "d1,0"), IDS,
            clicked.format(1, 1), clicked.format(1, 1), clicked.format(0, 0), clicked.format(0, 0),
        ],
    )  # fmt: skip
    assert seen.messages == []
    values = [value for value in seen.values if isinstance(value, list)]
    errors = {"u1": (3, 0), "u2": (1, 1), "u3": (2, 0), "u5": (0, 2)}
    assert sum(map(sum, errors.values())) == 9
    assert values[0] == ["u1", "u2", "u3", "u5", "u0", "u4"]
    assert values[1] == ["u3"]
    assert values[2] == ["u1", "u3"]  # new right, old wrong
    assert values[3] == ["u0", "u4"]
    assert values[4] == sorted(REFERENCES)
    assert values[5][0] == "u5" and values[5][-1] == "u1"
    numbers = [list(map(int, column)) for column in values[6:8]]
    assert numbers == [sorted(numbers[0], reverse=True), sorted(numbers[0])]
    assert len(set(numbers[0])) > 1
    assert values[8] == values[9][::-1] and sorted(set(values[8])) != values[8]
    assert values[8].index("charlie") < values[8].index("bravo1")


@IN_BROWSER
def test_audio_plays_in_its_place(page):
    seconds = (
        "new Promise(done => { const item = [...document.querySelectorAll('#list li')]"
        ".find(li => li.querySelector('code').textContent === %r);"
        "item.querySelector('details').open = true;"
        "setTimeout(() => { const player = item.querySelector('audio');"
        "if (player.readyState) done(player.duration);"
        "player.onloadedmetadata = () => done(player.duration);"
        "player.onerror = () => done('error'); }, 50); })"
    )
    assert visit(page, [seconds % "u1", seconds % "u2"]).values == [1, 1]


@IN_BROWSER
def test_it_is_complete_without_javascript(page):
    opened = "document.querySelectorAll('#list details pre').length"
    links = "document.querySelectorAll('#list a.audio').length"
    hidden = "document.getElementById('find').checkVisibility()"
    seen = visit(page, [IDS, opened, links, hidden], scripts=False)
    assert len(seen.values[0]) == 6 and seen.values[1:] == [4, 2, False]
    assert seen.messages == []
