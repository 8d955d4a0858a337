#!/bin/sh
# Unmodified programs whose connections, and files, go over RDMA. This machine has two addresses, and programs reach the first from the second, so
# each end is on another host as far as it can tell. Every pair must see what it sees without the library.
ip addr add 10.77.0.3/24 dev wire || exit 1
ip route replace local 10.77.0.1 dev wire table local proto kernel scope host src 10.77.0.3 || exit 1
echo d6909d4585e48b7f8b97acc97187c257354d2c366eb5300ff4ea9117e51cd4d8 >key
chmod 600 key
export OVERSIDE_RDMA=rxe0,key-file=/job/key OVERSIDE_PAIRS_OVER=10.77.0.1:0
OVERSIDE_ALLOCATIONS_DEVICE=rxe0 ./allocations || exit 1
# Files go by SENDs; bytes of sockets are written, and none is sent.
counted() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/"$1"; }
before="$(counted rdma_sends) $(counted rdma_recvs)"
packets=$(counted sent_pkts)
./pairs --test-threads 1 --exact echo sizes stream one_way half_close killed_peer close_with_unread fork_in_the_middle \
    exec_without_the_library polled polled_full set_level set_edge nonblocking threads broken_pipe queues vectors flags \
    unread_by_the_parent unread_by_the_program || exit 1
after="$(counted rdma_sends) $(counted rdma_recvs)"
echo "SENDs before and after sockets: $before, $after; packets: $packets, $(counted sent_pkts)"
[ "$before" = "$after" ] && [ "$(counted sent_pkts)" -gt "$packets" ] || exit 1
