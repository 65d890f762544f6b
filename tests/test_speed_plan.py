"""``python -m tiered_dist plan``: its figures are the cost model's, its answers fit its figures."""

import dataclasses
import json
import re

import pytest

from tiered_dist.__main__ import main
from tiered_dist.cost_model import Constants
from tiered_dist.plan import Question, candidates, crossing, host_counts, plan

CONSTANTS = Constants(
    latency_seconds=3e-5,
    byte_seconds=1e-11,
    link_stretch=1.1,
    trainer_seconds=1e-3,
    codec_seconds=2e-3,
    codec_passes=4.0,
    filter_passes=8.0,
    encode_entry_passes=50.0,
    decode_entry_passes=20.0,
    source="made up",
)
ASKED = ["plan", "--hosts", "16", "--gpus", "8", "--parameters", "24e6", "--step-ms", "250"]
ASKED += ["--link-gbit", "25"]


def question(**changed):
    asked = Question(
        hosts=16,
        gpus=8,
        parameters=24_000_000,
        step_ms=250.0,
        link_gbit=25.0,
        host_gbyte=100.0,
        memory_gbyte=900.0,
        spread=0.05,
        density=0.01,
        longest_block=(50, 50),
        overlap=2 / 3,
        bucket_mbyte=25.0,
        constants=CONSTANTS,
    )
    return dataclasses.replace(asked, **changed)


@pytest.fixture(scope="module")
def answer():
    return plan(question())


@pytest.fixture
def constants(tmp_path):
    path = tmp_path / "constants.json"
    CONSTANTS.save(path)
    return ["--constants", str(path)]


def test_from_one_host_to_all():
    assert host_counts(16) == [1, 2, 4, 8, 16]
    assert host_counts(6) == [1, 2, 4, 6]
    assert host_counts(1) == [1]


def test_a_system_has_its_fastest_settings(answer):
    assert list(answer.tried) == [8, 16, 32, 64, 128]
    for gpus, systems in answer.tried.items():
        assert list(systems) == ["dense", "GTC", "BMUF", "two tiers"]
        for tried in systems.values():
            steps = [candidate.step for candidate in tried]
            assert steps == sorted(steps) and tried[0].speedup < gpus
    # Many ranks' entries take long to decode; inside a host with fast links nothing is compressed.
    assert "between hosts" in answer.tried[128]["GTC"][0].settings
    assert "dense bf16" in answer.tried[128]["two tiers"][0].settings
    slow = candidates(question(host_gbyte=0.05), hosts=1)
    gtc, dense = slow["two tiers"]
    assert gtc.step < dense.step


def test_at_equal_blocks_bmuf_alone_is_faster(answer):
    best = answer.tried[128]
    assert best["BMUF"][0].step < best["two tiers"][0].step < best["dense"][0].step
    assert "samples a second, two tiers over BMUF alone: 0." in answer.needs[0]


def test_dense_hides_but_for_its_last_bucket():
    hidden, plain, all_tail = (
        candidates(question(**changed), hosts=16)["dense"][0].times.tier_1
        for changed in ({}, {"overlap": 0.0}, {"bucket_mbyte": 1e6})
    )
    assert plain == all_tail
    assert hidden == pytest.approx(plain * 25 / 96)


def test_what_it_would_take_is_what_brings_the_figures(answer):
    best = answer.tried[128]
    said = " ".join(answer.needs)
    block = crossing(best["BMUF"][0].times.step, 1.25 * best["two tiers"][0].step, 1, 1e6)
    assert best["BMUF"][0].times.step(block) == pytest.approx(
        1.25 * best["two tiers"][0].step, 1e-3
    )
    assert f"no longer blocks than of {block:.3g} steps" in said

    for name, pattern in (
        ("link_gbit", r"links of ([\d.]+) Gbit"),
        ("step_ms", r"([\d.]+) ms of computation"),
        ("spread", r"a spread of ([\d.]+)"),
    ):
        value = float(re.search(pattern, answer.needs[-1])[1])
        tried = plan(question(**{name: value})).tried[128]["two tiers"]
        changed = next(one for one in tried if "dense bf16" in one.settings)
        assert changed.speedup == pytest.approx(100, rel=0.03), name


def test_where_a_function_comes_to_a_value():
    assert crossing(lambda x: x * x, 4.0, 0.1, 100.0) == pytest.approx(2, rel=1e-3)
    assert crossing(lambda x: 1 / x, 4.0, 0.1, 100.0) == pytest.approx(0.25, rel=1e-3)
    assert crossing(lambda x: 1 / x, 40.0, 0.1, 100.0) is None


def test_prints_writes_and_draws(constants, tmp_path, capsys):
    files = [tmp_path / "plan.json", tmp_path / "plan.svg"]
    words = [*ASKED, *constants, "--json", str(files[0]), "--figure", str(files[1])]
    assert main(words) == 0
    text, figure = capsys.readouterr().out, files[1].read_bytes()
    written = json.loads(files[0].read_text())
    fastest = [row for row in written["rows"] if row["fastest"]]
    assert written["modelled"] and len(fastest) == 20
    lines = [line.split() for line in text.partition("what it would")[0].splitlines()[3:-1]]
    assert [int(line[0]) for line in lines] == [row["gpus"] for row in fastest]
    for row in fastest:
        parts = [row[part] for part in ("compute", "trainer", "tier 1", "tier 2", "waiting")]
        assert sum(parts) == pytest.approx(row["step"])
        assert f"{row['speedup']:.1f}" in text
    assert "modelled, not measured" in text and "assumed" in text
    for said in (
        "spread of 0.05",
        "30 us a round",
        "25 Gbit/s",
        "100 GB/s",
        "900 GB/s",
        "0.01",
        "made up",
    ):
        assert said in text.partition("assumed")[2]
    assert b"Modelled, not measured" in figure and b"two tiers" in figure
    assert main(words) == 0 and files[1].read_bytes() == figure


def test_latency_and_link_change_the_answer(constants, capsys):
    def printed(*more):
        assert main([*ASKED, *constants, *more]) == 0
        return capsys.readouterr().out

    assert "500 us a round" in printed("--latency-us", "500")
    assert printed("--link-gbit", "50") != printed()
    assert "K 10" in printed("--longest-block", "10", "20")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--parameters", "nan"], "--parameters nan"),
        (["--parameters", "9e9"], "32-bit entries"),
        (["--link-gbit", "0"], "--link-gbit 0.0: above 0"),
        (["--hosts", "0"], "--hosts 0: above 0"),
        (["--spread", "-1"], "--spread -1.0: 0 or more"),
        (["--overlap", "2"], "--overlap 2.0: from 0 to 1"),
        (["--density", "3"], "density"),
        (["--longest-block", "0", "5"], "--longest-block (0, 5): at least 1"),
        (["--constants", "/dev/null"], "no constants of this cost model"),
        (["--constants", "/no/such/file"], "No such file"),
        (["--json", "/no/such/folder/plan.json"], "No such file"),
    ],
)
def test_bad_input_is_an_error(more, said, constants, capsys):
    assert main([*ASKED, *constants, *more]) == 2
    assert said in capsys.readouterr().err


def test_the_package_has_constants(capsys):
    assert main(ASKED) == 0
    assert "what it would take, at 128 GPUs" in capsys.readouterr().out
