#!/usr/bin/env bash
# Kafka Connect, distributed: a file to a topic to a file. Its settings, positions and states are in
# three compacted topics, from which the second run goes on.
#
#   connect.sh JARS FOLDER SERVERS first|second
set -euo pipefail
jars=$1 folder=$2 servers=$3 phase=$4
mkdir -p "$folder"
cat >"$folder/worker.properties" <<END
bootstrap.servers=$servers
group.id=connect
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
config.storage.topic=connect-configs
config.storage.replication.factor=1
status.storage.topic=connect-status
status.storage.replication.factor=1
offset.flush.interval.ms=500
listeners=http://127.0.0.1:18083
plugin.discovery=service_load
END
java -Xmx512m -cp "$jars/*" org.apache.kafka.connect.cli.ConnectDistributed "$folder/worker.properties" \
    >"$folder/log-$phase" 2>&1 &
worker=$!
trap 'kill $worker; wait $worker || true' EXIT
url=http://127.0.0.1:18083/connectors
for _ in $(seq 200); do curl -sf "$url" >/dev/null && break || sleep 0.5; done
put() {
    curl -sf -o /dev/null -X PUT -H 'Content-Type: application/json' "$url/$1/config" --data "$2"
}
if [ "$phase" = first ]; then
    put source "{\"connector.class\": \"org.apache.kafka.connect.file.FileStreamSourceConnector\",
        \"file\": \"$folder/in\", \"topic\": \"lines\"}"
    put sink "{\"connector.class\": \"org.apache.kafka.connect.file.FileStreamSinkConnector\",
        \"file\": \"$folder/out\", \"topics\": \"lines\"}"
    seq 1 200 >"$folder/in"
else
    seq 201 300 >>"$folder/in"
fi
for _ in $(seq 200); do
    cmp -s "$folder/in" "$folder/out" && break || sleep 0.5
done
cmp "$folder/in" "$folder/out"
