"""Whether a part of the federation answers: `healthy.py URL [AUTHORITY]`, where URL is https://... or grpc://...

`https` is a SuperLink, a SuperNode or the proxy; `grpc` is the health server of a SuperExec, on its own loopback.
"""

import ssl
import sys
import urllib.request

url, *authority = sys.argv[1:]
if url.startswith("grpc://"):
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        said = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    sys.exit(said.status != health_pb2.HealthCheckResponse.SERVING)
context = ssl.create_default_context(cafile=authority[0])
with urllib.request.urlopen(url, timeout=5, context=context) as answer:  # anything but success raises
    sys.exit(answer.status != 200)
