"""
quixstreams: an application with state, from topic to topic, whose position survives a restart of
the broker.

    quix.py SERVERS first|second
"""

import sys
import tempfile

from quixstreams import Application

COUNT = 300
servers, phase = sys.argv[1:]
start, end = (0, COUNT) if phase == "first" else (COUNT, COUNT + 10)
app = Application(
    broker_address=servers,
    consumer_group="quix",
    auto_offset_reset="earliest",
    state_dir=tempfile.mkdtemp(),
    commit_interval=0.5,
)
source = app.topic("source", value_serializer="json", value_deserializer="json")
target = app.topic("target", value_serializer="json", value_deserializer="json")
with app.get_producer() as producer:
    for number in range(start, end):
        message = source.serialize(
            key=f"key {number % 7}", value={"number": number}, headers={"number": str(number)}
        )
        producer.produce(source.name, value=message.value, key=message.key, headers=message.headers)
seen: list[int] = []


def count(value, state):
    """The numbers of each key are counted in the state."""
    total = state.get("total", 0) + 1
    state.set("total", total)
    seen.append(value["number"])
    return {"number": value["number"], "total": total}


frame = app.dataframe(source).apply(count, stateful=True).to_topic(target)
app.run(count=end - start, timeout=60)
assert sorted(seen) == list(range(start, end)), seen
there: list[dict[str, int]] = []
reader = Application(
    broker_address=servers,
    consumer_group="quix-reader",
    auto_offset_reset="earliest",
    state_dir=tempfile.mkdtemp(),
)
topic = reader.topic("target", value_deserializer="json")
reader.dataframe(topic).apply(lambda value: there.append(value))
reader.run(count=end - start, timeout=60)
assert sorted(each["number"] for each in there) == list(range(start, end)), there
last = {each["number"] % 7: each["total"] for each in there}
wanted = {key: sum(number % 7 == key for number in range(end)) for key in last}
assert last == wanted, (last, wanted)
