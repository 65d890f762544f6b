"""Two-tier data-parallel training: gradients inside subgroups, models across them.

GTC (Strom 2015) or a dense all-reduce inside each subgroup every step, BMUF (Chen and Huo 2016)
across subgroups every block, as in Ladkat et al., Interspeech 2019.
"""

from tiered_dist.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from tiered_dist.exchange import ExchangeError
from tiered_dist.gtc import GTC
from tiered_dist.host_level import DenseInHost
from tiered_dist.inner import Dense
from tiered_dist.outer import BMUF, diloco, model_averaging, slowmo
from tiered_dist.report import BlockReport, StepReport
from tiered_dist.threshold import FixedThreshold, TargetDensity
from tiered_dist.topology import (
    Topology,
    init_process_group,
    launched_as_rank,
    local_device,
)
from tiered_dist.trainer import TieredTrainer

__all__ = [
    "BMUF",
    "GTC",
    "BlockReport",
    "Dense",
    "DenseInHost",
    "ExchangeError",
    "FixedThreshold",
    "StepReport",
    "TargetDensity",
    "TieredTrainer",
    "Topology",
    "diloco",
    "init_process_group",
    "launched_as_rank",
    "list_checkpoints",
    "load_checkpoint",
    "local_device",
    "model_averaging",
    "save_checkpoint",
    "slowmo",
]
