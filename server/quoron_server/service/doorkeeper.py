"""Who may keep a connection to a port: whoever has called with a credential, and a few who have not called yet.

    doorkeeper = Doorkeeper(most=2000)
    doorkeeper.admit(context.peer(), identity)      # at every call with a good certificate, or a good token
    await doorkeeper.watch(port)                    # for ever

gRPC limits connections by their number alone. Whoever opens as many, and says nothing or half of a handshake on each,
would keep everybody else out, and each takes 70 KiB. So the coordinator looks at its own sockets, several times a
second: when connections that have brought no client's call take half of all places, or seven eighths together with the
others, the oldest of them are ended. So a client that shakes hands in an ordinary time gets through, as does a crowd
that comes back at once.

One client has a few connections, of which its oldest make way: two at a look, and all at once where half of the places
are taken. Whoever is thrown out comes back at once, and a handshake costs more processor time than what is sent on a
connection that is left alone for a while.

A socket is ended by shutdown(2), as if its other end had closed it: it stays gRPC's, which cleans up after it.
"""

import asyncio
import ipaddress
import os
import socket
import stat
import time
from collections import defaultdict
from contextlib import suppress
from urllib.parse import unquote

MOST_EACH = 4  # connections of one client: one is used, others may be dying unnoticed
MOST_BESIDE = 64  # beyond them, which are ended one after another; those beyond all of these at once
ENDED_EACH = 2  # of one client's in a look
LOOK = 0.25  # seconds between two looks
_SHARE = 10.0  # between two looks passes so many times what a look takes
_FILES = "/dev/fd"  # the files of this process
Place = tuple[str, int]  # address and port


class Doorkeeper:
    """Remembers who has called from where, in one event loop."""

    def __init__(self, most: int, *, each: int = MOST_EACH) -> None:
        """For a port that takes `most` connections."""
        self._most, self._each = most, each
        self._known: dict[int, Place | None] = {}  # inode: far end, unless it was ended; oldest first
        self._admitted: dict[Place, str] = {}  # oldest first

    def admit(self, peer: str, identity: str) -> None:
        """A client has called from where gRPC says; what is no address of a network takes no place of a port's."""
        if not peer.startswith(("ipv4:", "ipv6:")):
            return
        host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
        self._admitted.setdefault(_place(host.strip("[]"), int(port)), identity)

    async def watch(self, port: int) -> None:
        """For ever: keep the number of connections to our `port` within bounds, on a system that shows its files."""
        while os.path.isdir(_FILES):
            began = time.perf_counter()
            with suppress(OSError):  # no file is free to look with: the next time, perhaps
                self.look(port)
            await asyncio.sleep(max(LOOK, _SHARE * (time.perf_counter() - began)))

    def look(self, port: int) -> int:
        """Once; how many were ended."""
        found = {inode: file for name in os.listdir(_FILES) if (inode := _inode(file := int(name))) is not None}
        known = {inode: place for inode, place in self._known.items() if inode in found}
        self._known = known | {each: _far_end(found[each], port) for each in found if each not in known}
        here = {place: inode for inode, place in self._known.items() if place is not None}
        self._admitted = {place: who for place, who in self._admitted.items() if place in here}
        strangers = [inode for place, inode in here.items() if place not in self._admitted]
        places = max(self._most // 8, min(self._most // 2, 7 * self._most // 8 - len(self._admitted)))
        leaving = strangers[: max(0, len(strangers) - places)]
        of: dict[str, list[int]] = defaultdict(list)
        for place, who in self._admitted.items():
            of[who].append(here[place])
        crowded = 2 * len(here) > self._most
        for own in of.values():
            beyond = max(0, len(own) - self._each)
            leaving += own[: beyond if crowded else max(min(beyond, ENDED_EACH), beyond - MOST_BESIDE)]
        self._known |= dict.fromkeys(leaving)  # gRPC may take a while to clean up after them
        return sum(_end(found[inode], inode) for inode in leaving)


def _inode(file: int) -> int | None:
    """Of a socket."""
    try:
        status = os.fstat(file)
    except OSError:  # it was closed meanwhile
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def _far_end(file: int, port: int) -> Place | None:
    """Of a connection to our port; None for every other socket."""
    with suppress(OSError), _held(file) as own:
        if own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == port:
            return _place(*own.getpeername()[:2])
    return None


def _end(file: int, inode: int) -> bool:
    """Whether it was still there to be ended."""
    with suppress(OSError), _held(file) as own:
        if _inode(own.fileno()) == inode:  # and no other that got the number of a file that was closed
            own.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _held(file: int) -> socket.socket:
    """A second hold of it; OSError for what is no socket any more."""
    own = os.dup(file)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _place(host: str, port: int) -> Place:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port
