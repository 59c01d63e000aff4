"""The Celery app: which function is which task, and what its workers do when they start and when one is revoked."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from celery.worker import state
from celery.worker.request import Request

from clipfleet.tasks import answers, corpus, failures, upkeep
from clipfleet.tasks.runs import LEASE_MS
from clipfleet.tasks.settings import celery_config

__all__ = ["StepRequest", "app"]

_log = logging.getLogger(__name__)


class StepRequest(Request):  # type: ignore[misc]  # Celery has no types
    """A step as the Celery worker holds it: where revocations are known, which are of the task that began the run."""

    def revoked(self) -> bool:
        """Whether this very message is revoked. A revoked run is ended first, so that the step does nothing."""
        headers = self.request_dict
        if any(task in state.revoked for task in headers.get(corpus.TASKS_HEADER) or ()):
            try:
                corpus.revoke_run(self.app, headers[corpus.RUN_HEADER])
            except corpus.AWAY:
                # Raised here it would end the Celery worker itself; the run's next step says so again.
                _log.exception("run %s is revoked, which cannot be kept now", headers[corpus.RUN_HEADER])
        return bool(super().revoked())


def _make_app() -> Celery:
    made = Celery("clipfleet", set_as_current=False)
    # Called when the configuration is first needed: to import this module reads nothing.
    made.add_defaults(celery_config)
    made.task(answers.embed, name="clipfleet.embed", bind=True)
    made.task(answers.search, name="clipfleet.search", bind=True)
    made.task(corpus.index_corpus, name="clipfleet.index_corpus", bind=True)
    made.task(corpus.reindex, name="clipfleet.reindex", bind=True)
    made.task(corpus.index_shard, name=corpus.STEP, bind=True, ignore_result=True, Request=StepRequest)
    made.task(corpus.stop_index, name="clipfleet.stop_index", bind=True)
    made.task(corpus.resume_index, name="clipfleet.resume_index", bind=True)
    made.task(failures.index_failures, name="clipfleet.index_failures", bind=True)
    made.task(upkeep.retry_dead, name="clipfleet.retry_dead", bind=True)
    made.task(upkeep.reconcile, name="clipfleet.reconcile", bind=True)
    return made


app = _make_app()


@worker_ready.connect  # type: ignore[untyped-decorator]  # Celery has no types
def _resume(sender: Any = None, **_: object) -> None:
    """Go on with what a killed worker left behind, which Celery itself delivers again after 15 minutes only."""
    if sender is not None and sender.app is app:
        # Whoever seems to hold a lease may have been killed a moment ago.
        app.send_task("clipfleet.resume_index", kwargs={"quiet_s": -LEASE_MS / 1000}, ignore_result=True)
