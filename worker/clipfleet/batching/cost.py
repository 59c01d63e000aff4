"""How long a run of n items takes: `a * n + b`, learnt from the runs themselves."""

from __future__ import annotations

import math

FORGET = 0.95  # weight of the past at each new run: about the last 20 runs count
WARM_UP_RUNS = 5
OUTLIER = 4.0


class RunCost:
    """A line through (items, seconds), by least squares that forgets.

    Robust in three ways: a run that took over 4 times what was expected counts as 4 times (a page-in or a
    neighbour's burst is not the new normal, yet a lasting change is followed within a few runs); the first runs,
    which pay for compilation and cold caches, are thrown away as soon as a far quicker one is seen; and neither
    the slope nor the constant is ever negative. While only one batch size has been seen the slope is unknown
    and taken as 0: an estimate too low makes a batch wait too little, one too high would make callers wait.
    """

    __slots__ = ("_n", "_nn", "_nt", "_runs", "_t", "_weight")

    def __init__(self) -> None:
        self._runs = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0

    @property
    def runs(self) -> int:
        """How many runs were observed."""
        return self._runs

    def observe(self, n: int, seconds: float) -> None:
        """Learn that `n` items took `seconds`; what cannot be a measurement is ignored."""
        if n < 1 or not 0 <= seconds < math.inf:
            return
        expected = self.estimate(n)
        if expected is not None and expected > 0:
            if self._runs < WARM_UP_RUNS and seconds * OUTLIER < expected:
                self._forget_all()
            elif self._runs >= WARM_UP_RUNS:
                seconds = min(seconds, expected * OUTLIER)
        self._runs += 1
        self._weight = self._weight * FORGET + 1
        self._n = self._n * FORGET + n
        self._nn = self._nn * FORGET + n * n
        self._t = self._t * FORGET + seconds
        self._nt = self._nt * FORGET + n * seconds

    def line(self) -> tuple[float, float] | None:
        """`(a, b)`: seconds an item and seconds a run; None before the first run."""
        if not self._weight:
            return None
        spread = self._weight * self._nn - self._n * self._n
        mean = self._t / self._weight
        # Relative, as rounding leaves a tiny spread where all sizes were the same.
        if spread <= 1e-6 * self._weight * self._nn:
            return 0.0, mean
        slope = (self._weight * self._nt - self._n * self._t) / spread
        if slope <= 0:
            return 0.0, mean
        constant = (self._t - slope * self._n) / self._weight
        if constant < 0:
            return self._nt / self._nn, 0.0
        return slope, constant

    def estimate(self, n: int) -> float | None:
        """Seconds that a run of `n` items is expected to take; None before the first run."""
        line = self.line()
        return None if line is None else line[0] * n + line[1]
