"""What an operator is: one task's implementation, described here and opened where it runs.

An operator is a small frozen description (which model, which size), cheap to make, compare and send. ``open`` loads
what it needs in the process that will run it, and returns what runs: a function of one item (``Operator``), or a batch
function with an optional preparation of each item (``BatchOperator``). Operators that are equal share one stage: two
pipelines that use ``clip_image()`` fill the same batches.

::

    @dataclass(frozen=True)
    class Blur(Operator):
        radius: int = 2
        name = "blur"
        task = "pixels -> pixels"

        def open(self, place):
            return lambda pixels: ...
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clipfleet.models.runtime import Runtime
    from clipfleet.models.tokenizer import Tokenize
    from clipfleet.operators.fetch import Fetcher
    from clipfleet.operators.limits import ImageLimits
    from clipfleet.store import Store

__all__ = [
    "OMIT",
    "BatchOperator",
    "Item",
    "LoadedModel",
    "Noted",
    "Opened",
    "Operator",
    "Place",
    "Services",
    "StageOptions",
    "current_item",
]

PROVIDERS = ("tensorrt", "cuda", "cpu", "torch")
KNOWN_PROVIDERS = (*PROVIDERS, "torch-bf16")  # the last one where it is asked for alone


class _Omit:
    """The type of ``OMIT``."""

    def __repr__(self) -> str:
        return "OMIT"


OMIT = _Omit()
"""As a column's value: this output is left out of the result."""


class Noted(NamedTuple):
    """A value with something that its caller should know.

    Attributes:
        value: what the operator made.
        notes: for the result's ``notes``, such as ``{"truncated": True}``.
    """

    value: Any
    notes: dict[str, Any]


class Item(NamedTuple):
    """The request that the running operator works for.

    Attributes:
        id: of the request.
        deadline: ``time.monotonic()`` after which nobody waits for it.
    """

    id: str
    deadline: float

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()


class _Current(threading.local):
    item: Item | None = None


current = _Current()


def current_item() -> Item:
    """The request that this thread works for: its id for logs, its deadline for whoever waits for others.

    Meant for operators that take one item at a time; outside of a pipeline it has no id and an hour.
    """
    return current.item or Item("", time.monotonic() + 3600.0)


class LoadedModel(NamedTuple):
    """A model in this process.

    Attributes:
        runtime: its two towers; ``runtime.bundle.config`` tells sizes, dimension and fingerprint.
        tokenize: text to ids int64 [L], and whether it was cut.
    """

    runtime: Runtime
    tokenize: Tokenize


class Services(Protocol):
    """What operators share in one process: opened once, at the first who asks, closed with the process."""

    fetcher: Fetcher
    limits: ImageLimits

    def model(self, name: str | None, device: str, providers: Sequence[str]) -> LoadedModel:
        """The model of that name on that device; None: the one that the worker was started with.

        Raises:
            ModelError: it, or the device, cannot be had; the text says what is missing.
        """
        ...

    def store(self) -> Store:
        """Milvus.

        Raises:
            ValueError: this process was given none.
        """
        ...

    def tried(self, operator: str, attempts: Sequence[tuple[str, str]]) -> None:
        """Report which providers were tried and why each was passed over (empty for the one taken)."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator is opened.

    Attributes:
        services: what the process shares.
        device: ``cpu`` or ``cuda:N``.
        providers: how to run models, in order of preference.
        threads: threads that one call may use on a CPU, where no other one runs beside it.
        calls: calls of one concurrent operator that run at once there: its models have ``threads / calls`` each.
        model: the model of this pipeline where an operator names none; None: the worker's.
    """

    services: Services
    device: str = "cpu"
    providers: tuple[str, ...] = PROVIDERS
    threads: int = 1
    calls: int = 1
    model: str | None = None

    def load(self, name: str | None) -> LoadedModel:
        """The model ``name``, or this pipeline's."""
        return self.services.model(name or self.model, self.device, self.providers)


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch operator that is ready to run.

    Attributes:
        run: one list per input column (of prepared values, if there is ``prepare``: then one list) to one output per
            item, in order; an exception among the outputs fails that item alone.
        prepare: what is done to each item first, on the pool: one value per input column to one value. Must be safe
            to call from several threads.
        chunk: items that are prepared together; more than one where an item costs less than waking a thread.
        sample: an ordinary item as ``run`` takes it: how large batches are worth being on a CPU is measured with it.
            None: not measured.
        idle: called when there has been nothing to do for a while.
        flush: makes what was written visible; called by ``Pipeline.flush``.
        close: frees what it holds.
    """

    run: Callable[..., Sequence[Any]]
    prepare: Callable[..., Any] | None = None
    chunk: int = 1
    sample: Any = None
    idle: Callable[[], object] | None = None
    flush: Callable[[], object] | None = None
    close: Callable[[], object] | None = None


class Operator:
    """One item in, one value out (or several, for ``flat_map``). A subclass is a frozen dataclass.

    Attributes:
        name: as in ``clipfleet operators list``, in errors and figures.
        task: what goes in and what comes out; operators of one task can stand for each other.
        of_model: whether the results are a model's: its fingerprint then stands with them.
    """

    name: ClassVar[str] = ""
    task: ClassVar[str] = ""
    of_model: ClassVar[bool] = False

    def open(self, place: Place) -> Callable[..., Any] | Opened:
        """Load what it takes, and return the function: one value per input column to the value of the output.

        It may be called from several threads at once, unless the stage says ``instances``: then each instance has one
        of its own.

        Raises:
            ValueError: it cannot work as it was configured.
        """
        raise NotImplementedError

    def __call__(self, *values: Any) -> Any:
        """Run it once, here, with the demo model where it needs one; to try it out."""
        from clipfleet.operators.here import run_here  # noqa: PLC0415  (it opens what most never need)

        return run_here(self, values)


class BatchOperator(Operator):
    """Runs batches.

    Attributes:
        max_batch_size: most items of one run, where the pipeline does not say; None: the worker's.
        max_delay: seconds that the oldest item may wait for company; None: the worker's.
        resource: what it occupies: operators of one resource run one batch at a time. ``device`` is the stage's device.
        concurrent: whether what it opens may be called by several threads at once. On a CPU it then is: a batch on each
            core takes less of them than one batch on all.
    """

    max_batch_size: ClassVar[int | None] = None
    max_delay: ClassVar[float | None] = None
    resource: ClassVar[str] = "device"
    prepares: ClassVar[str] = ""
    concurrent: ClassVar[bool] = False

    def open(self, place: Place) -> Opened:
        """Load what it takes. Raises as ``Operator.open``."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How a stage runs; what is None is left to the operator, and then to the worker.

    Attributes:
        name: in errors and figures.
        instances: how many of it, each with a thread and a copy of the operator.
        device: ``cpu`` or ``cuda:N``.
        max_batch_size: most items of one run. A plain function that is given it gets lists.
        max_delay: seconds that the oldest item may wait for company.
        providers: how to run models, in order of preference.
        timeout: seconds after which a call is taken for hung and its items fail.
        inline: run it where the previous stage ended, without another thread; for what takes microseconds.
    """

    name: str | None = None
    instances: int | None = None
    device: str | None = None
    max_batch_size: int | None = None
    max_delay: float | None = None
    providers: tuple[str, ...] | None = None
    timeout: float | None = None
    inline: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, low in (("instances", 1), ("max_batch_size", 1), ("max_delay", 0.0), ("timeout", 0.001)):
            value = getattr(self, name)
            if value is None:
                continue
            whole = isinstance(low, int)
            if not isinstance(value, int if whole else int | float) or isinstance(value, bool) or not value >= low:
                raise ValueError(f"{name} must be {'a whole number' if whole else 'seconds'}, {low} or more: {value!r}")
        if self.device is not None and re.fullmatch(r"cpu|cuda:\d+", self.device) is None:
            raise ValueError(f"device must be 'cpu' or 'cuda:N': {self.device!r}")
        given: Any = self.providers  # whatever a caller may have said
        if given is not None:
            if isinstance(given, str) or not given or not set(given) <= set(KNOWN_PROVIDERS):
                known = ", ".join(KNOWN_PROVIDERS)
                raise ValueError(f"providers must be some of {known}, in a tuple: {given!r}")
            object.__setattr__(self, "providers", tuple(given))

    def at(self, place: Place) -> Place:
        """The place of a stage with these options."""
        return replace(place, device=self.device or place.device, providers=self.providers or place.providers)
