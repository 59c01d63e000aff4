from __future__ import annotations

import threading

import pytest

from clipfleet.worker import patience as module
from clipfleet.worker.patience import SAY_EVERY_S, Patience


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def patience(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Patience:
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", clock.wait)
    return Patience("reading", stop)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_given_one_outage_then_a_line_when_it_begins_and_one_when_it_ends(patience, clock, caplog):
    began = clock.now
    for _ in range(100):
        patience.trouble(OSError("gone"))
    took = clock.now - began
    assert 90 < took < 200
    for _ in range(100):
        patience.fine()
    assert said(caplog) == ["reading: OSError: gone", f"reading: well again after {took:.1f} s"]


def test_given_trouble_that_comes_and_goes_then_it_is_told_once_in_a_while_with_its_number(patience, clock, caplog):
    began, times = clock.now, 0
    while clock.now < began + 1.5 * SAY_EVERY_S:
        patience.trouble(OSError("gone"))
        patience.fine()
        times += 1
    lines = said(caplog)
    assert len(lines) == 4
    assert lines[0] == "reading: OSError: gone"
    number = int(lines[2].removeprefix("reading: OSError: gone (").removesuffix(" times)"))
    assert times / 2 < number < times


def test_given_trouble_soon_after_another_when_it_stays_then_it_is_told_after_all(patience, clock, caplog):
    first = clock.now
    patience.trouble(OSError("gone"))
    patience.fine()
    while clock.now < first + SAY_EVERY_S:
        patience.trouble(ValueError("gone for good"))
        assert len(said(caplog)) == 2
    patience.trouble(ValueError("gone for good"))
    assert said(caplog)[2] == "reading: ValueError: gone for good"
    patience.fine()
    assert "well again after 1" in said(caplog)[3]


def test_given_an_outage_whose_reason_becomes_another_then_each_is_told_once(patience, caplog):
    for error in (OSError("closed"), OSError("closed"), PermissionError("wrong password"), OSError("closed")):
        patience.trouble(error)
        patience.trouble(error)
    assert said(caplog) == ["reading: OSError: closed", "reading: PermissionError: wrong password"]
    patience.fine()
    assert said(caplog)[2].startswith("reading: well again")
