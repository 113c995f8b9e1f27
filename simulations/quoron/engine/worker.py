"""The program that workers come from; its argument is the number of a file it inherits.

It imports what a worker needs, and computes nothing. Whenever it is handed a socket and a file to share it forks, and
the copy is a worker: that costs milliseconds where a program of its own costs a processor more than a second. It has
one thread, so nothing is copied half done. A worker is given its users, then asked one question after the other.
When a socket ends, whoever asked is gone, and the worker that listened there ends, too.
"""

import gc
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

import quoron.data
import quoron.data.population
from quoron.engine.sharded import opened
from quoron_client.compute.enforcement import bounded
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Linear
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import QuoronError

FILES = 2  # a worker's: socket, and shared memory
HELD = (quoron.data.population, quoron.data)  # what letters to workers are made of


def main() -> None:
    """Become a worker whenever one is asked for, until the socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells us, too; whoever asks will end us
    _warm()
    gc.freeze()  # what is there now no worker has to look through again
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        while True:
            word, files, _, _ = socket.recv_fds(orders, 1, FILES)
            if not word:
                break
            child = os.fork()
            if child == 0:
                orders.close()
                _work(*files)
            for number in files:
                os.close(number)
            orders.sendall(child.to_bytes(8, "big"))
    with suppress(ChildProcessError):
        while True:  # whoever has ended keeps its number until here
            os.wait()


def _warm() -> None:
    """The first compiled loop of a process takes half a second more than the second."""
    bounded(ItemBatch(np.zeros((1, 1), np.float32), np.zeros(1), np.array([0, 1])), Linear())


def _work(number: int, shared: int) -> NoReturn:
    """A worker's life."""
    gc.enable()
    try:
        answer(Connection(number), shared)
    except BaseException:  # whoever asks sees that the socket has ended
        traceback.print_exc()
    os._exit(1)


def answer(connection: Connection, shared: int) -> NoReturn:
    """Answer until the socket ends."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    pa.set_cpu_count(int(os.environ.get("NUMBA_NUM_THREADS", "1")))
    engine = opened(messages.get())
    view, room = None, 0
    while True:
        question, most = messages.get()
        if most > room:
            view, room = mmap.mmap(shared, most), most
        try:
            answers = engine.ask(question)
        except QuoronError as error:
            connection.send(("error", type(error).__name__, str(error)))
            continue
        if not isinstance(answers, Answers):
            connection.send(("sums", answers))
            continue
        assert view is not None
        values = np.ascontiguousarray(answers.values, np.float64)
        size = values.nbytes
        np.frombuffer(view, np.float64, values.size)[:] = values.ravel()
        np.frombuffer(view, np.uint8, len(answers.status), offset=size)[:] = answers.status
        connection.send(("rows", values.shape))


def _listen(connection: Connection, messages: "queue.SimpleQueue[Any]") -> None:
    """Whatever comes; at the end of the socket, the end."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
