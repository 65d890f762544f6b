"""Every recipe: its settings can be read, and its run.sh speaks."""

import subprocess
from pathlib import Path

import pytest

from asr.compare import CompareConfig
from asr.config import load_config
from asr.corpora import CorpusConfig
from asr.decode import DecodeConfig
from asr.features import FeaturesConfig
from asr.manifests import ManifestConfig
from asr.score import ScoreConfig
from asr.tokens import TokensConfig
from asr.train_config import TrainConfig

RECIPES = sorted(path.parent for path in Path(__file__).parents[1].glob("recipes/*/run.sh"))
STAGES = {
    "corpus": CorpusConfig,
    "manifests": ManifestConfig,
    "features": FeaturesConfig,
    "tokens": TokensConfig,
    "decode": DecodeConfig,
    "score": ScoreConfig,
    "compare": CompareConfig,
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_settings_and_script(recipe):
    own_corpus = ["corpus_dir=somewhere"] if recipe.name == "data_dir" else []
    for stage, kind in STAGES.items():
        overrides = own_corpus if stage == "corpus" else []
        load_config(kind, [recipe / "conf" / f"{stage}.yaml"], overrides)
    for system in (recipe / "conf/systems").glob("*.yaml"):
        config = load_config(TrainConfig, [recipe / "conf/train.yaml", system], [])
        assert config.title
    names = {path.stem for path in (recipe / "conf/systems").glob("*.yaml")}
    assert {"bmuf", "two_tier", "single"} <= names
    shown = subprocess.run([recipe / "run.sh", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "--mirror" in shown.stdout + shown.stderr
    assert (recipe / "README.md").exists()
