"""What a survivor finds out about the ranks that did not come; real processes, a real store."""

import dataclasses
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch.distributed as dist

from tiered_dist.postmortem import Place, Postmortem


@pytest.fixture
def store(tmp_path):
    return dist.FileStore(str(tmp_path / "store"), 4)


@pytest.fixture
def child():
    """The place of a process that sleeps, and the process."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield dataclasses.replace(Place.here(), pid=process.pid), process
    process.kill()
    process.wait()


def wait_for(place, state):
    for _ in range(100):
        if place.state(Place.here()) == state:
            return True
        time.sleep(0.05)
    return False


def test_sees_what_became_of_a_process_on_this_host(child):
    place, process = child
    assert place.state(Place.here()) is None
    process.send_signal(signal.SIGSTOP)
    assert wait_for(place, "is stopped")
    process.send_signal(signal.SIGCONT)
    assert wait_for(place, None)
    process.kill()
    assert wait_for(place, "has ended")  # a zombie yet
    process.wait()
    assert wait_for(place, "has ended")


@pytest.mark.parametrize("field", ["host", "namespace"])
def test_a_pid_of_elsewhere_says_nothing(child, field):
    place, process = child
    process.kill()
    process.wait()
    assert dataclasses.replace(place, **{field: "elsewhere"}).state(Place.here()) is None


def places(dead):
    """Four ranks: two here, a dead one, and one on another host."""
    here = Place.here()
    return [here, here, dead, dataclasses.replace(here, host="far")]


def test_the_dead_are_named_before_the_silent(store, child, monkeypatch):
    place, process = child
    process.kill()
    process.wait()
    monkeypatch.setattr("tiered_dist.postmortem.PATIENCE_SECONDS", 0.3)
    found = Postmortem(0, places(place), store).find([0, 2, 3])
    assert found == f"rank 2 has ended (pid {place.pid})"


def test_a_silent_rank_on_another_host_is_named_after_some_patience(store, child, monkeypatch):
    monkeypatch.setattr("tiered_dist.postmortem.PATIENCE_SECONDS", 0.5)
    both = places(child[0])
    threading.Timer(0.2, Postmortem(1, both, store).find, args=([1],)).start()
    assert Postmortem(0, both, store).find([0, 1, 3]) == "rank 3 on far does not answer"


def test_what_a_partner_has_found_before_is_passed_on(store, child):
    place, process = child
    process.kill()
    process.wait()
    both = places(place)
    dead = f"rank 2 has ended (pid {place.pid})"
    assert Postmortem(0, both, store).find([0, 2]) == dead
    assert Postmortem(1, both, store).find([0, 1]) == f"after rank 0 gave up: {dead}"
    assert Postmortem(3, both, store).find([1, 3]) == f"after rank 0 gave up: {dead}"


def test_nobody_is_blamed_where_all_are_alive(store, child):
    both = places(child[0])
    assert Postmortem(0, both, store).find([0]) == "all of these ranks are alive"


def test_a_store_that_is_gone_is_said_to_be(child):
    class Gone:
        def set(self, key, value):
            raise RuntimeError("connection refused")

    found = Postmortem(0, places(child[0]), Gone()).find([0, 1])
    assert "the store does not answer (connection refused)" in found
