#!/bin/sh
# Backups of a database in the folder QUORON_BACKUPS: one every QUORON_BACKUP_SECONDS, of which the newest
# QUORON_BACKUPS_KEPT stay. With QUORON_DATABASE this program reads the database; with QUORON_CONTROL_ADDRESS the
# coordinator there, which has a SQLite file open, writes the backup beside the file: QUORON_BACKUPS is that folder.
#
#   backup.sh once            take one
#   backup.sh check           fail if the newest is older than two such times
#   backup.sh restore [NAME]  restore it, or the newest, into the empty database of QUORON_DATABASE
set -eu
umask 077
folder="${QUORON_BACKUPS:-/backups}"
kept="${QUORON_BACKUPS_KEPT:-7}"
seconds="${QUORON_BACKUP_SECONDS:-86400}"
again=300 # seconds after one that failed

backups() { find "$folder" -maxdepth 1 -type f -name '*.backup' | sort -r; } # their names are in the order of time

take() {
    if [ -n "${QUORON_CONTROL_ADDRESS:-}" ]; then
        quoron admin backup
    else
        quoron admin backup "$folder/quoron-$(date -u +%Y%m%dT%H%M%SZ).backup"
    fi
}

once() { # what failed deletes nothing
    take && backups | tail -n "+$((kept + 1))" | while read -r old; do rm -f -- "$old"; done
}

check() {
    newest="$(backups | head -n 1)"
    [ -n "$newest" ] && [ "$(($(date +%s) - $(stat -c %Y "$newest")))" -le "$((2 * seconds))" ]
}

case "${1:-}" in
    "")
        trap 'exit 0' TERM INT
        while true; do
            pause="$seconds"
            once || pause="$again"
            sleep "$pause" &
            wait "$!"
        done
        ;;
    once) once ;;
    check) check ;;
    restore)
        name="${2:-$(backups | head -n 1)}"
        echo "restoring ${name##*/}"
        exec quoron admin restore "$folder/${name##*/}" --database "${QUORON_DATABASE:?Set QUORON_DATABASE to an empty database}"
        ;;
    *) echo "Expected nothing, once, check, or restore and a backup's name, got $*." >&2 && exit 2 ;;
esac
