#!/bin/sh
# Makes, once, what the second server of a trial needs: an authority of its operator's own, certificates for the server,
# for whoever looks after its health and for the coordinator, and the key that it signs with. What others are given lies
# in link (the coordinator's operator) and in public (everybody).
set -eu
umask 077
trial="${QUORON_TRIAL:-/trial}"

put() { # put FILE PLACE: as a whole, as whoever runs may be reading it
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}

give() { # give NAME FOLDER: its certificate, its key and the authority's certificate
    mkdir -p "$2"
    for file in certificate.pem key.pem authority.pem; do put "$trial/authority/$1/$file" "$2/$file"; done
}

quoron admin certs "$trial/authority" --client leader --client watch --host second-server --host localhost
give coordinator "$trial/second-server" # of a server: the second one
give watch "$trial/second-server/watch"
put "$trial/authority/leader/certificate.pem" "$trial/second-server/leader.pem"
quoron second-server key "$trial/public/second-server-key.pem" --signing-key "$trial/second-server/signing.key"

give leader "$trial/link"
put "$trial/public/second-server-key.pem" "$trial/link/second-server-key.pem"
