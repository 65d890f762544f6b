"""How long steps and blocks take: mathematics alone, from bytes, rounds of messages and constants.

Bytes and rounds are those of ``costs``. A step lasts as long as its computation, the passes of the
trainer over the model, what its collectives take, and the wait for the slowest rank of the
subgroup; a block's end as long as tier 2's collectives and the wait for the slowest subgroup. A
collective takes a latency for each round of messages, the bits that leave a host over the link's
rate, and the bytes that a rank sends over the rate at which it can send. It is the model of Hockney
(1994), with rings as in Patarasuk and Yuan (2009). Step times of ranks are independent and normal
about one mean, so that a wait is that of the largest of n normal numbers.

Everything is linear in the ``Constants``, which is how ``fit`` finds them.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from tiered_dist.costs import Traffic, World, block_traffic, residual_elements, step_traffic
from tiered_dist.gtc import GTC
from tiered_dist.host_level import DenseInHost
from tiered_dist.inner import Dense
from tiered_dist.layout import ParameterLayout

# What each constant is multiplied by, of one step or one block's end.
Amounts = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Constants:
    """What is fitted, none of it negative.

    Messages: ``latency_seconds`` of a round of them, ``message_seconds`` of a processor's time for
    one, ``byte_seconds`` for a rank to send a byte, ``link_stretch``, how many times longer a link
    takes than its rate says. ``straggling``: how many times longer ranks wait than normal step
    times say.

    Work: seconds of a processor whatever the model's size, and passes over the model; a *pass* is
    ``residual.add_(gradient)``, which processors of all kinds do at their memory's speed.
    ``trainer_...`` is a step's by any tier, with the optimizer's, ``codec_...`` GTC's encoding and
    decoding, ``filter_...`` a block's end. ``encode_entry_passes`` and ``decode_entry_passes`` are
    an entry's, as multiples of an element's share in a pass. ``source``: where all come from.
    """

    latency_seconds: float = 0.0
    message_seconds: float = 0.0
    byte_seconds: float = 0.0
    link_stretch: float = 1.0
    straggling: float = 1.0
    trainer_seconds: float = 0.0
    trainer_passes: float = 0.0
    codec_seconds: float = 0.0
    codec_passes: float = 0.0
    filter_seconds: float = 0.0
    filter_passes: float = 0.0
    encode_entry_passes: float = 0.0
    decode_entry_passes: float = 0.0
    source: str = "given"

    @classmethod
    def names(cls) -> list[str]:
        """All of them but ``source``."""
        return [field.name for field in dataclasses.fields(cls) if field.name != "source"]

    @classmethod
    def of_work(cls) -> list[str]:
        """Those that a rank shows that exchanges nothing."""
        parts = ("trainer_", "codec_", "filter_", "encode_", "decode_")
        return [name for name in cls.names() if name.startswith(parts)]

    @classmethod
    def load(cls, path: Path) -> "Constants":
        """Read what ``save`` wrote; ValueError for anything else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                **{name: float(values[name]) for name in cls.names()}, source=values["source"]
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: no constants of this cost model: {error}") from None

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        content = json.dumps(dataclasses.asdict(self), indent=2)
        path.write_text(content + "\n", encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is known of the machines: ``link_bits`` a second that a host's link carries in either
    direction (infinite: no limit), ``pass_seconds`` an element of ``residual.add_(gradient)``,
    ``crowd``, how many ranks share a processor, and ``spread``, the standard deviation of a rank's
    computation of a step over its mean."""

    link_bits: float
    pass_seconds: float
    crowd: float = 1.0
    spread: float = 0.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A training: ``compute_seconds`` is one rank's forward and backward pass. ``has_blocks``: with
    tier 2. ``overlap`` is the share of the computation behind which a dense exchange can hide, and
    ``tail`` the share of the exchange that cannot, since it is the last gradients'."""

    world: World
    inner: Dense | GTC | DenseInHost
    layout: ParameterLayout
    compute_seconds: float
    machine: Machine
    has_blocks: bool
    overlap: float = 0.0
    tail: float = 0.0


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a step and of a block's end, by part; ``at`` puts them together.

    ``block_waiting`` is that of a block of one step: it grows with the root of a block's steps.
    """

    ranks: int
    compute: float
    trainer: float
    tier_1: float
    waiting: float
    block: float
    block_waiting: float

    def at(self, block_steps: float) -> dict[str, float]:
        """Seconds a step by part, a block's end shared by its steps."""
        return {
            "compute": self.compute,
            "trainer": self.trainer,
            "tier 1": self.tier_1,
            "tier 2": self.block / block_steps,
            "waiting": self.waiting + self.block_waiting / math.sqrt(block_steps),
        }

    def step(self, block_steps: float) -> float:
        """Seconds a step in all."""
        return sum(self.at(block_steps).values())

    def speedup(self, block_steps: float) -> float:
        """Samples a second over those of one rank alone, which the same trainer steps."""
        return self.ranks * (self.compute + self.trainer) / self.step(block_steps)


def predict(case: Case, constants: Constants) -> Times:
    """The times of a training. ValueError for GTC with a fixed threshold."""
    step, block = step_amounts(case), block_amounts(case)
    exchange = seconds(step["tier 1"], constants)
    hidden = min(case.overlap * case.compute_seconds, (1 - case.tail) * exchange)
    return Times(
        ranks=len(case.world.hosts),
        compute=case.compute_seconds,
        trainer=seconds(step["trainer"], constants),
        tier_1=exchange - hidden,
        waiting=seconds(step["waiting"], constants),
        block=seconds(block["tier 2"], constants),
        block_waiting=seconds(block["waiting"], constants),
    )


def step_amounts(case: Case) -> dict[str, Amounts]:
    """What a step takes of each constant, by part: "trainer", "tier 1", "waiting"."""
    world, layout = case.world, case.layout
    tier_1: Amounts = {}
    for traffic in _step_traffic(world, case.inner, layout):
        _add(tier_1, _collective(case, traffic))
        _add(tier_1, _entries(case, traffic))
    if compressed := residual_elements(world, case.inner, layout.total):
        _add(tier_1, _work(case, "codec", compressed))
    wait, _ = largest_of(len(world.subgroups[0]))
    return {
        "trainer": _work(case, "trainer", layout.total),
        "tier 1": tier_1,
        "waiting": {"straggling": wait * _deviation(case)},
    }


def block_amounts(case: Case) -> dict[str, Amounts]:
    """The same of a block's end: "tier 2", and "waiting" in a block of one step."""
    tier_2: Amounts = {}
    if not case.has_blocks:
        return {"tier 2": tier_2, "waiting": {}}
    for traffic in block_traffic(case.world, case.layout.total):
        _add(tier_2, _collective(case, traffic))
    _add(tier_2, _work(case, "filter", case.layout.total))
    # Of a subgroup each step takes as long as its slowest rank.
    _, subgroup_deviation = largest_of(len(case.world.subgroups[0]))
    wait, _ = largest_of(len(case.world.subgroups))
    waiting = {"straggling": wait * subgroup_deviation * _deviation(case)}
    return {"tier 2": tier_2, "waiting": waiting}


def seconds(amounts: Amounts, constants: Constants) -> float:
    """What they take together."""
    return sum(getattr(constants, name) * amount for name, amount in amounts.items())


@dataclasses.dataclass(frozen=True)
class Observation:
    """Measured ``seconds``, what they take of each constant, and ``scale``: an error of so many
    seconds counts as much as one of another observation's scale."""

    amounts: Amounts
    seconds: float
    scale: float


def fit(observations: Sequence[Observation], names: Collection[str], known: Constants) -> Constants:
    """The constants ``names`` by non-negative least squares, the others as they are ``known``.

    Exact: the least of the unconstrained solutions over all subsets that have no negative part. A
    constant that no observation depends on is 0. ValueError without observations.
    """
    if not observations:
        raise ValueError("nothing was measured that constants could be fitted to")
    names = list(names)
    scales = np.array([observation.scale for observation in observations])
    rest = [_without(observation.amounts, names, known) for observation in observations]
    target = np.array([o.seconds for o in observations]) - np.array(rest)
    matrix = np.array([[o.amounts.get(name, 0.0) for name in names] for o in observations])
    weights = _least_squares(matrix / scales[:, None], target / scales)
    return dataclasses.replace(known, **dict(zip(names, weights.tolist(), strict=True)))


def _without(amounts: Amounts, names: Collection[str], known: Constants) -> float:
    return seconds({n: amount for n, amount in amounts.items() if n not in names}, known)


def _least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x of ``matrix (M, n) x = target (M,)``, none of it negative; for a small n."""
    sizes = np.abs(matrix).max(axis=0)
    matrix = matrix / np.where(sizes > 0, sizes, 1.0)
    best, least = np.zeros(matrix.shape[1]), float((target**2).sum())
    for number in range(1, matrix.shape[1] + 1):
        for chosen in itertools.combinations(range(matrix.shape[1]), number):
            columns = matrix[:, chosen]
            x = np.linalg.lstsq(columns, target, rcond=None)[0]
            error = float(((columns @ x - target) ** 2).sum())
            if x.min() >= 0 and error < least:
                best, least = np.zeros(matrix.shape[1]), error
                best[list(chosen)] = x
    return best / np.where(sizes > 0, sizes, 1.0)


@functools.cache
def largest_of(number: int) -> tuple[float, float]:
    """Mean and standard deviation of the largest of ``number`` independent standard normals."""
    if number == 1:
        return 0.0, 1.0
    x = np.linspace(-9, 9, 36_001)
    below = 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in x]))
    chance = np.diff(below**number)
    middle = (x[1:] + x[:-1]) / 2
    mean = float((chance * middle).sum())
    return mean, math.sqrt(float((chance * (middle - mean) ** 2).sum()))


@functools.lru_cache(maxsize=256)
def _step_traffic(
    world: World, inner: Dense | GTC | DenseInHost, layout: ParameterLayout
) -> tuple[Traffic, ...]:
    """Once for all links and constants: what GTC sends is found by making its state."""
    return tuple(step_traffic(world, inner, layout, step=0))


def _collective(case: Case, traffic: Traffic) -> Amounts:
    machine, bits = case.machine, 8 * traffic.leaving_host(case.world.hosts)
    return {
        "latency_seconds": traffic.rounds,
        "message_seconds": traffic.rounds * machine.crowd,
        "byte_seconds": traffic.wire * machine.crowd,
        "link_stretch": bits / machine.link_bits,
    }


def _entries(case: Case, traffic: Traffic) -> Amounts:
    return {
        "encode_entry_passes": _pass(case, traffic.entries),
        "decode_entry_passes": _pass(case, traffic.entries * len(traffic.groups[0])),
    }


def _work(case: Case, what: str, elements: int) -> Amounts:
    return {f"{what}_seconds": case.machine.crowd, f"{what}_passes": _pass(case, elements)}


def _pass(case: Case, elements: int) -> float:
    """Seconds of a pass over so many elements."""
    return elements * case.machine.pass_seconds * case.machine.crowd


def _deviation(case: Case) -> float:
    return case.machine.spread * case.compute_seconds


def _add(amounts: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0.0) + amount
