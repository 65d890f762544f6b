"""The tier-1 message: it carries everything through, and it notices who is out of step."""

import pytest
import torch

from tiered_dist import ExchangeError, message

TAUS = torch.tensor([0.5, 0.25])


def pack(
    step=3,
    fingerprint=99,
    taus=TAUS,
    not_finite=0,
    out_of_data=0,
    lasted=0.0,
    samples=1234.5,
    body=(5, 8),
):
    return message.pack(
        step=step,
        fingerprint=fingerprint,
        taus=taus,
        not_finite=not_finite,
        out_of_data=out_of_data,
        lasted=lasted,
        samples=samples,
        wanted=torch.tensor([1, 7], dtype=torch.int32),
        exact=torch.tensor([0.1, -3e38, samples]),
        count=2 * len(body),
        body=torch.tensor(body, dtype=torch.int32),
        body_words=6,
    )


def unpack(*messages):
    return message.unpack(torch.stack(messages), 2, 3, tuple(range(10, 10 + len(messages))), 0)


def test_carries_everything_through():
    received = unpack(pack(), pack(samples=0.0, body=(), not_finite=1), pack())
    assert received.counts == [4, 0, 4]
    assert received.bodies.tolist() == [[5, 8, 0, 0, 0, 0], [0] * 6, [5, 8, 0, 0, 0, 0]]
    assert torch.equal(received.exact[0], torch.tensor([0.1, -3e38, 1234.5]))
    assert torch.equal(received.exact[:, 2], torch.tensor([1234.5, 0.0, 1234.5]))
    assert received.samples == 2469.0
    assert (received.active, received.not_finite, received.out_of_data) == (2, 1, 0)
    assert received.wanted.tolist() == [[1, 7]] * 3


def test_samples_survive_exactly():
    count = 2.0**31 + 12_345
    assert unpack(pack(samples=count)).samples == count


def test_ranks_left_out_and_out_of_data_are_told_apart():
    received = unpack(pack(out_of_data=3), pack(out_of_data=32_767, not_finite=65_535))
    assert (received.not_finite, received.out_of_data) == (65_535, 32_770)


def test_how_long_the_last_exchange_took_arrives_in_microseconds():
    received = unpack(pack(lasted=0.0123456), pack(lasted=1e9))
    assert received.lasted == pytest.approx([0.012346, 2147.483647])


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (pack(step=4), "step 4 against 3"),
        (pack(fingerprint=98), "parameters 98 against 99"),
        (pack(taus=torch.tensor([0.5, 0.2500001])), "thresholds"),
    ],
)
def test_a_rank_at_odds_is_named_with_both_values(other, field):
    with pytest.raises(ExchangeError, match=f"rank 11 is at odds with rank 10: {field}"):
        unpack(pack(), other)


def test_a_message_of_another_kind_is_refused():
    other = pack()
    other[0] = 0
    with pytest.raises(ExchangeError, match="rank 11 sent to rank 10 is no message"):
        unpack(pack(), other)
