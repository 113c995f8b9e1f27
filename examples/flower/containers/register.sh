#!/bin/sh
# Tells the SuperLink which SuperNodes may take part: those whose public keys are in QUORON_KEYS. Harmless to repeat.
set -eu
mkdir -p "$FLWR_HOME"
printf '[superlink.here]\naddress = "%s"\nroot-certificates = "%s"\n' "$QUORON_SUPERLINK" "$QUORON_AUTHORITY" \
    > "$FLWR_HOME/config.toml"
for key in "$QUORON_KEYS"/*.pub; do
    if said="$(flwr supernode register "$key" here 2>&1)"; then
        echo "registered $(basename "$key" .pub)"
    else
        case "$said" in
            *"already in use"*) echo "knows $(basename "$key" .pub) already" ;;
            *) echo "$said" >&2; exit 1 ;;
        esac
    fi
done
