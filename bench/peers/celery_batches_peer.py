"""celery-batches: Celery's worker gathers up to 64 tasks, or what came within 10 ms, and runs one function.

Its page asks for a prefetch above ``flush_every``, and shows results as they are stored here.
"""

from __future__ import annotations

from celery_batches import Batches, SimpleRequest

from bench.peers.celery_peer import app, main


@app.task(base=Batches, flush_every=64, flush_interval=0.01)
def echo_batch(requests: list[SimpleRequest]) -> None:
    for request in requests:
        app.backend.mark_as_done(request.id, request.args[0], request=request)


if __name__ == "__main__":
    main("bench.peers.celery_batches_peer.echo_batch")
