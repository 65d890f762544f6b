"""Settings of ``python -m asr plan``: the corpus as published, and the machines."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class PartConfig:
    """A part of the corpus as it is published: hours and utterances of speech that the recipe
    takes of it, and the bytes of its archive and of the audio unpacked. ``recorded_hours`` is what
    must be decoded to come by them, where recordings hold more than the utterances; ``corpus`` the
    recipe's part that it is of, where that has another name."""

    name: str
    hours: float
    utterances: int
    archive_bytes: float
    audio_bytes: float
    split: Literal["train", "dev", "test"] = "train"
    kind: Literal["flac", "ogg", "nist"] = "flac"
    recorded_hours: float | None = None
    corpus: str | None = None

    def __post_init__(self) -> None:
        if not self.hours > 0 or self.utterances < 1:
            raise ValueError(
                f"parts: {self.name}: hours={self.hours}, utterances={self.utterances}: above 0"
            )


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """The corpus, and the machines to train on: see ``estimates.Machines``.

    ``characters`` is how many different ones the transcripts have, for a character model that has
    not been trained yet.
    """

    parts: list[PartConfig] = dataclasses.field(default_factory=list)
    characters: int = 28
    ranks_per_host: int = 8
    gpu_gigabytes: float = 80.0
    link_gigabits: float = 100.0

    def __post_init__(self) -> None:
        for name in ("ranks_per_host", "gpu_gigabytes", "link_gigabits", "characters"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: above 0")
