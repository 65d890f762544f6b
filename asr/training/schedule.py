"""The learning rate over a run."""

import dataclasses


@dataclasses.dataclass
class ScheduleConfig:
    """Linear warm-up over ``warmup`` (a fraction of all steps) from ``start`` times the learning
    rate, constant up to ``hold``, then linear decay to ``final`` times the learning rate."""

    warmup: float = 0.1
    hold: float = 0.4
    start: float = 0.1
    final: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= self.hold <= 1:
            raise ValueError(
                f"schedule.warmup={self.warmup}, hold={self.hold}: 0 <= warmup <= hold <= 1"
            )

    def factor(self, done: float) -> float:
        """What multiplies the learning rate when the share ``done`` of all steps is done."""
        done = min(done, 1.0)
        if done < self.warmup:
            return self.start + (1 - self.start) * done / self.warmup
        if done <= self.hold:
            return 1.0
        return 1 - (1 - self.final) * (done - self.hold) / (1 - self.hold)
