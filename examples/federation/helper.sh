#!/bin/sh
# Makes, once, what the helper of a trial of two servers needs: an authority of its operator's own, certificates for the
# helper, for whoever looks after its health and for the coordinator, and the key that it signs with. What others are
# given lies in link (the coordinator's operator) and in public (everybody).
set -eu
umask 077
trial="${QUORON_TRIAL:-/trial}"

put() { # put FILE PLACE: as a whole, as whoever runs may be reading it
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}

quoron admin certs "$trial/authority" --clients 0 --client leader --client watch --host helper --host localhost
put "$trial/authority/coordinator.pem" "$trial/helper/certificate.pem" # of a server: the helper
put "$trial/authority/coordinator.key" "$trial/helper/key.pem"
put "$trial/authority/authority.pem" "$trial/helper/authority.pem"
put "$trial/authority/leader.pem" "$trial/helper/leader.pem"
put "$trial/authority/watch.pem" "$trial/helper/watch.pem"
put "$trial/authority/watch.key" "$trial/helper/watch.key"
quoron helper key "$trial/public/helper-key.pem" --signing-key "$trial/helper/signing.key"

put "$trial/authority/leader.pem" "$trial/link/certificate.pem"
put "$trial/authority/leader.key" "$trial/link/key.pem"
put "$trial/authority/authority.pem" "$trial/link/authority.pem"
put "$trial/public/helper-key.pem" "$trial/link/helper-key.pem"
