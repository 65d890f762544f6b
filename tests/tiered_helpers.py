"""Small models and trainers: of gradients that a test sets by hand, and of real ones."""

import hashlib

import torch
from torch import nn

from tiered_dist import GTC, TargetDensity, TieredTrainer, Topology


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
    getattr(state, "_gtc", state)._dense_is_smaller = lambda capacity: False


def noise(*seed, size=50):
    generator = torch.Generator().manual_seed(sum(s * 1000**i for i, s in enumerate(seed)))
    return torch.randn(size, generator=generator)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def checksum(model):
    return hashlib.sha256(flat(model).numpy().tobytes()).hexdigest()


GTC_TEST = GTC(TargetDensity(end=0.05, start=0.25, ramp_steps=10), max_quanta=4)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def make_trainer(
    subgroups, inner, outer=None, clip=None, seed=0, lr=0.1, momentum=0.9, timeout_seconds=60
):
    topology = Topology.build(subgroups, timeout_seconds)
    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return TieredTrainer(model, optimizer, topology, inner, outer, clip)


def data(rank, step, size):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :4].sin()


def backward(trainer, step, size=None):
    rank = trainer.topology.rank
    inputs, targets = data(rank, step, size or 4 + rank)
    nn.functional.mse_loss(trainer.model(inputs), targets).backward()
    return len(inputs)
