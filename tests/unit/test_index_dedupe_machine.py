"""A picture that comes under several ids is sent once: any corpus, any order of changes, runs and kills."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from clipfleet.index import Manifest, State
from support.toy_index import Fleet, Killed, listed, run

IDS = [f"{letter}.png" for letter in "abcdefg"]
CONTENTS = [b"red", b"green", b"blue", b"bad picture"]


class Machine(RuleBasedStateMachine):
    """A corpus that changes, runs that are killed anywhere, failures that pass: in the end all is there."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "m.sqlite"
        self.fleet, self.pictures, self.may_have_row = Fleet(), {}, set()

    @rule(id_=st.sampled_from(IDS), content=st.sampled_from(CONTENTS))
    def put(self, id_, content):
        self.pictures[id_] = content

    @precondition(lambda self: getattr(self, "pictures", None))
    @rule(data=st.data())
    def remove(self, data):
        del self.pictures[data.draw(st.sampled_from(sorted(self.pictures)))]

    @precondition(lambda self: getattr(self, "pictures", None))
    @rule(data=st.data())
    def come_in_another_order(self, data):
        self.pictures = dict(data.draw(st.permutations(list(self.pictures.items()))))

    @rule(passing=st.sets(st.sampled_from(IDS)), left=st.integers(0, 6), sync=st.booleans())
    def run_and_be_killed(self, passing, left, sync):
        self.fleet.passing, self.fleet.left = passing, left
        manifest = Manifest(self.path)
        try:
            run(self.fleet, manifest, self.pictures, sync=sync and bool(self.pictures))
            manifest.close()
        except Killed:
            manifest._db.close()  # what a kill leaves: no commit

    @precondition(lambda self: getattr(self, "pictures", None))
    @rule(retry=st.booleans())
    def run_to_the_end(self, retry):
        self.fleet.passing, self.fleet.left = set(), None
        self.fleet.sent.clear()
        with Manifest(self.path) as manifest:
            # What was ever sent may have a row, whatever became of it, and is not made another's duplicate.
            had = {id_ for id_ in IDS if (known := manifest.known(id_)) is not None and not known.has_no_row}
            report, told = run(self.fleet, manifest, self.pictures, retry_failed=retry)
            same, counts = listed(manifest), manifest.counts()
        rows, bad = self.fleet.rows, {id_ for id_, one in self.pictures.items() if one.startswith(b"bad")}
        # Each is there itself, or under the id that is noted
        for id_ in self.pictures.keys() - bad:
            assert rows.get(same.get(id_, id_)) == self.pictures[id_], (id_, rows, same)
            assert (id_ in rows) != (id_ in same)
        # and nothing else, and nothing stale but of what cannot be read any more
        assert rows.keys() - bad <= self.pictures.keys()
        assert set(same) <= set(self.pictures)
        # and no picture twice, unless its id was sent before
        for id_ in rows.keys() - had - bad:
            assert [other for other in rows.keys() - had - bad if rows[other] == rows[id_]] == [id_]
        # and what was sent was sent once, and what is told is what is so
        assert set(self.fleet.sent.values()) <= {1}
        assert report.found + report.duplicates == len(self.pictures)
        assert report.failed.total() == len(bad) == sum(one.error is not None for one in told.values())
        assert counts.keys() <= {State.DONE, State.PERMANENT, State.DUPLICATE}

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
