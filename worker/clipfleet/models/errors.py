"""What can go wrong with a model before it has answered anything.

The tree::

    ClipfleetError
    └── ModelError               a model cannot be used as asked; the message says what to do
        ├── ModelNotFound        the name means nothing here, or its weights are not on this machine
        ├── ExtraMissing         it can be had once a package is installed; the message is the pip line
        ├── BadBundle            a bundle directory is broken, changed, or of a newer format
        ├── ExportRefused        exporting would give other vectors than open_clip does
        ├── DeviceUnavailable    the device, or the library that drives it, is not here
        └── OutOfMemory          the device had no room for this batch; a smaller one may pass

All but ``OutOfMemory`` end a start; ``OutOfMemory`` belongs to one batch and its caller halves the batch.
"""

from __future__ import annotations

from clipfleet.schemas.errors import ClipfleetError

__all__ = [
    "BadBundle",
    "DeviceUnavailable",
    "ExportRefused",
    "ExtraMissing",
    "ModelError",
    "ModelNotFound",
    "OutOfMemory",
]


class ModelError(ClipfleetError):
    """A model cannot be used as asked."""


class ModelNotFound(ModelError):
    """The name means nothing here, or its weights are not on this machine."""


class ExtraMissing(ModelError):
    """A package is missing; the message holds the line that installs it."""


class BadBundle(ModelError):
    """A bundle directory is broken, was changed after it was written, or is of a newer format."""


class ExportRefused(ModelError):
    """The export would not give the vectors that open_clip gives, or nobody can tell."""


class DeviceUnavailable(ModelError):
    """The device that was asked for, or the library that drives it, is not on this machine."""


class OutOfMemory(ModelError):
    """The device had no room for this batch. The session is still usable with a smaller one."""
