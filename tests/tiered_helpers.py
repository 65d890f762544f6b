"""Models whose gradients a test sets by hand, and trainers of them."""

import hashlib

import torch
from torch import nn

from tiered_dist import TieredTrainer, Topology


class Vector(nn.Module):
    """Parameters whose gradients the tests set by hand."""

    def __init__(self, sizes=(50,)):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])


def hand_trainer(model, subgroups, inner, outer=None, clip=None, lr=1.0, ranks_per_host=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    topology = Topology.build(subgroups, ranks_per_host=ranks_per_host)
    return TieredTrainer(model, optimizer, topology, inner, outer, clip)


def only_entries(trainer):
    """Keep tiny models, which a dense all-reduce serves better, with GTC's messages."""
    state = trainer._inner
    getattr(state, "_gtc", state)._dense_is_smaller = lambda: False


def noise(*seed, size=50):
    generator = torch.Generator().manual_seed(sum(s * 1000**i for i, s in enumerate(seed)))
    return torch.randn(size, generator=generator)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def checksum(model):
    return hashlib.sha256(flat(model).numpy().tobytes()).hexdigest()
