"""What Fisher and Switchboard have in common: how transcribers write, and what is held out.

Two telephone speakers, A on the first channel and B on the second. A transcript's words:

    [laughter] [noise] [vocalized-noise] ...   sounds (``SOUNDS``): removed
    [laughter-yeah]                            said while laughing: yeah
    abso[lutely]-  -[an]y  ammu[n]it-          what was not said is in brackets: abso, y, ammuit
    [it'n/isn't]                               what was said, and what was meant: it'n
    {yuppiedom}                                a word made up: yuppiedom
    them_1                                     one of several pronunciations: them
    ((no idea))                                a guess: the utterance is excluded
    <b_aside> <e_aside>                        said to somebody else: marks removed, words kept

An utterance without words is excluded. An unknown tag stays, and the normaliser refuses it.
"""

import re

from asr.corpora import AUDIO_SUFFIXES

CHANNELS = {"A": 0, "B": 1}
SOUNDS = frozenset({"breath", "cough", "laugh", "laughter", "lipsmack", "mn", "noise", "pause"})
SOUNDS |= {"sigh", "silence", "sneeze", "vocalized-noise"}
MARKS = frozenset({"<b_aside>", "<e_aside>"})
LAUGHED = re.compile(r"(-?)\[laughter-(.+)\](-?)", re.IGNORECASE)
MEANT = re.compile(r"\[(.+)/[^/]+\](-?)")
COINED = re.compile(r"(-?)\{(.+)\}(-?)")
UNSAID = re.compile(r"(?<=.)\[[^\[\]]*\]|\[[^\[\]]*\](?=.)")
VARIANT = re.compile(r"_\d+(?![^\W_])")
SUFFIXES = "|".join(re.escape(suffix) for suffix in sorted(AUDIO_SUFFIXES))


def spoken(text: str) -> tuple[str, str | None]:
    """The words that were said, and why they are of no use, if so."""
    words = " ".join(filter(None, map(_word, text.split())))
    if "((" in text or "))" in text:
        return words, "the transcriber guessed: ((...))"
    return words, None if words else "sounds only, no words"


def _word(token: str) -> str:
    tag = token.lower()
    if tag in MARKS or (tag[:1] == "[" and tag[-1:] == "]" and tag[1:-1] in SOUNDS):
        return ""
    for pattern, kept in ((LAUGHED, r"\1\2\3"), (MEANT, r"\1\2"), (COINED, r"\1\2\3")):
        if pattern.fullmatch(token):
            token = pattern.sub(kept, token)
    return VARIANT.sub("", UNSAID.sub("", token))


def split_of(conversation: int, every: int) -> str:
    """A conversation's split: neither corpus has its own, so of ``every`` one is dev, one test."""
    return {0: "test", every // 2: "dev"}.get(conversation % every, "train")
