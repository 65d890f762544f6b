"""The cost model by identities, and its fit on measurements that are made up."""

import dataclasses
import math

import numpy as np
import pytest

from tiered_dist import GTC, Dense, DenseInHost, FixedThreshold, TargetDensity
from tiered_dist.cost_model import (
    Case,
    Constants,
    Machine,
    Observation,
    block_amounts,
    fit,
    largest_of,
    predict,
    seconds,
    step_amounts,
)
from tiered_dist.costs import World
from tiered_dist.layout import ParameterLayout

NAMES = Constants.names()
FREE = Constants(link_stretch=0.0, straggling=0.0)
SOME = Constants(3e-5, 1e-5, 1e-9, 1.1, 0.9, 1e-3, 3.0, 2e-3, 4.0, 5e-4, 8.0, 50.0, 20.0)
SPARSE = GTC(TargetDensity(0.01, 0.01))
# name -> subgroups of 16 ranks on hosts of 4, tier 1, whether there is a tier 2
SYSTEMS = {
    "dense": (16, Dense(), False),
    "GTC": (16, SPARSE, False),
    "levels": (16, DenseInHost(SPARSE), False),
    "BMUF": (1, Dense(), True),
    "two tiers": (4, SPARSE, True),
}


def layout(elements=1_000_000):
    return ParameterLayout(("all",), ((elements,),), (elements,), elements)


def case(name, ranks=16, elements=1_000_000, **machine):
    subgroup, inner, has_blocks = SYSTEMS[name]
    machine = Machine(**({"link_bits": 1e9, "pass_seconds": 1e-9, "spread": 0.1} | machine))
    world = World.of(ranks, min(subgroup, ranks), 4)
    return Case(world, inner, layout(elements), 0.2, machine, has_blocks)


@pytest.mark.parametrize(
    ("number", "mean", "deviation"),
    [
        (2, 1 / math.sqrt(math.pi), math.sqrt(1 - 1 / math.pi)),
        (3, 1.5 / math.sqrt(math.pi), 0.7479754),  # published tables of normal order statistics
        (10, 1.5387527, 0.5867992),
        (100, 2.5075936, 0.4294),
    ],
)
def test_the_largest_of_normal_numbers(number, mean, deviation):
    assert largest_of(number) == pytest.approx((mean, deviation), rel=2e-3)
    assert largest_of(1) == (0.0, 1.0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_one_gpu_is_as_fast_as_one_gpu(name):
    if name in ("dense", "BMUF"):
        assert predict(case(name, ranks=1), SOME).speedup(math.inf) == 1
    assert predict(case(name, ranks=1), FREE).speedup(1) == 1


@pytest.mark.parametrize("name", SYSTEMS)
def test_free_exchanges_of_equal_ranks_make_n_times_as_fast(name):
    fast = case(name, link_bits=math.inf, spread=0.0)
    work = dataclasses.replace(FREE, link_stretch=1.0, straggling=1.0, trainer_passes=3.0)
    assert predict(fast, work).speedup(1) == pytest.approx(16, rel=1e-12)


def test_a_ring_takes_what_leaves_a_host_over_the_links_rate():
    link = dataclasses.replace(FREE, link_stretch=1.0)
    dense = predict(case("dense"), link)
    assert dense.tier_1 == pytest.approx(2 * 15 / 16 * 4e6 * 8 / 1e9, rel=1e-4)
    bmuf = predict(case("BMUF"), link)
    assert (bmuf.tier_1, bmuf.at(4)["tier 2"]) == (0, pytest.approx(dense.tier_1 / 4, rel=1e-4))
    # Four shards of the model cross at once, each in a ring of four hosts.
    assert predict(case("two tiers"), link).block == pytest.approx(
        2 * 3 / 4 * 4e6 * 8 / 1e9, rel=1e-4
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_twice_the_rate_halves_the_links_part(name):
    parts = [
        (times.tier_1, times.block)
        for link_bits in (1e8, 2e8)
        for times in [predict(case(name, link_bits=link_bits), Constants())]
    ]
    assert parts[0] == pytest.approx((2 * parts[1][0], 2 * parts[1][1]), rel=1e-12)


def test_rounds_are_those_of_rings():
    latency = dataclasses.replace(FREE, latency_seconds=1.0)
    assert predict(case("dense"), latency).tier_1 == 2 * 2 * 15  # counts, and gradients
    assert predict(case("GTC"), latency).tier_1 == 15
    assert predict(case("BMUF"), latency).block == 3 * 2 * 15
    assert predict(case("two tiers"), latency).block == 3 * 2 * 3 + 2 * 3


def test_a_message_that_is_larger_than_a_dense_one_costs_a_dense_step():
    dense = dataclasses.replace(case("GTC"), inner=GTC(TargetDensity(0.5, 0.5)), overlap=0.0)
    entries = dataclasses.replace(FREE, decode_entry_passes=1.0, encode_entry_passes=1.0)
    assert predict(dense, entries).tier_1 == 0
    assert predict(case("GTC"), entries).tier_1 == pytest.approx(17 * 0.01 * 1e6 * 1e-9)
    link = Constants()
    assert predict(dense, link).tier_1 == pytest.approx(predict(case("dense"), link).tier_1, 1e-3)


@pytest.mark.parametrize("name", SYSTEMS)
def test_nothing_gets_faster_when_something_gets_dearer(name):
    known = case(name)
    least = predict(known, SOME).step(5)
    for constant in NAMES:
        dearer = dataclasses.replace(SOME, **{constant: 2 * getattr(SOME, constant)})
        assert predict(known, dearer).step(5) >= least
    assert predict(case(name, spread=0.2), SOME).step(5) > least
    assert predict(case(name, crowd=2.0), SOME).step(5) > least
    if known.has_blocks:
        assert predict(known, SOME).step(6) < least


@pytest.mark.parametrize("name", ["dense", "BMUF", "two tiers"])
def test_waits_are_those_of_simulated_ranks(name):
    spread, block_steps, generator = 0.1, 8, np.random.default_rng(0)
    known = case(name, spread=spread)
    compute, size = known.compute_seconds, len(known.world.subgroups[0])
    drawn = compute * (1 + spread * generator.standard_normal((20_000, block_steps, 16)))
    slowest = drawn.reshape(20_000, block_steps, -1, size).max(axis=3).sum(axis=1).max(axis=1)
    waits = slowest.mean() / block_steps - compute
    times = predict(known, dataclasses.replace(FREE, straggling=1.0))
    assert times.at(block_steps)["waiting"] == pytest.approx(waits, rel=0.02)


def test_a_dense_exchange_hides_behind_the_backward_pass_but_for_its_tail():
    plain = case("dense", link_bits=1e9)
    exchange = predict(plain, Constants()).tier_1
    half = dataclasses.replace(plain, overlap=exchange / 2 / plain.compute_seconds)
    assert predict(half, Constants()).tier_1 == pytest.approx(exchange / 2)
    whole = dataclasses.replace(plain, overlap=1.0, tail=0.25)
    assert predict(whole, Constants()).tier_1 == pytest.approx(exchange / 4)


def made_up(noise=0.0):
    """Observations as SOME would have them, of all systems, ranks and rates."""
    generator, found = np.random.default_rng(1), []
    sparser = {SPARSE: GTC(TargetDensity(0.001, 0.001))}
    for name in SYSTEMS:
        for ranks in (4, 8, 16):
            for link_bits in (1e7, 1e8, math.inf):
                for elements in (200_000, 4_000_000):
                    known = case(name, ranks, elements, link_bits=link_bits, crowd=ranks / 3)
                    if elements == 200_000 and known.inner in sparser:
                        known = dataclasses.replace(known, inner=sparser[known.inner])
                    for parts in (step_amounts(known), block_amounts(known)):
                        for amounts in parts.values():
                            exact = seconds(amounts, SOME)
                            value = exact * (1 + noise * generator.standard_normal())
                            if exact:
                                found.append(Observation(amounts, value, exact))
    generator.shuffle(found)
    return found


def values(constants):
    return [getattr(constants, name) for name in NAMES]


def test_a_fit_finds_the_constants_that_measurements_were_made_with():
    exact = fit(made_up()[::2], NAMES, Constants())
    assert values(exact) == pytest.approx(values(SOME), rel=1e-6)
    for unseen in made_up()[1::2]:
        assert seconds(unseen.amounts, exact) == pytest.approx(unseen.seconds, rel=1e-6)

    noisy = fit(made_up(noise=0.02), NAMES, Constants())
    for name in ("link_stretch", "straggling", "trainer_passes", "filter_passes"):
        assert getattr(noisy, name) == pytest.approx(getattr(SOME, name), rel=0.05)
    errors = [abs(seconds(o.amounts, noisy) / o.seconds - 1) for o in made_up()]
    assert max(errors) < 0.05


def test_a_fit_keeps_what_is_known_and_goes_below_zero_nowhere():
    observations = made_up()
    known = dataclasses.replace(SOME, link_stretch=7.0)
    names = [name for name in NAMES if name != "link_stretch"]
    assert fit(observations, names, known).link_stretch == 7.0
    lower = [dataclasses.replace(o, seconds=o.seconds - 10.0) for o in observations]
    assert set(values(fit(lower, NAMES, SOME))) == {0.0}
    # The best of two positive answers to a question whose free answer is (2, -1).
    pair = [
        Observation({"latency_seconds": 1.0, "message_seconds": 1.0}, 1.0, 1.0),
        Observation({"latency_seconds": 1.0, "message_seconds": 2.0}, 0.0, 1.0),
    ]
    found = fit(pair, ["latency_seconds", "message_seconds"], Constants())
    assert (found.latency_seconds, found.message_seconds) == pytest.approx((0.5, 0.0))
    with pytest.raises(ValueError, match="nothing was measured"):
        fit([], NAMES, Constants())


def test_constants_are_kept_as_data(tmp_path):
    path = tmp_path / "constants.json"
    said = dataclasses.replace(SOME, source="made up")
    said.save(path)
    assert Constants.load(path) == said
    for text in ("{}", "[1]", '{"latency_seconds": 1}', "x"):
        path.write_text(text)
        with pytest.raises(ValueError, match="constants.json: no constants"):
            Constants.load(path)


def test_what_a_fixed_threshold_sends_cannot_be_said():
    fixed = dataclasses.replace(case("GTC"), inner=GTC(FixedThreshold(1.0)))
    with pytest.raises(ValueError, match="sends what passes it"):
        predict(fixed, SOME)
