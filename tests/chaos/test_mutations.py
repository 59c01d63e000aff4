"""Proof that the tests watch the mechanisms: each is removed from a copy, and the test named for it must fail.

``-s`` prints the table that docs/reliability.md has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
PORTIONS = ("schemas", "producer", "worker")
LUA = "schemas/clipfleet/schemas/lua"
WORKER = "worker/clipfleet/worker"
FAILED = 1  # pytest's exit code: tests ran, and some failed


class Mutation(NamedTuple):
    """One mechanism removed: ``old`` becomes ``new`` in ``file``, and ``test`` fails."""

    mechanism: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = [
    Mutation(
        "the owner check in settle.lua",
        f"{LUA}/settle.lua",
        "if pending[1][2] ~= ARGV[3] then return -1 end",
        "",
        "tests/chaos/test_owners.py -k failure-alone",
    ),
    Mutation(
        "the XACK test in settle.lua",
        f"{LUA}/settle.lua",
        "if redis.call('XACK', KEYS[1], 'workers', ARGV[1]) == 0 then return 0 end",
        "redis.call('XACK', KEYS[1], 'workers', ARGV[1])",
        "tests/redis/test_scripts_settle.py -k another_settles",
    ),
    Mutation(
        "the XACK test in settle_many.lua",
        f"{LUA}/settle_many.lua",
        "if answer == 1 then",
        "if answer then",
        "tests/chaos/test_owners.py -k success-alone",
    ),
    Mutation(
        "the owner check in renew.lua",
        f"{LUA}/renew.lua",
        "if mine[ARGV[i]] then",
        "if true then",
        "tests/chaos/test_owners.py -k failure-alone",
    ),
    Mutation(
        "renewal by the supervisor",
        f"{WORKER}/supervisor.py",
        "lost = self._fleet.renew(child.name, held)",
        "lost = set() if held else set()",
        "tests/chaos/test_owners.py -k three_leases",
    ),
    Mutation(
        "no renewal for a stopped process",
        f"{WORKER}/child.py",
        'return stat.rpartition(")")[2].split()[0] not in NOT_RUNNING',
        "return bool(stat)",
        "tests/chaos/test_points.py -k call-SIGSTOP",
    ),
    Mutation(
        "solo runs in reclaim.lua",
        f"{LUA}/reclaim.lua",
        "take = solo and #taken == 0",
        "take = room > 0",
        "tests/acceptance/test_worker_faults.py -k three_deaths",
    ),
    Mutation(
        "max_deliveries",
        f"{WORKER}/sorting.py",
        "if entry.deliveries > self._most_deliveries:",
        "if entry.deliveries > 1_000:",
        "tests/chaos/test_poison.py -k oomkill",
    ),
    Mutation(
        "call keys in admit.lua",
        f"{LUA}/admit.lua",
        "if seen then return cjson.decode(seen) end",
        "",
        "tests/redis/test_producer_faults.py -k lost_reply",
    ),
    Mutation(
        "trim after read in the producer",
        "producer/clipfleet/producer/core/inbox.py",
        'Command(("LRANGE", self._key, 0, MAX_READ - 1), self._arrived, self._lost),',
        'Command(("LRANGE", self._key, 0, MAX_READ - 1), self._arrived, self._lost),\n'
        '                Command(("LTRIM", self._key, MAX_READ, -1), self._trimmed, nothing),',
        "tests/redis/test_producer_faults.py -k cut_within",
    ),
    Mutation(
        "asking for the owner after a pause",
        f"{WORKER}/ledger.py",
        "return [entry for entry in entries if entry.read_at < oldest]",
        "return []",
        "tests/chaos/test_owners.py -k after_a_pause",
    ),
    Mutation(
        "killing a call older than max_run_s",
        f"{WORKER}/supervisor.py",
        "if child.hung:",
        "if False:",
        "tests/chaos/test_owners.py -k hung_call",
    ),
    Mutation(
        "dying with the supervisor",
        f"{WORKER}/parent.py",
        'if sys.platform.startswith("linux"):',
        "if False:",
        "tests/chaos/test_owners.py -k holds_the_gil",
    ),
    Mutation(
        "handing back what a dead process held",
        f"{WORKER}/supervisor.py",
        "self._bury(child)\n            if child.failure",
        "if child.failure",
        "tests/acceptance/test_worker_faults.py -k call_loses_nothing",
    ),
    Mutation(
        "handing back at SIGTERM",
        f"{WORKER}/process.py",
        "self._hand_back(self._ledger.held())",
        "",
        "tests/acceptance/test_worker_faults.py -k sigterm",
    ),
    Mutation(
        "recreating a group that went",
        f"{WORKER}/intake.py",
        "self._ensured = False\n                self._patience",
        "self._patience",
        "tests/chaos/test_redis_gone.py -k flushall",
    ),
    Mutation(
        "the look before DELCONSUMER in leave.lua",
        f"{LUA}/leave.lua",
        "if busy > 0 then return busy end",
        "",
        "tests/redis/test_scripts_lease.py -k still_holds",
    ),
    Mutation(
        "waiting for an absent store",
        "worker/clipfleet/pipeline/engine/store_loop.py",
        "except StoreUnavailable as error:\n                self.troubled = True",
        "except StoreUnavailable as error:\n                return",
        "tests/chaos/test_store_gone.py -k limits_rates",
    ),
    Mutation(
        "handing back what a lost reply delivered",
        f"{WORKER}/intake.py",
        "            self._return_unheard()\n",
        "            pass\n",
        "tests/chaos/test_lost_reply.py",
    ),
    Mutation(
        "the server's clock for deadlines",
        f"{WORKER}/clock.py",
        "return time.monotonic() * 1000.0 + self._offset_ms",
        "return time.time() * 1000.0",
        "tests/chaos/test_producers.py -k worker_whose_clock",
    ),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources and the tests, to be maimed."""
    folder = tmp_path_factory.mktemp("mutant")
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", ".hypothesis")
    for name in (*PORTIONS, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def mutated(copy: Path, request: pytest.FixtureRequest) -> Iterator[Mutation]:
    mutation: Mutation = request.param
    file = copy / mutation.file
    original = file.read_text()
    assert original.count(mutation.old) == 1, f"{mutation.file} has changed: say anew how to remove the mechanism"
    file.write_text(original.replace(mutation.old, mutation.new))
    yield mutation
    file.write_text(original)


def run_in(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(copy / portion) for portion in PORTIONS)
    # pytest keeps its folders of the last runs: not among the temporary files that this run leaves none of.
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DEBUG_TEMPROOT": str(copy)}
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


def test_the_copy_is_what_runs(copy: Path) -> None:
    found = run_in(copy, "-c", "import clipfleet.worker, clipfleet.schemas as s; print(s.__file__)")
    assert found.stdout.startswith(str(copy)), found.stderr


@pytest.mark.parametrize("mutated", MUTATIONS, indirect=True, ids=[one.mechanism for one in MUTATIONS])
def test_without_its_mechanism_a_test_fails(copy: Path, mutated: Mutation) -> None:
    ended = run_in(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutated.test.split())
    assert ended.returncode == FAILED, f"{mutated.test} without {mutated.mechanism}:\n{ended.stdout[-3000:]}"
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"| {mutated.mechanism} | {mutated.file} | {failed[0].split(' - ')[0].split('::')[-1]} |")
