"""``python -m asr export``: a finished model as one folder, for ``transcribe`` and for others.

FOLDER/config.json   what the other files are, features, normalisation and tokens, as JSON
       model.pt      the weights, for PyTorch
       model.onnx    features to log-probabilities, for ONNX runtimes
       tokens.model  the sentencepiece model
"""

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import atomic_write, sha256, write_json
from asr.filterbank.frames import STACKED_FRAMES
from asr.recognition.finished_model import CONFIG, FORMAT_VERSION, MODEL, FinishedModel, open_model
from asr.stages import Workspace
from asr.tokens import BLANK
from asr.tokens import MODEL as TOKEN_MODEL

ONNX = "model.onnx"
# Between log-probabilities of the graph and of the model; rounding alone gives 1e-6 to 1e-5.
TOLERANCE = 1e-4

log = logging.getLogger("asr")


def run(workspace: Workspace, model: Path, out: Path) -> None:
    """Write the folder ``out`` from a model file or a folder that was exported before.

    UserError when ``out`` holds something else, when a package is missing, when ONNX cannot have
    the model, and when onnxruntime does not compute what PyTorch does.
    """
    export(open_model(model), out)
    log.info("%s: wrote %s", model, out)


def export(finished: FinishedModel, out: Path) -> None:
    """Write the folder; ``config.json`` comes last, so that a folder that has it is whole."""
    if out.exists() and not (out.is_dir() and (_is_export(out / CONFIG) or _is_empty(out))):
        raise UserError(f"{out} is there, and no exported model; choose another --out")
    try:  # nothing but this needs them
        import onnx

        from asr.recognition.onnx_graph import difference, to_onnx
    except ImportError as error:
        raise UserError(f"{error}; pip install -r requirements.txt") from None
    graph = to_onnx(finished.model)
    found = difference(graph, finished.model)
    if not found <= TOLERANCE:
        raise UserError(
            f"{finished.path}: log-probabilities by onnxruntime differ from PyTorch's by {found}, "
            f"more than {TOLERANCE}: nothing was written"
        )
    (out / CONFIG).unlink(missing_ok=True)
    with atomic_write(out / ONNX) as partial:
        onnx.save(graph, partial)
    _copy(finished.path, out / MODEL)
    _copy(finished.token_model, out / TOKEN_MODEL)
    files = {name: sha256(out / name) for name in (MODEL, ONNX, TOKEN_MODEL)}
    write_json(out / CONFIG, {**describe(finished), "sha256": files})


def describe(finished: FinishedModel) -> dict[str, Any]:
    """The content of ``config.json``, all that another program needs beside the graph."""
    return {
        "format_version": FORMAT_VERSION,
        "architecture": dataclasses.asdict(finished.model.config),
        "streams": finished.model.config.streams,
        "features": finished.fbank.to_dict(),
        # In the graph already: for those who take the weights alone.
        "normalisation": {
            "mean": finished.model.mean.tolist(),
            "std": finished.model.std.tolist(),
        },
        "stacked_frames": STACKED_FRAMES,
        "blank": BLANK,
        "pieces": finished.tokenizer.pieces,
    }


def _is_export(config: Path) -> bool:
    """Whether export wrote it: other programs' models have a config.json, too."""
    try:
        written = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(written, dict) and {"format_version", "stacked_frames"} <= written.keys()


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def _copy(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        return
    with atomic_write(target) as partial:
        shutil.copyfile(source, partial)
