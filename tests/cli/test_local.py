"""A fleet of one's own: started, found, shared, stopped, and never left behind."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from clipfleet.cli.commands.up import tell
from clipfleet.cli.errors import CliError
from clipfleet.cli.local import Endpoints, Stack, StackOptions
from clipfleet.cli.output import Output
from clipfleet.cli.run import Run
from clipfleet.cli.settings import Flags
from clipfleet.producer import Client
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.limits import DEFAULT_PREFIX
from support.cli import descendants, end, running, start
from support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("redis_binary")

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "examples" / "pictures"
# Random weights: its vectors mean nothing, and everything else about it is real.
TINY = REPOSITORY / "tests" / "unit" / "data" / "tiny-bundle"
# A worker without a model starts in a second and answers `echo`: enough to see processes come and go.
NO_MODEL = {"CLIPFLEET_MODEL": "none"}


class Up:
    """A running ``clipfleet up``."""

    def __init__(self, folder: Path, *args: str, model: str = "none") -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] = start("up", "--json", "--model", model, *args, cwd=folder)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)
        self.children = descendants(self.process.pid)

    def child(self, word: str) -> int:
        """The newest child with ``word`` in its command line."""
        found = [pid for pid in descendants(self.process.pid) if word in command_line(pid)]
        return max(found, default=0)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def up(tmp_path_factory, redis_binary) -> Iterator[Up]:
    """One fleet for the tests that leave it as it was; its end is a test too."""
    fleet = Up(tmp_path_factory.mktemp("up"), model=str(TINY))
    yield fleet
    _, err = end(fleet.process, signal.SIGINT)
    assert fleet.process.returncode == 0, err
    steps = [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    assert [step for step in steps if step.startswith("stopping")] == [
        "stopping the worker",
        "stopping Milvus Lite",
        "stopping Redis",
    ]
    assert not running(fleet.children)
    assert not (fleet.folder / ".clipfleet" / "endpoints.json").exists()


@pytest.fixture
def other_up(tmp_path) -> Iterator[Callable[..., Up]]:
    """A fleet of the test's own."""
    fleets: list[Up] = []

    def make(*args: str) -> Up:
        fleets.append(Up(tmp_path, *args))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.process.kill()
        fleet.process.communicate()


def test_given_a_running_fleet_when_a_command_runs_below_its_folder_then_it_is_found_and_named(cli, up):
    below = up.folder / "a" / "b"
    below.mkdir(parents=True)
    done = cli("status", "--json", cwd=below)
    assert done.code == 0
    assert done.err.startswith(f"fleet: {up.said['redis_url']}")
    assert f"'clipfleet up' with pid {up.process.pid}" in done.err
    assert [worker["model"] for worker in done.lines[0]["workers"]] == [str(TINY)]


def test_given_a_running_fleet_when_the_environment_names_another_then_that_one_is_used(cli, up):
    done = cli("status", cwd=up.folder, REDIS_URL="redis://127.0.0.1:1")
    assert done.code == 4
    assert done.err.startswith("fleet: redis://127.0.0.1:1, queue clip (from REDIS_URL)")


def test_given_a_running_fleet_when_local_is_asked_for_then_it_is_attached_to(cli, up):
    done = cli("status", "--local", cwd=up.folder, REDIS_URL="redis://127.0.0.1:1")
    assert done.code == 0
    assert done.err.startswith(f"fleet: {up.said['redis_url']}")
    assert up.process.poll() is None


def test_given_a_running_fleet_when_another_is_started_there_then_it_says_which_one_runs(cli, up):
    done = cli("up", cwd=up.folder)
    assert done.code == 1
    assert f"pid {up.process.pid}" in done.err
    assert up.said["redis_url"] in done.err


def test_given_a_running_fleet_when_its_redis_is_looked_at_then_it_is_safe_and_private(cli, up):
    done = cli("doctor", "--json", cwd=up.folder)
    found = {line["check"]: line["state"] for line in done.lines}
    assert [found[name] for name in ("redis", "eviction", "persistence", "workers", "milvus")] == ["ok"] * 5
    assert up.said["redis_url"].startswith("redis://127.0.0.1:")


def test_given_a_running_fleet_when_the_process_list_is_read_then_no_address_is_in_it(up):
    shown = " ".join(command_line(pid) for pid in up.children if "clipfleet.cli" in command_line(pid))
    assert "clipfleet.cli worker" in shown
    assert "redis://" not in shown


def test_given_a_running_fleet_when_pictures_are_indexed_then_each_is_found_by_itself(cli, up, tmp_path):
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    names = [path.name for path in sorted(PICTURES.glob("*.png"))[::12]]
    for name in names:
        shutil.copy(PICTURES / name, chosen)
    (chosen / "broken.png").write_bytes(b"no picture")
    done = cli("index", str(chosen), "--json", "--collection", "some", cwd=up.folder)
    assert done.code == 3
    assert sorted(line["id"] for line in done.lines if line["ok"]) == names
    assert [line["error"]["code"] for line in done.lines if not line["ok"]] == ["unsupported_media"]

    done = cli(
        "search",
        "--image",
        *[str(chosen / name) for name in names[:5]],
        "--json",
        "--collection",
        "some",
        cwd=up.folder,
    )
    assert [line["hits"][0]["id"] for line in done.lines] == names[:5]
    assert all(line["hits"][0]["score"] == pytest.approx(1, abs=1e-3) for line in done.lines)
    assert done.lines[0]["hits"][0]["metadata"] == {"path": names[0], "name": names[0]}

    where = f'name == "{names[7]}"'
    done = cli("search", "anything", "--filter", where, "--json", "--collection", "some", cwd=up.folder)
    assert [hit["id"] for hit in done.lines[0]["hits"]] == [names[7]]
    where = f'nmae == "{names[7]}" and path != ""'
    done = cli("search", "anything", "--filter", where, "--json", "--collection", "some", cwd=up.folder)
    assert (done.code, done.lines[0]["hits"]) == (0, [])
    assert "no row of 'some' has the key nmae: look at how it is spelled" in done.err
    assert "the key path" not in done.err
    # Behind a negation or an "or" it has hits, and is mistyped all the same
    for where in ('nmae != "x"', 'not exists nmae or name != "x"'):
        done = cli("search", "anything", "--filter", where, "--json", "--collection", "some", cwd=up.folder)
        assert (done.code, len(done.lines[0]["hits"])) == (0, 10)
        assert done.err.count("no row of 'some' has") == 1
        assert "has the key nmae: look at how it is spelled" in done.err
    done = cli("search", "anything", "--filter", 'name != "x"', "--collection", "some", cwd=up.folder)
    assert "no row" not in done.err


def test_given_numbers_of_a_csv_when_a_filter_compares_them_then_it_is_told_that_they_are_text(cli, up, tmp_path):
    rows = [f"{path},{n},{n % 2 == 0}" for n, path in enumerate(sorted(PICTURES.glob("*.png"))[:4])]
    (tmp_path / "shop.csv").write_text("\n".join(["path,price,sold", *rows]))
    said = [str(tmp_path / "shop.csv"), "--path-root", "/", "--collection"]
    assert cli("index", *said, "as_text", cwd=up.folder).code == 0
    assert cli("index", *said, "as_numbers", "--field", "price:int", "--field", "sold:bool", cwd=up.folder).code == 0

    def found(collection: str, where: str) -> tuple[int, str]:
        done = cli("search", "a cat", "--filter", where, "--json", "--collection", collection, cwd=up.folder)
        assert done.code == 0
        return len(done.lines[0]["hits"]), done.err

    hint = "no row of 'as_text' has a number under price: its values are text"
    for where, fits in (("price < 10", 0), ("price != 3", 4)):
        hits, told = found("as_text", where)
        assert hits == fits
        assert hint in told
        assert "with --field price:float" in told
    hits, told = found("as_text", "not metadata['sold'] == true")
    assert hits == 4
    assert "has true or false under sold: its values are text" in told
    assert "with --field sold:bool" in told
    for collection, where, fits in (
        ("as_text", 'price == "none"', 0),
        ("as_text", 'price in [3, "3"]', 1),
        ("as_numbers", "price > 10", 0),
    ):
        hits, told = found(collection, where)
        assert hits == fits
        assert "no row" not in told


def test_given_a_running_fleet_when_a_picture_is_embedded_then_its_vector_is_the_clients_own(cli, up):
    pictures = [str(path) for path in sorted(PICTURES.glob("*.png"))[:64]]
    together = [line["vector"] for line in cli("embed", "--json", "--image", *pictures, cwd=up.folder).lines]
    alone = cli("embed", "--json", "--image", pictures[9], cwd=up.folder).lines[0]["vector"]
    with Client(up.said["redis_url"]) as client:
        vector = client.embed_image(Path(pictures[9])).vector.tolist()
    for other in (alone, vector):
        assert math.fsum(a * b for a, b in zip(together[9], other, strict=True)) >= 0.9999


def test_when_up_is_killed_then_nothing_is_left_behind_and_its_addresses_are_not_believed(other_up, cli):
    fleet = other_up()
    assert len(running(fleet.children)) >= 4  # redis, milvus, supervisor, worker
    fleet.process.send_signal(signal.SIGKILL)
    fleet.process.communicate()
    wait_until(lambda: not running(fleet.children), 20, "every child of the killed `up` to end")
    assert (fleet.folder / ".clipfleet" / "endpoints.json").exists()
    said = cli("status", cwd=fleet.folder).err
    assert "has stopped; start it with 'clipfleet up'" in said
    assert "(from the default)" in said


def test_when_milvus_dies_then_it_is_started_again_and_when_redis_dies_then_up_ends_and_says_so(other_up):
    fleet = other_up()
    first = fleet.child("lite")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: fleet.child("lite") not in {0, first}, 30, "another Milvus Lite")
    os.kill(fleet.child("redis-server"), signal.SIGKILL)
    _, err = fleet.process.communicate(timeout=60)
    assert fleet.process.returncode == 1
    assert "Redis ended by itself" in err
    assert not running(fleet.children)


def test_given_a_worker_that_is_being_restarted_when_asked_then_it_is_waited_for_and_said(other_up):
    fleet = other_up()
    fleet.process.send_signal(signal.SIGSTOP)  # so that the gap lasts until the command has seen it
    for pid in descendants(fleet.process.pid):
        if "clipfleet.cli worker" in command_line(pid):
            os.kill(pid, signal.SIGKILL)
    with redis.Redis.from_url(fleet.said["redis_url"]) as client:
        client.delete(QueueKeys("clip").workers)
        asking = start("embed", "--json", "a cat", cwd=fleet.folder)
        assert asking.stderr.readline().startswith("fleet: ")
        assert asking.stderr.readline() == "its worker is being started again: waiting for it\n"
        fleet.process.send_signal(signal.SIGCONT)
    out, _ = asking.communicate(timeout=60)
    # It serves again, and has no model.
    assert json.loads(out)["error"]["code"] == "unknown_pipeline"


def test_given_a_model_that_is_not_there_when_started_then_the_reason_is_told_and_nothing_stays(cli, tmp_path):
    done = cli("up", "--model", "/nowhere/at/all")
    assert done.code == 1
    assert "the worker did not start" in done.err
    assert "/nowhere/at/all" in done.err
    assert not (tmp_path / ".clipfleet" / "endpoints.json").exists()


def test_given_a_port_that_is_taken_when_started_then_it_is_told(cli, redis_server):
    done = cli("up", "--port", str(redis_server.port))
    assert done.code == 1
    assert f"port {redis_server.port} is taken" in done.err


def test_given_nothing_running_when_local_is_asked_for_then_a_fleet_is_there_for_the_command(cli, tmp_path):
    done = cli("embed", "--local", "--json", "a cat", **NO_MODEL)
    assert done.lines[0]["error"]["code"] == "unknown_pipeline"
    assert done.code == 1
    # Without a store: nobody pays for Milvus Lite to embed a text.
    assert sorted(entry.name for entry in (tmp_path / ".clipfleet").iterdir() if entry.is_dir()) == ["redis"]
    assert not descendants(os.getpid()) & redis_servers_of(tmp_path)


def test_given_two_commands_at_once_when_both_are_local_then_both_work_and_nothing_stays(tmp_path):
    both = [start("status", "--local", "--json", cwd=tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [4, 4], outputs  # no worker, but an answer
    assert [json.loads(out)["queue"] for out, _ in outputs] == ["clip", "clip"]
    assert not redis_servers_of(tmp_path)


def redis_servers_of(folder: Path) -> set[int]:
    """Redis servers whose data are in ``folder``."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            place = (entry / "cwd").readlink() if entry.name.isdigit() else None
        except OSError:
            continue
        if place is not None and place.is_relative_to(folder) and "redis-server" in command_line(int(entry.name)):
            found.add(int(entry.name))
    return found


def test_given_a_folder_that_cannot_be_written_when_started_then_it_is_told(tmp_path):
    (tmp_path / "file").touch()
    stack = Stack(StackOptions(tmp_path / "file" / ".clipfleet", "up", "clip", "clipfleet"))
    with pytest.raises(CliError, match=r"\.clipfleet cannot be written: Not a directory"):
        stack.start()


@pytest.mark.parametrize(
    ("queue", "line"),
    [
        ("clip", "client = Client('redis://127.0.0.1:7001')"),
        ("q2", "client = Client('redis://127.0.0.1:7001', queue='q2')"),
    ],
)
def test_when_up_is_up_then_it_prints_the_line_that_python_takes(queue, line, tmp_path):
    run = Run("up", Flags())
    stdout = io.StringIO()
    run.out = Output(stdout=stdout)
    tell(run, Endpoints(1, 2, "up", "redis://127.0.0.1:7001", None, queue, DEFAULT_PREFIX, True), tmp_path)
    assert line in stdout.getvalue()
