#!/bin/sh
# A volume as a block device: fio and a file system on it while its node is killed; detached, refused, and what is left of a server
# that was killed.
. ./test.sh
V=shm:guest
D=/dev/ublkb0

serve_volume() {
    rm -f served
    ./overside volume serve --listen $V --home home --writes back >served 2>&1 &
    node=$!
    until_ok "the node does not listen" listens shm
}
# attach OPTION…: the volume as $D.
attach() {
    rm -f attached
    ./overside volume attach $V/v --ublk "$@" >attached 2>&1 &
    server=$!
    until_ok "the volume is not attached" grep -q "$D\$" attached
    [ -b $D ] || fail "there is no $D: $(cat attached)"
}
gone() { [ ! -e $D ] && [ ! -e /dev/ublkc0 ] && ! kill -0 $server 2>/dev/null; }
# of FILE VALUE: what the kernel says of the device.
of() { [ "$(cat /sys/block/ublkb0/$1)" = "$2" ] || fail "$1 is $(cat /sys/block/ublkb0/$1), not $2"; }
done_now() { ./overside volume status $V/v --json | sed -n 's/.*"writes_done": *\([0-9]*\).*/\1/p'; }
more_than() { [ "$(done_now)" -gt "$1" ]; }
kill_node() {
    kill -9 $node
    wait $node
    sleep 0.2
    serve_volume
}

./overside volume create v --size 64M --on disk --home home || fail "create a volume"
serve_volume
attach
of size 131072
of ro 0
of queue/logical_block_size 512
of queue/physical_block_size 4096
of queue/write_cache "write back"
of queue/fua 1
of queue/discard_granularity 4096

# Every byte is read again while the node is killed, on both ways.
./fio --name=verify --filename=$D --size=32M --rw=randwrite --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --ioengine=libaio \
    --iodepth=32 --direct=1 --verify=crc32c --verify_fatal=1 --loops=3 --fsync=64 --output-format=terse >verified 2>&1 &
fio=$!
for life in 1 2 3; do
    before=$(done_now)
    until_ok "fio writes nothing in life $life" more_than $((${before:-0} + 200))
    kill_node
done
wait $fio || fail "fio found: $(cat verified)"
echo "ublk: fio: $(cut -d';' -f5 verified | tr '\n' ' ')is the last error"

# Zeros, with and without their room.
dd if=/dev/urandom of=noise bs=1M count=4 2>/dev/null
dd if=noise of=$D bs=1M conv=notrunc,fsync 2>/dev/null || fail "write"
./blkdiscard -o 4096 -l 1M $D || fail "discard"
./blkdiscard -z -o 2M -l 1M $D || fail "zero out"
dd if=/dev/zero of=noise bs=4096 seek=1 count=256 conv=notrunc 2>/dev/null
dd if=/dev/zero of=noise bs=1M seek=2 count=1 conv=notrunc 2>/dev/null
# Past what the kernel has of it in memory.
./fio --name=read --filename=$D --size=4M --rw=read --bs=64k --direct=1 --ioengine=psync --output-format=terse >read 2>&1 || fail "read: $(cat read)"
echo 3 >/proc/sys/vm/drop_caches
dd if=$D of=found bs=1M count=4 2>/dev/null
cmp noise found || fail "zeros are not where they should be"

# A file system, whose node is killed while it is written.
./mke2fs -q -t ext4 $D || fail "mkfs"
mkdir -p /disk
mount -t ext4 -o discard $D /disk || fail "mount"
for i in 1 2 3 4 5 6; do
    dd if=/dev/urandom of=/disk/file$i bs=64k count=60 conv=fsync 2>/dev/null || fail "a file"
    [ $i != 3 ] || kill_node
    [ $i != 5 ] || rm /disk/file1
done
(cd /disk && md5sum file*) >sums
./overside volume detach $D >told 2>&1 && fail "a device that is mounted was detached"
grep -q "is mounted" told || fail "of a mounted device it says: $(cat told)"
umount /disk || fail "umount"
./e2fsck -fn $D || fail "fsck"
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o ro $D /disk && (cd /disk && md5sum -c ../job/sums) >checked || fail "files: $(cat checked)"
umount /disk
./overside volume detach $D || fail "detach"
wait $server || fail "the detached server says: $(cat attached)"
gone || fail "the device stays: $(ls /dev/ublk*)"

# Read only.
attach --read-only
of ro 1
dd if=noise of=$D bs=4096 count=1 2>/dev/null && fail "a reader wrote"
./e2fsck -fn $D || fail "fsck by a reader"
kill -TERM $server
wait $server || fail "the server that was stopped says: $(cat attached)"
gone || fail "the device stays after SIGTERM"

# A server that is killed while it is used leaves nothing that the next one does not take away.
attach
./fio --name=killed --filename=$D --size=64M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=32 --direct=1 --time_based --runtime=600 >killed 2>&1 &
fio=$!
before=$(done_now)
until_ok "nothing is written" more_than $((${before:-0} + 100))
kill -9 $server
wait $server
wait $fio && fail "fio does not notice that its disk has gone"
until_ok "the block device of a killed server stays" test ! -e $D
attach --take-over
kill -9 $server
wait $server
until_ok "the block device of a killed server stays" test ! -e $D
./overside volume detach $D || fail "what is left of a killed server is not taken away"
gone || fail "a number stays: $(ls /dev/ublk*)"

# A server ends although its node is away: what waits for it fails.
attach --take-over
kill -9 $node
wait $node
dd if=$D of=/dev/null bs=4096 skip=1000 count=1 >lost 2>&1 &
reader=$!
sleep 1
kill -INT $server
wait $server || fail "the server without a node says: $(cat attached)"
wait $reader
# An error, or the end of a device that has gone.
grep -q "^1+0" lost && fail "a read without a node succeeded"
gone || fail "the device stays without its node"
serve_volume
attach --take-over
# What it uses with nothing to do.
idle() { set -- $(cat /proc/$server/stat); echo $((${14} + ${15})); }
before=$(idle)
sleep 5
[ $(($(idle) - before)) -le 5 ] || fail "a server with nothing to do used $(($(idle) - before)) hundredths of a second of 5"
./overside volume detach $D || fail "the last detach"
kill -INT $node
wait $node
echo "ublk: every byte is there"
