"""Celery with results in Redis; also the producer's side of celery-batches, whose task is in ``celery_batches_peer``.

Its guide to optimizing: for many short tasks a large prefetch; acknowledged early (the default); no events, no gossip.
Its guide to workers: ``solo`` has the least overhead for one process. Results expire by default, which costs a SETEX in
the place of a SET; they are turned off here in its favour. JSON, its default, is encoded in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery

from bench.peers.rounds import DATA, URL, WAIT_S, serve, window

if TYPE_CHECKING:
    from celery.result import AsyncResult

app = Celery("bench", broker=URL, backend=URL)
app.conf.update(
    worker_prefetch_multiplier=256,
    task_acks_late=False,
    result_expires=None,
    worker_send_task_events=False,
    task_send_sent_event=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def echo(data: str) -> str:
    return data


def receive(ticket: AsyncResult) -> None:
    if ticket.get(timeout=WAIT_S) != DATA:
        raise RuntimeError("another answer than the question")


def main(task: str = "bench.peers.celery_peer.echo") -> None:
    serve(lambda count, in_flight: window(count, in_flight, lambda: app.send_task(task, (DATA,)), receive))


if __name__ == "__main__":
    main()
