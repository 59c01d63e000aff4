"""The Dockerfile of a pipeline's image; as deploy/Dockerfile where both do the same."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MARK", "base_image", "dockerfile"]

MARK: Final = "# Written by `clipfleet pipeline build`"

_TEMPLATE: Final = """\
{mark}: the same inputs give the same bytes.
#
#   docker build -t {tag} .
#   docker run --rm -e CLIPFLEET_REDIS_URL=redis://... {tag}
#
# Behind a mirror of the package registry: --secret id=pip,src=pip.conf (it is in no layer and no history).

FROM {base}
ENV PATH=/opt/clipfleet/bin:$PATH PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN groupadd --gid 10001 clipfleet \\
 && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin clipfleet \\
 && python3 -m venv /opt/clipfleet
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=bind,target=/context \\
    pip install -q --no-deps -r /context/requirements.txt /context/wheels/*.whl && pip check
ENV {environment}
COPY models /opt/clipfleet/models
COPY app /app
WORKDIR /app
USER clipfleet
# SIGTERM is a clean stop: the batch on the device is finished and the rest handed back.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s CMD ["python3", "-m", "clipfleet.cli.healthy"]
LABEL {labels}
ENTRYPOINT {entrypoint}
"""

# The module is found from wherever the worker is started; ONNX Runtime's wheels report what they run to their maker
# from 1.29 on, unless they are told not to.
_ENVIRONMENT: Final = {
    "CLIPFLEET_MODEL_CACHE": "/opt/clipfleet/models",
    "OMP_WAIT_POLICY": "passive",
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTHONPATH": "/app",
}
# Every visible GPU or none of it: the default, auto, would go on to the CPU without the container runtime.
_OF_GPUS: Final = {
    "CLIPFLEET_DEVICES": "cuda",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_VISIBLE_DEVICES": "all",
}


def base_image() -> str:
    """The image of this Python: pinned packages were chosen for it."""
    return f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"


def dockerfile(
    *, tag: str, base: str, extra: str, labels: Mapping[str, str], variables: Mapping[str, str], command: Sequence[str]
) -> str:
    """Its text.

    Args:
        tag: of the image, for the comment.
        base: the image that it stands on: with ``python3``, its ``venv`` and ``pip``.
        extra: the runtime; see ``runtime_extra``.
        labels: of the image.
        variables: of its environment, besides what every image has.
        command: what it runs.
    """
    environment = {**_ENVIRONMENT, **(_OF_GPUS if extra == "gpu" else {}), **variables}
    return _TEMPLATE.format(
        mark=MARK,
        tag=tag,
        base=base,
        environment=_pairs(environment),
        labels=_pairs(labels),
        entrypoint=json.dumps(list(command)),
    )


def _pairs(values: Mapping[str, str]) -> str:
    # A dollar would be a variable of the build.
    quoted = [f"{name}={json.dumps(value).replace('$', chr(92) + '$')}" for name, value in sorted(values.items())]
    return " \\\n    ".join(quoted)
