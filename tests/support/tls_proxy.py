"""TLS in front of a server that has none: Milvus Lite as a Milvus behind https."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"
OTHER_HOST = "127.0.0.2"  # this machine too; certificates name the first alone


class TlsProxy:
    """Speaks TLS with ``cert.pem`` and ``key.pem`` of ``folder``, and passes on to ``port`` what it hears.

    ALPN offers ``h2``, without which a gRPC client goes away.
    """

    def __init__(self, port: int, folder: Path) -> None:
        self._target = port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self._tls.set_alpn_protocols(["h2"])
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="tls-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        # What the other side refuses is told to nobody: the tests ask the client.
        self._loop.set_exception_handler(lambda *_: None)
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connect, HOST, 0, ssl=self._tls)
        self.port = int(server.sockets[0].getsockname()[1])
        other = await asyncio.start_server(self._connect, OTHER_HOST, self.port, ssl=self._tls)
        self._up.set()
        await self._stop.wait()
        server.close()
        other.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection(HOST, self._target)
        await asyncio.gather(_pass_on(reader, onward), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
