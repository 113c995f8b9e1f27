"""One round at the helper alone, of a list of 100,000 users with 1,000 numbers each: processors' time and memory.

    python benchmarks/two_servers_list.py [--users 100000] [--dimension 1000] [--threads 1]

In one process and without TLS: what `HelpedRuns.sum` does, with store and keys on disk. Sealing the list, which is the
clients' work, comes before and is not counted.
"""

import argparse
import hashlib
import resource
import secrets
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation import specification
from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.noise import FIRST, Entry
from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.second_server.keys import Keys
from quoron_server.second_server.runs import HelpedRuns, HelpedRunStore
from quoron_server.specification import planned
from quoron_server.storage.database import Database
from quoron_server.wording import digest

LEADER = "a" * 64


def peak():
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sealed(consent, user):
    """What the helper is told of one user's answer."""
    who, asked = hashlib.sha256(b"user %d" % user).digest(), bytes(32)
    about = seals.info(seals.SUITE, consent.run, consent.plan_digest, 0, asked, who)
    return Entry(who, asked, seals.seal(consent.run_key, secrets.token_bytes(32), about))


def main():
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    wanted = specification(options.users, 2, options.dimension).model_copy(
        update={"early_ends": False, "seconds": 60.0, "trust_model": "two-servers"}
    )
    plan = planned(wanted.as_text())[1]
    asked = pb.OpenRun(run=wanted.run, specification=wanted.as_text(), plan_digest=bytes.fromhex(digest(plan)))
    with tempfile.TemporaryDirectory() as place, Database(f"sqlite:///{place}/helper.sqlite") as database:
        given = HelpedRunStore(database), Keys(Path(place) / "keys"), Ed25519PrivateKey.generate()
        helped = HelpedRuns(*given, allow_simulation=True, threads=options.threads)
        consent = helped.open(asked, LEADER)
        entries = sorted(sealed(consent, user) for user in range(options.users))
        about = {"run": wanted.run, "plan_digest": consent.plan_digest, "previous": FIRST}
        head = pb.HelperList(**about, entries=len(entries))
        before, wall, spent = peak(), perf_counter(), process_time()
        reply = helped.sum(head, entries, LEADER)
        took = perf_counter() - wall, process_time() - spent
        assert not reply.left_out
        assert len(reply.values) == 8 * plan.spec.rounds[0].length
        print(f"{options.users:,} users of {plan.spec.rounds[0].length:,} numbers, {options.threads} threads:")
        print(f"{took[0]:.1f} s, {took[1]:.1f} s of processors; {1e3 * took[1] / options.users:.3f} ms a user")
        print(f"memory: {before:.0f} MiB with the list, {peak():.0f} MiB at the most")
        wall = perf_counter()
        again = helped.sum(head, entries, LEADER)
        assert again.values == reply.values
        print(f"the same list again: {perf_counter() - wall:.2f} s")
        helped.close_threads()


if __name__ == "__main__":
    main()
