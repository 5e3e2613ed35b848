#!/bin/sh
# A shell session, from nothing to nothing: it makes a mount of its own, shows each command with what it gives, and takes
# the mount away. With a mount as its argument it works there.
set -eu

PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
place=""
finish() {
    cd /
    if [ -n "$place" ]; then
        topicfs umount "$place/mnt"
        rm -rf "$place"
    fi
}
trap finish EXIT
if [ $# -gt 0 ]; then
    mount=$1
else
    place=$(mktemp -d)
    mkdir "$place/backing"
    topicfs mount --create "$place/backing" "$place/mnt" 2>/dev/null
    mount=$place/mnt
fi

# Say a command, then do it.
show() {
    printf '\n$ %s\n' "$1"
    sh -c "$1"
}

cd "$mount"
echo "a topic with settings of its own"
show "mkdir topics/orders"
show "echo 'retention.ms=86400000' > topics/orders/config"
show "grep -v '# default' topics/orders/config"

echo
echo "append: a line is a record"
show "echo '10 apples' >> orders-0/log.txt"
show "printf 'ann\t3 pears\nbob\t7 plums\n' >> orders-0/log.tsv"
show "echo '{\"key\":\"ann\",\"value\":\"5 figs\",\"headers\":[{\"key\":\"shop\",\"value\":\"north\"}]}' >> topics/orders/in.jsonl"

echo
echo "read: all of it, one value, the last ones, by time"
show "cat orders-0/log.tsv"
show "cat orders-0/offset/1; echo"
show "tail -n 1 orders-0/log.jsonl | jq -c '{offset, key, value, headers}'"
show "cat orders-0/offset/-2.txt"
show "cat orders-0/time/last-15m.txt | wc -l"
show "grep -c a orders-0/log.txt"

echo
echo "follow: like a pipe, from now on"
show "(timeout 2 head -n 1 orders-0/follow.txt & sleep 0.5; echo 'a late order' >> orders-0/log.txt; wait)"

echo
echo "look into it, and delete what is old"
show "jq -c '{start_offset, end_offset, segments, next_removal}' orders-0/status.json"
show "echo 2 > orders-0/start && cat orders-0/log.txt"
show "rmdir topics/orders || topicfs delete . orders --yes"
show "topicfs undelete . orders && cat orders-0/log.txt"
show "topicfs delete . orders --yes && ls"
