"""Connections that a network drops without a word to either end, as a firewall does with those that are idle."""

import socket
import threading
from contextlib import suppress


class Wires:
    """Before a server on this machine: each connection brings bytes on until it is `cut`, which nobody is told."""

    def __init__(self, to: str) -> None:
        self.to = ("127.0.0.1", int(to.rpartition(":")[2]))
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.cut: set[int] = set()
        self.made: list[socket.socket] = []

    def __enter__(self) -> "Wires":
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()
        return self

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, number = self.listening.accept()[0], len(self.made) // 2
                far = socket.create_connection(self.to)
                self.made += [near, far]
                for one, other in ((near, far), (far, near)):
                    self.threads.append(threading.Thread(target=self._bring, args=(one, other, number)))
                    self.threads[-1].start()

    def _bring(self, one: socket.socket, other: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if number not in self.cut:
                    other.sendall(data)

    def __exit__(self, *_: object) -> None:
        for each in (self.listening, *self.made):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self.threads:
            thread.join(60)
