"""The timed pass of a plan: waiting is no work of a CPU."""

from __future__ import annotations

import time

import torch

from headwise.sweeps.plan import seconds_of


def test_on_a_cpu_time_spent_waiting_is_not_counted_and_on_an_accelerator_it_is():
    calls = []

    def work() -> None:
        calls.append(1)
        time.sleep(0.02)

    on_cpu, elsewhere = (seconds_of(work, torch.device(kind)) for kind in ("cpu", "cuda"))
    assert on_cpu < 0.02 <= elsewhere
    assert len(calls) == 10  # five each: the fastest counts
    seconds_of(work, torch.device("cuda"), enough=0.01)
    assert len(calls) == 11
