"""``python -m asr plan``: what a run will need, before anyone pays for it.

Where stages 1 to 3 have run, the data are counted; before that, they are what the recipe's
conf/plan.yaml says of its corpus. Nothing is written but the file that ``--json`` names.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr.errors import UserError
from asr.features import FeaturesConfig
from asr.files import write_json
from asr.manifests import ManifestConfig
from asr.planning.config import PlanConfig
from asr.planning.estimates import (
    Data,
    ImaginedUtterances,
    Machines,
    SystemPlan,
    as_dict,
    plan_system,
    speed_frames,
    spread_durations,
)
from asr.planning.preparation import Preparation, prepare, tokens_a_second, train_parts
from asr.planning.table import render
from asr.stages import Workspace
from asr.tokens import TokensConfig
from asr.training.config import TrainConfig
from asr.training.data import UtteranceSet


def run(
    workspace: Workspace, systems: Sequence[str], json: Path | None, sample: Path | None
) -> None:
    """Print the plan of ``systems`` (none: all of the recipe), and write it to the file ``json``.

    ``sample`` is a folder of audio to measure the rate of preparation on, else some is made.
    UserError where neither stages 1 to 3 nor conf/plan.yaml say what the data are.
    """
    conf = workspace.recipe / "conf"
    config = workspace.config(PlanConfig, *(["plan"] if (conf / "plan.yaml").exists() else []))
    names = list(systems) or sorted(path.stem for path in (conf / "systems").glob("*.yaml"))
    if not names:
        raise UserError(f"{conf / 'systems'}: the recipe has no system")
    settings = dataclasses.replace(workspace, overrides=())  # they are plan.yaml's
    preparation = prepare(settings, config, sample)
    data = _data(settings, config)
    machines = Machines(config.ranks_per_host, config.gpu_gigabytes, config.link_gigabits)
    plans = [_plan(settings, name, data, machines) for name in names]
    print(render(preparation, plans, machines))
    if json is not None:
        write_json(json, _as_dict(preparation, plans, machines))


def _plan(workspace: Workspace, name: str, data: Data, machines: Machines) -> SystemPlan:
    config = workspace.config(TrainConfig, "train", f"systems/{name}")
    try:
        return plan_system(name, config, data, machines)
    except (UserError, ValueError) as error:  # settings that training would refuse, too
        raise UserError(f"system {name}: {error}") from None


def _as_dict(
    preparation: Preparation, plans: Sequence[SystemPlan], machines: Machines
) -> dict[str, Any]:
    return {
        "preparation": dataclasses.asdict(preparation),
        "machines": dataclasses.asdict(machines),
        "systems": {plan.name: as_dict(plan) for plan in plans},
    }


def _data(workspace: Workspace, config: PlanConfig) -> Data:
    """Train's utterances and the model's sides: what stages 2 and 3 made, or what is planned."""
    features = workspace.config(FeaturesConfig, "features")
    if workspace.has_run("features") and workspace.has_run("tokens"):
        train = workspace.require("corpus")["counts"]["splits"]["train"]
        counts = workspace.require("tokens")["counts"]
        utterances = UtteranceSet.of_split(workspace, train)
        mean = counts[train]["tokens"] / max(1, counts[train]["utterances"])
        return Data(utterances, features.fbank.bins, counts["size"], 2 * mean)
    manifests = workspace.config(ManifestConfig, "manifests")
    parts = train_parts(workspace, config)
    durations = [
        spread_durations(
            3600 * part.hours, part.utterances, manifests.min_seconds, manifests.max_seconds, number
        )
        for number, part in enumerate(parts)
    ]
    frames = speed_frames(np.concatenate(durations), features.speeds, features.fbank.frame_shift)
    tokens = workspace.config(TokensConfig, "tokens")
    # The blank, and for characters the unknown one.
    vocabulary = 1 + (tokens.size or config.characters + 1)
    longest = manifests.max_seconds * tokens_a_second(tokens)
    corpora = sorted({part.corpus or part.name for part in parts})
    numbers = [corpora.index(part.corpus or part.name) for part in parts]
    corpus = np.repeat(numbers, [part.utterances for part in parts])
    utterances = ImaginedUtterances(frames, corpora, corpus)
    return Data(utterances, features.fbank.bins, vocabulary, longest)
