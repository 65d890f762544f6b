import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asr import text as text_module
from asr.text import UnsafeText, normalise

EXAMPLES = [
    ("TURN THE LIGHTS OFF", "turn the lights off"),
    ("  two\t spaces \r\n", "two spaces"),
    ("no\u00a0break and\u3000wide", "no break and wide"),
    ("\ufeffbyte order mark", "byte order mark"),
    ("zero\u200bwidth soft\u00adhyphen", "zerowidth softhyphen"),
    ("ＦＵＬＬ ｗｉｄｔｈ ﬁle", "full width file"),
    ("cafe\u0301", "café"),
    ("it’s `tis rock´n", "it's tis rock'n"),
    ("don＇t", "don't"),
    ("john 's and they 'll", "john's and they'll"),
    ("don 't, did n't, 't was then 'twas", "don't didn't t was then twas"),
    ("the letter 's' and 'quoted words'", "the letter s and quoted words"),
    ("dogs' rock''n", "dogs rock n"),
    ("Well, twenty-one: (yes); “no” — and…so on!", "well twenty one yes no and so on"),
    ("room 42 at 7", "room 42 at 7"),
    ("one [noise] two <Laughter>", "one two"),
    ("привет мир", "привет мир"),
    ("東京タワー", "東京タワー"),
    ("... — !", ""),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), EXAMPLES)
def test_normalises_what_is_safe(text, expected):
    assert normalise(text) == expected
    assert normalise(expected) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("the \u0441at", "'сat' mixes letters of the alphabets CYRILLIC, LATIN"),
        ("5 %", "PERCENT SIGN"),
        ("rock & roll", "AMPERSAND"),
        ("$ 5", "DOLLAR SIGN"),
        ("½ litre", "VULGAR FRACTION"),
        ("m²", "SUPERSCRIPT TWO"),
        ("3.5", "inside a number"),
        ("10:30", "inside a number"),
        ("the <unk> sat", "'<unk>'"),
        ("bell \u0007", "wrong encoding"),
        ("it\u0092s", "wrong encoding"),
        ("caf\ufffd", "wrong encoding"),
        ("caf\udce9", "wrong encoding"),
        ("private \ue000", "wrong encoding"),
    ],
)
def test_refuses_what_needs_guessing(text, reason):
    with pytest.raises(UnsafeText, match="(?s)" + reason.replace("$", r"\$")):
        normalise(text)


@settings(max_examples=500, deadline=None)
@example("it did n't")
@example("it did n't's")
@given(st.text(alphabet="anNtTs '\u017f\u212a-", max_size=12))
def test_the_shortcut_for_plain_words_changes_nothing(text):
    shortcut = normalise(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "PLAIN", re.compile("(?!)"))
        assert shortcut == normalise(text)


def test_is_idempotent_for_every_character_that_it_accepts():
    accepted = 0
    for code in range(0x3100):
        for text in (f"a{chr(code)}b", f"a {chr(code)}s", f"{chr(code)}'{chr(code)}"):
            try:
                once = normalise(text)
            except UnsafeText:
                continue
            accepted += 1
            assert normalise(once) == once, ascii(text)
    assert accepted > 20_000
