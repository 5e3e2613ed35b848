#!/bin/sh
# A compacted topic as a table: the newest value of each key is a file. It makes a mount of its own, and takes it away.
set -eu

PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
place=$(mktemp -d)
finish() {
    cd /
    topicfs umount "$place/mnt"
    rm -rf "$place"
}
trap finish EXIT
mkdir "$place/backing"
topicfs mount --create "$place/backing" "$place/mnt" 2>/dev/null

# Say a command, then do it.
show() {
    printf '\n$ %s\n' "$1"
    sh -c "$1"
}

cd "$place/mnt"
echo "a compacted topic keeps the last record of each key"
show "mkdir topics/users"
show "echo cleanup.policy=compact > topics/users/config"
show "echo '{\"mail\":\"ann@example.org\"}' > topics/users/keys/ann"
show "echo '{\"mail\":\"bob@example.org\"}' > topics/users/keys/bob"
show "cat topics/users/keys/ann"
show "echo '{\"mail\":\"ann@example.com\"}' > topics/users/keys/ann"
show "rm topics/users/keys/bob"
show "ls topics/users/keys/"

echo
echo "it is a log like any other"
show "cat topics/users/log.tsv"

echo
echo "change a value only if nobody else has: under the offset at which it was read"
show "offset=\$(python -c 'import os; print(os.getxattr(\"topics/users/keys/ann\", \"user.topicfs.offset\").decode())')
  sed s/ann@/anna@/ topics/users/keys/ann | dd of=topics/users/keys/ann%@\$offset status=none
  cat topics/users/keys/ann"
show "echo late | dd of=topics/users/keys/ann%@0 status=none 2>/dev/null || echo 'somebody was faster: read again'"
