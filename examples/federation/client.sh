#!/bin/sh
# One of several clients by number: takes the first folder of QUORON_CLIENTS_FOLDER that no other container has, and is
# that client. A container that starts again takes the one that it had, if it can. What is locked is an open file, which
# the client keeps: whoever ends gives it back.
set -eu
umask 077
clients="${QUORON_CLIENTS_FOLDER:-/clients}"
me="$(hostname)"

had() { [ "$(cat "$1/taken" 2> /dev/null)" = "$me" ]; }
any() { true; }

take() { # take WHICH: the first folder of that kind that is free
    number=1
    while [ -d "$clients/client-$number" ]; do
        mine="$clients/client-$number"
        if "$1" "$mine"; then
            exec 9>> "$mine/lock"
            if flock -n 9; then return 0; fi
        fi
        number=$((number + 1))
    done
    return 1
}

if ! take had && ! take any; then
    echo "Expected a client's folder in $clients that no other container has, got none. Start fewer, or make more:" \
        "QUORON_SCALED." >&2
    exit 2
fi
echo "$me" > "$mine/taken"
ln -sfn "$mine" /tmp/client # for the health check
items="$mine/items.csv"
[ -e "$items" ] || items="$mine/items.parquet"
exec quoron client --data "$items" --state "$mine/record.sqlite" --certs "$mine" "$@"
