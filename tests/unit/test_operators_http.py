"""``http_call`` against real servers: what is sent, what is tried again, and what becomes of each failure."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from clipfleet.operators import http_call
from clipfleet.operators.operator import Item, current
from clipfleet.schemas.errors import ErrorCode, RequestFailed


class Service:
    """Answers POSTs with the next of ``answers`` (the last one for ever): (status, body, headers)."""

    def __init__(self, answers, port=0):
        self.answers, self.asked = list(answers), []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.asked.append((self.path, dict(self.headers), body))
                answer = service.answers.pop(0) if len(service.answers) > 1 else service.answers[0]
                if callable(answer):
                    answer(self)
                    return
                status, content, headers = answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def serve():
    services = []

    def start(*answers):
        services.append(Service([(a, b"", {}) if isinstance(a, int) else a for a in answers]))
        return services[-1], f"http://127.0.0.1:{services[-1].port}/v1/score?key=secret"

    yield start
    for service in services:
        service.close()


@pytest.fixture
def left():
    """Give the running request so many seconds."""

    def give(seconds):
        current.item = Item("r1", time.monotonic() + seconds)

    yield give
    current.item = None


def failure(call, value):
    with pytest.raises(RequestFailed) as failed:
        call(value)
    assert "secret" not in str(failed.value)
    return failed.value


def ok(value):
    return (200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def test_given_a_value_when_called_then_it_is_posted_as_json_and_the_answer_is_the_output(serve):
    service, url = serve(ok({"score": 0.5}))
    value = {"text": "é", "vector": np.array([1.5, 2.5], np.float32), "n": np.int64(3)}
    assert http_call(url, headers={"Authorization": "Bearer secret"})(value) == {"score": 0.5}
    ((path, headers, body),) = service.asked
    assert path == "/v1/score?key=secret"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Host"] == f"127.0.0.1:{service.port}"
    assert json.loads(body) == {"text": "é", "vector": [1.5, 2.5], "n": 3}


def test_given_bytes_then_they_are_sent_as_they_are_and_so_comes_the_answer(serve):
    service, url = serve((201, b"\x00\xff", {}))
    assert http_call(url, "bytes")(b"\x89PNG") == b"\x00\xff"
    assert service.asked[0][1]["Content-Type"] == "application/octet-stream"
    assert service.asked[0][2] == b"\x89PNG"


@pytest.mark.parametrize("status", [429, 502, 503])
def test_given_a_busy_service_then_it_is_asked_again_until_it_answers(serve, status):
    service, url = serve(status, status, ok([1]))
    assert http_call(url)("x") == [1]
    assert len(service.asked) == 3


def test_given_a_service_that_stays_busy_then_it_is_left_when_the_request_has_no_time_for_another_try(serve, left):
    service, url = serve(503)
    left(0.6)
    began = time.monotonic()
    found = failure(http_call(url), "x")
    assert time.monotonic() - began < 0.7
    assert (found.code, found.retryable) == (ErrorCode.FETCH_FAILED, True)
    assert "HTTP status 503" in found.message
    assert 2 <= len(service.asked) <= 6


def test_given_a_service_that_says_when_then_it_is_not_asked_before(serve, left):
    service, url = serve((503, b"", {"Retry-After": "1"}), ok("late"))
    assert http_call(url)("x") == "late"
    service.answers[:] = [(503, b"", {"Retry-After": "30"})]
    left(5)
    began = time.monotonic()
    assert "503" in failure(http_call(url), "x").message
    assert time.monotonic() - began < 1
    assert len(service.asked) == 3


def test_given_a_service_that_is_being_started_then_it_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    call = http_call(f"http://127.0.0.1:{port}/", timeout=20)
    found = []
    asking = threading.Thread(target=lambda: found.append(call("x")))
    asking.start()
    service = Service([ok("up")], port)
    asking.join(20)
    service.close()
    assert found == ["up"]


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, ErrorCode.BAD_REQUEST, False),
        (422, ErrorCode.BAD_REQUEST, False),
        (413, ErrorCode.TOO_LARGE, False),
        (415, ErrorCode.UNSUPPORTED_MEDIA, False),
        (401, ErrorCode.FETCH_FAILED, False),
        (404, ErrorCode.FETCH_FAILED, False),
        (307, ErrorCode.FETCH_FAILED, False),
        (500, ErrorCode.FETCH_FAILED, True),
        (504, ErrorCode.FETCH_FAILED, True),
    ],
)
def test_given_a_refusal_then_it_has_its_code_and_is_not_tried_again(serve, status, code, retryable):
    service, url = serve((status, b"no \x1b[31m such\nlabel", {"Location": "http://127.0.0.1:1/"}))
    found = failure(http_call(url), "x")
    assert (found.code, found.retryable) == (code, retryable)
    assert len(service.asked) == 1
    if code is not ErrorCode.FETCH_FAILED:
        assert found.message == f"127.0.0.1 refused it with {status}: no ?[31m such label"


def test_given_no_time_left_then_nobody_is_asked(serve, left):
    service, url = serve(ok(1))
    left(-1)
    assert failure(http_call(url), "x").code is ErrorCode.EXPIRED
    assert service.asked == []


def drip(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(1000):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


def cut(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"[1, 2")


@pytest.mark.parametrize(
    ("answer", "text", "retryable"),
    [
        (drip, "did not answer in time", True),
        (cut, "IncompleteRead|middle of the answer", True),
        ((200, b"<html>", {}), "no JSON", False),
        ((200, b"[" * 100_000, {}), "no JSON", False),
        ((200, b"1" * 200_001, {}), "more than 200000 bytes", False),
    ],
    ids=["drips", "cut", "html", "deep", "long"],
)
def test_given_an_answer_that_is_none_then_it_is_said(serve, answer, text, retryable):
    _, url = serve(answer)
    began = time.monotonic()
    found = failure(http_call(url, timeout=1.0, max_bytes=200_000), "x")
    assert time.monotonic() - began < 2
    assert (found.code, found.retryable) == (ErrorCode.FETCH_FAILED, retryable)
    assert re.search(text, found.message)


@pytest.mark.parametrize(
    "value", [float("nan"), object(), {1: b"bytes"}, {1, 2}], ids=["nan", "object", "bytes", "set"]
)
def test_given_what_no_json_can_hold_then_nobody_is_asked(serve, value):
    service, url = serve(ok(1))
    assert failure(http_call(url), value).code is ErrorCode.BAD_REQUEST
    assert service.asked == []


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://host/x"},
        {"url": "http://user:secret@host/"},
        {"url": "host/x"},
        {"url": "http://host/", "answer": "xml"},
        {"url": "http://host/", "timeout": 0},
        {"url": "http://host/", "headers": {"Authorization": "Bearer secret\n"}},
        {"url": "http://host/", "headers": {"Authorization": "Bearer se\u0107ret"}},
        {"url": "http://host/", "headers": {"X: a\r\nY": "b"}},
    ],
    ids=str,
)
def test_given_an_option_that_cannot_be_then_it_is_refused_when_it_is_written(options):
    with pytest.raises(ValueError, match=r"url|answer|timeout|headers") as refused:
        http_call(**options)
    assert "Bearer" not in str(refused.value)


def test_headers_are_shown_nowhere():
    call = http_call("http://host/", headers={"Authorization": "Bearer secret"})
    assert "secret" not in repr(call)
    assert hash(call) == hash(http_call("http://host/", headers=(("Authorization", "Bearer secret"),)))
