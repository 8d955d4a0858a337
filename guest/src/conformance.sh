#!/bin/sh
# Every sentence of the Port contract on the guest's device; declared sends, odd holds, hostile
# peers and forks beside. There must be a device.
export OVERSIDE_DEVICE_EXPECTED=1
for tests in conformance declared holds hostile fork; do
    ./$tests --test-threads=1 || exit 1
done
