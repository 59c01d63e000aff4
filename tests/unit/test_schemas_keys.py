"""Keys: one spelling, one slot, and no name that could reach another queue's."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas import Lane, ProtocolError, QueueKeys, new_id
from clipfleet.schemas.keys import ID, NAME
from support.wire import IDS, NAMES

PREFIXES = st.from_regex(r"[A-Za-z0-9_:-]{1,64}", fullmatch=True)


def test_given_a_queue_when_its_keys_are_spelled_then_they_are_the_protocols():
    keys = QueueKeys("Q")
    assert {
        "lanes": keys.lanes,
        "result": keys.result("a1"),
        "inbox": keys.inbox("user.p1"),
        "cancel": keys.cancel("a1"),
        "call": keys.call("user.p1", 7),
        "dead": keys.dead,
        "bytes": keys.bytes,
        "workers": keys.workers,
        "worker": keys.worker("w1"),
        "fleet": keys.fleet,
    } == {
        "lanes": ("clipfleet:{Q}:interactive", "clipfleet:{Q}:bulk"),
        "result": "clipfleet:{Q}:result:a1",
        "inbox": "clipfleet:{Q}:inbox:user.p1",
        "cancel": "clipfleet:{Q}:cancel:a1",
        "call": "clipfleet:{Q}:call:user.p1.7",
        "dead": "clipfleet:{Q}:dead",
        "bytes": "clipfleet:{Q}:bytes",
        "workers": "clipfleet:{Q}:workers",
        "worker": "clipfleet:{Q}:worker:w1",
        "fleet": "clipfleet:{Q}:fleet",
    }
    assert QueueKeys() == QueueKeys("clip", "clipfleet")


def test_given_a_lane_when_asked_for_the_other_then_it_is_the_other():
    keys = QueueKeys("Q")
    interactive, bulk = keys.lane(Lane.INTERACTIVE), keys.lane(Lane.BULK)
    assert (interactive, bulk) == keys.lanes
    assert (keys.other_lane(interactive), keys.other_lane(bulk)) == (bulk, interactive)


@given(NAMES, PREFIXES, IDS)
def test_given_any_names_when_keys_are_spelled_then_all_carry_the_same_hash_tag(queue, prefix, request_id):
    keys = QueueKeys(queue, prefix)
    spelled = [*keys.lanes, keys.result(request_id), keys.cancel(request_id), keys.dead, keys.bytes, keys.fleet]
    for key in spelled:
        # Redis Cluster hashes what stands between the first { and the first } after it.
        assert key[key.index("{") + 1 : key.index("}")] == queue
    assert len(set(spelled)) == len(spelled)


@pytest.mark.parametrize("queue", ["", "a" * 65, "a b", "a:b", "{a}", "a}", "ä", "a\n", "a\0", "a/b", "*", "a?"])
def test_given_an_impossible_queue_name_when_used_then_it_is_refused(queue):
    with pytest.raises(ProtocolError, match="queue name"):
        QueueKeys(queue)


@pytest.mark.parametrize("prefix", ["", "a" * 65, "a b", "a.b", "{a", "a}", "ä", "a\n", "*"])
def test_given_an_impossible_prefix_when_used_then_it_is_refused(prefix):
    with pytest.raises(ProtocolError, match="prefix"):
        QueueKeys("q", prefix)


def test_given_a_huge_name_when_refused_then_the_error_stays_short():
    with pytest.raises(ProtocolError) as caught:
        QueueKeys("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=80))
def test_given_any_text_when_asked_whether_it_may_be_answered_on_then_only_the_two_forms_may(text):
    keys = QueueKeys("q")
    assert keys.may_reply_to(keys.base + text, "a1") == (
        text == "result:a1" or (text.startswith("inbox:") and bool(NAME.match(text[6:])))
    )


def test_given_fresh_ids_when_made_then_they_match_and_carry_128_bits():
    ids = {new_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(ID.match(each) and len(each) == 22 for each in ids)


def test_given_a_fork_when_both_make_ids_then_none_is_made_twice():
    code = (
        "import os; from clipfleet.schemas import new_id; new_id(); child = os.fork(); "
        "ids = [new_id() for _ in range(200)]; child and os.wait(); print(*ids, flush=True)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(set(made)) == len(made) == 400


def test_given_a_fork_that_python_was_not_told_of_when_a_client_begins_in_the_child_then_no_id_is_made_twice():
    code = (
        "import ctypes, os; from clipfleet.schemas import new_id; from clipfleet.producer.forks import Inheritable; "
        # As a server written in C forks, with the lock of the interpreter held
        "new_id(); child = ctypes.PyDLL(None).fork(); begun = None if child else Inheritable(); "
        "ids = [new_id() for _ in range(200)]; child and os.wait(); print(*ids, flush=True); os._exit(0)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(set(made)) == len(made) == 400


def test_given_many_threads_when_they_make_ids_at_once_then_none_is_made_twice():
    with ThreadPoolExecutor(8) as pool:
        made = [each for some in pool.map(lambda _: [new_id() for _ in range(1_000)], range(16)) for each in some]
    assert len(set(made)) == len(made) == 16_000
