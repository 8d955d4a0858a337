#!/bin/sh
# Over rdma:, between two processes: a table scan in every mode, against the same scan over shm:; a volume; files of programs on
# another one; a calibration and round trips.
. ./test.sh
A=rdma:127.0.0.1:7070

./overside devices || fail "no devices"
./overside serve --listen $A --listen shm:guest --workers 1 --one-sided >served 2>&1 &
until_ok "the server does not listen" listens shm

# Rows long enough that gathering them is worth a thought, and many pages of them.
awk 'BEGIN {
    print "id,name,text,price"
    for (i = 0; i < 6000; i++)
        printf "%d,name-%d,%0200d,%d.5\n", i * 7, i % 97, i, i
}' >rows.csv
./overside load $A lines rows.csv --key id || fail "load"
for i in 1 2 3 4 5 6 7 8 9 10; do
    ./overside put $A lines $((i * 4201)) "put-$i,short,$i.25" || fail "put $i"
done
./overside delete $A lines 70 || fail "delete"
./overside get $A lines 77 | grep -q name-11 || fail "get"

./overside scan shm:guest lines --out expected.csv || fail "the scan over shm:"
[ "$(wc -l <expected.csv)" -gt 6000 ] || fail "the scan over shm: has too few rows"
./overside scan $A lines --rdma-device none0 >said 2>&1 && fail "a scan over a device that is not there"
grep -q "there is no none0, only rxe0" said || fail "without the device that was asked for: $(cat said)"
for mode in auto copy gather delta; do
    ./overside scan $A lines --rdma-device rxe0 --mode $mode --out $mode.csv || fail "scan, $mode"
    cmp expected.csv $mode.csv || fail "$mode delivers other rows"
done
./overside scan $A lines --rdma-device rxe0 --one-sided --out one-sided.csv || fail "a scan that reads the server's memory by itself"
cmp expected.csv one-sided.csv || fail "a scan that reads the server's memory by itself finds other rows"
./overside scan $A lines --columns id,price --from 700 --to 7000 --mode gather --out part.csv || fail "part"
./overside scan shm:guest lines --columns id,price --from 700 --to 7000 --out part-shm.csv || fail "part over shm:"
cmp part.csv part-shm.csv || fail "a part of the table has other rows"
kill -INT $!
wait $!

# A volume, whose client goes on over the device while the node is killed and started again.
V=rdma:127.0.0.1:7072
echo d6909d4585e48b7f8b97acc97187c257354d2c366eb5300ff4ea9117e51cd4d8 >key
chmod 600 key
serve_volume() {
    rm -f served
    ./overside volume serve --listen $V --key-file key --home home --cache 1M >served 2>&1 &
    node=$!
    until_ok "the node does not listen" listens rdma
}
written() {
    ./overside volume status $V/v --key-file key --json >shown && grep -q '"writes_done": *[1-9]' shown
}
./overside volume create v --size 4M --on disk --home home || fail "create a volume"
./overside volume create db --size 16M --on files --files sqlite --home home || fail "create a volume of files"
serve_volume
./overside volume bench $V/v --key-file key --rw randrw --verify --time 3600 --json >found 2>said &
client=$!
until_ok "the volume is not written" written
kill -9 $node
wait $node
serve_volume
until_ok "the volume is not written again" written
kill -INT $client
wait $client
[ $? = 130 ] || fail "a volume's client says: $(cat said found)"
grep -q '"corrupt":0' found && grep -q '"reconnects":[1-9]' found || fail "a volume's client found: $(cat found)"

# Over this device, too, who polls does not sleep, and who sleeps is woken, once for replies that come together.
slept() { cat /proc/$1/task/*/status | awk '/^voluntary/ { all += $2 } END { print all }'; }
for how in poll interrupt; do
    ./overside volume bench $V/v --key-file key --rw randread --depth 16 --completions $how --time 4 --json >found 2>said &
    client=$!
    sleep 1
    before=$(slept $client)
    sleep 2
    sleeps=$(($(slept $client) - before))
    wait $client || fail "a client that waits by $how says: $(cat said found)"
    reads=$(tr , '\n' <found | sed -n 's/^"reads"://p')
    echo "$how: $reads reads in 4 s, $sleeps sleeps in 2 s"
    case $how in
    poll) [ "$reads" -gt $((10 * sleeps)) ] || fail "a client that polls sleeps" ;;
    *) [ "$sleeps" -gt 0 ] && [ "$reads" -gt $((4 * sleeps)) ] || fail "a client that sleeps is not woken for several replies at once" ;;
    esac
done

# Programs as they are keep their files there: each process opens the device and reads the key for itself.
D=/tmp/data
mkdir $D
over() { busybox timeout 300 ./overside run --volume $D=$V/db --key-file key --rdma-device rxe0 -- "$@"; }
./overside run --volume $D=$V/db -- true && fail "a program without the key"
over ./cp rows.csv $D/a.db || fail "cp to a volume"
[ "$(wc -c <$D/a.db)" = 64 ] || fail "a file of a program is not on the volume"
over ./dd if=$D/a.db of=$D/b.db bs=5000 || fail "dd from file to file of a volume"
over ./cmp $D/b.db rows.csv || fail "a file of a volume has other bytes"
if [ -x sqlite3 ]; then
    over ./sqlite3 $D/s.db "create table t(i); insert into t values (70), (7); select sum(i) from t" >said || fail "sqlite3"
    grep -qx 77 said || fail "sqlite3 says $(cat said)"
fi
# A program and its child write while there is no node, and go on when there is one.
over ./dash -c "
    exec 3>$D/c.db
    # What it does not know it closes: the session's.
    exec 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
    echo first >&3
    (echo child >&3)
    echo >begun
    until [ -e killed ]; do /bin/sleep 0.1; done
    echo second >&3
    (echo grandchild >&3)
    echo last >&3" &
program=$!
until_ok "a program writes no file of a volume" [ -e begun ]
kill -9 $node
wait $node
echo >killed
sleep 1
[ -e /proc/$program ] || fail "a program does not wait for its node"
serve_volume
wait $program || fail "a program whose node was killed"
# Until the node knows that the children have ended, which said nothing.
until_ok "cp from a volume" over ./cp $D/c.db c.txt
printf '%s\n' first child second grandchild last | cmp - c.txt || fail "files of a program are $(cat c.txt)"
# A node that comes back with another key does not leave its programs waiting: their calls fail.
busybox timeout 300 ./overside run --verbose --volume $D=$V/db --key-file key --rdma-device rxe0 -- ./dash -c "
    exec 3>$D/d.db
    echo >begun-again
    until [ -e changed ]; do /bin/sleep 0.1; done
    echo lost >&3" >said 2>&1 &
program=$!
until_ok "a program writes no file of a volume" [ -e begun-again ]
kill -9 $node
wait $node
echo 1f3870be274f6c49b3e31a0c6728957f24c2ed3c4f9a4d3c4b1f8a7e5d90b6c2 >key2
chmod 600 key2
rm -f served
./overside volume serve --listen $V --key-file key2 --home home --cache 1M >served 2>&1 &
node=$!
until_ok "the node does not listen" listens rdma
echo >changed
wait $program && fail "a program whose node has another key by now"
grep -q "the node refuses this program (another key" said || fail "a program whose node has another key says: $(cat said)"
kill -INT $node
wait $node

# What is measured on an emulated processor means nothing; that it is measured does.
./overside calibrate rdma --json --force >prices || fail "calibrate"
grep -q '"calibrations":\[{' prices || fail "calibrate says: $(cat prices)"
./overside bench messages --quick --only rdma: --over rdma --rdma-device rxe0 --report messages.html >messages || fail "bench messages"
for way in "index" "header and footer" "header and footer, inline" "SEND" "SEND inline"; do
    grep -q "^rdma: $way " messages || fail "bench messages has no $way: $(cat messages)"
done
echo "scan: every mode delivers the rows"
