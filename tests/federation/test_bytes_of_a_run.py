"""A simulation by real clients says the bytes, memory and kills that the kernel counts, in a network of its own."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from test_commands_of_pages import APART, apart, loopback_up

WITHIN = 0.05
QUICK = [(20, 10), (20, 1000), (200, 10)]
LONG = [(200, 1000), (20, 100_000), (200, 100_000)]


def carried() -> None:
    """Carry the command out, and print what TCP carried to and from each port: bytes and peers."""
    loopback_up()
    moved: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    peers: dict[int, set[int]] = defaultdict(set)
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as heard:
        heard.setsockopt(socket.SOL_SOCKET, 33, 1 << 29)  # SO_RCVBUFFORCE
        heard.bind(("lo", 0x0800))
        heard.settimeout(0.1)
        over = threading.Event()

        def listen() -> None:
            while True:
                try:
                    packet, (_, _, kind, *_) = heard.recvfrom(128)
                except TimeoutError:
                    if over.is_set():
                        return
                    continue
                if kind == socket.PACKET_OUTGOING or packet[9] != socket.IPPROTO_TCP:
                    continue
                head = 4 * (packet[0] & 15)
                (length,) = struct.unpack_from("!H", packet, 2)
                source, target = struct.unpack_from("!HH", packet, head)
                carried = length - head - 4 * (packet[head + 12] >> 4)
                moved[source][0] += carried
                moved[target][1] += carried
                peers[source].add(target)
                peers[target].add(source)

        listening = threading.Thread(target=listen)
        listening.start()
        done = subprocess.run(sys.argv[1:], check=False)
        over.set()
        listening.join()
        _, dropped = struct.unpack("II", heard.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
    assert not dropped, dropped
    port = max(peers, key=lambda each: len(peers[each]))
    print(json.dumps([*moved[port], len(peers[port]), done.returncode]))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("clients", "dimension"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in LONG)]
)
def test_the_bytes_that_a_run_sums_are_those_that_the_kernel_carried(
    clients: int, dimension: int, tmp_path: Path
) -> None:
    if (why := apart()) is not None:
        pytest.skip(why)
    rounds = 2 if dimension > 1000 else 8
    settings = [
        f"population.dimension={dimension}",
        "population.items_per_user=4",
        f"algorithm.options.rounds={rounds}",
    ]
    words = ["simulate", "small-federation", "--engine", f"service:clients={clients}", "--out", tmp_path / "run"]
    words += [word for each in settings for word in ("--set", each)]
    done = subprocess.run(
        [*APART, sys.executable, __file__, sys.executable, "-m", "quoron", "--quiet", *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "QUORON_LEDGER": str(tmp_path / "own")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    down, up, connections, code = json.loads(done.stdout.splitlines()[-1])
    assert (code, connections) == (0, clients), done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["wire_down"] + summary["once_down"] == pytest.approx(down, rel=WITHIN)
    assert summary["wire_up"] + summary["once_up"] == pytest.approx(up, rel=WITHIN)


if __name__ == "__main__":
    carried()
