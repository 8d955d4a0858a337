#!/bin/sh
# A table server on the disk of this machine, and clients that say what was acknowledged. The host takes the power away.
. ./test.sh
until_ok "there is no disk" test -b /dev/vda
mkdir -p /disk
mount -t ext4 /dev/vda /disk || fail "the file system cannot be mounted"
OVERSIDE_POWER_DIR=/disk/data ./power --ignored --exact serves --nocapture || fail "the server"
