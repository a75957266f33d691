"""
The jobs as Quix Streams has them: C{python quix.py JOB SERVERS TOPIC COUNT COMMIT_SECONDS FOLDER}
prints the processor seconds of its process from the first message to the commit behind the last.
"""

import sys
import time

from quixstreams import Application


def main(job: str, servers: str, topic: str, count: int, seconds: float, folder: str) -> None:
    app = Application(
        broker_address=servers,
        consumer_group=f"quix-{job}",
        auto_offset_reset="earliest",
        commit_interval=seconds,
        state_dir=folder,
        loglevel="WARNING",
    )
    words = app.dataframe(app.topic(topic, key_deserializer="str", value_deserializer="json"))
    began: list[float] = []

    def begin(_value) -> bool:
        if not began:
            began.append(time.process_time())
        return True

    words = words.filter(begin)
    if job == "wordcount":

        def add(value, state) -> None:
            state.set("count", state.get("count", 0) + value)

        words.update(add, stateful=True)
    else:
        words.to_topic(app.topic(f"quix-{job}", key_serializer="str", value_serializer="json"))
    app.run(count=count)
    print(time.process_time() - began[0])


if __name__ == "__main__":
    _, jobName, brokers, words, messages, interval, stateFolder = sys.argv
    main(jobName, brokers, words, int(messages), float(interval), stateFolder)
