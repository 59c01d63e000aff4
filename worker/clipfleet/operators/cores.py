"""How many cores there are for us."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Quota = Callable[[Path], float | None]

__all__ = ["Split", "split_cores", "usable_cores"]

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OURS: Final = Path("/proc/self/cgroup")
MOST_CALLS: Final = 8


def usable_cores() -> int:
    """Cores that this process may use: of its affinity, and no more than its control groups have time for.

    ``docker run --cpus 2`` and Kubernetes' limits set a quota and leave the affinity alone: as many threads as the
    host has cores would spend the quota in a burst and then stand still. A part of a core counts as a whole one.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max) and
    https://docs.kernel.org/scheduler/sched-bwc.html (cpu.cfs_quota_us).
    """
    affinity = len(os.sched_getaffinity(0))
    return max(1, min([affinity, *(math.ceil(quota) for quota in _quotas(_CGROUPS, _OURS))]))


class Split(NamedTuple):
    """How model calls share the cores of one process.

    Attributes:
        calls: at once.
        threads: of each.
    """

    calls: int
    threads: int


def split_cores(cores: int, threads: int | None = None) -> Split:
    """One call on each core: one call with two threads took 18 % more processor time than two calls with one.

    Above ``MOST_CALLS`` cores calls have several threads: what they share, memory and its bandwidth, does not grow
    with the cores.

    Args:
        cores: that there are for the model.
        threads: of one call, where somebody said so: then as many calls as they leave cores for.
    """
    each = threads or math.ceil(cores / MOST_CALLS)
    return Split(max(1, cores // each), each)


def _quotas(root: Path, ours: Path) -> Iterator[float]:
    """Cores' worth of time that each control group above us has; nothing for those without a limit."""
    try:
        lines = ours.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            yield from _read(root, path, _of_version_2)
        elif "cpu" in kinds.split(","):
            # One mount for several kinds has links of their single names beside it.
            yield from _read(root / "cpu", path, _of_version_1)


def _read(mount: Path, path: str, quota: _Quota) -> Iterator[float]:
    """Of our group and all above it, as far as they are to be seen: a container may see its own as the root."""
    own = mount / path.strip("/")
    for group in (own, *own.parents):
        if not group.is_relative_to(mount):
            return
        try:
            found = quota(group)
        except (OSError, ValueError):
            continue
        if found is not None and found > 0:
            yield found


def _of_version_2(group: Path) -> float | None:
    most, period = (group / "cpu.max").read_text(encoding="utf-8").split()
    return None if most == "max" else int(most) / int(period)


def _of_version_1(group: Path) -> float | None:
    most = int((group / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
    return None if most < 0 else most / int((group / "cpu.cfs_period_us").read_text(encoding="utf-8"))
