#!/usr/bin/env bash
# kcat: records with keys and headers in every codec, a group whose position survives a restart of
# the broker, offsets by time.
#
#   kcat.sh SERVERS first|second
set -euo pipefail
servers=$1 count=300 from=0
[ "$2" = first ] || { count=10 from=300; }
records() { for number in $(seq "$from" $((from + count - 1))); do echo "key $number:value $number"; done; }
for codec in none gzip snappy lz4 zstd; do
    records | kcat -q -P -b "$servers" -t "$codec" -K: -H from=kcat -z "$codec" -X acks=all
    [ "$2" = first ] || kcat -q -Q -b "$servers" -t "$codec:0:0" | grep -q 'offset 0'
    found=$(kcat -q -b "$servers" -G "group-$codec" -X auto.offset.reset=earliest -c "$count" \
        -f '%k:%s %h\n' "$codec")
    diff <(records | sed 's/$/ from=kcat/') <(echo "$found")
done
kcat -q -L -b "$servers" | grep -q 'topic "zstd" with 1 partitions'
