"""Cutting the world into subgroups, and the groups that follow from it."""

import os
import socket

import pytest
import torch
from ranks import run_ranks

from tiered_dist import Topology


def groups(subgroups):
    topology = Topology.build(subgroups)
    mine = torch.tensor([float(topology.rank)])
    inner = topology.inner.all_gather(mine).flatten().tolist()
    outer = None if topology.outer is None else topology.outer.all_gather(mine).flatten().tolist()
    return topology.subgroup, inner, outer, topology.shards


def test_a_size_makes_subgroups_of_neighbours(tmp_path):
    results = run_ranks(4, groups, tmp_path, 2)
    assert results[0] == (0, [0, 1], [0, 2], 2)
    assert results[3] == (1, [2, 3], [1, 3], 2)


def test_ranks_of_one_host_are_one_subgroup(tmp_path):
    assert run_ranks(2, groups, tmp_path, "host") == [(0, [0, 1], [0], 2), (0, [0, 1], [1], 2)]


def test_uneven_subgroups_have_as_many_shards_as_the_smallest_one(tmp_path):
    results = run_ranks(4, groups, tmp_path, [[0, 3], [1], [2]])
    assert results[0] == (0, [0, 3], [0, 1, 2], 1)
    assert results[3] == (0, [0, 3], None, 1)


@pytest.mark.parametrize("subgroups", [2, 0, "rack", [[0], [0]], [[1]], [[0], []], []])
def test_subgroups_that_do_not_cover_the_world_once_are_refused(subgroups):
    with pytest.raises(ValueError, match="subgroups"):
        Topology.build(subgroups)


def asks_for_its_own():
    Topology.build(1 if os.environ["RANK"] == "0" else 2)


def test_ranks_that_ask_for_other_subgroups_are_told_at_once(tmp_path):
    for result in run_ranks(2, asks_for_its_own, tmp_path):
        assert "subgroups=1, ranks_per_host=None" in str(result)
        assert "subgroups=2, ranks_per_host=None" in str(result)


def test_a_launched_process_that_has_not_joined_the_world_is_told(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"call tiered_dist.init_process_group\(\) before"):
        Topology.build(1)


def test_without_a_process_group_the_world_is_this_process():
    topology = Topology.build("host")
    assert (topology.world_size, topology.subgroups, topology.subgroup) == (1, ((0,),), 0)
    assert "1 ranks in 1 subgroups" in topology.describe()


def described():
    topology = Topology.build([[0, 1], [2, 3]])
    return topology.describe(), topology.describe_costs(1_000_000, 0.01, 10)


def test_describes_places_and_costs(tmp_path):
    """By hand: 2 M parameters' worth of moves, 16 bits for each of 10,000 entries and 31 counts."""
    places, costs = run_ranks(4, described, tmp_path)[0]
    assert f"subgroup 1: ranks [2, 3] on {socket.gethostname()}" in places
    assert "dense 4,000,000, GTC at density 0.01 20,064" in costs
    assert "each block: 4,000,000, a step in blocks of 10: 400,000" in costs


def bytes_sent():
    exchange = Topology.build(4).inner
    counts = [0]
    for collective in (exchange.all_gather, exchange.all_reduce, exchange.broadcast):
        collective(torch.zeros(10))
        counts.append(exchange.bytes_sent)
    return [after - before for before, after in zip(counts, counts[1:], strict=False)]


def test_bytes_are_counted_as_rings_send_them(tmp_path):
    results = run_ranks(4, bytes_sent, tmp_path)
    assert results[0] == [3 * 40, 2 * 3 * 40 // 4, 3 * 40]
    assert results[1:] == [[3 * 40, 2 * 3 * 40 // 4, 0]] * 3
