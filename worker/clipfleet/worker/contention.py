"""In which lanes more waits than there is room for, as far as a read can tell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clipfleet.worker.stream import Delivery

__all__ = ["contended"]


def contended(found: Sequence[Delivery], shares: Mapping[str, int]) -> frozenset[str]:
    """The lanes in which there is likely more: of those that had all their share, where all room was taken.

    A lane that had less has nothing more: live requests do not contend with a bulk run, which is behind them.

    Args:
        found: what was read.
        shares: by lane, how many could have been.
    """
    if len(found) < sum(shares.values()):
        return frozenset()
    had = Counter(one.lane for one in found)
    return frozenset(lane for lane, share in shares.items() if had[lane] >= max(1, share))
