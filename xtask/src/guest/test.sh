# Sourced by the tests of the guest: how they fail and how they wait. Whoever shows their lines says whose they are.
fail() {
    echo "failed: $*"
    exit 1
}
seconds() { cut -d. -f1 /proc/uptime; }
# until_ok WHAT COMMAND…: for minutes, until it succeeds. Processors are emulated here, on a host that may have more to do.
until_ok() {
    what=$1
    end=$(($(seconds) + 300))
    shift
    until "$@" >tried 2>&1; do
        [ "$(seconds)" -lt $end ] || { cat tried; fail "$what"; }
        sleep 0.2
    done
}
# listens KIND: whether the server that writes to `served` has begun to.
listens() {
    cat served
    grep -q "listening on $1" served
}
