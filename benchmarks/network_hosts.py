"""Hosts that are real to the kernel, on one machine, for a command and for as long as it runs.

    python benchmarks/network_hosts.py --hosts 4 --mbit 100 COMMAND...

Each host is a network namespace with one link, ``eth0``, to a switch; both directions of the link
are shaped to a rate by a token bucket. The command finds the hosts by ``ip netns exec host0 ...``,
and a Python process moves to one by ``enter``. Between hosts there is no other way than the links;
files and processors are shared.

Nothing is left behind, however the command ends: hosts and switch live in namespaces of the command
itself and of what it starts, with a ``/run`` of their own, and go when the last of these processes
does. The machine's own network is neither seen nor changed.

It needs Linux, iproute2 (``ip``, ``tc``) and root, or a kernel that lets users make namespaces.
Where hosts cannot be made the status is 77 and the reason is printed; else it is the command's.
"""

import argparse
import ctypes
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

CANNOT = 77  # what test drivers of many kinds take for "skipped"
MOST_HOSTS = 250
LINK = "eth0"
NEW_MOUNTS, NEW_HOST_NAME, NEW_USER, NEW_NETWORK = 0x20000, 0x4000000, 0x10000000, 0x40000000
# The bucket holds this much of the rate, and at least two frames: a burst that it lets through at
# full speed must be small beside the messages that are timed.
BURST_SECONDS, LEAST_BURST_BYTES = 0.0005, 2 * 1514
# The queue never drops a packet: real switches do, but what TCP then makes of it is not asked here.
QUEUE_BYTES = 1 << 26
PATIENCE_SECONDS = 20


class CannotMakeHosts(Exception):
    """This machine or user does not allow it; the message says why."""


def main(words: Sequence[str]) -> int:
    """Make the hosts and become the command."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s --hosts N [--mbit RATE] COMMAND...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="N")
    parser.add_argument("--mbit", type=float, metavar="RATE", help="of a link (default: unshaped)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if not 1 <= options.hosts <= MOST_HOSTS:
        parser.error(f"--hosts {options.hosts}: from 1 to {MOST_HOSTS}")
    if options.mbit is not None and not options.mbit > 0:
        parser.error(f"--mbit {options.mbit}: above 0")
    if not options.command:
        parser.error("name a command")
    try:
        make_hosts(options.hosts, options.mbit)
    except CannotMakeHosts as error:
        print(f"network_hosts: {error}", file=sys.stderr)
        return CANNOT
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        parser.error(f"{options.command[0]}: {error.strerror}")


def make_hosts(number: int, mbit: float | None) -> None:
    """Move this process to namespaces of its own, with ``number`` hosts; ``enter`` finds them.

    ``mbit`` is a link's rate, in each direction, in 1e6 bits a second; None does not shape it.
    CannotMakeHosts where that is not allowed. To be called by a process with one thread.
    """
    try:
        _leave_network()
    except OSError as error:
        raise CannotMakeHosts(f"namespaces are not allowed here: {error}") from None
    _run("mount --make-rprivate /")
    _run("mount -t tmpfs tmpfs /run")  # where ip keeps the names of namespaces
    # By name it stays, with the switch, when all processes have moved to hosts.
    _run(f"ip netns attach switch {os.getpid()}")
    _run("ip link set lo up")
    _run("ip link add switch type bridge")
    _run("ip link set switch up")
    for host in range(number):
        _run(f"ip netns add {name(host)}")
        _run(f"ip link add port{host} type veth peer name {LINK} netns {name(host)}")
        _run(f"ip link set port{host} master switch up")
        _run(f"ip -n {name(host)} link set lo up")
        _run(f"ip -n {name(host)} address add 10.0.0.{host + 1}/24 dev {LINK}")
        _run(f"ip -n {name(host)} link set {LINK} up")
        if mbit is not None:
            burst = max(LEAST_BURST_BYTES, int(mbit * 1e6 / 8 * BURST_SECONDS))
            bucket = f"root tbf rate {mbit}mbit burst {burst} limit {QUEUE_BYTES}"
            _run(f"tc qdisc add dev port{host} {bucket}")
            _run(f"tc -n {name(host)} qdisc add dev {LINK} {bucket}")
    _wait_for_links(number)


def enter(host: int) -> None:
    """Move this process to a host: its network, its host name, and gloo's choice of a link.

    To be called by a process with one thread, before it joins a process group.
    """
    network = os.open(f"/run/netns/{name(host)}", os.O_RDONLY)
    _call("setns", network, NEW_NETWORK)
    os.close(network)
    _call("unshare", NEW_HOST_NAME)
    socket.sethostname(name(host))
    os.environ["GLOO_SOCKET_IFNAME"] = LINK


def sent_bytes() -> dict[str, int]:
    """What has been sent by each interface of the host that this process is on, by name.

    Frames with their headers, and acknowledgements. ``lo`` carries what ranks of one host exchange.
    """
    with open("/proc/thread-self/net/dev") as file:
        lines = file.read().splitlines()[2:]
    fields = (line.partition(":") for line in lines)
    return {interface.strip(): int(counts.split()[8]) for interface, _, counts in fields}


def name(host: int) -> str:
    """A host's name."""
    return f"host{host}"


def _leave_network() -> None:
    """New network and mount namespaces; a user who is not root needs one of users, too."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call("unshare", NEW_NETWORK | NEW_MOUNTS)
        return
    _call("unshare", NEW_USER | NEW_NETWORK | NEW_MOUNTS)
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w") as mapping:
            mapping.write(text)


def _call(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


def _wait_for_links(number: int) -> None:
    """Until the switch forwards: it may take a second, and what was sent before is lost."""
    end = time.monotonic() + PATIENCE_SECONDS
    while _run("ip -details link show master switch").count("state forwarding") < number:
        if time.monotonic() > end:
            raise CannotMakeHosts(f"the links are not up after {PATIENCE_SECONDS} s")
        time.sleep(0.02)


def _run(command: str) -> str:
    try:
        result = subprocess.run(shlex.split(command), capture_output=True, text=True)
    except FileNotFoundError as error:
        raise CannotMakeHosts(f"{error.filename}: no such program") from None
    if result.returncode:
        raise CannotMakeHosts(f"{command}: {result.stderr.strip()}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
