#!/bin/sh
# Two machines with a wire between them: redis and its own programs, which know nothing of RDMA, over the device; and over the kernel where the
# two ends have not the same key.
. ./test.sh
# rdma FILE: connection ends over RDMA, as the run's last line has them.
rdma() { sed -n 's/^overside: .* shared memory, \([0-9]*\) over RDMA, .*/\1/p' "$1"; }

if [ ! -e redis-server ]; then
    echo "apart: no redis on this host, so nothing is tested (apt-get install redis-server)"
    exit 0
fi
echo d6909d4585e48b7f8b97acc97187c257354d2c366eb5300ff4ea9117e51cd4d8 >key
echo 7cd1c32b3c4cb5abf9f9e25113e99112cc31280d6899af94a3c7236b52949b50 >other
chmod 600 key other
export OVERSIDE_RDMA=rxe0,key-file=/job/key
# Emulated, and beside other work, the whole takes two minutes.
watched 400

if [ "$NODE" = 1 ]; then
    ./overside run --verbose -- ./redis-server --bind 10.77.0.1 --port 7500 --save "" --protected-mode no >served 2>said
    grep -v accepted said
    ends=$(rdma said)
    [ "${ends:-0}" -ge 4 ] || fail "the server has ${ends:-no} connections over RDMA: $(cat said)"
    exit 0
fi

R="-h 10.77.0.1 -p 7500"
until_ok "no server" ./redis-cli $R ping
# bench WHAT ARGUMENTS…: into bench.said
bench() {
    what=$1
    shift
    ./overside run --verbose -- ./redis-benchmark $R -q "$@" >bench.out 2>bench.said || fail "$what: $(cat bench.out bench.said)"
    tail -1 bench.said
}
bench "one client" -c 1 -n 1000 -t set,get -d 64
[ "$(rdma bench.said)" -ge 1 ] || fail "one client: $(cat bench.said)"
# Short ones: where the ends meet, the first bytes of the ring come beside the word that it has begun.
turn=0
while [ $turn -lt 12 ]; do
    turn=$((turn + 1))
    bench "short run $turn" -c 1 -n 100 -t set,get -d 64 >short
    [ "$(rdma bench.said)" -ge 1 ] || fail "short run $turn: $(cat bench.said)"
done
bench "eight clients, four at a time" -c 8 -n 2000 -P 4 -t set -d 3000
[ "$(rdma bench.said)" -ge 3 ] || fail "eight clients: $(cat bench.said)"
# What has gone over the device is what is there.
awk 'BEGIN { for (i = 0; i < 60000; i++) printf "%010d", i * 7919 }' >long
./overside run -- ./redis-cli $R -x set long <long >out || fail "set"
./redis-cli $R --raw get long | head -c 600000 | cmp - long || fail "other bytes came than were sent"
# Every twelfth packet of this machine is lost, datagrams of meetings among them: the ends say again what was not heard. By its place: busybox
# has a smaller program of this name.
/bin/tc qdisc add dev wire root netem loss 8% || fail "the wire cannot lose packets"
bench "twenty clients over a wire that loses packets" -c 20 -n 1500 -t set -d 64
/bin/tc qdisc del dev wire root
[ "$(rdma bench.said)" = 20 ] || fail "over a wire that loses packets: $(cat bench.said)"
OVERSIDE_RDMA=rxe0,key-file=/job/other bench "another key" -c 1 -n 300 -t get
[ -z "$(rdma bench.said)" ] || fail "with another key: $(cat bench.said)"
OVERSIDE_RDMA=none0,key-file=/job/key bench "no device" -c 1 -n 300 -t get
grep -q "there is no none0" bench.said || fail "without the device: $(cat bench.said)"
./redis-cli $R shutdown nosave
exit 0
