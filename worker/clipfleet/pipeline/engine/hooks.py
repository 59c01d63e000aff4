"""Points in a request's life where somebody may look in; each is a no-op.

A hook that raises fails the items at hand like the step itself would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.work import Work

__all__ = ["Hooks"]


class Hooks:
    """Override what you need. Called in the thread that does the step: keep it short."""

    def before_prepare(self, work: Work) -> None:
        """One item is about to be decoded, tokenised, or run by a stage that takes items one by one."""

    def before_call(self, stage: str, batch: Sequence[Work]) -> None:
        """A stage is about to run ``batch``."""

    def before_store(self, stage: str, batch: Sequence[Work]) -> None:
        """The store is about to be asked for ``batch``."""

    def after_store(self, stage: str, batch: Sequence[Work]) -> None:
        """The store has acknowledged ``batch``."""

    def before_settle(self, count: int) -> None:
        """``count`` requests are about to be settled."""
