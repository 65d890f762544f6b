"""Configuration: YAML and key=value into dataclasses, and what is wrong with the rest."""

import dataclasses
from typing import Literal

import pytest

from asr.config import dump_yaml, load_config
from asr.errors import UserError


@dataclasses.dataclass
class Part:
    size: int = 3
    rate: float = 0.5


@dataclasses.dataclass
class Whole:
    name: str = "x"
    kind: Literal["a", "b"] = "a"
    parts: list[int] = dataclasses.field(default_factory=list)
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    momentum: float | Literal["auto"] = "auto"
    part: Part = dataclasses.field(default_factory=Part)
    extra: Part | None = None
    flag: bool = False

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError("name=bad is not a name")


def load(tmp_path, text, *overrides, more=""):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(text)
    second.write_text(more)
    return load_config(Whole, [first, second], overrides)


def test_later_files_and_overrides_win_key_by_key(tmp_path):
    config = load(
        tmp_path,
        "name: one\npart: {size: 4, rate: 1}\nparts: [1, 2]",
        "part.rate=1e-3",
        "momentum=0.9",
        more="part: {size: 5}\n",
    )
    assert config == Whole("one", parts=[1, 2], part=Part(5, 0.001), momentum=0.9)
    assert isinstance(config.part.rate, float)


def test_an_optional_part_can_be_given_and_taken_back(tmp_path):
    assert load(tmp_path, "extra: {size: 9}").extra == Part(size=9)
    assert load(tmp_path, "extra: {size: 9}", "extra=null").extra is None


def test_what_is_dumped_reads_back_the_same(tmp_path):
    config = Whole("one", "b", [1], {"w": 0.5}, 0.9, Part(7), Part(), True)
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_yaml(config))
    assert load_config(Whole, [path], []) == config


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        ("nmae: x", "name=y", r"first.yaml.*unknown key 'nmae'; did you mean 'name'"),
        ("", "part.sise=2", r"unknown key 'part.sise'; did you mean 'part.size'"),
        ("", "part.size=two", r"part.size='two' has the wrong type; expected int"),
        ("", "part.size=2.5", r"part.size=2.5 has the wrong type"),
        ("", "part.size=true", r"part.size=True has the wrong type"),
        ("", "flag=1", r"flag=1 has the wrong type; expected bool"),
        ("", "part.rate=fast", r"part.rate='fast'"),
        ("", "kind=c", r"kind='c'; choose one of: a, b"),
        ("", "part=3", r"part takes 'key: value' lines"),
        ("", "name", r"an override is written key=value"),
        ("", "name=[", r"not valid YAML"),
        ("", "name=bad", r"name=bad is not a name"),
        ("- 1", "name=x", r"first.yaml: expected 'key: value' lines"),
        ("a: [", "name=x", r"first.yaml: not valid YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, override, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, text, override)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none.yaml: no such configuration file"):
        load_config(Whole, [tmp_path / "none.yaml"], [])
