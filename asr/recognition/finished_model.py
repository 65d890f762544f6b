"""A trained model with what it takes to hear with it: its features and its token model."""

from pathlib import Path
from typing import NamedTuple

from asr.errors import UserError
from asr.files import read_json
from asr.filterbank.fbank import LogMelFbankConfig
from asr.model import AcousticModel, load_model
from asr.tokens import MODEL as TOKEN_MODEL
from asr.tokens import Tokenizer

MODEL = "model.pt"
CONFIG = "config.json"
# Of the folder that ``python -m asr export`` writes.
FORMAT_VERSION = 1


class FinishedModel(NamedTuple):
    """The model in eval mode; ``token_model`` is the file that ``tokenizer`` was read from."""

    path: Path
    model: AcousticModel
    fbank: LogMelFbankConfig
    tokenizer: Tokenizer
    token_model: Path


def open_model(path: Path) -> FinishedModel:
    """Read a folder that ``python -m asr export`` wrote, or a model file.

    A model file's token model lies beside it, or where the stages put it. UserError where one of
    them is missing or damaged, and where they do not belong together.
    """
    if path.is_dir():
        _check_format(path / CONFIG)
        path = path / MODEL
    model, travels_with = load_model(path)
    beside, of_stage = path.parent / TOKEN_MODEL, path.parent.parent.parent / "tokens" / TOKEN_MODEL
    token_model = beside if beside.exists() else of_stage
    tokenizer = Tokenizer(token_model)
    if tokenizer.pieces != travels_with["tokens"]["pieces"]:
        raise UserError(f"{path}: trained with other tokens than those of {token_model}")
    fbank = LogMelFbankConfig.from_dict(travels_with["features"])
    return FinishedModel(path, model, fbank, tokenizer, token_model)


def _check_format(path: Path) -> None:
    config = read_json(path)
    version = config.get("format_version") if isinstance(config, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: format {version}, not {FORMAT_VERSION}; export the model again")
