"""Hooks by name: ``WorkerConfig.hooks`` is ``module:Class``, made once in the worker process.

Used by tests to inject faults at named points, and by whoever wants to count or log.
"""

from __future__ import annotations

import importlib

from clipfleet.pipeline.engine.hooks import Hooks

__all__ = ["Hooks", "load_hooks"]


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
