"""The one normaliser of transcripts, for training and for scoring.

Bump ``TEXT_VERSION`` with every change of what ``normalise`` returns: manifests record it, and
a word error rate holds for one version only.
"""

import re
import unicodedata

TEXT_VERSION = 2

# Words of letters with apostrophes inside, as most transcripts are; "did n't" would be joined.
PLAIN_WORD = r"(?![Nn]'[Tt](?: |\Z))[A-Za-z]+(?:'[A-Za-z]+)*"
PLAIN = re.compile(f"{PLAIN_WORD}(?: {PLAIN_WORD})*")
# NFKC would break some of these into a space and a combining accent, so they go first.
APOSTROPHES = str.maketrans(dict.fromkeys("’‘‛ʼʻ′´`＇", "'"))
# What annotators write for sounds that are not speech, in [] or <>.
SILENT_TAGS = frozenset({"breath", "cough", "laughter", "music", "noise", "sil", "silence"})
TAG = re.compile(r"[\[<]\s*([^\[\]<>]*?)\s*[\]>]")
# Punctuation that is read aloud; the categories S* (symbols such as $ and +) are too.
SPOKEN_PUNCTUATION = frozenset("%‰&@#§")
INSIDE_NUMBER = re.compile(r"\d[^\w\s']+\d")
# White space before the second part of john 's, they 'll, did n't, don 't.
DETACHMENT = re.compile(
    r"(?<=\w)\s+(?=(?:'(?:s|m|d|ll|re|ve)|n't)(?![\w']))|(?<=\wn)\s+(?='t(?![\w']))"
)
OUTER_APOSTROPHE = re.compile(r"(?<!\w)'|'(?!\w)")
# Alphabets whose letters look alike; a word holds letters of one of them.
LOOKALIKES = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "COPTIC", "CHEROKEE"})


class UnsafeText(ValueError):
    """A transcript that cannot be normalised without guessing what was said."""


def normalise(text: str) -> str:
    """Lower-case words, separated by one space; apostrophes inside words are the only signs.

    NFKC; typographic apostrophes become ``'``; a detached clitic (``john 's``,
    ``don 't``) is joined;
    zero-width characters, tags of noises (``[noise]``) and silent punctuation are removed.
    Digits stay as they are. Normalising twice changes nothing; text without words gives "".
    Raises UnsafeText, with the reason, for what is spoken but not written as words (``5 %``,
    ``3.5``, ``<unk>``), for traces of a wrong encoding, and for words of mixed alphabets.
    """
    if PLAIN.fullmatch(text):  # the rest would change nothing, and is slow
        return text.lower()
    text = TAG.sub(_remove_tag, text).translate(APOSTROPHES)
    _refuse_characters(text)
    text = unicodedata.normalize("NFKC", text).translate(APOSTROPHES)
    _refuse_characters(text)
    text = "".join(map(_clean, unicodedata.normalize("NFKC", text.lower())))
    number = INSIDE_NUMBER.search(text)
    if number:
        raise UnsafeText(f"{number[0]!r} inside a number: write it in words, as it was spoken")
    text = DETACHMENT.sub("", "".join(map(_silence, text)))
    words = OUTER_APOSTROPHE.sub(" ", text).split()
    for word in words:
        _refuse_mixed_alphabets(word)
    return " ".join(words)


def _remove_tag(tag: re.Match[str]) -> str:
    if tag[1].lower() not in SILENT_TAGS:
        raise UnsafeText(f"tag {tag[0]!r}: what was spoken there is not written")
    return " "


def _refuse_characters(text: str) -> None:
    for character in text:
        if character.isalpha() or character.isspace():
            continue
        category = unicodedata.category(character)
        if character == "\ufffd" or category in {"Cc", "Cs", "Co", "Cn"}:
            raise UnsafeText(f"{_name(character)}: the text was read in a wrong encoding")
        if category[0] == "S" or category in {"No", "Nl"} or character in SPOKEN_PUNCTUATION:
            raise UnsafeText(f"{_name(character)}: write it in words, as it was spoken")


def _clean(character: str) -> str:
    if character.isspace():
        return " "
    # Cf: zero-width characters, soft hyphens, byte-order marks, marks of direction.
    return "" if unicodedata.category(character) == "Cf" else character


def _silence(character: str) -> str:
    return " " if character != "'" and unicodedata.category(character)[0] == "P" else character


def _refuse_mixed_alphabets(word: str) -> None:
    if word.isascii():
        return
    alphabets = {
        unicodedata.name(character, "").partition(" ")[0]
        for character in word
        if character.isalpha()
    }
    mixed = sorted(alphabets & LOOKALIKES)
    if len(mixed) > 1:
        raise UnsafeText(f"{word!r} mixes letters of the alphabets {', '.join(mixed)}")


def _name(character: str) -> str:
    return f"{character!a} ({unicodedata.name(character, 'no character')})"
