"""An untrained system, as far as recognition needs one."""

import torch
from speech_helpers import finish_stage

from asr.filterbank.fbank import LogMelFbankConfig
from asr.model import AcousticModel, ModelConfig, save_model
from asr.tokens import Tokenizer, TokensConfig, train_token_model

TEXTS = ["one two three", "four five six", "seven eight nine", "zero"]


def write_system(root, system="single", **settings):
    """An untrained system of a workspace, and its tokens; gives the model file's path."""
    (root / "tokens").mkdir(parents=True, exist_ok=True)
    (root / "tokens/tokens.model").write_bytes(train_token_model(TEXTS, TokensConfig()))
    pieces = Tokenizer(root / "tokens/tokens.model").pieces
    torch.manual_seed(3)
    mean, std = torch.linspace(8, 14, 64), torch.linspace(2, 5, 64)
    config = ModelConfig(**{"layers": 2, "hidden": 24, **settings})
    model = AcousticModel(config, len(pieces), mean, std)
    with torch.no_grad():
        model.output.weight *= 20  # so that more than one token is heard
    finish_stage(root, f"train/{system}", {})
    tokens = {"kind": "char", "size": len(pieces), "pieces": pieces}
    path = root / "train" / system / "model.pt"
    save_model(path, model, {"features": LogMelFbankConfig().to_dict(), "tokens": tokens})
    return path
