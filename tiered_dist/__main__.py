"""``python -m tiered_dist inspect CHECKPOINT``: what a checkpoint of ``save_checkpoint`` holds."""

import argparse
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from tiered_dist.checkpoint import list_checkpoints, read_part


def main(arguments: list[str] | None = None) -> int:
    """Print it; the exit status is 2 where there is no checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m tiered_dist", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="inspect")
    verb = verbs.add_parser("inspect", help="print what a checkpoint holds")
    verb.add_argument("checkpoint", type=Path, help="step-*, or a directory of them: the newest")
    path = parser.parse_args(arguments).checkpoint
    if not (path / "shared.pt").exists():
        path = (list_checkpoints(path) or [path])[-1]
    if not (path / "shared.pt").exists():
        print(f"error: {path}: no checkpoint (no shared.pt)", file=sys.stderr)
        return 2
    print("\n".join([str(path), *describe(path)]))
    return 0


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
