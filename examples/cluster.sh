#!/bin/sh
# A Kafka broker on this machine, with a topic of clicks, and then what `examples/link.sh` shows of it, with Spark too:
# mirrored, searched, queried, appended to. One command: `examples/cluster.sh`. `make jars` fetches the broker.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
PATH="$root/.venv/bin:$PATH"
[ -e "$root/.tools/kafka/.ready" ] || { echo "the broker is not here yet: make jars" >&2; exit 2; }
place=$(mktemp -d)
broker=
finish() {
    [ -z "$broker" ] || { kill "$broker" && wait "$broker" || true; }
    rm -rf "$place"
}
trap finish EXIT

# A free port for clients, and one for the controller, which is the same process.
set -- $(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in "12"]
print(*(each.getsockname()[1] for each in held))')
cat > "$place/server.properties" <<SETTINGS
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$2
listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2
controller.listener.names=CONTROLLER
log.dirs=$place/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
SETTINGS
kafka() {
    class=$1
    shift
    java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m -cp "$root/.tools/kafka/*" "$class" "$@"
}
kafka kafka.tools.StorageTool format --cluster-id 4L6g3nShT-eMCtK--X86sw --config "$place/server.properties" \
    > "$place/format.log" 2>&1
java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m -cp "$root/.tools/kafka/*" kafka.Kafka \
    "$place/server.properties" > "$place/broker.log" 2>&1 &
broker=$!
echo "a broker at 127.0.0.1:$1"
python3 - "$1" <<'CLICKS'
import json, sys, time
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

address = f"127.0.0.1:{sys.argv[1]}"
for _ in range(600):
    try:
        KafkaAdminClient(bootstrap_servers=address).create_topics([NewTopic("clicks", 2, 1)])
        break
    except KafkaError:
        time.sleep(0.1)
producer = KafkaProducer(bootstrap_servers=address)
for number in range(2000):
    click = {"user": f"user-{number % 17}", "page": f"/page/{number % 23}"}
    producer.send("clicks", json.dumps(click).encode(), key=click["user"].encode())
producer.flush()
producer.close()
CLICKS
SPARK=1 "$root/examples/link.sh" "127.0.0.1:$1" clicks
