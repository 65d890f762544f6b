"""The mutants fit the code of today; ``python tests/mutants.py`` tries them."""

import shutil
from pathlib import Path

import mutants
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.old[:40])
def test_every_mutant_finds_its_place(mutant, tmp_path):
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, tmp_path / mutant.file)
    mutants.apply(mutant, tmp_path)
    assert (tmp_path / mutant.file).read_text() != (ROOT / mutant.file).read_text()
    assert all((Path(__file__).parent / test).exists() for test in mutant.tests)
