"""Cores by affinity and by the quota of control groups, whichever is less."""

from __future__ import annotations

import os

import pytest

from clipfleet.operators import cores
from clipfleet.operators.cores import split_cores, usable_cores

HOST = 64


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A host with many cores, and control groups as they are written below."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(HOST)))
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_OURS", tmp_path / "ours")

    def write(ours, **files):
        (tmp_path / "ours").write_text(ours)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name.replace("__", "/").replace("_max", ".max")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write


def test_given_no_control_groups_then_the_affinity() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_given_a_machine_without_proc_then_the_affinity(machine) -> None:
    assert usable_cores() == HOST


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("200000 100000\n", 2), ("150000 100000\n", 2), ("10000 100000\n", 1), ("max 100000\n", HOST), ("", HOST)],
)
def test_given_a_container_s_quota_then_its_cores_and_parts_count_whole(machine, limit, expected) -> None:
    machine("0::/\n", cpu_max=limit)

    assert usable_cores() == expected


def test_given_limits_at_several_levels_then_the_tightest(machine) -> None:
    machine("0::/pod/worker\n", pod__worker__cpu_max="800000 100000\n", pod__cpu_max="300000 100000\n")

    assert usable_cores() == 3


def test_given_more_quota_than_affinity_then_the_affinity(machine) -> None:
    machine("0::/\n", cpu_max="12800000 100000\n")

    assert usable_cores() == HOST


@pytest.mark.parametrize(("quota", "expected"), [("400000", 4), ("-1", HOST), ("what", HOST)])
def test_given_control_groups_of_version_1_then_their_quota(machine, tmp_path, quota, expected) -> None:
    # In a container the path is the host's, and what is mounted is its own group.
    machine("5:cpu,cpuacct:/docker/0123\n3:memory:/docker/0123\n")
    group = tmp_path / "cgroup" / "cpu"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(quota)
    (group / "cpu.cfs_period_us").write_text("100000")

    assert usable_cores() == expected


@pytest.mark.parametrize(
    ("usable", "threads", "expected"),
    [
        (1, None, (1, 1)),
        (2, None, (2, 1)),
        (8, None, (8, 1)),
        (12, None, (6, 2)),
        (64, None, (8, 8)),
        (2, 2, (1, 2)),
        (2, 1, (2, 1)),
        (6, 4, (1, 4)),
        (2, 16, (1, 16)),
    ],
)
def test_given_cores_then_each_call_has_one_of_them_unless_there_are_many_or_it_was_said(
    usable, threads, expected
) -> None:
    assert split_cores(usable, threads) == expected
