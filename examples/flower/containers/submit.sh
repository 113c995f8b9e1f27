#!/bin/sh
# Submits the example's run to the SuperLink, and follows it.
set -eu
mkdir -p "$FLWR_HOME"
printf '[superlink.here]\naddress = "%s"\nroot-certificates = "%s"\n' "$QUORON_SUPERLINK" "$QUORON_AUTHORITY" \
    > "$FLWR_HOME/config.toml"
quoron submit /opt/quoron/examples/federation/run.toml --run example --users 3 --timeout 20 --app /tmp/example
exec flwr run /tmp/example here --stream
