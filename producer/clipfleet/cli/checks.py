"""What ``clipfleet doctor`` looks at: each check says what it saw and how to mend it."""

from __future__ import annotations

import importlib.util
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from clipfleet.cli.settings import redacted
from clipfleet.schemas.errors import ClipfleetError
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clipfleet.cli.settings import Settings

__all__ = ["Check", "run_checks"]

_MIN_REDIS: Final = (6, 2)
_LOW_MEMORY_BYTES: Final = 1024**3
_CONNECT_S: Final = 2.0
_START_MILVUS: Final = "Start it, or name the right one with --milvus-uri."


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        state: ``ok``; ``note`` for what is fine but worth knowing; ``bad`` for what must be mended.
        detail: what was seen.
        fix: how to mend it; empty when there is nothing to mend.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "check": self.name,
            "ok": self.state != "bad",
            "state": self.state,
            "detail": self.detail,
            "fix": self.fix,
        }


def run_checks(settings: Settings) -> Iterator[Check]:
    """All checks, in one order and each as soon as it and those before it are done.

    Run beside each other: most of their time goes into waiting for what does not answer and into imports.
    """
    checks: tuple[Callable[[], Iterable[Check]], ...] = (
        lambda: check_redis(settings),
        lambda: check_milvus(settings),
        check_runtime,
        lambda: check_model(settings),
        lambda: [check_memory()],
    )
    with ThreadPoolExecutor(len(checks), thread_name_prefix="check") as pool:
        for found in pool.map(lambda check: list(check()), checks):
            yield from found


def check_redis(settings: Settings) -> Iterator[Check]:
    """Reachable, new enough, never dropping requests, keeping them over a restart; and whether anybody serves."""
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415

    where = redacted(settings.redis_url)
    try:
        with QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view:
            info = view.server()
            yield from redis_findings(info, where)
            workers = view.living_workers()
    except ClipfleetError as error:
        yield Check(
            "redis",
            "bad",
            f"{where}: {error}",
            "Start one with 'clipfleet up' (or 'redis-server --maxmemory-policy noeviction --appendonly yes'), or name "
            "the right one with --redis-url.",
        )
        return
    if workers:
        yield Check("workers", "ok", f"{len(workers)} alive on queue {settings.queue}")
    else:
        yield Check("workers", "note", f"none alive on queue {settings.queue}", "Start one with 'clipfleet worker'.")


def redis_findings(info: dict[str, Any], where: str) -> Iterator[Check]:
    """What ``INFO`` of the server at ``where`` says."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    name = "Valkey" if "valkey_version" in info else "Redis"
    if numbers < _MIN_REDIS:
        yield Check("redis", "bad", f"{name} {version} at {where}", "Use Redis 6.2 or newer, or Valkey.")
    else:
        yield Check("redis", "ok", f"{name} {version} at {where}")
    policy = info.get("maxmemory_policy", "")
    if policy != "noeviction":
        yield Check(
            "eviction",
            "bad",
            f"maxmemory-policy is {policy!r}: Redis may drop requests that it has accepted",
            "redis-cli config set maxmemory-policy noeviction   (and in its configuration file)",
        )
    else:
        yield Check("eviction", "ok", "noeviction: nothing that was accepted is dropped")
    if info.get("aof_enabled"):
        yield Check("persistence", "ok", "append-only file: accepted requests survive a restart")
    else:
        yield Check(
            "persistence",
            "note",
            "no append-only file: accepted requests are lost when Redis restarts",
            "redis-cli config set appendonly yes   (and in its configuration file)",
        )
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and used > 0.9 * limit:
        yield Check("redis memory", "bad", f"{used / 2**20:.0f} of {limit / 2**20:.0f} MiB", "Raise maxmemory.")


def check_milvus(settings: Settings) -> Iterator[Check]:
    """Reachable, and which."""
    if settings.milvus_uri is None:
        yield Check(
            "milvus",
            "note",
            "no Milvus URI: workers serve embeddings alone, no index and no search",
            "Name one with --milvus-uri, or start Milvus Lite with 'clipfleet up'.",
        )
        return
    where = redacted(settings.milvus_uri)
    if importlib.util.find_spec("pymilvus") is None:
        yield Check("milvus", "note", f"{where}: cannot be asked, pymilvus is not installed", _install("cpu"))
        return
    if _refuses(settings.milvus_uri):
        yield Check("milvus", "bad", f"{where}: nothing listens there", _START_MILVUS)
        return
    from clipfleet.store import Store, StoreConfig  # noqa: PLC0415  imports pymilvus when it is used

    try:
        store = Store(StoreConfig(settings.milvus_uri, settings.milvus_token, settings.milvus_ca_file))
        try:
            version = store.probe()
            collections = store.list_collections()
        finally:
            store.close()
    except (ClipfleetError, ValueError) as error:
        yield Check("milvus", "bad", f"{where}: {error}", _START_MILVUS)
        return
    kind = "Milvus Lite" if "lite" in version.lower() else "Milvus"
    held = ", ".join(f"{each.name} ({counted(each.rows, 'row')})" for each in collections if each.rows is not None)
    yield Check("milvus", "ok", f"{kind} {version} at {where}; collections: {held or 'none'}")


def _refuses(uri: str) -> bool:
    """Whether it is certain that nothing is there, which Milvus' own client finds out after seconds of trying."""
    parts = urlsplit(uri)
    if parts.hostname is None or parts.port is None:
        return False
    try:
        socket.create_connection((parts.hostname, parts.port), _CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def check_runtime() -> Iterator[Check]:
    """What can run a model here, and on which device."""
    if importlib.util.find_spec("numpy") is None or importlib.util.find_spec("onnxruntime") is None:
        yield Check(
            "runtime", "note", "ONNX Runtime is not installed: this machine can ask, but not serve", _install("cpu")
        )
        return
    from clipfleet.models import choose_devices, installed_runtimes  # noqa: PLC0415

    installed = installed_runtimes()
    both = " and ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) > 1:
        yield Check(
            "runtime",
            "bad",
            f"{both} are installed over each other: the GPU may silently not be used",
            'pip uninstall -y onnxruntime onnxruntime-gpu && pip install "clipfleet[gpu]"',
        )
    else:
        yield Check("runtime", "ok", both)
    yield Check("device", "ok", f"{choose_devices('auto').why}")


def check_model(settings: Settings) -> Iterator[Check]:
    """The model is here, whole, and gives the vectors that it should."""
    if importlib.util.find_spec("onnxruntime") is None:
        return
    from clipfleet.models import find_bundle, list_devices, load_bundle, open_runtime  # noqa: PLC0415

    name = settings.environment.get("model", "demo")
    try:
        place = find_bundle(name)
        if place is None:
            yield Check("model", "bad", f"{name} is not exported yet", f"clipfleet model export {name}")
            return
        bundle = load_bundle(place)
        device = list_devices(settings.environment.get("devices", "auto"))[0]
        runtime = open_runtime(bundle, device=device)
        provider = runtime.provider
        runtime.close()
    except ClipfleetError as error:
        yield Check("model", "bad", f"{name}: {error}", "Export it again: clipfleet model export " + name)
        return
    yield Check(
        "model", "ok", f"{name} by {provider} on {device} gives its golden vectors ({bundle.config.dimension}-d)"
    )


def check_memory() -> Check:
    """Free memory, as far as the system tells."""
    free = free_memory()
    if free is None:
        return Check("memory", "note", "this system does not tell how much is free")
    text = f"{free / 2**30:.1f} GiB free"
    if free < _LOW_MEMORY_BYTES:
        return Check("memory", "note", text, "A worker with a big model, or Milvus Lite with many rows, needs more.")
    return Check("memory", "ok", text)


def free_memory() -> int | None:
    """Bytes that a new process may use: what the machine has left, or the container's limit."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    except OSError:
        return None
    if found is None:
        return None
    free = int(found[1]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text()
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - int(used))


def _install(extra: str) -> str:
    return f'pip install "clipfleet[{extra}]"'
