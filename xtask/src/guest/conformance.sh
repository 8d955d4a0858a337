#!/bin/sh
# Every sentence of the Port contract on the guest's device; hostile peers and forks beside. There must be a device.
export OVERSIDE_DEVICE_EXPECTED=1
for tests in conformance hostile fork; do
    ./$tests --test-threads=1 || exit 1
done
