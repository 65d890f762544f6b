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
from asr.planning.config import PlanConfig
from asr.scoring.summary import ScoreConfig
from asr.tokens import TokensConfig
from asr.training.config import TrainConfig

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
    own_corpus = ["corpus_dir=somewhere"] if recipe.name in ("data_dir", "fisher_swbd") else []
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


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_what_a_plan_is_told_fits_the_recipes_corpora(recipe):
    if not (recipe / "conf/plan.yaml").exists():
        assert recipe.name == "data_dir"  # of which nothing is known before stage 1
        return
    plan = load_config(PlanConfig, [recipe / "conf/plan.yaml"], [])
    own_corpus = ["corpus_dir=somewhere"] if recipe.name == "fisher_swbd" else []
    corpus = load_config(CorpusConfig, [recipe / "conf/corpus.yaml"], own_corpus)
    assert {part.split for part in plan.parts} == {"train", "dev", "test"}
    if corpus.parts:
        train = {part.corpus or part.name for part in plan.parts if part.split == "train"}
        assert train == set(corpus.parts)


# Published hours of train.
HOURS = {"librispeech": 960, "english2k": 960 + 452 + 543, "fisher_swbd": 1915 + 317}


@pytest.mark.parametrize("name", HOURS)
def test_the_big_recipes_have_the_blocks_that_their_momentum_asks_for_and_one_rate_in_effect(name):
    rates = {}
    for path in (RECIPES[0].parent / name / "conf/systems").glob("*.yaml"):
        files = [path.parents[1] / "train.yaml", path]
        config = load_config(TrainConfig, files, [])
        if config.outer.kind == "none":
            continue
        size = 8 if config.subgroup_size == "host" else config.subgroup_size
        groups = config.workers // size
        momentum = config.outer.make().block_momentum(groups)
        frames = HOURS[name] * 360_000
        steps = config.epochs * frames / (config.workers * config.batch_frames)
        blocks = steps / config.outer.block_steps
        assert blocks * (1 - momentum) > config.min_memory_spans, path
        rates[path.stem] = config.optimizer.learning_rate / (1 - momentum)
        assert config.inner.kind == "dense" or config.inner.density * steps > 10, path
    assert len(rates) >= 2 and len(set(rates.values())) == 1, rates
