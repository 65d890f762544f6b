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


def test_what_cannot_be_looked_at_is_not_called_dead(child, monkeypatch):
    def no_descriptors(*arguments):
        raise OSError(24, "too many open files")

    monkeypatch.setattr("builtins.open", no_descriptors)
    assert child[0].state(Place.here()) is None


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


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr("tiered_dist.postmortem.PATIENCE_SECONDS", 1.5)
    monkeypatch.setattr("tiered_dist.postmortem.TOGETHER_SECONDS", 0.5)


def places(dead):
    """Four ranks: two here, one that may be dead, and one on another host."""
    here = Place.here()
    return [here, here, dead, dataclasses.replace(here, host="far")]


def killed(child):
    place, process = child
    process.kill()
    process.wait()
    return place


def later(seconds, places, rank, store):
    """``rank`` gives up in so many seconds."""
    threading.Timer(seconds, Postmortem(rank, places, store).find, args=([rank],)).start()


def test_the_dead_are_named_before_the_silent(store, child):
    place = killed(child)
    found = Postmortem(0, places(place), store).find([0, 2, 3])
    assert found == f"rank 2 has ended (pid {place.pid})"


def test_who_is_dead_elsewhere_is_named_before_who_waits_for_it(store, child):
    place = killed(child)
    assert Postmortem(0, places(place), store).find([0, 1]) == f"rank 2 has ended (pid {place.pid})"


def test_a_silent_rank_on_another_host_is_named_after_some_patience(store, child):
    everywhere = places(child[0])
    later(0.2, everywhere, 1, store)
    assert Postmortem(0, everywhere, store).find([0, 1, 3]) == "rank 3 on far does not answer"


def test_a_rank_that_comes_after_the_others_gave_up_is_named(store, child):
    everywhere = places(child[0])
    later(0.1, everywhere, 1, store)
    later(1.0, everywhere, 3, store)
    assert Postmortem(0, everywhere, store).find([0, 1, 3]) == "rank 3 came too late"


def test_what_a_partner_has_found_is_passed_on_also_if_it_takes_its_time(store, child):
    elsewhere = [
        dataclasses.replace(place, host=f"host{i}") for i, place in enumerate(places(child[0]))
    ]
    silent = "rank 2 on host2 does not answer"
    threading.Timer(0.2, Postmortem(0, elsewhere, store).find, args=([0, 2],)).start()
    begin = time.monotonic()
    store.set("tiered_dist/gave_up/0", "")
    found = Postmortem(1, elsewhere, store).find([0, 1])
    assert found == f"after rank 0 gave up: {silent}"
    assert time.monotonic() - begin < 4
    assert Postmortem(3, elsewhere, store).find([0, 3]) == f"after rank 0 gave up: {silent}"


def test_nobody_is_blamed_where_all_are_alive(store, child):
    found = Postmortem(0, places(child[0]), store).find([0])
    assert found.startswith("all of these ranks are alive")


class Gone:
    def set(self, key, value):
        raise RuntimeError("connection refused")


class Hanging:
    def set(self, key, value):
        time.sleep(20)
        raise RuntimeError("timed out")


@pytest.mark.parametrize("lost", [Gone(), Hanging()])
def test_without_a_store_that_answers_a_survivor_looks_around_on_its_host(lost, child):
    begin = time.monotonic()
    found = Postmortem(0, places(child[0]), lost).find([0, 1])
    assert "the ranks' store does not answer" in found
    place = killed(child)
    found = Postmortem(0, places(place), lost).find([0, 1])
    assert found == f"rank 2 has ended (pid {place.pid})"
    assert time.monotonic() - begin < 10
