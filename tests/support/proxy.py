"""A TCP proxy with a will of its own: stalls, cuts, loses replies."""

from __future__ import annotations

import contextlib
import socket
import threading

from support.redis_server import HOST


class Proxy:
    """Between a client and ``HOST:port``; speaks to no one else.

    - ``stall()``: bytes are taken in and held back, in both directions or in one; ``resume()`` lets them go on,
      also those of connections that their client has given up meanwhile: the server runs them late.
    - ``cut_after(n)``: when ``n`` more bytes of the server's replies went through, the connection that carries the
      next one ends (``cuts`` counts); once: call it again for another.
    - ``cut()``: ends every connection now.
    """

    def __init__(self, port: int) -> None:
        self._target = (HOST, port)
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._flow = {"requests": threading.Event(), "replies": threading.Event()}
        self._reply_budget: int | None = None
        self.connections = 0
        self.cuts = 0
        self.resume()
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def stall(self, *, requests: bool = True, replies: bool = True) -> None:
        if requests:
            self._flow["requests"].clear()
        if replies:
            self._flow["replies"].clear()

    def resume(self) -> None:
        for flow in self._flow.values():
            flow.set()

    def cut_after(self, reply_bytes: int | None) -> None:
        """None calls it off."""
        with self._lock:
            self._reply_budget = reply_bytes

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._end(*pair)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.resume()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, run, *args) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
                self.connections += 1
            self._spawn(self._pump, client, server, "requests")
            self._spawn(self._pump, server, client, "replies")

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flow[direction].wait()
                if direction == "replies" and self._over_budget(data, target):
                    break
                target.sendall(data)
        # What a client sent before it hung up has been passed on by now: a stalled command is run late, not lost.
        self._end(source, target)

    def _over_budget(self, data: bytes, target: socket.socket) -> bool:
        with self._lock:
            if self._reply_budget is None or len(data) <= self._reply_budget:
                if self._reply_budget is not None:
                    self._reply_budget -= len(data)
                return False
            self.cuts += 1
            part, self._reply_budget = data[: self._reply_budget], None
        target.sendall(part)
        return True

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
