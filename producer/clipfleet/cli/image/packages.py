"""The installed packages that an image needs, with all that they need, pinned to the versions that run here."""

from __future__ import annotations

import re
import sys
from collections import deque
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import TYPE_CHECKING

from clipfleet.cli.errors import CliError
from clipfleet.cli.image.wheel import is_editable, is_local

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.requirements import Requirement

__all__ = ["Packages", "find_packages", "requirements_text", "runtime_extra"]

_OURS = "clipfleet"


@dataclass(slots=True)
class Packages:
    """What to install.

    Attributes:
        pins: name and version of what a registry has.
        packed: distributions that none has: they came from a folder or a repository.
        elsewhere: requirements that do not apply to this Python, but to an earlier patch release of the same: the
            image's may be one. Not installed here, so no version of them is known to work.
    """

    pins: dict[str, str] = field(default_factory=dict)
    packed: list[Distribution] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)


def runtime_extra() -> str:
    """The extra that brings the runtime of this environment: ``cpu``, ``gpu`` or ``torch``.

    Raises:
        CliError: it has none.
    """
    if _installed("onnxruntime-gpu") is not None:
        return "gpu"
    if find_spec("onnxruntime") is not None:
        return "cpu"
    if find_spec("torch") is not None:
        return "torch"
    raise CliError(
        "no runtime is installed here, and the image gets the packages of this environment",
        hint='pip install "clipfleet[cpu]", or "clipfleet[gpu]" for an image for GPUs (it installs without one)',
    )


def find_packages(extra: str, others: Iterable[str]) -> Packages:
    """All that ``clipfleet[extra,cli]`` and the distributions ``others`` need here, themselves included.

    clipfleet itself is left out: it is packed from what runs.

    Raises:
        CliError: something is needed and not installed.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415  what only this command needs

    roots = [f"{_OURS}[{extra},cli]", *sorted(others)]
    if extra == "gpu":
        # CUDA and cuDNN come as wheels; see deploy/Dockerfile.
        roots.append("onnxruntime-gpu[cuda,cudnn]")
    found = Packages()
    waiting = deque((Requirement(root), "the image") for root in roots)
    needs: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted, who = waiting.popleft()
        name = _normal(wanted.name)
        if name not in needs:
            dist = _installed(name)
            if dist is None:
                raise CliError(
                    f"{who} needs {wanted.name}, which is not installed here", hint=f"pip install '{wanted}'"
                )
            needs[name] = [Requirement(line) for line in dist.requires or ()]
            found.elsewhere.update(str(one) for one in needs[name] if _applies_to_earlier(one))
            _add(found, name, dist)
        for one_extra in {"", *wanted.extras} - {one for each, one in seen if each == name}:
            seen.add((name, one_extra))
            waiting.extend((one, name) for one in needs[name] if _applies(one, one_extra))
    found.packed.sort(key=lambda dist: _normal(dist.metadata["Name"]))
    return found


def requirements_text(packages: Packages) -> str:
    """``requirements.txt``: what runs here, and nothing that pip would choose."""
    return "\n".join(
        [
            "# The versions that were installed where this was written, with all that they need: for --no-deps.",
            "# Without hashes: an installed package does not remember its archive's.",
            *(f"{name}=={version}" for name, version in sorted(packages.pins.items())),
            *sorted(packages.elsewhere),
            "",
        ]
    )


def _add(found: Packages, name: str, dist: Distribution) -> None:
    if name == _OURS:
        return
    if not is_local(dist):
        found.pins[name] = dist.version
    elif not is_editable(dist):
        # The modules of an editable one are taken as files: they lie where they are written.
        found.packed.append(dist)


def _applies(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _applies_to_earlier(wanted: Requirement) -> bool:
    """As of redis-py on Python 3.11.2, which Debian 12 has: it needs a package that later patch releases replace."""
    if wanted.marker is None or "extra" in str(wanted.marker) or _applies(wanted, ""):
        return False
    first = f"{sys.version_info.major}.{sys.version_info.minor}.0"
    return wanted.marker.evaluate({"extra": "", "python_full_version": first})


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
