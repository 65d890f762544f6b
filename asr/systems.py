"""Which systems have come how far: the recipe's systems are the folders of its stages."""

from asr.errors import UserError
from asr.stages import MARKER, Workspace


def finished_systems(workspace: Workspace, verb: str) -> list[str]:
    """Systems whose stage ``<verb>/<system>`` has been done, sorted; UserError if none has."""
    markers = workspace.directory(verb).glob(f"*/{MARKER}")
    systems = sorted(marker.parent.name for marker in markers)
    if not systems:
        raise UserError(
            f"no system in {workspace.directory(verb)} is finished; run the {verb} stage first: "
            f"{workspace.recipe}/run.sh, or python -m asr {verb}"
        )
    return systems
