"""What a round of two servers takes beside one of a single server: 300 clients over mutual TLS, 1,000 numbers each.

    python benchmarks/two_servers_rounds.py [--clients 300] [--rounds 5] [--dimension 1000]

Coordinator and helper are programs; the clients are coroutines of a third, each with a connection and a certificate of
its own, and answer with a fixed vector, with two servers masked and sealed as clients do. Rounds end at their time with
both trust models, so what is compared is the processors' time of all programs, a round.
"""

import argparse
import asyncio
import json
import re
import resource
import sys
import tempfile
from pathlib import Path

from federation import connected, cpu, spawn, specification, vector
from quoron.federation.control import Control
from quoron_client.federation.terms import Terms
from quoron_client.protocol import wire
from quoron_client.protocol.identity import fingerprint, load
from quoron_client.protocol.masked import Pinned, read_second_server_key
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import certificates, tokens

SECONDS = 12.0  # of a round
TRUST_MODELS = "central-broadcast", "two-servers"


def secure(folder, *names):
    """An operator's certificates: the first one that of a server."""
    certificates.make_authority(folder, days=1)
    certificates.issue(folder, names[0], coordinator=True, hosts=("127.0.0.1", "localhost"), days=1)
    for name in names[1:]:
        certificates.issue(folder, name, days=1)


async def answering(stub, own, pinned):
    """A client's conversation to the end of a run."""
    call, masking = stub.Work(), None
    await call.write(pb.ClientMessage(hello=pb.Hello(protocol=wire.PROTOCOL)))
    while message := await call.read():
        kind = message.WhichOneof("kind")
        if kind == "run":
            terms = Terms.read(message.run.run, message.run.description)
            masking = pinned.agree(message.run, terms) if message.run.spec else None
            await call.write(pb.ClientMessage(consent=pb.Consent(run=message.run.run, takes_part=True)))
        elif kind == "question":
            asked, name = message.question, wire.question_name(message.question)
            if masking is None:
                answer = pb.ClientMessage(answer=wire.answer_to_wire(*name, own, Status.ANSWERED))
            else:
                sent = masking.answer(name, wire.body_digest(asked), masking.rows(name[1], asked), own)
                answer = pb.ClientMessage(masked=pb.MaskedAnswer.FromString(sent))
            await call.write(answer)
        elif kind == "ended":
            return


async def clients(where, folder, number, dimension):
    """All of them."""
    stubs = [(await connected(where, folder, user, False))[0] for user in range(number)]
    print("enrolled", flush=True)
    key = folder / "other" / "second.pem"
    known = [
        Pinned(read_second_server_key(key), bytes.fromhex(fingerprint(load(folder / f"client-{user}/certificate.pem"))))
        for user in range(number)
    ]
    await asyncio.gather(*(answering(stub, vector(u, dimension), known[u]) for u, stub in enumerate(stubs)))


def measured(options, trust_model, folder):
    """Processor seconds a round, by who spends them."""
    wanted = specification(options.clients, options.rounds, options.dimension).model_copy(
        update={
            "early_ends": False,
            "seconds": SECONDS,
            "trust_model": None if trust_model == TRUST_MODELS[0] else trust_model,
        }
    )
    other = folder / "other"
    other.mkdir()
    secure(folder, "coordinator", *(f"client-{user}" for user in range(options.clients)))
    secure(other, "second", "leader")
    token = tokens.add(folder / "tokens.json", name="benchmark", role="operator")
    signing = ["--signing-key", other / "signing.key"]
    made = spawn("-m", "quoron", "second-server", "key", other / "second.pem", *signing)
    made.wait()
    flags = ["--certs", other / "second", "--coordinator", other / "leader/certificate.pem", *signing]
    flags += ["--database", f"sqlite:///{other}/second.sqlite", "--keys", other / "keys", "--allow-simulation"]
    programs = {"second": spawn("-m", "quoron", "second-server", "serve", "--listen", "127.0.0.1:0", *flags)}
    try:
        (place,) = re.findall(r"127\.0\.0\.1:\d+", programs["second"].stdout.readline())
        link = ["--set", f"second_server={place}", "--set", f"second_server_certs={other / 'leader'}"]
        link += ["--set", f"second_server_key={other / 'second.pem'}"]
        files = ["--certs", folder / "coordinator", "--tokens", folder / "tokens.json"]
        files += ["--database", f"sqlite:///{folder}/coordinator.sqlite", "--set", f"max_clients={2 * options.clients}"]
        ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--allow-simulation"]
        programs["coordinator"] = spawn("-m", "quoron", "serve", *ports, *files, *link)
        where, control = re.findall(r"127\.0\.0\.1:\d+", programs["coordinator"].stdout.readline())
        programs["clients"] = spawn(__file__, "--as-clients", where, "--folder", folder, *sys.argv[1:])
        assert programs["clients"].stdout.readline() == "enrolled\n"
        spent = []
        with Control(control, token, folder / "authority.pem", False) as operator:
            operator.submit(wanted.as_text())
            for event in operator.watch("load"):
                if event.get("kind") == "round":
                    spent.append({name: cpu(each.pid) for name, each in programs.items()})
                last = event
        assert (last.get("how"), len(spent)) == ("complete", options.rounds), last
        rounds = options.rounds - 1  # the first has the announcement, which all agree to in it
        return {name: (spent[-1][name] - spent[0][name]) / rounds for name in programs}
    finally:
        for each in programs.values():
            each.terminate()
            each.wait()


def main():
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--as-clients", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.as_clients:
        asyncio.run(clients(options.as_clients, options.folder, options.clients, options.dimension))
        return
    total = {}
    for trust_model in TRUST_MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found = measured(options, trust_model, Path(folder))
        total[trust_model] = sum(found.values())
        told = {name: round(seconds, 3) for name, seconds in found.items()}
        print(f"{trust_model:12s} {total[trust_model]:.3f} s of processors a round: {json.dumps(told)}", flush=True)
    print(f"two servers beside one: {total['two-servers'] / total['central-broadcast']:.2f} times")


if __name__ == "__main__":
    main()
