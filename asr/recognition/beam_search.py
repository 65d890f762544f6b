"""CTC beam search with an n-gram language model, by torchaudio's decoder (flashlight, KenLM).

With a model of words, the search runs over the words of a lexicon, each a path of tokens; with a
model of tokens, over any sequence of tokens. A hypothesis W of an utterance X has the score

    ln p(X | W) + lm_weight log10 p(W) + word_score |W|

where p(X | W) sums the CTC paths of W that stayed in the beam. (KenLM's logarithms are to base 10:
a weight of 1 here is one of 0.43 between natural logarithms.)
"""

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from asr.language_model import ends_words
from asr.tokens import BLANK, BLANK_PIECE, UNKNOWN, WORD_MARK, Tokenizer

# Log-probability of what cannot follow an utterance: far below any beam's threshold.
IMPOSSIBLE = -1e4


@dataclasses.dataclass(frozen=True)
class Beam:
    """How wide to search: hypotheses kept, tokens tried for each, and how far below the best.

    ``tokens`` None tries all; ``threshold`` is in units of the score, natural logarithms.
    """

    size: int = 50
    tokens: int | None = 20
    threshold: float = 20.0

    def __post_init__(self) -> None:
        if self.size < 1 or (self.tokens is not None and self.tokens < 1):
            raise ValueError(f"beam.size={self.size}, beam.tokens={self.tokens}: at least 1")
        if not self.threshold > 0:  # NaN is refused, too
            raise ValueError(f"beam.threshold={self.threshold}: more than 0")


@dataclasses.dataclass(frozen=True)
class Weights:
    """``lm_weight`` multiplies the model's log-probability; ``word_score`` is added for a word.

    In a search without lexicon ``word_score`` is added for a space; word pieces have none.
    """

    lm_weight: float
    word_score: float


class BeamSearch:
    """Search with the n-gram model in file ``model``, over the words of ``lexicon`` if given.

    The lexicon's file has a word and its tokens a line, as ``asr.language_model.spell`` gives
    them. Words outside of it cannot be found. ``weigh`` comes before the first search.
    """

    def __init__(self, tokenizer: Tokenizer, model: Path, lexicon: Path | None, beam: Beam) -> None:
        # Imported when needed: training imports this module, too, and needs no decoder.
        from flashlight.lib.text.decoder.kenlm import KenLM
        from flashlight.lib.text.dictionary import create_word_dict, load_words

        self._tokenizer = tokenizer
        self._lexicon = lexicon
        self._beam = beam
        self._ends_words = ends_words(tokenizer)
        # Between words the decoder may take any number of "silences". Word pieces have no token
        # for it; the unknown piece, which no word has, is as good as none.
        self._silence = tokenizer.pieces.index(WORD_MARK) if self._ends_words else UNKNOWN
        units = (
            {piece: [[piece]] for piece in tokenizer.pieces}
            if lexicon is None
            else load_words(str(lexicon))
        )
        self._model = KenLM(str(model), create_word_dict(units))  # takes long when it is large

    def weigh(self, weights: Weights) -> "BeamSearch":
        """Take other weights for the searches from here on; returns itself."""
        from torchaudio.models.decoder import ctc_decoder

        pieces = self._tokenizer.pieces
        words = self._lexicon is not None
        self._decoder = ctc_decoder(
            lexicon=str(self._lexicon) if words else None,
            tokens=pieces,
            lm=self._model,
            beam_size=self._beam.size,
            beam_size_token=self._beam.tokens,
            beam_threshold=self._beam.threshold,
            lm_weight=weights.lm_weight,
            word_score=weights.word_score,
            sil_score=weights.word_score if self._ends_words and not words else 0.0,
            log_add=True,  # paths of one hypothesis add up
            blank_token=BLANK_PIECE,
            sil_token=pieces[self._silence],
        )
        return self

    def __call__(self, log_probs: Tensor) -> str:
        """The words heard in one utterance; ``log_probs`` ``(T, V)``, natural logarithms, CPU.

        One without frames gives "".
        """
        if not len(log_probs):
            return ""
        if self._lexicon is None:
            (best,) = self._decoder(log_probs.float().contiguous()[None])[0]
            return self._tokenizer.decode([t for t in best.tokens.tolist() if t != UNKNOWN])
        if self._ends_words:
            log_probs = end_the_last_word(log_probs, self._silence)
        else:
            log_probs = merge_runs(log_probs)
        (best,) = self._decoder(log_probs.float().contiguous()[None])[0]
        return " ".join(best.words)


def end_the_last_word(log_probs: Tensor, mark: int) -> Tensor:
    """``log_probs`` ``(T, V)`` and a last frame ``(T + 1, V)`` in which only ``mark`` can be.

    The model has learned that the mark parts words, and gives none after the last one; the
    lexicon's words all end with it.
    """
    end = torch.full_like(log_probs[:1], IMPOSSIBLE)
    end[0, mark] = 0.0
    return torch.cat([log_probs, end])


def merge_runs(log_probs: Tensor) -> Tensor:
    """Adjacent frames that have the same best token, not the blank, become one frame, their sum.

    The decoder cannot stay in the last token of a word for a second frame. In one frame it need
    not: the paths that stay in one token for all of a run have the score that they had. Those that
    change within a run, or stay in a last token from one run to the next, are lost.
    """
    best = log_probs.argmax(dim=1)  # (T,)
    begins = torch.ones_like(best, dtype=torch.bool)
    begins[1:] = (best[1:] != best[:-1]) | (best[1:] == BLANK)
    run = begins.cumsum(dim=0) - 1  # (T,), the number of each frame's run
    merged = log_probs.new_zeros(int(begins.sum()), log_probs.shape[1])
    return merged.index_add(0, run, log_probs)
