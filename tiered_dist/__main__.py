"""``python -m tiered_dist``: ``inspect`` a checkpoint, or ``plan`` a training before it runs."""

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from tiered_dist import plan
from tiered_dist.checkpoint import list_checkpoints, read_part
from tiered_dist.cost_model import Constants

FITTED = Path(__file__).with_name("fitted_constants.json")


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; the exit status is 2 for what cannot be."""
    parser = argparse.ArgumentParser(prog="python -m tiered_dist", description=__doc__)
    verbs = parser.add_subparsers(required=True, dest="verb", metavar="inspect | plan")
    verb = verbs.add_parser("inspect", help="print what a checkpoint holds")
    verb.add_argument("checkpoint", type=Path, help="step-*, or a directory of them: the newest")
    _add_plan(verbs.add_parser("plan", help="how fast four systems would be", **PLAN_HELP))
    options = parser.parse_args(arguments)
    try:
        print(_inspect(options.checkpoint) if options.verb == "inspect" else _plan(options))
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


PLAN_HELP: dict[str, Any] = {
    "description": plan.__doc__,
    "formatter_class": argparse.RawDescriptionHelpFormatter,
    "epilog": "example: python -m tiered_dist plan --hosts 16 --gpus 8 --parameters 24e6 "
    "--step-ms 250 --link-gbit 25",
}


def _add_plan(verb: argparse.ArgumentParser) -> None:
    """The options of ``plan``: those of ``plan.Question``, and where the answer goes."""
    needed: dict[str, Any] = {"type": float, "required": True, "metavar": "X"}
    verb.add_argument("--hosts", type=int, required=True, metavar="N", help="up to so many")
    verb.add_argument("--gpus", type=int, required=True, metavar="N", help="of a host")
    verb.add_argument("--parameters", **needed, help="of the model, say 24e6")
    verb.add_argument("--step-ms", **needed, help="forward and backward of a step on one GPU")
    verb.add_argument("--link-gbit", **needed, help="of a host's link, each way, in Gbit/s")
    given: dict[str, Any] = {"type": float, "metavar": "X"}
    verb.add_argument(
        "--longest-block",
        type=int,
        nargs=2,
        default=(50, 50),
        metavar=("BMUF", "TIERS"),
        help="longest blocks, in steps, that do BMUF alone and two tiers no harm (default: 50 50)",
    )
    verb.add_argument(
        "--density", **given, default=0.01, help="GTC's lowest harmless (default: %(default)s)"
    )
    verb.add_argument(
        "--spread",
        **given,
        default=0.05,
        help="standard deviation of a step's computation over its mean (default: %(default)s)",
    )
    verb.add_argument(
        "--host-gbyte",
        **given,
        default=100.0,
        help="GB/s that a GPU can send, to another of its host or to the link; the default, "
        "%(default)s, is for NVLink, PCIe 3 has about 10",
    )
    verb.add_argument(
        "--memory-gbyte",
        **given,
        default=900.0,
        help="GB/s of a GPU's memory (default: %(default)s, a V100's)",
    )
    verb.add_argument(
        "--overlap",
        **given,
        default=2 / 3,
        help="share of the computation behind which dense can hide (default: two thirds, the "
        "backward pass)",
    )
    verb.add_argument(
        "--bucket-mbyte",
        **given,
        default=25.0,
        help="what dense cannot hide, the last bucket (default: %(default)s, as "
        "DistributedDataParallel's)",
    )
    verb.add_argument(
        "--latency-us", **given, help="of a round of messages (default: as in --constants)"
    )
    verb.add_argument(
        "--constants",
        type=Path,
        default=FITTED,
        metavar="FILE",
        help="what benchmarks/hosts.py fit wrote (default: what comes with the package)",
    )
    verb.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    verb.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw speed-up against GPUs")


def _plan(options: argparse.Namespace) -> str:
    """The plan as text, with a file of figures or a picture where they are asked for."""
    constants = Constants.load(options.constants)
    if options.latency_us is not None:
        constants = dataclasses.replace(
            constants, latency_seconds=options.latency_us / 1e6, message_seconds=0.0
        )
    names = {field.name for field in dataclasses.fields(plan.Question)} - {"constants"}
    values = {name: getattr(options, name) for name in names}
    if not math.isfinite(options.parameters):
        raise ValueError(f"--parameters {options.parameters}: a number")
    values |= {
        "parameters": int(options.parameters),
        "longest_block": tuple(options.longest_block),
    }
    answer = plan.plan(plan.Question(**values, constants=constants))
    if options.json is not None:
        options.json.write_text(json.dumps(plan.as_dict(answer), indent=2) + "\n")
    if options.figure is not None:
        plan.draw(answer, options.figure)
    return plan.render(answer)


def _inspect(path: Path) -> str:
    if not (path / "shared.pt").exists():
        path = (list_checkpoints(path) or [path])[-1]
    if not (path / "shared.pt").exists():
        raise ValueError(f"{path}: no checkpoint (no shared.pt)")
    return "\n".join([str(path), *describe(path)])


def describe(path: Path) -> list[str]:
    """Lines about a checkpoint's shared, subgroup and rank parts."""
    shared = read_part(path / "shared.pt")
    lines = [
        f"  {shared['steps']} steps, {shared['blocks']} blocks; the running one began at step "
        f"{shared['block_start']}",
        f"  subgroups of ranks: {shared['subgroups']}",
    ]
    for key, what in (("filter_model", "W"), ("filter_update", "block update D")):
        if key in shared:
            lines.append(f"  {what}: {_size(shared[key])}")
    if shared.get("caller"):
        lines.append(f"  the caller's: {', '.join(sorted(shared['caller']))}")
    lines += [_describe_subgroup(read_part(file)) for file in sorted(path.glob("subgroup-*.pt"))]
    lines += [_describe_rank(read_part(file)) for file in sorted(path.glob("rank-*.pt"))]
    return lines


def _describe_subgroup(part: dict[str, Any]) -> str:
    held = part["optimizer"]["state"]
    line = f"  subgroup {part['subgroup']}: {_size(part['model'])}, optimizer state of {len(held)}"
    return line + _describe_taus(part["inner"])


def _describe_taus(agreed: dict[str, Any]) -> str:
    taus = agreed.get("taus")
    if not taus:
        return ""
    least, most = min(taus, key=taus.get), max(taus, key=taus.get)
    return (
        f", tau from {taus[least]:.3g} ({least}) to {taus[most]:.3g} ({most}), "
        f"capacity {agreed['capacity']}, {agreed['reference']:g} samples a batch"
    )


def _describe_rank(part: dict[str, Any]) -> str:
    inner = part["inner"]
    held = [f"{what}: {_size(inner[what])}" for what in ("residual", "velocity") if what in inner]
    line = f"  rank {part['rank']}: {', '.join(held) or 'nothing of its own'}"
    return line + _describe_taus(inner.get("agreed", {}))


def _size(named: dict[str, Tensor]) -> str:
    elements = sum(value.numel() for value in named.values())
    norm = sum(float(value.double().square().sum()) for value in named.values()) ** 0.5
    return f"{elements:,} elements in {len(named)} tensors, norm {norm:.4g}"


if __name__ == "__main__":
    sys.exit(main())
