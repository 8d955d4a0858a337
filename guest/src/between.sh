#!/bin/sh
# Two machines with a wire between them and one key: every verb; a declared region from one to the other; figures whose receivers are at
# the other machine; a table scanned over rdma: and tcp:, and over a wire that delays; the death of a server, a connection that is reset and
# a cut wire, all noticed at the other machine.
. ./test.sh

export OVERSIDE_DEVICE_EXPECTED=1 OVERSIDE_ADDRESS=10.77.0.1:7300
R=rdma:10.77.0.1:7070
T=tcp:10.77.0.1:7071
D=rdma:10.77.0.1:7072
F=rdma:10.77.0.1:7073
echo d6909d4585e48b7f8b97acc97187c257354d2c366eb5300ff4ea9117e51cd4d8 >key
echo 7cd1c32b3c4cb5abf9f9e25113e99112cc31280d6899af94a3c7236b52949b50 >other
chmod 600 key other

if [ "$NODE" = 1 ]; then
    OVERSIDE_END=listen ./between --nocapture || fail "the verbs, listening"
    # The other machine may come later than a listener waits: either end tries until it has met the other.
    until_ok "nobody sends a region" ./declare --listen $D --key-file key
    grep -q "^100 messages of 12 bytes$" tried || fail "the receiver of a region says: $(cat tried)"
    ./overside bench receive --listen $F --key-file key >receiving 2>&1 &
    receiving=$!
    ./overside serve --listen rdma:10.77.0.1:7099 >said 2>&1 && fail "a server without a key listens for other hosts"
    grep -q -e --key-file said || fail "the server without a key says: $(cat said)"
    serve() {
        # What an earlier server said lies there until the new one's shell opens the file.
        rm -f served
        ./overside serve --listen $R --listen $T --listen shm:guest --key-file key --workers 1 >served 2>&1 &
        server=$!
        until_ok "the server does not listen" listens shm
        ./overside load shm:guest lines rows.csv --key id || fail "load"
    }
    # More than a client has receive buffers for.
    awk 'BEGIN { print "id,name,text"; for (i = 1; i <= 10000; i++) printf "%d,name-%d,%0400d\n", i * 7, i % 97, i }' >rows.csv
    serve
    # Killed in the middle of a scan, when the other machine says so.
    until_ok "the other machine never said that it scans" ./overside get shm:guest lines 1
    # Its figures are done.
    kill $receiving || fail "nobody receives figures any more: $(cat receiving)"
    wait $receiving
    grep -q "not started" receiving && fail "of figures: $(cat receiving)"
    kill -9 $server
    wait $server
    serve
    # Reset while the other machine scans; told by a row.
    until_ok "the other machine never said that it may be reset" ./overside get shm:guest lines 2
    ss --tcp --kill state established sport = :7070 >reset || fail "no connection can be reset: $(cat reset)"
    grep -q 10.77.0.2 reset || fail "no connection was reset: $(cat reset)"
    ./overside put shm:guest lines 3 "reset,done" || fail "put"
    until_ok "the other machine never scanned again" ./overside get shm:guest lines 1
    ip link set wire down
    sleep 8
    ./overside get shm:guest lines 7 | grep -q name-1 || fail "the server does not answer behind the cut wire"
    kill -INT $server
    wait $server
    echo "between: the listening machine has seen all of it"
    exit 0
fi

OVERSIDE_END=connect ./between --nocapture || fail "the verbs, connecting"
until_ok "nobody receives a region" ./declare --connect $D --key-file key
grep -q "(chosen)" tried || fail "the sender of a region prints no plan: $(cat tried)"

# What is measured on an emulated processor means nothing; that it is measured, and over the device, does.
figure() {
    name=$1
    shift
    ./overside bench "$name" --quick --report figure.html --to $F "$@" >figure 2>said
}
refused() {
    figure verbs --key-file other && fail "a figure with another key is served"
    grep "another one" said
}
until_ok "a figure with another key is not refused" refused
before=$(seconds)
figure verbs --key-file key || fail "the figure verbs: $(cat said)"
for row in SEND WRITE READ; do
    grep -q "^$row 100 B " figure || fail "the figure verbs has no $row: $(cat figure)"
done
# As ibv-bench has them: copied or not, records a message, bytes of a record, no deltas.
for row in "0 *1 *128" "0 *32 *128" "0 *32 *1024" "1 *1 *128" "1 *32 *1024"; do
    grep -q "^$row *0 *0 " figure || fail "the figure verbs lacks ibv-bench's row $row: $(cat figure)"
done
figure messages --only SEND --json --key-file key || fail "the figure messages: $(cat said)"
grep -q '"provider":"rdma"' figure || fail "the figure messages went another way: $(head -c 300 figure)"
echo "between: figures took $(($(seconds) - before)) s"

until_ok "no table at the other machine" ./overside get $R lines 70000 --key-file key
./overside scan $R lines >said 2>&1 && fail "a scan without a key"
grep -q "asks for a key" said || fail "a scan without a key says: $(cat said)"
./overside scan $R lines --key-file other >said 2>&1 && fail "a scan with another key"
grep -q "another one" said || fail "a scan with another key says: $(cat said)"
./overside scan $T lines --key-file key --out expected.csv || fail "the scan over tcp:"
[ "$(wc -l <expected.csv)" = 10001 ] || fail "the scan over tcp: has $(wc -l <expected.csv) lines"
for mode in auto copy gather delta in-place; do
    ./overside scan $R lines --key-file key --mode $mode --out $mode.csv || fail "scan, $mode"
    cmp expected.csv $mode.csv || fail "$mode delivers other rows"
done

# Every packet of this machine arrives late. By its place: busybox has a smaller program of this name.
/bin/tc qdisc add dev wire root netem delay 60ms || fail "the wire cannot be slowed"
for mode in gather copy; do
    ./overside scan $R lines --key-file key --mode $mode --out late.csv || fail "scan over a slow wire, $mode"
    cmp expected.csv late.csv || fail "$mode over a slow wire delivers other rows"
done
./overside scan $T lines --key-file key --out late.csv || fail "scan over tcp: and a slow wire"
cmp expected.csv late.csv || fail "tcp: over a slow wire delivers other rows"
/bin/tc qdisc del dev wire root

# begin_scan: one that stands still in the middle.
begin_scan() {
    rm -f pipe
    mkfifo pipe
    ./overside scan $R lines --key-file key --mode gather >pipe 2>said &
    client=$!
    exec 3<pipe
    head -c 1000 <&3 >begun
    # It has begun; and stands still, or it would take all rows and keep them for whoever reads.
    kill -STOP $client
    [ -s begun ] || fail "a scan that does not begin"
}

# end_scan WHAT: it goes on, and must fail, soon and with a word.
end_scan() {
    before=$(seconds)
    kill -CONT $client
    cat <&3 >rest
    wait $client
    status=$?
    took=$(($(seconds) - before))
    [ $status = 1 ] || fail "$1: a scan ended with status $status"
    [ -s said ] || fail "$1: a scan ended without a word"
    cat said
    # Seconds, and as many more as such a machine may take for them.
    [ $took -le 60 ] || fail "$1 was noticed after $took s"
    # Rows that came are rows of the table, each once.
    lines=$(cat begun rest | sed '$d' | sort | uniq -d | wc -l)
    [ "$lines" = 0 ] || fail "$1: $lines rows came twice"
}

# stuck WHAT COMMAND…: a scan that stands still in the middle; then what is to happen at the other machine, which has happened once
# the command succeeds.
stuck() {
    what=$1
    shift
    begin_scan
    ./overside put $R lines 1 "go,now" --key-file key || fail "put"
    until_ok "nothing happens: $what" "$@"
    end_scan "$what"
}
# Neither a server that is dead nor the next one has the row that said so.
is_dead() { ! ./overside get $R lines 1 --key-file key; }
# The kernel there answers at once, however busy its machine is.
is_cut() { ! ping -c 5 -W 1 10.77.0.1; }

stuck "the death of the server" is_dead
until_ok "no second server" ./overside get $R lines 70000 --key-file key
begin_scan
./overside put $R lines 2 "reset,now" --key-file key || fail "put"
until_ok "nothing was reset" ./overside get $R lines 3 --key-file key
end_scan "a reset"
# Others connect as before.
./overside scan $R lines --key-file key --out after.csv || fail "a scan after the reset"
[ "$(wc -l <after.csv)" = 10003 ] || fail "the scan after the reset has $(wc -l <after.csv) lines"
stuck "the cut wire" is_cut
echo "between: the connecting machine has seen all of it"
