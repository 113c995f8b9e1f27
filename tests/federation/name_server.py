"""The name server that an engine has at 127.0.0.11: `name_server.py '{"name": "10.0.0.2"}'`, IPv4 alone."""

import json
import socket
import struct
import sys

if __name__ == "__main__":
    hosts = json.loads(sys.argv[1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.11", 53))
        print("ready", flush=True)
        while True:
            asked, whom = server.recvfrom(512)
            labels, at = [], 12
            while asked[at]:
                labels.append(asked[at + 1 : at + 1 + asked[at]].decode())
                at += 1 + asked[at]
            (kind,) = struct.unpack(">H", asked[at + 1 : at + 3])
            address = hosts.get(".".join(labels)) if kind == 1 else None
            header = asked[:2] + struct.pack(">HHHHH", 0x8180, 1, address is not None, 0, 0)
            answer = b""
            if address is not None:
                answer = struct.pack(">HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(address)
            server.sendto(header + asked[12 : at + 5] + answer, whom)
