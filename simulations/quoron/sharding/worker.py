"""The program of a worker: `python -m quoron.sharding.worker SOCKET SHARED`, by numbers of files that it inherits.

It is given its users, then asked one question after the other. Whoever asks is gone when the socket ends, and so is it.
"""

import mmap
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

from quoron.sharding.shard import opened
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import QuoronError


def main(number: int, shared: int) -> None:
    """Answer until the socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells us, too; whoever asks will end us
    connection = Connection(number)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, told), daemon=True).start()
    pa.set_cpu_count(int(os.environ.get("OMP_NUM_THREADS", "1")))
    engine = opened(told.get())
    view, room = None, 0
    while True:
        question, most = told.get()
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


def _listen(connection: Connection, told: "queue.SimpleQueue[Any]") -> None:
    """Whatever comes; at the end of the socket, the end."""
    try:
        while True:
            told.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
