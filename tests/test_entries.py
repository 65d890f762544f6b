"""The two forms in which entries travel carry them through, in as few words as they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered_dist import entries

STRETCH = entries.STRETCH


def carry(positions, quanta, total, capacity):
    """Through the words of a message and back: dense counts, (total,)."""
    sent = entries.to_words(positions, quanta, total, capacity)
    count = int(quanta.abs().sum())
    assert sent.dtype == torch.int32
    assert len(sent) == entries.words(count, total, capacity)
    room = entries.words(capacity, total, capacity)
    body = torch.cat([sent, torch.full((room - len(sent),), -1, dtype=torch.int32)])
    where, signs = entries.from_words(body, count, total, capacity)
    assert where.dtype == torch.int64 and len(where) == len(signs) == count
    return torch.zeros(total, dtype=torch.int32).index_add_(0, where, signs)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_forms_carry_everything(data):
    total = data.draw(st.sampled_from([1, 5, STRETCH - 1, STRETCH, STRETCH + 1, 5 * STRETCH + 7]))
    ends = st.sampled_from([0, total - 1, min(STRETCH, total - 1), min(STRETCH - 1, total - 1)])
    chosen = data.draw(st.sets(st.one_of(st.integers(0, total - 1), ends), max_size=40))
    positions = torch.tensor(sorted(chosen), dtype=torch.int64)
    amounts = data.draw(
        st.lists(st.integers(-5, 5).filter(bool), min_size=len(positions), max_size=len(positions))
    )
    quanta = torch.tensor(amounts, dtype=torch.int32)
    expected = torch.zeros(total, dtype=torch.int32)
    expected[positions] = quanta
    for capacity in (int(quanta.abs().sum()), 10_000):
        assert torch.equal(carry(positions, quanta, total, capacity), expected)


def test_zero_quanta_send_nothing():
    positions = torch.tensor([3, 9])
    quanta = torch.tensor([0, -1], dtype=torch.int32)
    assert carry(positions, quanta, 10, 4).tolist() == [0] * 9 + [-1]


@pytest.mark.parametrize(("density", "bits"), [(1e-1, 16.1), (1e-3, 17), (1e-5, 32)])
def test_the_smaller_form_is_taken(density, bits):
    total = 24_000_000
    count = int(density * total)
    assert 32 * entries.words(count, total, count) / count <= bits


def test_the_largest_index_of_all():
    total = entries.MAX_ELEMENTS
    positions, quanta = torch.tensor([total - 1]), torch.tensor([-1], dtype=torch.int32)
    body = entries.to_words(positions, quanta, total, 1)
    where, signs = entries.from_words(body, 1, total, 1)
    assert (where.tolist(), signs.tolist()) == ([total - 1], [-1])


def test_what_a_stretch_cannot_tell_is_left_for_later():
    total = 2 * STRETCH
    positions = torch.arange(total)
    quanta = torch.full((total,), 3, dtype=torch.int32)
    quanta[STRETCH:] = -1
    capacity = int(quanta.abs().sum())
    kept = entries.fit(positions, quanta, total, capacity)
    assert int(kept[:STRETCH].sum()) == entries.MOST_IN_STRETCH
    assert torch.equal(kept[STRETCH:], quanta[STRETCH:])
    assert torch.equal(carry(positions, kept, total, capacity), kept)
    assert entries.fit(positions, quanta.sign(), total, capacity).equal(quanta.sign())
