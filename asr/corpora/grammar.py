"""A seeded grammar of short English sentences: commands, dates, times, numbers, names, places.

The training text and the held-out texts differ by construction. A fixed share of the word pairs
that take part in a word list is *held out*: a training sentence has none of them, and in every
development and test sentence they are a fifth of the pairs or more. So no sentence is in both,
and a fifth of their pairs or more is new, whatever the seed and the size of the training text.
"""

import collections
import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Mapping

from asr.errors import UserError

MIN_WORDS, MAX_WORDS = 5, 12
HELD_OUT_PAIRS = 0.1
# Of a test sentence's word pairs at least this share is held out of training.
MIN_UNSEEN_SHARE = 0.2
# Out of so many sentences the one with the rarest words is taken: what occurs a few times only
# is not learned from an hour or three of speech.
CANDIDATES = 4
# Held-out sentences use only words that occur among the first so many words of the training
# text: the test sets then stay the same when more training data is asked for.
COVERING_WORDS = 12_000
# So many draws in a row without a new sentence mean that the grammar is used up.
MAX_FRUITLESS_DRAWS = 20_000

WORD_LISTS: dict[str, list[str]] = {
    name: words.split()
    for name, words in {
        "first": (
            "emma liam olivia noah oscar lucas grace henry ruby jack alice peter julia martin"
            " helen victor clara simon laura daniel maria robert sarah thomas nina james rachel"
            " david susan george karen frank linda kevin diane walter monica philip teresa albert"
            " anna edward sophie charles megan arthur hannah patrick emily stephen"
        ),
        "last": (
            "smith wilson cooper morgan parker turner miller carter murphy bennett foster harris"
            " palmer russell watson bailey hudson porter fisher marshall gibson spencer hamilton"
            " sullivan crawford peterson johnson douglas anderson simmons"
        ),
        "city": (
            "london paris boston chicago berlin madrid vienna dublin denver dallas houston seattle"
            " portland phoenix atlanta toronto montreal sydney melbourne tokyo moscow athens"
            " lisbon stockholm geneva prague warsaw budapest cairo manchester"
        ),
        "country": (
            "canada france italy norway sweden japan brazil mexico egypt ireland portugal finland"
        ),
        "room": (
            "kitchen bedroom bathroom office garage garden hallway basement attic library studio"
        ),
        "device": (
            "lamp heater radio speaker television camera alarm oven printer computer telephone"
            " dishwasher"
        ),
        "color": "red blue green yellow purple white black brown pink silver golden grey",
        "quality": (
            "small large heavy broken clean wooden plastic empty narrow cheap expensive dusty"
            " simple strange famous pretty modern ancient useless gentle favorite ordinary"
            " beautiful comfortable"
        ),
        "thing": (
            "table chair bottle jacket basket bicycle ladder mirror blanket pencil notebook"
            " umbrella suitcase hammer bucket candle carpet curtain envelope helmet kettle pillow"
            " shovel ticket towel trophy violin wallet guitar clock compass magazine package"
            " newspaper sweater necklace painting backpack calendar dictionary"
        ),
        "food": (
            "apples oranges bananas tomatoes potatoes carrots onions lemons cherries peaches"
            " pancakes cookies sandwiches mushrooms grapes muffins noodles pumpkins strawberries"
            " walnuts"
        ),
        "animal": (
            "dogs cats horses rabbits parrots turtles goats ducks chickens squirrels monkeys"
            " elephants dolphins spiders butterflies penguins"
        ),
        "job": (
            "doctor teacher farmer lawyer baker nurse pilot driver plumber painter singer writer"
            " dentist engineer manager waiter student captain judge gardener neighbor musician"
            " carpenter detective"
        ),
        "place": (
            "school station museum market hospital airport harbor theater bakery bridge castle"
            " church factory hotel stadium park beach forest river mountain village restaurant"
            " university supermarket"
        ),
        "day": "monday tuesday wednesday thursday friday saturday sunday",
        "month": (
            "january february march april may june july august september october november december"
        ),
        "ordinal": (
            "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
            " thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
            " twentieth"
        ),
        "digit": "one two three four five six seven eight nine",
        "few": "two three four five six seven eight nine",
        "clock": "ten fifteen twenty thirty forty fifty",
        "teen": ("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"),
        "ten": "twenty thirty forty fifty sixty seventy eighty ninety",
        "unit": "minutes hours days weeks months years",
        "money": "dollars euros pounds cents",
        "took": (
            "bought sold found lost painted carried cleaned borrowed dropped fixed opened packed"
            " wrapped moved washed brought wanted noticed returned ordered delivered repaired"
            " collected forgot admired"
        ),
        "went": "walked drove traveled hurried cycled wandered sailed",
        "task": "meeting interview lesson concert dinner party holiday appointment exam wedding",
        "weather": "sunny rainy cloudy windy foggy stormy freezing humid",
        "music": "jazz classical folk piano dance country",
        "how": "slowly quickly quietly carefully suddenly happily nervously politely secretly",
        "often": "usually often never always rarely sometimes",
        "when": "today tomorrow tonight later again soon",
        "where": "near behind under beside above",
        "cost": "costs weighs holds earns",
    }.items()
}

RULES: dict[str, list[str]] = {
    "sentence": [
        "turn <on> the <room> <device> <when>",
        "please turn <on> the <color> <device> in the <room>",
        "switch the <room> <device> <on> at <time>",
        "set the alarm for <time> on <day>",
        "set a timer for <number> <unit> please",
        "remind me to call <person> at <time>",
        "remind <first> about the <task> on <day>",
        "call doctor <last> about the <task> <when>",
        "send a message to <person> and <person>",
        "add <number> <food> and <count> <food> to my list",
        "play some <music> music in the <room> at <time>",
        "book a flight from <city> to <city> on <day>",
        "book a table for <count> at <time> <when>",
        "show me the fastest way from the <place> to the <place>",
        "how far is the <place> from the <place>",
        "what is the weather like in <city> <when>",
        "it will be <weather> in <city> on <day>",
        "it was <weather> and <weather> all day in <country>",
        "the <task> with <person> is on <date>",
        "the <task> starts at <time> on <day>",
        "move the <task> from <day> to <date>",
        "my birthday is on <date>",
        "<person> was born on <date>",
        "<person> lives in <city> near the <place>",
        "<first> <took> the <quality> <thing> in <city>",
        "<first> <took> <count> <quality> <food> at the market",
        "the <job> <took> a <color> <thing> <before>",
        "the <quality> <thing> is <where> the <color> <thing>",
        "put the <thing> <where> the <quality> <thing>",
        "the <job> <how> <took> <count> <animal>",
        "the <quality> <job> <went> <how> to the <place>",
        "<person> <went> to <country> in <month>",
        "<first> and <first> <often> eat <food> with <food>",
        "<count> <color> <animal> live <where> the <place>",
        "we saw <number> <animal> <where> the <quality> <place>",
        "this <color> <thing> <cost> <number> <money>",
        "a <quality> <thing> <cost> only <number> <money>",
        "the <job> has worked in <country> for <number> <unit>",
        "our <job> comes from <city> but lives in <country>",
        "my phone number is <digit> <digit> <digit> <digit> <digit> <digit>",
        "the room number is <digit> <digit> <digit> on the <ordinal> floor",
        "the train to <city> leaves at <time>",
        "the next bus to the <place> leaves in <number> minutes",
        "<first> is the <ordinal> <job> in this <place>",
        "where did <person> leave the <color> <thing>",
        "why did the <job> <often> visit <city>",
        "did <first> give the <thing> to the <job>",
        "open the window in the <room> at <time>",
        "close the <color> window of the <room> <when>",
        "lock the <quality> door of the <room> at <time>",
        "i have <number> <unit> left before the <task>",
        "there are <number> <animal> and <number> <food> <where> the <thing>",
        "flight <number> to <country> is <number> minutes late",
        "page <number> of the <quality> <thing> is missing",
        "the password is <color> <thing> <ten> <city> <animal>",
        "the secret code is <city> <digit> <ordinal> <food> <color>",
        "i need <food> <food> <food> and a <quality> <thing>",
        "my numbers are <teen> <digit> <ten> <teen> and <ten>",
        "pack the <thing> the <color> <thing> and the <quality> <thing>",
        "<first> <first> <first> and <person> are late <when>",
        "visit <city> <city> <country> and <country> in <month>",
    ],
    "on": ["on", "off"],
    "person": ["<first> <last>", "<first>", "the <job>"],
    "count": ["<few>", "<teen>", "several", "many"],
    "number": [
        "<few>",
        "<teen>",
        "<ten>",
        "<ten> <digit>",
        "<few> hundred",
        "<few> hundred and <ten> <digit>",
        "<few> thousand <few> hundred",
    ],
    "time": [
        "<digit> o'clock",
        "<digit> <clock> in the <half>",
        "half past <digit>",
        "a quarter to <digit>",
        "<clock> minutes past <digit>",
        "noon",
        "midnight",
    ],
    "before": ["yesterday", "last night", "last <month>", "this <half>"],
    "half": ["morning", "evening", "afternoon"],
    "date": [
        "<month> the <ordinal>",
        "the <ordinal> of <month>",
        "<day> the <ordinal> of <month>",
        "<month> the twenty <ordinal_digit>",
    ],
    "ordinal_digit": ["first", "second", "third", "fifth", "sixth", "eighth", "ninth"],
}

LISTED_WORDS = frozenset(itertools.chain.from_iterable(WORD_LISTS.values()))


def sentence(rng: random.Random, words_per_list: int | None = None) -> str:
    """Draw one sentence: lower-case words of a-z and apostrophe, with single spaces.

    ``words_per_list`` keeps only the head of every word list, for an easier task.
    """
    while True:
        words = _expand("sentence", rng, words_per_list)
        if MIN_WORDS <= len(words) <= MAX_WORDS:
            return " ".join(_with_articles(words))


def is_held_out(first: str, second: str) -> bool:
    """True if no training sentence has the word ``first`` directly before ``second``."""
    if first not in LISTED_WORDS and second not in LISTED_WORDS:
        return False  # such pairs are the templates' own; without them there is no sentence
    if first in ("the", "on"):
        return False  # some words stand nowhere else, and training must have every word
    return _fraction(first, second) < HELD_OUT_PAIRS


def draw_splits(
    rng: random.Random, words: Mapping[str, int], words_per_list: int | None = None
) -> dict[str, list[str]]:
    """Draw the sentences of "train" and the other splits; ``words`` has each one's least size.

    The split "train" is drawn without held-out pairs, all others with many. No sentence comes
    twice, in one split or in two. If train has COVERING_WORDS words or more, every word of the
    others occurs in it. UserError when the grammar has too few sentences.
    """
    seeds = {split: rng.getrandbits(64) for split in ("train", *sorted(words))}
    taken: set[str] = set()

    def draw(split: str, least: int, accept: Callable[[str], bool]) -> list[str]:
        split_rng = random.Random(seeds[split])
        chosen: list[str] = []
        counts: collections.Counter[str] = collections.Counter()

        def candidate() -> str:
            for _ in range(MAX_FRUITLESS_DRAWS):
                text = sentence(split_rng, words_per_list)
                if text not in taken and accept(text):
                    return text
            raise UserError(
                f"the grammar has no more new sentences after {counts.total()} words of {split}; "
                f"ask for fewer words, or for more words_per_list"
            )

        def rarest(text: str) -> int:
            return min(counts[word] for word in text.split())

        while counts.total() < least:
            text = min((candidate() for _ in range(CANDIDATES)), key=rarest)
            taken.add(text)
            chosen.append(text)
            counts.update(text.split())
        return chosen

    train = draw("train", max(words["train"], COVERING_WORDS), lambda text: not _unseen(text))
    known = vocabulary(_head(train, COVERING_WORDS))
    splits = {"train": _head(train, words["train"])}
    for split in words:
        if split != "train":
            splits[split] = draw(
                split,
                words[split],
                lambda text: _unseen(text) >= MIN_UNSEEN_SHARE and known.issuperset(text.split()),
            )
    return splits


def vocabulary(sentences: Iterable[str]) -> set[str]:
    """The different words of ``sentences``."""
    return {word for text in sentences for word in text.split()}


def word_pairs(text: str) -> list[tuple[str, str]]:
    """The pairs of neighbouring words of one sentence, in order."""
    return list(itertools.pairwise(text.split()))


def unseen_pair_share(train: Iterable[str], test: Iterable[str]) -> float:
    """The share of the word pairs of ``test``, counted as tokens, that ``train`` never has."""
    seen = {pair for text in train for pair in word_pairs(text)}
    pairs = [pair for text in test for pair in word_pairs(text)]
    return sum(pair not in seen for pair in pairs) / len(pairs)


def _expand(symbol: str, rng: random.Random, words_per_list: int | None) -> list[str]:
    if symbol in WORD_LISTS:
        return [rng.choice(WORD_LISTS[symbol][:words_per_list])]
    words = []
    for part in rng.choice(RULES[symbol]).split():
        if part.startswith("<"):
            words += _expand(part[1:-1], rng, words_per_list)
        else:
            words.append(part)
    return words


def _with_articles(words: list[str]) -> list[str]:
    """Turn "a" into "an" before a vowel; no word list has a word like "hour" or "umpire" there."""
    spoken = []
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word == "a" and following[0] in "aeio":
            spoken.append("an")
        else:
            spoken.append(word)
    return spoken


def _unseen(text: str) -> float:
    pairs = word_pairs(text)
    return sum(is_held_out(*pair) for pair in pairs) / len(pairs)


def _head(sentences: list[str], least_words: int) -> list[str]:
    """The first sentences that together have ``least_words`` words or more."""
    totals = itertools.accumulate((len(text.split()) for text in sentences), initial=0)
    return [text for text, before in zip(sentences, totals, strict=False) if before < least_words]


@functools.cache
def _fraction(first: str, second: str) -> float:
    """A number in [0, 1) that depends on the pair alone."""
    digest = hashlib.blake2s(f"{first} {second}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32
