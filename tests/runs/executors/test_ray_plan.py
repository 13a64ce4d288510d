"""Dividing a cluster among workers: pure arithmetic, so every shape of cluster can be tried."""

from __future__ import annotations

import pytest

from headwise.errors import HeadwiseError
from headwise.runs.ray_workers import SPARE, Plan, plan

GB = 1_000_000_000
LAPTOP = {"CPU": 2, "memory": 20 * GB}
SERVER = {"CPU": 64, "memory": 100 * GB}
GPUS = {"CPU": 32, "GPU": 4, "memory": 200 * GB}


@pytest.mark.parametrize(
    ("nodes", "asked", "expected"),
    [
        ([LAPTOP], {}, Plan(2, 1, 0)),
        ([LAPTOP], {"cores_per_worker": 2}, Plan(1, 2, 0)),
        ([LAPTOP], {"workers": 1}, Plan(1, 2, 0)),  # alone, it gets all cores
        ([LAPTOP], {"workers": 2}, Plan(2, 1, 0)),
        ([LAPTOP], {"device": "mps"}, Plan(1, 2, 0)),
        ([SERVER], {}, Plan(64, 1, 0)),
        (
            [SERVER],
            {"replica_bytes": 9 * GB},
            Plan(10, 6, 0),
        ),  # memory for ten replicas: they share the cores
        ([SERVER, SERVER], {"replica_bytes": 9 * GB}, Plan(20, 6, 0)),
        ([GPUS], {}, Plan(4, 8, 1)),
        ([GPUS, GPUS], {}, Plan(8, 8, 1)),
        ([GPUS, SERVER], {}, Plan(4, 8, 1)),  # a machine without a GPU takes no part
        ([GPUS], {"devices_per_worker": 2}, Plan(2, 16, 2)),
        ([GPUS], {"device": "cpu"}, Plan(32, 1, 0)),
        ([GPUS], {"device": "cuda:1"}, Plan(4, 8, 1)),
        ([GPUS], {"cores_per_worker": 2}, Plan(4, 2, 1)),
        ([GPUS], {"workers": 100}, Plan(100, 8, 1)),  # a cluster may grow when it is asked
    ],
)
def test_workers_get_the_devices_or_the_cores(nodes, asked, expected):
    assert plan(nodes, **asked) == expected


@pytest.mark.parametrize(
    ("nodes", "asked", "said"),
    [
        ([LAPTOP], {"device": "cuda"}, "the device is cuda, but the Ray cluster has no GPU"),
        ([LAPTOP], {"devices_per_worker": 2}, "has no GPU; give cores_per_worker"),
        ([GPUS], {"device": "cpu", "devices_per_worker": 2}, "the device is cpu"),
        ([LAPTOP], {"cores_per_worker": 4}, "room for one worker (4 cores"),
        ([LAPTOP], {"replica_bytes": 30 * GB}, f"{(30 * GB + SPARE) / 1e9:.1f} GB of memory"),
        ([GPUS], {"devices_per_worker": 8}, "room for one worker (8 GPUs"),
    ],
)
def test_what_does_not_fit_is_one_sentence(nodes, asked, said):
    with pytest.raises(HeadwiseError) as raised:
        plan(nodes, **asked)
    assert said in str(raised.value)


def test_no_plan_gives_away_more_cores_than_a_machine_has():
    for cores in (1, 2, 3, 7, 16, 48):
        for memory in (2, 5, 33, 500):
            node = {"CPU": cores, "memory": memory * GB}
            made = plan([node], replica_bytes=GB)
            assert 1 <= made.workers * made.cores <= cores
            assert made.workers * (GB + SPARE) <= memory * GB
