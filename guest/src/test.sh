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
# watched SECONDS: shows where this machine's programs stand, should the test not have ended by then, and fails. To the console: who waits for
# the test's own output to end would wait for this.
watched() {
    (
        sleep "$1"
        for thread in /proc/[0-9]*/task/[0-9]*; do
            [ -n "$(tr -d '\0' <"${thread%/task/*}/cmdline")" ] || continue
            echo "${thread#/proc/} $(cat "$thread"/comm "$thread"/wchan "$thread"/syscall "$thread"/stat 2>/dev/null | tr '\n' ' ')"
        done
        cat /proc/net/tcp
        # The other machine's lines come as well.
        sleep 20
        echo "failed: no end after $1 s"
        echo "guest-exit 1"
    ) >/dev/console 2>&1 &
}
