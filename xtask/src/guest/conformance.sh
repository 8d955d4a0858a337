#!/bin/sh
# Every sentence of the Port contract on the guest's device; there must be one.
export OVERSIDE_DEVICE_EXPECTED=1
exec ./conformance --test-threads=1
