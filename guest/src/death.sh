#!/bin/sh
# Processes that are killed in the middle of a scan over rdma:, on either side.
. ./test.sh
A=rdma:127.0.0.1:7071

serve() {
    # What an earlier server said lies there until the new one's shell opens the file.
    rm -f served
    ./overside serve --listen $A --workers 1 >served 2>&1 &
    server=$!
    until_ok "the server does not listen" listens rdma
}

serve
awk 'BEGIN { print "id,text"; for (i = 0; i < 20000; i++) printf "%d,%0400d\n", i, i }' >rows.csv
./overside load $A lines rows.csv --key id || fail "load"

# A client that is killed while it scans; the server goes on, also when that happens often.
for i in 1 2 3; do
    ./overside scan $A lines --mode gather --out cut.csv &
    client=$!
    sleep 0.2
    kill -9 $client 2>/dev/null
    wait $client
done
./overside get $A lines 19999 | grep -q 19999 || fail "the server does not answer after the deaths of clients"

# A server that is killed while a client scans: an error, and soon.
mkfifo pipe
./overside scan $A lines --mode gather >pipe 2>said &
client=$!
exec 3<pipe
head -c 1000 <&3 >begun
# It has begun; and stands still, or it would take all rows and keep them for whoever reads.
kill -STOP $client
[ -s begun ] || fail "a scan that does not begin"
kill -9 $server
wait $server
kill -CONT $client
before=$(seconds)
cat <&3 >rest
wait $client
status=$?
took=$(($(seconds) - before))
[ $status = 1 ] || fail "a scan from a killed server ended with status $status"
[ -s said ] || fail "a scan from a killed server ended without a word"
cat said
# At once, and as many times that as an emulated processor on a busy host may take.
[ $took -le 60 ] || fail "a client noticed the death of its server after $took s"

# The address is free again.
serve
./overside load $A lines rows.csv --key id || fail "load at the second server"
kill -INT $server
wait $server
echo "death: noticed on both sides"
