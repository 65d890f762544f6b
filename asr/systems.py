"""Which systems have come how far: the recipe's systems are the folders of its stages.

From ``decode`` on, one trained model may be several systems: ``<system>`` is greedy search, and
``<system>+lm`` beam search with a language model, with the model of ``train/<system>``.
"""

import logging

from asr.errors import UserError
from asr.stages import MARKER, Workspace, digest

log = logging.getLogger("asr")

WITH_LM = "+lm"


def model_of(system: str) -> str:
    """The trained system whose model a decoded system has."""
    return system.removesuffix(WITH_LM)


def finished_systems(workspace: Workspace, verb: str) -> list[str]:
    """Systems whose stage ``<verb>/<system>`` has been done and still holds, sorted.

    One that was made from other inputs than there are now (an optional system that was not
    trained again, say) is left out with a warning. UserError if none is left.
    """
    markers = workspace.directory(verb).glob(f"*/{MARKER}")
    finished = sorted(marker.parent.name for marker in markers)
    systems = [system for system in finished if _holds(workspace, f"{verb}/{system}")]
    for system in sorted(set(finished) - set(systems)):
        log.warning("%s/%s was made from other inputs than there are now: left out", verb, system)
    if not systems:
        raise UserError(
            f"no system in {workspace.directory(verb)} is finished; run the {verb} stage first: "
            f"{workspace.recipe}/run.sh, or python -m asr {verb}"
        )
    return systems


def _holds(workspace: Workspace, stage: str) -> bool:
    """Whether a stage's marker was made from the inputs of today, and they from theirs."""
    for name, then in workspace.require(stage).get("inputs", {}).items():
        if not workspace.has_run(name):
            return False
        if digest(workspace.require(name)) != then or not _holds(workspace, name):
            return False
    return True
