#!/bin/sh
# The first process of the guest: makes an RDMA device of a network interface, runs /job/run and says how it ended.
export PATH=/job:/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp

# guest.node=N on the kernel's command line: one of two machines with a wire between them.
node=$(sed -n 's/.*guest\.node=\([0-9]*\).*/\1/p' /proc/cmdline)

finish() {
    echo "guest-exit $1"
    sync
    poweroff -f
}

for module in /modules/*.ko; do
    insmod "$module" || echo "guest: $module is not loaded"
done
ip link set lo up
if [ -n "$node" ]; then
    tries=0
    while [ ! -e /sys/class/net/eth0 ] && [ $tries -lt 1200 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
    ip link set eth0 name wire
else
    ip link add wire type dummy
    node=1
fi
# A packet of 4096 bytes and its heads.
ip link set wire mtu 4500 up || finish 121
ip addr add 10.77.0.$node/24 dev wire || finish 122
rdma link add rxe0 type rxe netdev wire || finish 123

cd /job || finish 124
export NODE=$node
# Through a pipe: a program that sees a terminal would draw on it.
(
    ./run
    echo $? >/tmp/status
) </dev/null 2>&1 | cat
finish "$(cat /tmp/status)"
