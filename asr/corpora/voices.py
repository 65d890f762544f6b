"""Text to speech with packages from PyPI: hibari-tts (a neural voice) and eSpeak NG (formants).

hibari has one voice in its package. Played faster or slower, with the tempo put right by the
engine, its pitch and formants move together, which sounds like another person. eSpeak NG has
eight English accents and about a hundred speaker variants; its C library is called through
ctypes and writes to memory only.
"""

import ctypes
import difflib
import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asr.errors import UserError

SAMPLE_RATE = 16_000
# One utterance differs from the next of the same voice in tempo and a little in pitch.
TEMPO = (0.92, 1.1)
PITCH_SHIFT = (0.985, 1.015)

# Constants of eSpeak NG's speak_lib.h.
ESPEAK_OUTPUT_SYNCHRONOUS, ESPEAK_DONT_EXIT, ESPEAK_UTF8 = 2, 0x8000, 1
ESPEAK_RATE, ESPEAK_VOLUME = 1, 2
ESPEAK_WORDS_PER_MINUTE = 165
ESPEAK_QUIET = 25  # percent; at the default volume most variants clip


@dataclass(frozen=True)
class Voice:
    """A speaker. ``number`` names it in utterance ids and never changes.

    ``scale`` moves pitch and formants together: 1.1 is 10 % higher. ``accent`` and ``variant``
    are eSpeak NG's language and voice-variant names, unused by hibari.
    """

    number: int
    name: str
    engine: Literal["hibari", "espeak"]
    sex: Literal["F", "M"]
    scale: float = 1.0
    accent: str = "en-us"
    variant: str = ""


HIBARI_SCALES = (0.72, 0.76, 0.80, 0.84, 0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.12, 1.16, 1.20)
ESPEAK_ACCENTS = (
    ("us", "en-us"),
    ("nyc", "en-us-nyc"),
    ("gb", "en"),
    ("rp", "en-gb-x-rp"),
    ("scot", "en-gb-scotland"),
    ("lanc", "en-gb-x-gbclan"),
    ("mids", "en-gb-x-gbcwmd"),
    ("carib", "en-029"),
)
# Left out: variants with breath, a filter that starts from memory never cleared, so that no two
# runs agree (alicia, caleb, f2, f3, f5, sandro, victor); whispers, robots and jokes.
# Append new ones at the end: a voice's number comes from its place.
ESPEAK_FEMALE = "f1 f4 Andrea Annie anika belinda linda steph steph2 steph3"
ESPEAK_MALE = (
    "m1 m2 m3 m4 m5 m6 m7 m8 Andy Gene Gene2 Jacky Lee Mario Michael Mike adam antonio benjamin"
    " david ed edward2 gustave ian iven iven2 john klatt4 marcelo max pablo paul pedro quincy rob"
    " robert shelby travis zac"
)


def _table() -> dict[str, Voice]:
    voices = [
        Voice(100 + i, f"hibari-{scale:.2f}", "hibari", "M" if scale < 0.85 else "F", scale)
        for i, scale in enumerate(HIBARI_SCALES)
    ]
    espeak: tuple[tuple[int, Literal["F", "M"], str], ...] = (
        (200, "F", ESPEAK_FEMALE),
        (1000, "M", ESPEAK_MALE),
    )
    for first, sex, names in espeak:
        for i, variant in enumerate(names.split()):
            for j, (short, accent) in enumerate(ESPEAK_ACCENTS):
                name, number = f"{variant.lower()}-{short}", first + 10 * i + j
                voices.append(Voice(number, name, "espeak", sex, 1.0, accent, variant))
    return {voice.name: voice for voice in voices}


VOICES = _table()

# Chosen by listening tests of a machine kind: a small model trained on 54 voices learned these
# best of their kind, and one trained on twelve understood mike best of all it had never heard.
SEEN_VOICES = [
    "hibari-0.92",
    "hibari-0.96",
    "hibari-1.00",
    "hibari-1.04",
    "annie-us",
    "m1-us",
    "m3-us",
    "m4-us",
    "mario-us",
    "michael-us",
    "mike-us",
    "ed-us",
]
UNSEEN_VOICES = [
    "hibari-0.88",
    "hibari-1.12",
    "linda-us",
    "m7-us",
    "john-us",
    "max-us",
]


def find_voices(names: Sequence[str], leave_out: Sequence[str] = ()) -> list[Voice]:
    """The voices called ``names``, in that order; "all" stands for every voice.

    Those in ``leave_out`` are left out of "all". UserError for a name that is not in VOICES (it
    names the nearest) or comes twice.
    """
    chosen: dict[str, Voice] = {}
    for name in names:
        if name == "all":
            chosen |= {name: voice for name, voice in VOICES.items() if name not in leave_out}
        elif name not in VOICES:
            near = difflib.get_close_matches(name, VOICES, n=1, cutoff=0.0)
            raise UserError(
                f"unknown voice {name!r}; did you mean {near[0]!r}? "
                f"(asr.corpora.voices.VOICES lists all {len(VOICES)}; 'all' takes every one)"
            )
        elif name in chosen:
            raise UserError(f"voice {name!r} is listed twice; name each voice once")
        else:
            chosen[name] = VOICES[name]
    return list(chosen.values())


def synthesise(voice: Voice, text: str, seed: int) -> npt.NDArray[np.float32]:
    """Speak ``text``: float32 ``(samples,)`` at 16 kHz in [-1, 1], silence at the ends included.

    The same voice, text and seed give the same samples, in whatever process and whatever was
    spoken before. The seed varies tempo, pitch and breath noise. UserError when the engine's
    package is missing.
    """
    rng = random.Random(seed)
    tempo, scale = rng.uniform(*TEMPO), voice.scale * rng.uniform(*PITCH_SHIFT)
    # Playing at `scale` times the rate shortens the speech; the engine makes up for it.
    engine_tempo, engine_seed = tempo / scale, rng.getrandbits(31)
    if voice.engine == "hibari":
        samples, rate = _speak_hibari(text, engine_tempo, engine_seed)
    else:
        samples, rate = _speak_espeak(voice, text, engine_tempo, engine_seed)
    return np.clip(_resample(samples, SAMPLE_RATE / (rate * scale)), -1.0, 1.0)


def _resample(samples: npt.NDArray[np.float32], factor: float) -> npt.NDArray[np.float32]:
    """Change the number of samples by ``factor`` in the frequency domain, free of aliases."""
    # A smooth length keeps the transforms fast. What is added is silence.
    length = -len(samples) // 1200 * -1200
    new_length = 2 * round(length * factor / 2)
    spectrum = np.fft.rfft(samples, length)[: new_length // 2 + 1]
    resampled = np.fft.irfft(spectrum, new_length) * (new_length / length)
    return resampled.astype(np.float32)


def _speak_hibari(text: str, tempo: float, seed: int) -> tuple[npt.NDArray[np.float32], int]:
    engine = _hibari()
    return engine(text + ".", speed=tempo, seed=seed), engine.sample_rate


@functools.cache
def _hibari() -> Any:
    """The engine with the voice that its package contains; one thread; loaded once a process."""
    try:
        import hibari
    except ImportError:
        raise UserError(
            "hibari voices need the package hibari-tts; run: pip install hibari-tts"
        ) from None
    return hibari.Hibari(threads=1)


@functools.cache
def _espeak_paths() -> tuple[str, bytes]:
    """Where the eSpeak NG library and its data are."""
    try:
        import espeakng_loader
    except ImportError:
        raise UserError(
            "eSpeak voices need the package espeakng-loader; run: pip install espeakng-loader"
        ) from None
    return espeakng_loader.get_library_path(), espeakng_loader.get_data_path().encode()


_ESPEAK_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


def _speak_espeak(
    voice: Voice, text: str, tempo: float, seed: int
) -> tuple[npt.NDArray[np.float32], int]:
    """Speak with a freshly loaded library.

    eSpeak NG keeps the phases of its oscillators and noise generators from one call to the
    next, also over espeak_Terminate, so what it says depends on what it said before. Unloading
    the library resets all of it and costs 2 ms. Its breath noise comes from libc's rand().
    """
    library_path, data_path = _espeak_paths()
    chunks: list[bytes] = []

    def take(samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            chunks.append(ctypes.string_at(samples, 2 * count))
        return 0

    callback = _ESPEAK_CALLBACK(take)
    libc = ctypes.CDLL(None)
    try:
        espeak = ctypes.CDLL(library_path)
    except OSError as error:
        raise UserError(
            f"the eSpeak NG library does not load ({error}); "
            f"run: pip install --force-reinstall espeakng-loader"
        ) from None
    try:
        rate = espeak.espeak_Initialize(ESPEAK_OUTPUT_SYNCHRONOUS, 0, data_path, ESPEAK_DONT_EXIT)
        espeak.espeak_SetSynthCallback(callback)
        name = f"{voice.accent}+{voice.variant}"
        if rate <= 0 or espeak.espeak_SetVoiceByName(name.encode()) != 0:
            raise UserError(f"eSpeak NG has no voice {name!r}; is espeakng-loader 0.2.4 installed?")
        espeak.espeak_SetParameter(ESPEAK_RATE, round(ESPEAK_WORDS_PER_MINUTE * tempo), 0)
        espeak.espeak_SetParameter(ESPEAK_VOLUME, ESPEAK_QUIET, 0)
        libc.srand(seed)  # after espeak_Initialize, which seeds it with the time
        spoken = text.encode() + b"\0"
        espeak.espeak_Synth(spoken, len(spoken), 0, 1, 0, ESPEAK_UTF8, None, None)
    finally:
        espeak.espeak_Terminate()
        libc.dlclose(ctypes.c_void_p(espeak._handle))
    samples = np.frombuffer(b"".join(chunks), np.int16).astype(np.float32)
    samples /= 32768
    return samples, int(rate)
