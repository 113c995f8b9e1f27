#!/bin/sh
# Makes, once, what a trial federation needs before it starts: a private authority, a certificate for the coordinator
# and for every client, an operator's token, and the database's password. Each part gets a folder that it alone sees.
# QUORON_SCALED more clients, by number, get a folder each in clients/, with a made-up diary.
# `setup.sh renew` also makes new certificates for the same keys; `setup.sh revoke NAME` has a client refused from now on.
set -eu
umask 077
trial="${QUORON_TRIAL:-/trial}"
clients="${QUORON_CLIENTS:-3}"
scaled="${QUORON_SCALED:-0}"

give() { # give NAME FOLDER: a certificate, its key, and whom to trust
    mkdir -p "$trial/$2"
    for file in "$trial/authority/$1"/*; do put "$file" "$trial/$2/${file##*/}"; done
}

put() { # put FILE PLACE: as a whole, as whoever runs may be reading it
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}

diary() { # diary NUMBER: ten made-up days
    awk -v seed="$1" 'BEGIN {
        srand(seed); split("mon tue wed thu fri sat sun", days, " "); print "hours_slept,steps,weekday,rested"
        for (row = 0; row < 10; row++) {
            hours = 4 + 6 * rand(); steps = int(2000 + 12000 * rand())
            printf "%.1f,%d,%s,%d\n", hours, steps, days[1 + row % 7], (hours + 2 * rand() > 8)
        }
    }'
}

names="$(number=1; while [ "$number" -le "$scaled" ]; do printf -- '--client scaled-%s ' "$number"; number=$((number + 1)); done)"
# The names at which the coordinator is reached; one that its certificate lacks, from QUORON_HOST, is added.
# shellcheck disable=SC2046,SC2086 # one word each
quoron admin certs "$trial/authority" --clients "$clients" $names $(printf -- '--host %s ' coordinator localhost 127.0.0.1 ${QUORON_HOST:-})
case "${1:-}" in
    "") ;;
    renew) quoron admin certs "$trial/authority" --clients "$clients" $names --client coordinator --renew ;;
    revoke) quoron admin certs "$trial/authority" --revoke "${2:?Expected the name of a client: setup revoke NAME}" ;;
    *) echo "Expected nothing, renew, or revoke and a client's name, got $*." >&2 && exit 2 ;;
esac
give coordinator coordinator
number=1
while [ "$number" -le "$clients" ]; do
    give "client-$number" "client-$number"
    number=$((number + 1))
done
number=1
while [ "$number" -le "$scaled" ]; do
    give "scaled-$number" "clients/client-$number"
    [ -e "$trial/clients/client-$number/items.csv" ] || diary "$number" > "$trial/clients/client-$number/items.csv"
    number=$((number + 1))
done

mkdir -p "$trial/operator"
put "$trial/authority/authority.pem" "$trial/operator/authority.pem"
if [ ! -e "$trial/operator/token" ]; then
    # The first attempt may have ended between the token's entry and its file.
    quoron admin tokens operator --remove --file "$trial/coordinator/tokens.json" 2>/dev/null || true
    quoron admin tokens operator --role operator --file "$trial/coordinator/tokens.json" --out "$trial/operator/token"
fi

mkdir -p "$trial/database"
if [ ! -e "$trial/database/pgpass" ]; then
    password="$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')"
    printf '%s' "$password" > "$trial/database/password.new"
    chmod 444 "$trial/database/password.new" # the database runs as another user; only it and the coordinator see it
    mv "$trial/database/password.new" "$trial/database/password"
    printf '*:*:*:quoron:%s\n' "$password" > "$trial/database/pgpass.new"
    mv "$trial/database/pgpass.new" "$trial/database/pgpass"
fi
