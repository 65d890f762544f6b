"""Hosts made of network namespaces, and ranks that train over their links."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))  # what they import of each other

import hosts as benchmark  # noqa: E402

from tiered_dist.cost_model import Constants  # noqa: E402
from tiered_dist.costs import block_traffic, step_traffic  # noqa: E402

CANNOT = 77
TALK = """
import os, socket, sys
import network_hosts
server, client = os.pipe(), os.fork()
if client == 0:
    network_hosts.enter(1)
    with socket.create_server(("10.0.0.2", 5000)) as listening:
        listening.settimeout(30)
        os.write(server[1], b"x")
        connection, (peer, _) = listening.accept()
        received = 0
        while part := connection.recv(65536):
            received += len(part)
        print(socket.gethostname(), peer, received, flush=True)
    os._exit(0)
network_hosts.enter(0)
os.read(server[0], 1)
before = network_hosts.sent_bytes()
with socket.create_connection(("10.0.0.2", 5000)) as connection:
    connection.sendall(bytes(300_000))
os.waitpid(client, 0)
after = network_hosts.sent_bytes()
print(sorted(after), after["eth0"] - before["eth0"], os.environ["GLOO_SOCKET_IFNAME"])
"""


def on_hosts(*words, **options):
    command = [sys.executable, str(BENCHMARKS / "network_hosts.py"), *words]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{BENCHMARKS}"} | options
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def allowed():
    """Skips where no hosts can be made, with the reason."""
    result = on_hosts("--hosts", "1", "true")
    if result.returncode == CANNOT:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr


def networks(mark):
    """The network namespaces of the processes that have ``mark`` in their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.add(os.readlink(process / "ns/net"))
        except OSError:  # it has ended, or is not ours to see
            continue
    return found


def test_hosts_reach_each_other_by_their_links_alone(allowed):
    result = on_hosts("--hosts", "2", sys.executable, "-c", TALK)
    assert result.returncode == 0, result.stderr
    heard, sent = result.stdout.splitlines()
    assert heard == "host1 10.0.0.1 300000"
    interfaces, counted, gloo = sent.rsplit(" ", 2)
    assert interfaces == "['eth0', 'lo']" and gloo == "eth0"
    assert 300_000 < int(counted) < 330_000


def test_both_directions_of_a_link_have_its_rate(allowed):
    script = "tc qdisc show dev port1; tc -n host1 qdisc show dev eth0; ip -br link show type veth"
    shaped = on_hosts("--hosts", "2", "--mbit", "100", "sh", "-c", script).stdout
    assert shaped.count("tbf") == shaped.count("rate 100Mbit burst 6") == 2
    assert shaped.count("port") == 2 + shaped.count("dev port")
    assert "tbf" not in on_hosts("--hosts", "2", "sh", "-c", script).stdout


def test_the_status_is_the_commands(allowed):
    assert on_hosts("--hosts", "1", "sh", "-c", "exit 5").returncode == 5
    result = on_hosts("--hosts", "1", "no-such-program")
    assert result.returncode == 2 and "no-such-program" in result.stderr


def test_where_hosts_cannot_be_made_it_says_why(allowed):
    result = on_hosts("--hosts", "1", "true", PATH="/no/such/folder")
    assert result.returncode == CANNOT and "no such program" in result.stderr
    result = on_hosts("--hosts", "1", "--mbit", "1e-9", "true")  # the kernel has no such rate
    assert result.returncode == CANNOT and "tc qdisc add" in result.stderr


@pytest.mark.parametrize(
    "words", [["--hosts", "0", "true"], ["--hosts", "2", "--mbit", "0", "true"], ["--hosts", "2"]]
)
def test_bad_words_are_an_error(words):
    assert on_hosts(*words).returncode == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_killed_command(number, allowed):
    interfaces, mark = sorted(os.listdir("/sys/class/net")), uuid.uuid4().hex
    script = "for host in host0 host1; do ip netns exec $host sleep 100 & done; wait"
    running = subprocess.Popen(
        [sys.executable, BENCHMARKS / "network_hosts.py", "--hosts", "2", "sh", "-c", script],
        env=os.environ | {"MARK": mark},
        start_new_session=True,
    )
    try:
        assert wait_for(lambda: len(networks(mark)) == 3)  # two hosts, and the switch's
        assert sorted(os.listdir("/sys/class/net")) == interfaces
    finally:
        os.killpg(running.pid, number)
        running.wait()
    assert wait_for(lambda: not networks(mark))
    assert not Path("/run/netns").exists() or not list(Path("/run/netns").glob("host[01]"))


def wait_for(condition):
    end = time.monotonic() + 300  # imports take long on a busy machine
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def settings(system, **changed):
    values = {"hosts": 2, "ranks_per_host": 2, "mbit": 200.0, "hidden": 24}
    values |= {"compute_seconds": 0.01, "spread": 0.1, "density": 0.05}
    return benchmark.Settings(system, **(values | {"block_steps": 3, "blocks": 2} | changed))


@pytest.fixture(scope="module")
def rows(allowed):
    """One of each system, of real ranks on two hosts."""
    status, found = benchmark.run_ranks([settings(name) for name in benchmark.systems(0.05)])
    assert status == 0
    return {row["settings"]["system"]: row for row in found}


@pytest.mark.parametrize("name", benchmark.systems(0.05))
def test_interfaces_count_what_the_step_reports(name, rows):
    row = rows[name]
    assert benchmark.bytes_agree(row)
    for factor in (0.5, 1.5):  # half or more of it not counted, or not reported
        assert not benchmark.bytes_agree(row | {"reported_bytes": factor * row["reported_bytes"]})


@pytest.mark.parametrize("name", ["dense", "BMUF"])
def test_a_link_carries_what_costs_say(name, rows):
    known = benchmark.case(rows[name], pass_seconds=0.0)
    step = step_traffic(known.world, known.inner, known.layout, step=0)
    block = block_traffic(known.world, known.layout.total) if known.has_blocks else []
    said = sum(6 * traffic.leaving_host(known.world.hosts) for traffic in step)
    said += sum(2 * traffic.leaving_host(known.world.hosts) for traffic in block)
    # Headers and acknowledgements come on top; a rank's messages are small here.
    assert said < rows[name]["link_bytes"] < 1.3 * said


def test_what_is_measured_adds_up(rows):
    for name, row in rows.items():
        assert row["compute_seconds"] > 0.005
        parts = sum(row[f"{part}_seconds"] for part in ("encode", "exchange", "decode"))
        assert row["compute_seconds"] + parts <= row["step_seconds"]
        assert (row["block_seconds"] > 0) == (name in ("BMUF", "two tiers"))
        assert row["block_waiting_seconds"] <= row["block_seconds"]
    assert rows["two tiers"]["reported_bytes"] < rows["dense"]["reported_bytes"]


def test_what_is_measured_is_kept_fitted_and_shown(allowed, tmp_path, capsys):
    """It measures what is missing alone, and fits and prints what there is."""
    path, out = tmp_path / "hosts.jsonl", tmp_path / "constants.json"

    def printed(*words):
        assert benchmark.main(["--results", str(path), *words]) == 0
        return capsys.readouterr().out

    codec = {"kind": "codec", "density": 0.01, "workers": 2, "pass_seconds": 1e-9, "seconds": 0.1}
    kept = [codec, made_up(1, 1, 0.02) | {"kind": "alone"}]
    kept += [made_up(hosts, 2, step) for hosts, step in ((2, 0.1), (4, 0.2), (8, 0.4))]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    small = ["--hidden", "24", "--compute-ms", "5", "--block-steps", "2", "--blocks", "1"]
    one = ["measure", "--hosts", "2", "--mbit", "none", "--systems", "BMUF", *small]
    assert "BMUF        2 hosts  no limit" in printed(*one)
    measured = path.read_text()
    assert printed(*one) == "" and path.read_text() == measured
    said = printed("fit", "--hosts", "2", "4", "--mbit", "100", "none", "--out", str(out))
    assert "fitted on 3 rows" in said and "1 rows: median error" in said
    assert Constants.load(out).link_stretch >= 0
    assert "| 8 | 16 | 100 | 400 (25) |  |  |  | 1.010 to 1.010 |" in printed("table")


def test_there_is_no_fit_of_nothing(tmp_path, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--results", str(tmp_path / "none"), "fit", "--out", str(tmp_path / "c")])
    assert "measure first" in capsys.readouterr().err and not (tmp_path / "c").exists()


def test_figures_come_into_the_document(tmp_path):
    path = tmp_path / "speed.md"
    path.write_text("a\n<!-- one -->\nold\n<!-- /one -->\nb\n<!-- two -->\n<!-- /two -->\nc\n")
    benchmark.document(path, {"one": "new\nlines"})
    assert "a\n<!-- one -->\nnew\nlines\n<!-- /one -->\nb\n" in path.read_text()
    with pytest.raises(ValueError, match="no place for what is three"):
        benchmark.document(path, {"three": "x"})
    command = " ".join(benchmark.PLAN)
    for name in ("measured", "fitted", "modelled"):
        assert (ROOT / "docs/speed.md").read_text().count(f"<!-- {name} -->\n") == 1
    assert command in (ROOT / "docs/speed.md").read_text()


def made_up(hosts, ranks_per_host, step):
    """A row of dense, or of one rank alone, as measure might have written it."""
    values = vars(settings("dense", hosts=hosts, ranks_per_host=ranks_per_host, mbit=100.0))
    row = dict.fromkeys(benchmark.SECONDS, 0.0)
    row |= {"compute_seconds": 0.01, "step_seconds": step, "waiting_seconds": 0.025}
    row |= {"reported_bytes": 1000, "interface_bytes": 1010, "link_bytes": 500, "processors": 2}
    return {"kind": "hosts", "settings": values} | row


def test_ranks_and_hosts_go_with_the_benchmark_that_is_killed(allowed, tmp_path):
    mark = uuid.uuid4().hex
    command = [sys.executable, BENCHMARKS / "hosts.py", "--results", tmp_path / "hosts.jsonl"]
    (tmp_path / "hosts.jsonl").write_text('{"kind": "alone"}\n')
    words = [
        "measure",
        "--hosts",
        "2",
        "--mbit",
        "50",
        "--systems",
        "dense",
        "--compute-ms",
        "5000",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MARK": mark}
    running = subprocess.Popen([*command, *words], env=environment, stderr=subprocess.DEVNULL)
    try:
        # This machine's, the switch's, and two hosts', where the ranks are.
        assert wait_for(lambda: len(networks(mark)) == 4)
    finally:
        running.kill()
        running.wait()
    assert wait_for(lambda: not networks(mark))
