"""How long a run of n items takes: `a * n + b`, learnt from the runs themselves."""

from __future__ import annotations

import math

FORGET = 0.95  # weight of the past at each new run: about the last 20 runs count
WARM_UP_RUNS = 5
OUTLIER = 4.0
GROWTH = 2  # a run is never sized beyond so many times the largest of late, whatever the line promises
VARIED = 0.06  # variance of the sizes over their mean square from which on the shape of the line is believed
# One run in twenty may take longer than `most` allows for: up by so much when it does, down by so little when not.
LATER, SOONER, LATEST = 0.0475, 0.0025, 2.0
SURE_RUNS = 10  # fewer say too little to refuse anybody for what they took
WORTH = 9 / 8  # where one item alone takes too long, as many run as lengthen it by no more than this


class RunCost:
    """A line through (items, seconds), by least squares that forgets.

    Robust in three ways: a run that took over 4 times what was expected counts as 4 times (a page-in or a
    neighbour's burst is not the new normal, yet a lasting change is followed within a few runs); the first runs,
    which pay for compilation and cold caches, are thrown away as soon as a far quicker one is seen; and neither
    the slope nor the constant is ever negative. While only one batch size has been seen the slope is unknown
    and taken as 0: an estimate too low makes a batch wait too little, one too high would make callers wait.
    """

    __slots__ = ("_largest", "_late", "_line", "_n", "_nn", "_nt", "_ratio", "_runs", "_t", "_weight")

    def __init__(self) -> None:
        self._runs = 0
        self._largest = 0.0  # of the last runs' sizes
        self._late = 1.0  # what runs take, over what was expected: the 95th percentile
        self._ratio: float | None = None  # how many items cost as much as a run itself; None: not known yet
        self._forget_all()

    def _forget_all(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0
        self._line: tuple[float, float] | None = None

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
                step = LATER if seconds > expected * self._late * (1 + 1e-6) else -SOONER
                self._late = min(max(self._late + step, 1.0), LATEST)
                seconds = min(seconds, expected * OUTLIER)
        self._runs += 1
        self._largest = max(self._largest * FORGET, n)
        self._weight = self._weight * FORGET + 1
        self._n = self._n * FORGET + n
        self._nn = self._nn * FORGET + n * n
        self._t = self._t * FORGET + seconds
        self._nt = self._nt * FORGET + n * seconds
        most = self._weight * self._nn
        spread = most - self._n * self._n
        self._line = slope, constant = self._fit(spread, most)
        if spread >= VARIED * most:
            self._ratio = constant / slope if slope > 0 else math.inf

    def line(self) -> tuple[float, float] | None:
        """`(a, b)`: seconds an item and seconds a run; None before the first run."""
        return self._line

    def _fit(self, spread: float, most: float) -> tuple[float, float]:
        """The line through what was observed; `spread` is the sizes' variance, which `most` is the bound of."""
        mean = self._t / self._weight
        # Relative, as rounding leaves a tiny spread where all sizes were the same.
        if spread <= 1e-6 * most:
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
        line = self._line
        return None if line is None else line[0] * n + line[1]

    def most(self, seconds: float, ceiling: int) -> int:
        """The most items, 1 to `ceiling`, whose run takes at most `seconds`, 19 times of 20.

        Where `estimate` may be too low, this must not be, and what it says decides which sizes are seen (see
        `_shaped`). 1 before the first run, then at most twice the largest of late; 2 are tried once, since from one
        size nothing is learnt.

        Where one item alone takes longer than `seconds`, fewer would hardly be quicker and much dearer: then it is the
        most that lengthen that by an eighth.
        """
        if not self._weight:
            return 1
        ceiling = min(ceiling, max(1, int(GROWTH * self._largest)))
        slope, constant = self._shaped()
        if slope == 0:
            return ceiling
        seconds = max(seconds / self._late, (slope + constant) * WORTH)
        if slope * ceiling + constant <= seconds:
            return ceiling
        fitting = max(1, int((seconds - constant) / slope * (1 + 1e-9)))
        return max(2, fitting) if self._ratio is None else fitting

    def each(self, n: int) -> float | None:
        """Seconds that one item of a run of `n` is expected to take; None before the first run.

        Of sizes that were not seen, too: as cautious as `most`.
        """
        if not self._weight:
            return None
        slope, constant = self._shaped()
        return slope + constant / n

    def at_least(self, n: int) -> float | None:
        """Seconds that a run of `n` items takes whatever is not known yet; None while there were few runs.

        Where `estimate` may be too high, this must not be, since somebody is refused for it. While only runs of one
        size were seen, fewer items may be quicker in proportion, and more of them may cost nothing; and nobody knows
        of far more than were seen of late.
        """
        if self._runs < SURE_RUNS:
            return None
        slope, constant = self._shaped()
        seconds = slope * min(n, GROWTH * self._largest) + constant
        return seconds if self._ratio is not None else min(seconds, self._t / self._weight)

    def _shaped(self) -> tuple[float, float]:
        """Seconds an item and seconds a run: the scale of late, with the shape as far as it is known.

        It is taken from runs of different sizes, and kept while they are alike; until there are such runs, time is
        taken to grow in proportion to the items, which it never outgrows.
        """
        ratio = 0.0 if self._ratio is None else self._ratio
        if ratio == math.inf:
            return 0.0, self._t / self._weight
        slope = self._t / (self._n + ratio * self._weight)
        return slope, ratio * slope
