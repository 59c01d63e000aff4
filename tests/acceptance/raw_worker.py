"""A worker in 40 lines, written from docs/protocol.md alone: ``python raw_worker.py REDIS_URL QUEUE``."""

import re
import sys
from pathlib import Path

import msgpack
import redis

PAGE = Path(__file__).parents[2].joinpath("docs/protocol.md").read_text()
server = redis.Redis.from_url(sys.argv[1], protocol=2)
ME, BASE = "raw-" + server.acl_genpass(128), f"clipfleet:{{{sys.argv[2]}}}:"
LANES, DEAD = (BASE + "interactive", BASE + "bulk"), BASE + "dead"
VECTOR = {"dtype": "f4", "shape": [2], "data": bytes.fromhex("9a99193fcdcc4c3f")}  # 0.6, 0.8
RUN = {"echo": lambda inputs: {"data": inputs.get("data")}, "embed_text": lambda _: {"vector": VECTOR}}
SCRIPTS = re.findall(r"(?s)```lua\n(-- (\w+): .*?)```", PAGE)
script = {name: server.register_script(text) for text, name in SCRIPTS}


def ending(fields, deliveries):
    q = msgpack.unpackb(fields[b"m"])
    own = BASE + "result:" + re.fullmatch(r"[\w-]{1,64}", q["id"], re.ASCII)[0]
    to = re.fullmatch(f"{re.escape(own)}|{re.escape(BASE)}inbox:[\\w.-]{{1,64}}", q.get("reply_to") or own, re.ASCII)[0]
    now_ms, cancel = server.time()[0] * 1_000, BASE + "cancel:" + q["id"]
    wrong = [("poisoned", deliveries > 3), ("bad_request", q.get("v") != 1), ("cancelled", server.exists(cancel))]
    wrong += [("expired", now_ms > int(fields.get(b"d", now_ms))), ("unknown_pipeline", q.get("pipeline") not in RUN)]
    code = next((code for code, holds in wrong if holds), "")
    failure = {"ok": False, "error": {"code": code, "message": "raw: " + code, "retryable": False}}
    result = failure if code else {"ok": True, "outputs": RUN[q["pipeline"]](q.get("inputs") or {})}
    ttl, owner = q.get("reply_ttl") or 600_000 if to == own else 60_000, ME if code in {"poisoned", "expired"} else ""
    return to, owner, msgpack.packb({"v": 1, "id": q["id"], **result}), ttl


for lane in LANES:  # pcall: that the group is there already is no error
    server.eval("redis.pcall('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM')", 1, lane)
while script["heartbeat"]([BASE + "workers", BASE + "worker:" + ME], [ME, 5_000, "host", "raw"]):
    for lane, other in (LANES, LANES[::-1]):
        stale = script["reclaim"]([lane], [ME, 10_000, 64, 3, 1, "-"])[2]
        batch = [(i, dict(zip(f[::2], f[1::2], strict=True)), n) for i, f, n in stale]
        fresh = [] if stale else server.xreadgroup("workers", ME, {lane: ">"}, count=64, block=50)
        for i, fields, n in batch + [(i, fields, 1) for _, entries in fresh for i, fields in entries]:
            size = len(fields.get(b"m", b"")) if b"d" in fields else 0
            letter = ["code", "poisoned" if n > 3 else "bad_request", "request", fields.get(b"m", b"")]
            try:
                to, *rest = ending(fields, n)
                script["settle"]([lane, other, BASE + "bytes", to, DEAD], [i, size, *rest, *letter * (n > 3)])
            except (ValueError, TypeError, KeyError, AttributeError, redis.ResponseError):  # nobody can be answered
                script["settle"]([lane, other, BASE + "bytes", DEAD, DEAD], [i, size, "", b"", 0, *letter])
