# syntax=docker/dockerfile:1
# One image for coordinator, clients and operators, also on Flower, whose programs are in it; the command says which.
# Nothing runs as root.

FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY client client
COPY server server
COPY simulations simulations
# The wheel alone goes on, so that the image holds what a release holds.
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && python -m venv /opt/quoron \
    && /opt/quoron/bin/pip install "$(ls /wheels/quoron-*.whl)[postgres]" \
    && /opt/quoron/bin/pip uninstall --yes pip \
    && find /opt/quoron -depth -type d -name tests -exec rm -rf {} +

FROM python:3.12-slim
# Named volumes take owner and mode from these folders when they are first mounted.
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin quoron \
    && install -d -o quoron -g quoron -m 0700 /identity /var/lib/quoron /trial/authority /trial/coordinator \
        /trial/operator $(seq -f /trial/client-%g 1 20) \
        /trial/superlink /trial/proxy /trial/server $(seq -f /trial/node-%g 1 20) $(seq -f /trial/app-%g 1 20) \
    && install -d -o quoron -g quoron -m 0755 /trial/database
COPY --from=build /opt/quoron /opt/quoron
# Everything written at run time is in a volume or in /tmp; compiled kernels are kept there.
ENV PATH=/opt/quoron/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba MPLCONFIGDIR=/tmp/matplotlib
USER 10001:10001
WORKDIR /var/lib/quoron
ENTRYPOINT ["quoron"]
CMD ["--help"]
