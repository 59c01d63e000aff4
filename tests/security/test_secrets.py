"""A password or a token that we were given is written nowhere: every output, log, file and process list is searched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import psutil
import pytest

from clipfleet.cli.errors import CliError
from clipfleet.cli.settings import Flags, load, redacted
from clipfleet.producer import Client
from clipfleet.producer.connection.address import parse_url
from clipfleet.schemas.request import Request
from clipfleet.store import StoreConfig
from clipfleet.worker import WorkerConfig
from support.cli import clean_environment
from support.redis_server import RedisServer, free_port
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.schemas.keys import QueueKeys
    from support.cli import Done

# With everything in it that a URL, a shell, a log format or JSON would treat in a way of its own.
PASSWORD = "hunter2/Zqpiece?#@%:{}[]\"'$ x"
MARKERS = ("hunter2", "Zqpiece")
TOKEN = "root:t0ken-Wvpiece"


def shows_a_secret(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(marker in line for marker in (*MARKERS, "t0ken", "Wvpiece"))]


@pytest.fixture
def locked(redis_binary: str) -> Iterator[RedisServer]:
    """A Redis with that password."""
    with RedisServer(redis_binary, requirepass=PASSWORD) as server:
        yield server


def url_of(server: RedisServer, password: str = PASSWORD) -> str:
    return f"redis://:{quote(password, safe='')}@127.0.0.1:{server.port}"


def process_list() -> str:
    """What `ps axww` shows of everybody."""
    return "\n".join(" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))


class Background:
    """A command with its streams in a file, and everything that the process list ever showed of it."""

    def __init__(self, folder: Path, *args: str, **env: str) -> None:
        self.log = folder / "background.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clipfleet.cli", *args],
                cwd=folder,
                env=clean_environment(**env) | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.mark.chaos
def test_given_secrets_in_files_when_a_fleet_works_and_fails_then_they_are_written_nowhere(
    locked: RedisServer, keys: QueueKeys, tmp_path: Path, cli: Callable[..., Done]
) -> None:
    # Given secrets as Compose and Kubernetes mount them, and a Milvus that is not there
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "redis").write_text(url_of(locked) + "\n")
    (secrets / "token").write_text(TOKEN + "\n")
    env = {
        "CLIPFLEET_REDIS_URL_FILE": str(secrets / "redis"),
        "MILVUS_TOKEN_FILE": str(secrets / "token"),
        "MILVUS_URI": f"http://127.0.0.1:{free_port()}",
        "CLIPFLEET_QUEUE": keys.queue,
    }
    written: list[str] = []
    work = tmp_path / "work"
    work.mkdir()
    with locked.client(password=PASSWORD) as admin, Background(work, "worker", "--debug", **env) as worker:
        wait_until(lambda: admin.zcard(keys.workers), 60, "the worker")
        # When it answers, refuses, buries, cannot reach its store, and is killed
        done = [
            cli("embed", "a cat", "--json", "--debug", **env),
            cli("search", "a cat", "--json", "--debug", **env | {"CLIPFLEET_TIMEOUT_S": "2"}),
            cli("status", "--json", "--debug", **env),
            cli("doctor", "--json", "--debug", **env),
        ]
        admin.xadd(keys.lanes[0], {"m": b"no msgpack"})
        wait_until(lambda: admin.xlen(keys.dead), 10, "a dead letter")
        psutil.Process(worker.process.pid).children()[0].kill()
        done.append(cli("dead", "list", "--json", "--inputs", **env))
        written += [process_list(), *(one.out + one.err for one in done)]
        assert [one.code for one in done] == [0, 1, 0, 1, 0]
        # and Redis takes another password while it runs
        admin.config_set("requirepass", "another")
        admin.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: "invalid username-password" in worker.log.read_text().lower(), 15, "the worker's complaint")
        written.append(cli("embed", "a cat", "--debug", **env).err)
        written.append(worker.end())
        written += [str(admin.dump(key)) for key in admin.scan_iter()]
        presence = [admin.hgetall(key) for key in admin.keys("*worker:*")]
        written.append(str(presence))
    files = [path for path in work.rglob("*") if path.is_file()]
    written += [path.read_text(errors="replace") for path in files]
    assert shows_a_secret("\n".join(written)) == []
    assert len("\n".join(written)) > 2_000


def test_given_a_secret_in_the_environment_then_no_process_of_a_worker_shows_it(
    locked: RedisServer, keys: QueueKeys, tmp_path: Path
) -> None:
    env = {"REDIS_URL": url_of(locked), "CLIPFLEET_QUEUE": keys.queue, "MILVUS_TOKEN": TOKEN, "CLIPFLEET_MODEL": "none"}
    with locked.client(password=PASSWORD) as admin, Background(tmp_path, "worker", "--processes", "2", **env) as worker:
        wait_until(lambda: admin.zcard(keys.workers) == 2, 60, "the workers")
        shown = process_list()
        assert "clipfleet.worker.process" in shown
        assert shows_a_secret(shown) == []
        # The environment of a process is for its owner (and root) alone: the kernel sees to it.
        assert Path(f"/proc/{worker.process.pid}/environ").stat().st_mode & 0o077 == 0
        assert shows_a_secret(worker.end()) == []


def test_given_a_wrong_password_then_every_command_says_so_without_it(
    locked: RedisServer, keys: QueueKeys, cli: Callable[..., Done]
) -> None:
    wrong = url_of(locked, PASSWORD + "!")
    for args in (("embed", "a cat"), ("status",), ("worker", "--model", "none"), ("dead", "list"), ("doctor",)):
        done = cli(*args, "--debug", "--queue", keys.queue, REDIS_URL=wrong)
        assert done.code != 0, args
        assert "password" in (done.out + done.err).lower(), args
        assert shows_a_secret(done.out + done.err) == [], args


# Passwords that somebody pasted into a URL as they are.
PASTED = (
    "redis://:hunter2/Zqpiece@host:6379/0",
    "redis://:hunter2?Zqpiece@host:6379",
    "redis://:hunter2#Zqpiece@host:6379",
    "redis://user:hunter2/Zqpiece@host",
    "redis://user:hunter2\u2100Zqpiece@host",  # urllib shows the whole host part of this one
    "redis://user:hunter2@[Zqpiece",
    "redis://:hunter2@host:Zqpiece",
    "redis://:x@host/hunter2@Zqpiece",
    "user:hunter2Zqpiece@host:6379",
    ":hunter2Zqpiece@host:6379",
    "hunter2Zqpiece@host",
    "hunter2:Zqpiece",
    "ftp://user:hunter2Zqpiece@host",
    "redis:/:hunter2Zqpiece@host",
)


@pytest.mark.parametrize("url", PASTED)
def test_given_a_url_that_cannot_be_read_then_no_error_shows_a_piece_of_it(url: str) -> None:
    texts = []
    with pytest.raises(ValueError, match="Redis URL") as refused:
        parse_url(url)
    texts.append(repr(refused.value))
    assert refused.value.__cause__ is None
    with pytest.raises(ValueError, match="Redis URL") as refused:
        Client(url)
    texts.append(repr(refused.value))
    for setting in ("REDIS_URL", "CLIPFLEET_REDIS_URL", "MILVUS_URI"):
        with pytest.raises(CliError) as wrong:
            load(Flags(), {setting: url.replace("redis://", "http://") if setting == "MILVUS_URI" else url})
        texts.append(f"{wrong.value} {wrong.value.hint}")
    assert shows_a_secret("\n".join(texts)) == []


@pytest.mark.parametrize("url", ["http://user:hunter2Zqpiece@", "hunter2:Zqpiece@host", "http://:hunter2/Zqpiece@h"])
def test_given_a_milvus_address_that_is_none_then_the_error_shows_no_secret(url: str) -> None:
    with pytest.raises(ValueError, match="Milvus address") as refused:
        StoreConfig(url)
    assert shows_a_secret(str(refused.value)) == []


def test_given_objects_that_hold_secrets_then_their_repr_does_not() -> None:
    url, uri = f"redis://user:{quote(PASSWORD, safe='')}@host", "http://user:hunter2Zqpiece@host:19530"
    settings = load(Flags(redis_url=url, milvus_uri=uri), {"MILVUS_TOKEN": TOKEN, "CLIPFLEET_REDIS_URL": url})
    with Client(url) as client:
        held: list[Any] = [
            Flags(redis_url=url, milvus_uri=uri),
            settings,
            settings.line(),
            parse_url(url),
            str(parse_url(url)),
            WorkerConfig(redis_url=url, milvus_uri=uri, milvus_token=TOKEN),
            StoreConfig(uri, TOKEN),
            client,
            vars(client),
        ]
        assert shows_a_secret("\n".join(map(repr, held))) == []
    assert redacted(url) == "redis://user:***@host"


def test_given_a_dead_letter_then_what_was_asked_is_shown_only_when_asked_for(
    make_redis: Callable[..., RedisServer], keys: QueueKeys, cli: Callable[..., Done]
) -> None:
    server = make_redis()
    with server.client() as client:
        request = Request("a1", "embed_text", {"text": "hunter2"}).encode()
        letter = {"id": "a1", "request": request, "code": "poisoned", "message": "its worker died", "deliveries": 3}
        client.xadd(keys.dead, letter | {"lane": keys.lanes[0], "enqueued_ms": 1})
    env = {"REDIS_URL": server.url, "CLIPFLEET_QUEUE": keys.queue}
    for args in ((), ("--json",)):
        plain = cli("dead", "list", *args, **env)
        assert "poisoned" in plain.out
        assert shows_a_secret(plain.out + plain.err) == []
        assert shows_a_secret(cli("dead", "list", "--inputs", *args, **env).out) != []


@pytest.mark.parametrize("name", ["REDIS_URL", "CLIPFLEET_REDIS_URL", "MILVUS_URI", "MILVUS_TOKEN", "CLIPFLEET_QUEUE"])
def test_given_a_variable_as_a_file_then_it_is_read_and_a_missing_one_is_a_usage_error(
    tmp_path: Path, name: str
) -> None:
    value = {"MILVUS_URI": "http://h:1", "MILVUS_TOKEN": TOKEN, "CLIPFLEET_QUEUE": "q"}.get(name, "redis://:pw@h")
    (tmp_path / "secret").write_text(f"{value}\n")
    settings = load(Flags(), {f"{name}_FILE": str(tmp_path / "secret")})
    held = {"REDIS_URL": settings.redis_url, "MILVUS_URI": settings.milvus_uri, "MILVUS_TOKEN": settings.milvus_token}
    assert held.get(name.removeprefix("CLIPFLEET_"), settings.queue) == value
    with pytest.raises(CliError, match="cannot read"):
        load(Flags(), {f"{name}_FILE": str(tmp_path / "missing")})


def test_given_an_embedded_fleet_then_its_endpoints_hold_addresses_alone(tmp_path: Path) -> None:
    from clipfleet.cli.local.endpoints import Endpoints

    Endpoints(
        os.getpid(), 1, "up", "redis://127.0.0.1:1", "http://127.0.0.1:2", "clip", "clipfleet", has_worker=True
    ).write(tmp_path)
    written = json.loads((tmp_path / "endpoints.json").read_text())
    assert set(written) == {"v", "pid", "start", "command", "redis_url", "milvus_uri", "queue", "prefix", "has_worker"}
    assert (tmp_path / "endpoints.json").stat().st_mode & 0o077 == 0
