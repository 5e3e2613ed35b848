#!/bin/sh
# A Kafka cluster as files: `examples/link.sh broker:9092 orders` mirrors the topic on a mount of its own, shows each command
# with what it gives, appends one line to the topic in the cluster, and takes the mount away. With SPARK=1 also by Spark.
set -eu

[ $# = 2 ] || { echo "usage: $0 HOST:PORT[,…] TOPIC" >&2; exit 2; }
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
place=$(mktemp -d)
finish() {
    cd /
    topicfs umount --force "$place/mnt" && rm -rf "$place"
}
trap finish EXIT

# Say a command, then do it.
show() {
    printf '\n$ %s\n' "$1"
    sh -c "$1"
}

show "topicfs mount --create $place/mirror $place/mnt --link $1 --link-topic '$2' 2>/dev/null"
cd "$place/mnt"

echo
echo "the mirror: it begins with the first record, and is here when nothing lacks"
until jq -e '.link.lag_records == 0' "$2-0/status.json" >/dev/null 2>&1; do
    sleep 0.2
done
show "ls topics"
show "jq -c '.link | {leader, leader_epoch, lag_records, lag_bytes, lag_seconds}' $2-0/status.json"
show "grep '# cluster$' topics/$2/config"

echo
echo "read: all of it, the last ones, by time, as a table"
show "wc -l $2-*/log.txt"
show "tail -n 2 $2-0/log.jsonl | jq -c '{offset, key, value}'"
show "cat $2-0/time/last-15m.txt | wc -l"
show "topicfs sql . 'SELECT partition, count(*) AS records FROM \"$2\" GROUP BY partition ORDER BY partition'"
show "grep -h -m 1 . $2-*/log.txt"
if [ "${SPARK:-}" = 1 ]; then
    show "python3 - <<'JOB' 2>/dev/null
from pyspark.sql import SparkSession
from topicfs.spark import read, register
spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate()
register(spark)
read(spark, '.', '$2').groupBy('partition').count().orderBy('partition').show()
spark.stop()
JOB"
fi

echo
echo "append: in the cluster, acknowledged by all replicas in sync"
show "echo 'a line from a shell' >> $2-0/log.txt && cat $2-0/offset/-1.txt"
