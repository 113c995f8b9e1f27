#!/bin/sh
# The ClientApps of one user's data. A file that looks like several people's ends it here, before a server hears of it;
# QUORON_ONE_USER=1 says that all of its rows are one user's. docs/federation.md
set -eu
quoron client --check
exec flower-superexec "$@"
