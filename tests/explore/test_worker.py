"""One thread carries out all jobs: urgent ones between the steps of others, and only what is still wanted."""

from __future__ import annotations

import threading

import pytest

from headwise.explorer import worker as workers
from headwise.explorer.worker import BACKGROUND, LIVE, URGENT, Job, QueueFull, Worker


class Heard:
    """The events of all jobs, in the order in which they came."""

    def __init__(self):
        self.all, self.ended = [], {}

    def job(self, name, urgency=LIVE, steps=3, tab="a", kind="run", before=None, pressing=""):
        done = self.ended[name] = threading.Event()

        def work(job):
            for step in range(steps):
                if before:
                    before(job, step)
                yield {"event": f"{name}{step}"}

        def emit(event):
            self.all.append(f"{name} end" if event is None else event["event"])
            if event is None:
                done.set()

        return Job(tab, kind, urgency, work, emit, pressing)

    def wait(self, *names):
        for name in names:
            assert self.ended[name].wait(20), f"{name} did not end: {self.all}"


@pytest.fixture
def worker():
    started = Worker()
    started.start()
    yield started
    started.stop()


def held(step_at, gate, began=None):
    """Holds a job at one of its steps until the test opens the gate."""

    def before(job, step):
        if step == step_at:
            if began is not None:
                began.set()
            gate.wait(20)

    return before


def test_an_urgent_job_is_answered_between_two_tokens_and_a_background_job_last(worker):
    heard, gate = Heard(), threading.Event()
    worker.submit(heard.job("back", BACKGROUND, kind="check", before=held(1, gate)))
    worker.submit(heard.job("live", LIVE, before=held(1, gate)))
    worker.submit(heard.job("head", URGENT, steps=1, kind="head"))
    gate.set()
    heard.wait("back", "live", "head")
    order = [event for event in heard.all if "end" not in event]
    assert order.index("head0") < order.index("live2") < order.index("back2")


def test_what_a_click_waits_for_comes_before_an_urgent_job_and_the_rest_after_it(worker):
    heard, gate, began = Heard(), threading.Event(), threading.Event()
    worker.submit(heard.job("back", BACKGROUND, kind="check", before=held(0, gate, began)))
    assert began.wait(20)
    worker.submit(heard.job("head", URGENT, kind="head"))
    worker.submit(heard.job("click", pressing="click1"))
    gate.set()
    heard.wait("back", "head", "click")
    order = [event for event in heard.all if "end" not in event]
    assert order[:6] == ["back0", "click0", "click1", "head0", "head1", "head2"]


def test_a_newer_job_of_the_same_tab_cancels_the_older_and_no_other(worker):
    heard, gate, began = Heard(), threading.Event(), threading.Event()
    worker.submit(heard.job("old", before=held(1, gate, began)))
    assert began.wait(20)
    worker.submit(heard.job("other", tab="b"))
    worker.submit(heard.job("look", kind="head", urgency=URGENT))
    worker.submit(heard.job("new"))
    gate.set()
    heard.wait("old", "new", "other", "look")
    assert "old2" not in heard.all
    assert {"new2", "other2", "look2"} <= set(heard.all)
    assert "cancelled" in heard.all


def test_a_cancelled_job_stops_inside_a_step_where_it_looks(worker):
    heard, began = Heard(), threading.Event()

    def before(job, step):
        began.set()
        while True:
            job.check()

    job = heard.job("long", before=before)
    worker.submit(job)
    assert began.wait(20)
    job.cancel()
    heard.wait("long")
    assert heard.all == ["cancelled", "long end"]


def test_an_error_is_told_and_the_next_job_is_answered(worker, caplog):
    heard = Heard()

    def broken(job, step):
        raise RuntimeError("the device fell off")

    worker.submit(heard.job("bad", before=broken))
    worker.submit(heard.job("good", tab="b"))
    heard.wait("bad", "good")
    assert heard.all[:2] == ["error", "bad end"]
    assert "good2" in heard.all


def test_a_full_queue_refuses_in_a_sentence(worker, monkeypatch):
    monkeypatch.setattr(workers, "MOST_WAITING", 3)
    heard, gate = Heard(), threading.Event()
    worker.submit(heard.job("first", before=held(0, gate)))
    for number in range(2):
        worker.submit(heard.job(f"next{number}", tab=f"t{number}"))
    with pytest.raises(QueueFull, match="3 requests wait"):
        worker.submit(heard.job("late", tab="z"))
    gate.set()
    heard.wait("first", "next0", "next1")


class Panic(BaseException):
    """As the panics of libraries in Rust, no `Exception`."""


@pytest.mark.parametrize("error", [Panic, SystemExit, KeyboardInterrupt, MemoryError])
def test_whatever_a_job_raises_is_one_error_event_and_the_next_job_is_carried_out(worker, error):
    def fail(job, step):
        raise error("oops")

    heard = Heard()
    worker.submit(heard.job("bad", before=fail))
    heard.wait("bad")
    worker.submit(heard.job("good", steps=1))
    heard.wait("good")
    assert heard.all == ["error", "bad end", "good0", "good end"]
