#!/bin/sh
# Produce ten orders and read them back in a consumer group, with kcat.
#
#     apt install kcat        (macOS: brew install kcat)
#     examples/kcat_group.sh localhost:9092
#
# Run it again: the group goes on where it committed, so each run prints its own ten orders.
set -eu
bootstrap=${1:-localhost:9092}
topic=orders-kcat
group=billing-kcat

# -P produces a record per line; -K: takes what is before the colon for its key. The broker creates the topic.
for number in 1 2 3 4 5 6 7 8 9 10; do
    echo "order-$number:{\"amount\": $number}"
done | kcat -P -b "$bootstrap" -t "$topic" -K: -z zstd -X enable.idempotence=true

# -G joins the group; -c 10 leaves after ten records, and commits on the way out. Without -c it reads on for ever.
kcat -G "$group" -b "$bootstrap" -q -c 10 -X auto.offset.reset=earliest -f 'consumed %t[%p]@%o %k %s\n' "$topic"
