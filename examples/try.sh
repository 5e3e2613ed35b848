#!/bin/sh
# Mount BACKING at MOUNT with a small sample topic, show what to try, and stay until Ctrl-C.
set -eu

BACKING=${BACKING:-./data}
MOUNT=${MOUNT:-./mnt}

topicfs mount --create "$BACKING" "$MOUNT"
# Ctrl-C reaches everything in the foreground: this script ends the mount, and its exit is a good one.
trap 'echo; topicfs umount "$MOUNT"; exit 0' INT TERM
trap 'topicfs umount "$MOUNT"' HUP

if [ ! -d "$MOUNT/topics/orders" ]; then
    mkdir "$MOUNT/topics/orders"
    for n in 1 2 3 4 5 6 7 8 9 10; do
        echo "{\"key\":\"customer-$((n % 3))\",\"value\":\"$n apples\",\"headers\":[{\"key\":\"shop\",\"value\":\"north\"}]}"
    done >> "$MOUNT/orders-0/log.jsonl"
fi

cat <<TEXT

$BACKING is mounted at $MOUNT. In another shell, try:

    cat $MOUNT/orders-0/log.txt
    tail -f $MOUNT/orders-0/log.jsonl
    echo '11 pears' >> $MOUNT/orders-0/log.txt
    cat $MOUNT/orders-0/offset/-3.tsv
    cat $MOUNT/orders-0/time/last-15m.jsonl
    cat $MOUNT/orders-0/status.json

Ctrl-C unmounts it.
TEXT

while :; do sleep 86400 & wait $!; done
