"""What one call of ``TieredTrainer.step`` did."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class BlockReport:
    """The end of a block in which somebody had data.

    ``samples`` are those of all subgroups in the block; ``not_finite`` counts the subgroups whose
    model had overflowed and was left out; ``spread`` is the subgroups' root mean square distance
    from their mean, over the length of the mean move; ``waiting_seconds`` passed on this rank until
    the other subgroups came.
    """

    block: int
    samples: float
    not_finite: int
    spread: float
    waiting_seconds: float


@dataclasses.dataclass(frozen=True)
class StepReport:
    """One step of one rank.

    ``stepped`` is False when no rank of the subgroup brought a finite gradient, so that the
    optimizer took no step. ``synchronous`` is True in the steps of warm-up before the first block,
    in which all ranks are one subgroup. ``samples`` are the subgroup's; ``not_finite`` counts its
    ranks whose gradient was left out.

    Bytes are what this rank sent in this step, or received: ``inner_payload`` what tier 1's entries
    and headers needed, ``inner_wire`` what went out (a message has its capacity's size),
    ``host_wire`` the part of it that stayed inside the host (all of it where the subgroup is on
    one, else ``DenseInHost``'s), ``outer_wire`` all of tier 2.

    ``density`` (sent quanta an element and worker), ``residual_norm``, ``residual_ratio`` (largest
    ``|r| / tau``, 1 if smaller) and ``overflow`` (quanta that did not fit the message) are GTC's,
    with ``DenseInHost`` those of this rank's part of the model; None or 0 otherwise.

    ``encode_seconds``, ``exchange_seconds`` and ``decode_seconds`` are tier 1's, ``filter_seconds``
    tier 2's, as this process sees them: a GPU may still be at work. ``waiting_seconds`` is the part
    of tier 1's exchange that passed until the slowest rank came; GTC's is that of the step before,
    since it takes another message to tell. ``block`` is set when a block ended.
    """

    step: int
    stepped: bool
    synchronous: bool
    samples: float
    not_finite: int
    inner_payload_bytes: int
    inner_wire_bytes: int
    host_wire_bytes: int
    outer_wire_bytes: int
    inner_received_bytes: int
    outer_received_bytes: int
    density: float | None
    residual_norm: float | None
    residual_ratio: float | None
    overflow: int
    encode_seconds: float
    exchange_seconds: float
    waiting_seconds: float
    decode_seconds: float
    filter_seconds: float
    block: BlockReport | None
