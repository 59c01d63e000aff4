"""Points in a request's life where somebody may look in; each is a no-op.

Given as ``module:Class``, made once in the worker process. A hook that raises fails the items at hand like the step
itself would. Used by tests to inject faults at named points, and by whoever wants to count or log.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Work

__all__ = ["Hooks", "load_hooks"]


class Hooks:
    """Override what you need. Called in the thread that does the step: keep it short."""

    def before_prepare(self, work: Work) -> None:
        """One item is about to be decoded or tokenised."""

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        """The device is about to run ``batch``."""

    def before_store(self, stage: str, batch: Sequence[Work]) -> None:
        """The store is about to be asked for ``batch``."""

    def after_store(self, stage: str, batch: Sequence[Work]) -> None:
        """The store has acknowledged ``batch``."""

    def before_settle(self, count: int) -> None:
        """``count`` requests are about to be settled."""


def load_hooks(path: str | None) -> Hooks:
    """The hooks named ``module:Class``; none for None.

    Raises:
        ImportError: there is no such class.
    """
    if path is None:
        return Hooks()
    module, _, name = path.partition(":")
    try:
        hooks = getattr(importlib.import_module(module), name)()
    except AttributeError as error:
        raise ImportError(f"no hooks {path!r}: {error}") from error
    if not isinstance(hooks, Hooks):
        raise ImportError(f"{path!r} is no clipfleet.worker.hooks.Hooks")  # noqa: TRY004  (a wrong setting)
    return hooks
