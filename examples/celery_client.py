"""A service with a Celery app and without clipfleet: a vector, a search and an indexing run, by name and JSON alone.

    pip install "celery[redis]"
    CELERY_BROKER_URL=redis://localhost:6379/1 python examples/celery_client.py pictures

``celery -A clipfleet.tasks worker`` must run somewhere (docs/celery.md).
"""

import os
import sys
import time

from celery import Celery

broker = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/1")
app = Celery("shop", broker=broker, backend=os.environ.get("CELERY_RESULT_BACKEND", broker))
app.conf.task_routes = {"clipfleet.*": {"queue": "clipfleet"}}

answer = app.send_task("clipfleet.embed", kwargs={"text": "a red heart"}, expires=60).get(timeout=60)
if not answer["ok"]:
    sys.exit(f"{answer['error']['code']}: {answer['error']['message']}")
print(f"a vector of {len(answer['vector'])} numbers")

run = app.send_task("clipfleet.index_corpus", kwargs={"sources": sys.argv[1:], "collection": "shop"})
while not run.ready():
    if run.state == "PROGRESS":
        print(f"{run.info['indexed']} indexed, {run.info['shards_done']} of {run.info['shards']} shards done")
    time.sleep(0.5)  # Celery's results are asked for; a person reads the lines
done = run.get()
print(f"{done['indexed']} indexed, {sum(done['failed'].values())} failed, in {done['seconds']} s, run {done['run']}")

found = app.send_task("clipfleet.search", kwargs={"text": "a red heart", "collection": "shop", "limit": 3})
for hit in found.get(timeout=60)["hits"]:
    print(f"{hit['score']:.3f}  {hit['id']}")
