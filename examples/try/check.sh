#!/bin/sh
# Checks total.sh with three orders.
status=0
expect() {
    expected=$1
    shift
    total=$(sh total.sh "$@")
    [ "$total" = "$expected" ] || { echo "total of $*: $total instead of $expected"; status=1; }
}
expect 10 5 3 2
expect 7 7
expect 0
exit $status
