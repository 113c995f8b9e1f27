# syntax=docker/dockerfile:1
# One image for coordinator, clients and operators, also on Flower, whose programs are in it; the command says which.
# Nothing runs as root.
#
#     docker build --build-arg REQUIREMENTS=image-ray .             # with Flower's simulation, another 500 MB
#     docker build --build-arg PYTHON=python:3.12-slim@sha256:... .   # on a base image of which you know the digest
#
# What is installed is pinned by hash: requirements/, docs/testing.md.

ARG PYTHON=python:3.12-slim
FROM ${PYTHON} AS build
ARG REQUIREMENTS=image
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY requirements requirements
RUN python -m venv /opt/build && /opt/build/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python -m venv /opt/quoron \
    && /opt/quoron/bin/pip install --require-hashes --requirement "requirements/${REQUIREMENTS}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY building building
COPY protos protos
COPY privacy privacy
COPY client client
COPY server server
COPY simulations simulations
# The wheel alone goes on, so that the image holds what a release holds.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/quoron/bin/pip install --no-deps --no-index /wheels/quoron-*.whl \
    && /opt/quoron/bin/pip check \
    && /opt/quoron/bin/pip uninstall --yes pip \
    && find /opt/quoron -depth -type d -name tests -exec rm -rf {} +
COPY examples/federation /opt/quoron/examples/federation
COPY examples/flower/containers /opt/quoron/examples/flower/containers
# Whatever the modes of the checkout were, everybody may read it.
RUN chmod -R a+rX /opt/quoron

FROM ${PYTHON}
# Named volumes take owner and mode from these folders when they are first mounted.
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin quoron \
    && install -d -o quoron -g quoron -m 0700 /identity /var/lib/quoron /trial/authority /trial/coordinator \
        /trial/operator /trial/clients /clients /trial/second-server /trial/link /trial/public /run-keys /backups $(seq -f /trial/client-%g 1 20) \
        /trial/superlink /trial/proxy /trial/server $(seq -f /trial/node-%g 1 20) $(seq -f /trial/app-%g 1 20) \
    && install -d -o quoron -g quoron -m 0755 /trial/database
COPY --from=build /opt/quoron /opt/quoron
# Compiled here once, for most processors; another compiles its own at run time, into /tmp.
RUN /opt/quoron/bin/python -m quoron.kernels --ship
# Everything written at run time is in a volume or in /tmp.
ENV PATH=/opt/quoron/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba
USER 10001:10001
WORKDIR /var/lib/quoron
ENTRYPOINT ["quoron"]
CMD ["--help"]
