#!/bin/sh
# Mount BACKING at MOUNT with a small sample topic, show what to try, and stay until Ctrl-C.
set -eu

BACKING=${BACKING:-./data}
MOUNT=${MOUNT:-./mnt}

# Fill in the sample and say what to try, when the mount answers. It ends with the daemon, which becomes process $$.
(
    trap '' INT PIPE
    until [ -d "$MOUNT/topics" ]; do
        kill -0 $$ 2>/dev/null || exit 0
        sleep 0.2
    done
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
) &

# In the place of this shell: the daemon gets each signal itself, and however it ends, nothing of it is left.
exec topicfs mount --create --foreground "$BACKING" "$MOUNT"
