"""Pictures of stores are read several at once, in order, within bounds, and let go when nobody wants them any more."""

from __future__ import annotations

import threading
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clipfleet.index import Manifest, index_sources
from clipfleet.index.files import MAX_FILE_BYTES
from clipfleet.index.sources import Failure, Item, Skip, Stored, open_sources
from clipfleet.index.sources.far import AT_ONCE, read_ahead
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from support.index_events import JPG
from support.object_store import S3, memory
from support.waiting import wait_until

__all__ = ["memory"]


class Reads:
    """Pictures that take note of who reads them."""

    def __init__(self, bad=None):
        self.bad = bad
        self.now = self.most = self.begun = 0
        self._lock = threading.Lock()
        self.go = threading.Event()
        self.go.set()

    def item(self, number, size=1, far=True):
        return Item(str(number), str(number), Stored(partial(self.read, number), "v", far=far), size=size)

    def read(self, number):
        with self._lock:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            assert self.go.wait(30)
            if number == self.bad:
                raise error_for(ErrorCode.FETCH_FAILED, "seven")
            return JPG + b"%d" % number
        finally:
            with self._lock:
                self.now -= 1


def ahead(events, wanted=lambda _: True):
    return read_ahead((event for event in events), wanted)


def test_given_far_pictures_when_read_ahead_then_order_and_bytes_are_theirs_and_a_failure_is_its_own():
    reads = Reads(bad=7)
    between = [Skip(Skip.OTHER), Failure("x", "x", error_for(ErrorCode.TOO_LARGE, "x"))]
    given = [reads.item(n) for n in range(40)]
    found = list(ahead([given[0], *between, *given[1:]]))
    assert [getattr(event, "id", "") for event in found] == ["0", "", "x", *map(str, range(1, 40))]
    for event in found:
        if event not in between and event.id == "7":
            with pytest.raises(RequestFailed, match="seven"):
                event.picture.read()
        elif event not in between:
            assert event.picture.read() == JPG + event.id.encode()
    assert (reads.begun, reads.most <= AT_ONCE) == (40, True)


def test_given_a_slow_store_when_read_ahead_then_as_many_are_under_way_as_may_be_and_no_more():
    reads = Reads()
    reads.go.clear()
    events = ahead(reads.item(n) for n in range(1000))
    first = next(events)
    wait_until(lambda: reads.now == AT_ONCE, 30, "all threads read")
    reads.go.set()
    assert first.picture.read() == JPG + b"0"
    events.close()
    assert (reads.most, reads.begun <= 2 * AT_ONCE) == (AT_ONCE, True)


@pytest.mark.parametrize(("size", "at_once"), [(20 << 20, 3), (None, 1), (MAX_FILE_BYTES, 1), (1, AT_ONCE)])
def test_given_large_pictures_or_unknown_sizes_when_read_ahead_then_their_bytes_bound_how_many(size, at_once):
    reads = Reads()
    reads.go.clear()
    events = ahead(reads.item(n, size) for n in range(100))
    first = next(events)
    wait_until(lambda: reads.begun == at_once, 30, "the window is full")
    reads.go.set()
    first.picture.read()  # it has left the window: whoever goes on without it has one more under way
    for event in events:
        event.picture.read()
    assert (reads.begun, reads.most) == (100, at_once)


def test_given_what_is_not_wanted_or_near_when_read_ahead_then_it_is_not_read():
    reads = Reads()
    near = [reads.item("near", far=False), Item("bytes", "bytes", JPG)]
    found = list(ahead([reads.item(1), *near, reads.item(2)], lambda item: item.id != "2"))
    assert [event.id for event in found] == ["1", "near", "bytes", "2"]
    assert found[0].picture.read() == JPG + b"1"
    assert reads.begun == 1


def test_given_a_run_that_ends_early_when_closed_then_what_has_not_begun_is_never_read():
    reads = Reads()
    reads.go.clear()
    closed = threading.Event()

    def source():
        try:
            for n in range(1000):
                yield reads.item(n)
        finally:
            closed.set()

    events = read_ahead(source(), lambda _: True)
    next(events)
    wait_until(lambda: reads.now == AT_ONCE, 30, "all threads read")
    events.close()
    assert closed.is_set()
    reads.go.set()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "far"], 30, "the threads have ended")
    assert reads.begun == AT_ONCE


class _Held(BaseHTTPRequestHandler):
    """Hands requests on to moto; the first reads of pictures wait for one another."""

    protocol_version = "HTTP/1.1"
    moto: int
    together: threading.Barrier
    left: threading.Semaphore

    def do_GET(self):
        if self.command == "GET" and ".jpg" in self.path and self.left.acquire(blocking=False):
            self.together.wait()
        line = HTTPConnection("127.0.0.1", self.moto, timeout=30)
        line.request(self.command, self.path, headers=dict(self.headers))
        answer = line.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "content-length", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        line.close()

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_):
        """Silence."""


class Answers:
    """A client that is answered at once, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def map(self, requests, max_in_flight):
        from clipfleet.schemas.result import Result

        for request in requests:
            self.asked.append(request)
            yield Result("", ok=True, outputs={}, model="m")


def test_given_what_an_earlier_run_has_done_when_indexed_again_then_it_is_not_fetched(memory, tmp_path, monkeypatch):
    memory.pipe({f"/c/{n:02}.jpg": JPG for n in range(30)})
    fetched = []
    read = type(memory).cat_file

    def noted(self, path, *args, **options):
        fetched.append(path[-6:])
        return read(self, path, *args, **options)

    monkeypatch.setattr(type(memory), "cat_file", noted)
    for changed in ([f"{n:02}.jpg" for n in range(30)], [], ["07.jpg"]):
        for name in changed:
            memory.pipe(f"/c/{name}", JPG + b"changed")
        fetched.clear()
        with Manifest(tmp_path / "m.sqlite") as manifest:
            report = index_sources(Answers(), open_sources(["memory://c"]), manifest=manifest)
        assert (sorted(fetched), report.indexed, report.found) == (changed, len(changed), 30)


def test_given_a_bucket_whose_answers_take_long_when_indexed_then_its_pictures_are_fetched_together(monkeypatch):
    with S3(monkeypatch) as s3:
        fs = s3.files()
        fs.mkdir("pictures")
        for n in range(40):
            fs.pipe(f"pictures/{n:02}.jpg", JPG + b"%d" % n)
        # One after the other, none of them would ever get past the first one.
        held = type(
            "Held",
            (_Held,),
            {"moto": s3.port, "together": threading.Barrier(8, timeout=30), "left": threading.Semaphore(8)},
        )
        with ThreadingHTTPServer(("127.0.0.1", 0), held) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
            client = Answers()
            type(fs).clear_instance_cache()
            report = index_sources(client, open_sources(["s3://pictures"]))
            proxy.shutdown()
    assert (report.indexed, dict(report.failed)) == (40, {})
    assert [request.inputs["image"] for request in client.asked] == [JPG + b"%d" % n for n in range(40)]
