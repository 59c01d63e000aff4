"""One connection, against a server of the test's own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess

import pytest

from clipfleet.producer.connection.address import parse_url
from clipfleet.producer.connection.link import Wire, connect
from clipfleet.producer.core.command import Command, nothing
from clipfleet.producer.core.trouble import LinkBroken


class Peer:
    """A server that answers each read with the next of ``answers``; an empty one hangs up."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.heard = b""

    async def serve(self, reader, writer):
        while self.answers and (data := await reader.read(65_536)):
            self.heard += data
            answer = self.answers.pop(0)
            if not answer:
                break
            writer.write(answer)
        writer.close()


async def talk(peer, commands, *, url="redis://127.0.0.1:{port}", tls=None, client_tls=None):
    """Send ``commands``; gives ([what happened to each], why the connection ended)."""
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    ended = asyncio.get_running_loop().create_future()
    happened = []
    try:
        wire = await connect(parse_url(url.format(port=port), client_tls), 2.0, lambda: None, ended.set_result)
        wire.send(
            [
                Command(
                    words, lambda reply, _, w=words: happened.append((w[0], reply)), lambda _: happened.append("lost")
                )
                for words in commands
            ]
        )
        return happened, await asyncio.wait_for(ended, 5)
    finally:
        server.close()


class SlowLine(asyncio.Transport):
    """Takes all that is written and sends what it is told to."""

    def __init__(self):
        super().__init__()
        self.unsent = 0

    def write(self, data):
        self.unsent += len(data)

    def get_write_buffer_size(self):
        return self.unsent


def test_a_large_request_on_a_slow_line_is_not_given_up_while_its_bytes_leave():
    async def main():
        wire, line = Wire(lambda: None, lambda _: None), SlowLine()
        wire.connection_made(line)
        assert not wire.overdue(wire.last_used + 100, 5)  # nothing was asked
        wire.send([Command(("SET", "k", b"x" * 1000), nothing, nothing)])
        now = wire.last_used
        assert not wire.overdue(now + 4.9, 5)
        for left in (900, 500, 0):
            now += 5
            line.unsent = left
            assert not wire.overdue(now, 5)
        assert not wire.overdue(now + 4.9, 5)
        assert wire.overdue(now + 5, 5)  # all is sent, and no answer

    asyncio.run(main())


def test_a_line_that_takes_no_more_bytes_is_given_up():
    async def main():
        wire, line = Wire(lambda: None, lambda _: None), SlowLine()
        wire.connection_made(line)
        wire.send([Command(("SET", "k", b"x" * 1000), nothing, nothing)])
        assert wire.overdue(wire.last_used + 5, 5)

    asyncio.run(main())


def test_answers_come_in_order_and_what_has_none_is_lost():
    peer = Peer(b"+OK\r\n", b"+PONG\r\n$-1\r\n")
    happened, reason = asyncio.run(talk(peer, [("PING",), ("GET", "a"), ("GET", "b")]))
    assert happened[:2] == [("PING", b"PONG"), ("GET", None)]
    assert happened[2:] == ["lost"]
    assert "closed" in reason.reason


@pytest.mark.parametrize("rubbish", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"?\r\n"])
def test_what_is_no_redis_is_said_to_be_none(rubbish):
    happened, reason = asyncio.run(talk(Peer(b"+OK\r\n", rubbish), [("PING",)]))
    assert happened == ["lost"]
    assert "no Redis" in reason.reason


def test_an_answer_to_no_question_ends_the_connection():
    _, reason = asyncio.run(talk(Peer(b"+OK\r\n", b"+PONG\r\n+PONG\r\n"), [("PING",)]))
    assert "no question" in reason.reason


def test_an_answer_of_no_known_shape_ends_the_connection_and_its_command():
    async def main():
        server = await asyncio.start_server(Peer(b"+OK\r\n", b":5\r\n").serve, "127.0.0.1", 0)
        ended, lost = asyncio.get_running_loop().create_future(), []
        port = server.sockets[0].getsockname()[1]
        wire = await connect(parse_url(f"redis://127.0.0.1:{port}"), 2.0, lambda: None, ended.set_result)
        wire.send([Command(("LRANGE",), lambda reply, _: reply[0], lost.append)])
        reason = await asyncio.wait_for(ended, 5)
        server.close()
        return reason, lost

    reason, lost = asyncio.run(main())
    assert "'LRANGE' was answered by 5" in reason.reason
    assert reason.by_answer
    assert len(lost) == 1


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (b"-WRONGPASS invalid username-password pair\r\n", True),
        (b"-LOADING Redis is loading the dataset in memory\r\n", False),
        (b"-ERR max number of clients reached\r\n", True),
        (b"", False),
    ],
)
def test_a_greeting_that_fails(answer, refused):
    with pytest.raises(LinkBroken) as broken:
        asyncio.run(talk(Peer(answer), [], url="redis://:pw@127.0.0.1:{port}"))
    assert broken.value.refused == refused


def test_a_server_that_says_nothing_is_given_up():
    async def main():
        hung_up = asyncio.get_running_loop().create_future()

        async def silent(reader, writer):
            await reader.read()
            writer.close()
            hung_up.set_result(None)

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(LinkBroken, match=r"did not answer within 0.2 s"):
                await connect(parse_url(f"redis://127.0.0.1:{port}"), 0.2, lambda: None, lambda _: None)
            await asyncio.wait_for(hung_up, 5)

    asyncio.run(main())


def test_user_password_and_database_are_sent_first():
    peer = Peer(b"+OK\r\n+OK\r\n+OK\r\n", b"+PONG\r\n")
    asyncio.run(talk(peer, [("PING",)], url="redis://alice:p%20w@127.0.0.1:{port}/3"))
    words = [word for word in peer.heard.split(b"\r\n") if word and word[:1] not in b"*$"]
    assert words == [b"AUTH", b"alice", b"p w", b"SELECT", b"3", b"CLIENT", b"SETNAME", b"clipfleet-producer", b"PING"]


def test_tls_verifies_the_servers_name(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    def ping(url):
        return asyncio.run(talk(Peer(b"+OK\r\n", b"+PONG\r\n"), [("PING",)], url=url, tls=server_side))

    happened, _ = ping(f"rediss://127.0.0.1:{{port}}?ssl_ca_certs={tmp_path}/cert.pem")
    assert happened == [("PING", b"PONG")]
    with pytest.raises(LinkBroken, match="certificate verify failed"):
        ping("rediss://127.0.0.1:{port}")
    with pytest.raises(LinkBroken, match=r"localhost"):
        ping(f"rediss://localhost:{{port}}?ssl_ca_certs={tmp_path}/cert.pem")
