"""The manifest as a state machine, and what a killed process leaves of it."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from clipfleet.index.manifest import Known, Manifest, ManifestError, State, Todo, decide, is_transient, signature
from clipfleet.index.sources import Item
from clipfleet.producer.requests import Url
from clipfleet.schemas.errors import ErrorCode, error_for

IDS = st.sampled_from(["a", "b/c", "é", r"\xff", ""])
SIGNATURES = st.sampled_from([b"1" * 16, b"2" * 16])


class Machine(RuleBasedStateMachine):
    """A manifest beside a dict; closing, or losing what is not written, at any moment."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "m.sqlite"
        self.manifest = Manifest(self.path)
        self.model, self.written = {}, {}

    @rule(id_=IDS, now=SIGNATURES)
    def send(self, id_, now):
        self.manifest.sent(id_, now)
        self.model[id_] = (now, State.SENT, None)

    @rule(id_=IDS, now=SIGNATURES, code=st.sampled_from([None, *ErrorCode]))
    def answer(self, id_, now, code):
        error = None if code is None else error_for(code, "why")
        self.manifest.answered(id_, now, error)
        if error is None:
            self.model[id_] = (now, State.DONE, None)
        else:
            self.model[id_] = (now, State.TRANSIENT if is_transient(error) else State.PERMANENT, code)

    @rule(ids=st.lists(IDS))
    def forget(self, ids):
        self.manifest.forget(ids)
        for id_ in ids:
            self.model.pop(id_, None)

    @rule()
    def flush(self):
        self.manifest.flush()
        self.written = dict(self.model)

    @rule()
    def end_and_go_on(self):
        self.manifest.close()
        self.manifest = Manifest(self.path)
        self.written = dict(self.model)

    @rule()
    def lose_what_is_not_written(self):
        # What a kill leaves: the connection goes without a commit.
        self.manifest._db.close()
        self.manifest = Manifest(self.path)
        self.model = dict(self.written)

    @invariant()
    def holds_what_was_put(self):
        if not hasattr(self, "manifest"):
            return
        for id_, (now, state, code) in self.model.items():
            known = self.manifest.known(id_)
            assert (known.signature, known.state, known.error and known.error.code) == (now, state, code)
        assert self.manifest.counts() == {
            state: sum(each[1] is state for each in self.model.values())
            for state in {e[1] for e in self.model.values()}
        }
        done = [id_ for page in self.manifest.done() for id_ in page]
        assert set(done) == {id_ for id_, each in self.model.items() if each[1] is State.DONE and id_}

    def teardown(self):
        if hasattr(self, "manifest"):
            self.manifest.close()
            self.folder.cleanup()


# Time must not write by itself here: what is lost is part of the model.
@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr("clipfleet.index.manifest._WRITE_EVERY_S", 3600.0)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize(
    ("state", "same", "retry", "todo"),
    [
        (None, True, False, Todo.SEND),
        (State.SENT, True, False, Todo.SEND),
        (State.DONE, True, False, Todo.LEAVE_DONE),
        (State.DONE, True, True, Todo.LEAVE_DONE),
        (State.DONE, False, False, Todo.SEND),
        (State.TRANSIENT, True, False, Todo.SEND),
        (State.PERMANENT, True, False, Todo.LEAVE_FAILED),
        (State.PERMANENT, True, True, Todo.SEND),
        (State.PERMANENT, False, False, Todo.SEND),
    ],
)
def test_what_is_done_with_an_item(state, same, retry, todo):
    known = None if state is None else Known(b"then", state)
    assert decide(known, b"then" if same else b"now", retry_failed=retry) is todo


def test_given_a_second_run_when_it_opens_the_manifest_then_it_is_refused_until_the_first_ends(tmp_path):
    with Manifest(tmp_path / "m.sqlite"), pytest.raises(ManifestError, match="another run holds"):
        Manifest(tmp_path / "m.sqlite")
    Manifest(tmp_path / "m.sqlite").close()


def test_given_something_else_when_opened_then_it_is_left_alone(tmp_path):
    (tmp_path / "text").write_text("a text that somebody needs" * 100)
    with sqlite3.connect(tmp_path / "db") as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    for name in ("text", "db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ManifestError, match="manifest"):
            Manifest(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(ManifestError, match="cannot be used"):
        Manifest(tmp_path / "text" / "m.sqlite")


def test_given_a_process_killed_in_the_middle_then_all_but_what_was_not_written_is_there(tmp_path):
    code = """
import os, signal, sys
from clipfleet.index.manifest import Manifest
manifest = Manifest(sys.argv[1])
for number in range(2500):
    manifest.answered(f"{number:05}", b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.sqlite"], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with Manifest(tmp_path / "m.sqlite") as manifest:
        assert manifest.counts()[State.DONE] >= 2000
        assert [id_ for page in manifest.done() for id_ in page] == [
            f"{number:05}" for number in range(manifest.counts()[State.DONE])
        ]


def fill(manifest):
    for number in range(2_000):
        manifest.answered(f"{number:0200}", b"x")


def test_given_a_full_disk_then_it_says_so_and_what_was_written_before_stays(tmp_path):
    # A limit on a file's size is the nearest thing to it that needs no rights.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    manifest = Manifest(tmp_path / "m.sqlite")
    try:
        manifest.answered("first", b"x")
        manifest.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
        with pytest.raises(ManifestError, match=r"m\.sqlite: cannot be used as a manifest"):
            fill(manifest)
        manifest.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with Manifest(tmp_path / "m.sqlite") as manifest:
        assert manifest.known("first").state is State.DONE
        assert manifest.known(f"{1_999:0200}") is None


def test_given_a_manifest_of_the_first_version_then_what_it_knows_is_known_and_more_can_be_noted(tmp_path):
    with sqlite3.connect(tmp_path / "m.sqlite") as db:
        db.execute(
            "CREATE TABLE item (id TEXT PRIMARY KEY, signature BLOB NOT NULL, state INTEGER NOT NULL,"
            " code TEXT NOT NULL, message TEXT NOT NULL) WITHOUT ROWID"
        )
        db.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute(f"PRAGMA application_id={0x636C6966}")
        db.execute("PRAGMA user_version=1")
        db.execute("INSERT INTO item VALUES ('a', x'01', 2, '', ''), ('b', x'02', 4, 'corrupt_image', 'bad')")
    db.close()
    for _ in range(2):
        with Manifest(tmp_path / "m.sqlite") as manifest:
            assert manifest.known("a") == Known(b"\x01", State.DONE)
            assert manifest.known("b").error.code is ErrorCode.CORRUPT_IMAGE
            manifest.answered("c", b"\x03", sketch="ab")
            assert list(manifest.rows()) == [[("a", ""), ("c", "ab")]]


def test_given_a_manifest_of_a_later_release_then_it_is_left_alone(tmp_path):
    Manifest(tmp_path / "m.sqlite").close()
    with sqlite3.connect(tmp_path / "m.sqlite") as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(ManifestError, match="no manifest of this release"):
        Manifest(tmp_path / "m.sqlite")


def test_given_a_process_killed_right_after_an_item_went_out_then_it_is_known(tmp_path):
    code = """
import os, signal, sys
from clipfleet.index.ledger import Ledger
from clipfleet.index.manifest import Manifest
from clipfleet.index.sources import Item
ledger = Ledger(Manifest(sys.argv[1]), None, retry_failed=False)
ledger.sent(ledger.look(Item("a", "a", b"x")).one)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.sqlite"], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with Manifest(tmp_path / "m.sqlite") as manifest:
        assert manifest.counts() == {State.SENT: 1}


def test_what_is_told_of_a_run_stays_until_it_is_forgotten(tmp_path):
    with Manifest(tmp_path / "m.sqlite") as manifest:
        assert manifest.told("a") == ""
        manifest.tell("a", "1")
        manifest.tell("a", "2")
    with Manifest(tmp_path / "m.sqlite") as manifest:
        assert manifest.told("a") == "2"
        manifest.clear()
        assert manifest.told("a") == ""


def test_a_signature_follows_the_file_the_bytes_the_address_and_the_metadata(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 1_000_000_000))
    items = [
        Item("i", "l", path),
        Item("i", "l", path, {"k": 1}),
        Item("i", "l", tmp_path / "gone.png"),
        Item("i", "l", b"one"),
        Item("i", "l", b"two"),
        Item("i", "l", Url("https://e.com/1")),
        Item("i", "l", Url("https://e.com/\ud800")),
    ]
    assert len({signature(item) for item in items}) == len(items)
    before = signature(items[0])
    assert signature(Item("other", "label", path)) == before
    os.utime(path, ns=(0, 1_000_000_001))
    assert signature(items[0]) != before
    os.utime(path, ns=(0, 1_000_000_000))
    path.write_bytes(b"four")
    os.utime(path, ns=(0, 1_000_000_000))
    assert signature(items[0]) != before


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (ErrorCode.UNAVAILABLE, True),
        (ErrorCode.EXPIRED, True),
        (ErrorCode.FETCH_FORBIDDEN, True),
        (ErrorCode.CORRUPT_IMAGE, False),
        (ErrorCode.POISONED, False),
    ],
)
def test_which_failures_the_next_run_tries_again(code, passes):
    assert is_transient(error_for(code)) is passes


def test_given_many_items_then_little_of_the_manifest_is_held_in_the_memory_of_the_run(tmp_path):
    # A million items make a file of a hundred MB: the system keeps it as long as nobody else needs the room
    with Manifest(tmp_path / "m.sqlite") as manifest:
        ((pages,),) = manifest._db.execute("PRAGMA cache_size")
    assert -4_000 <= pages < 0  # KiB, where it is negative
