"""The life of a client for threads: forks, ends, threads, mistakes inside."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clipfleet.producer import (
    Client,
    ModelFailed,
    Unavailable,
    requests,
)
from clipfleet.producer.core.inbox import Inbox
from support.waiting import wait_until


def test_a_forked_child_is_a_producer_of_its_own(client, worker, redis_client):
    assert client.run("echo", {"data": "parent"}).ok
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ok = client.run("echo", {"data": "child"}).outputs == {"data": "child"}
            os.write(write, client._backend.inbox_key.encode())
            status = 0 if ok else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    os.close(write)
    inbox = os.read(read, 1000).decode()
    os.close(read)
    assert os.waitstatus_to_exitcode(status) == 0
    assert inbox
    assert inbox != client._backend.inbox_key
    assert client.run("echo", {"data": "parent again"}).ok


def test_close_puts_what_was_submitted_into_the_queue_and_ends_the_rest(redis_server, redis_client, keys, leftovers):
    leftovers.expected("no worker runs")
    client = Client(redis_server.url, queue=keys.queue, wait_for_worker=True)
    jobs = [client.submit("echo", {"data": n}, reply="key") for n in range(50)]
    waiting = client.submit("echo", {"data": 1})
    client.close()
    assert redis_client.xlen(keys.lanes[0]) == 51
    with pytest.raises(Unavailable, match="closed"):
        waiting.result(1)
    assert all(job.accepted(1) for job in jobs)
    with pytest.raises(RuntimeError, match="closed"):
        client.run("echo", {"data": 1})
    client.close()


def test_no_thread_stays_behind(redis_server, keys, worker):
    before = threading.active_count()
    for _ in range(5):
        with Client(redis_server.url, queue=keys.queue) as client:
            client.run("echo", {"data": 1})
    assert threading.active_count() == before


def test_a_client_that_nobody_holds_serves_its_jobs_and_then_ends(redis_server, keys, worker):
    threads = threading.active_count()
    worker.hold.clear()
    job = Client(redis_server.url.replace("127.0.0.1", "localhost"), queue=keys.queue).submit("echo", {"data": 1})
    gc.collect()
    job.accepted(5)
    worker.hold.set()
    assert job.result(10).outputs == {"data": 1}
    del job
    gc.collect()
    wait_until(lambda: threading.active_count() == threads, 5, "its thread to end")


def test_closing_at_any_moment_leaves_no_complaint(redis_server, keys, worker, caplog):
    for moment in range(20):
        client = Client(redis_server.url, queue=keys.queue, wait_for_worker=True)
        job = client.submit("echo", {"data": 1})
        if moment % 2:
            job.accepted(5)
        client.close()
        assert job.done()
        del client, job
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_ordinary_end_is_no_news_of_redis(redis_server, redis_client, keys, leftovers, caplog):
    with Client(redis_server.url, queue=keys.queue) as client, pytest.raises(Unavailable, match="no worker"):
        client.run("echo", {"data": 1})
    redis_client.zadd(keys.workers, {"one that takes nothing": time.time() * 1000})
    leftovers.expected("no worker takes what was admitted")
    pool = ThreadPoolExecutor(1)
    with pytest.raises(KeyboardInterrupt), pool, Client(redis_server.url, queue=keys.queue) as client:  # noqa: PT012
        sent = client.submit("echo", {"data": 1}).accepted(5)
        under_a_key = client.job("a")
        waiting = pool.submit(under_a_key.outcome, 60)
        interrupted = client.map(itertools.chain(map(requests.echo, range(300)), _interrupting()), max_in_flight=512)
        next(interrupted)
    assert isinstance(waiting.result(5).error, Unavailable)
    assert isinstance(sent.outcome().error, Unavailable)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def _interrupting():
    raise KeyboardInterrupt
    yield


def test_a_mistake_inside_ends_requests_instead_of_hanging_them(redis_server, keys, worker, monkeypatch):
    def mistaken(*_, **__):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(Inbox, "commands", mistaken)
    with Client(redis_server.url, queue=keys.queue, timeout=30) as client:
        with pytest.raises(ModelFailed, match="internal: ZeroDivisionError: a mistake"):
            client.run("echo", {"data": 1})
        monkeypatch.undo()
        assert client.run("echo", {"data": 2}).ok
