#!/bin/sh
# The identity of a new client, as a tar file on standard output: `identity.sh NAME [--renew]`.
#
# In it are the client's certificate, its key and the authority's certificate. Whoever has the file is that client. One
# key is one user, so a name is given out once; --renew is for a client whose certificate runs out: the key stays.
set -eu
umask 077
authority="${QUORON_TRIAL:-/trial}/authority"

stop() {
    echo "$1" >&2
    exit 2
}

[ "$#" -ge 1 ] || stop "Expected the name of a client, got none. Give it a new one, such as client-4."
name="$1"
[ ! -t 1 ] || stop "Expected standard output to be a file, got a terminal. Add > $name.tar, and -T to \`docker compose run\`."
[ -e "$authority/authority.pem" ] || stop "Expected an authority in $authority, got none. Start the federation first."
if [ -e "$authority/$name/certificate.pem" ] && [ "${2:-}" != --renew ]; then
    stop "Expected a new name, got $name, which has an identity: one key is one user. Choose another, or add --renew."
fi
[ "$name" != coordinator ] || stop "Expected a client's name, got the coordinator's. Choose another."
quoron admin certs "$authority" --client "$@" >&2
tar -c -C "$authority/$name" --mode go= certificate.pem key.pem authority.pem
