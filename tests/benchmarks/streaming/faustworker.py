"""
The jobs as Faust has them: C{python faustworker.py JOB SERVERS TOPIC COUNT COMMIT_SECONDS FOLDER}
prints the processor seconds of its process from the first message to the commit behind the last.
"""

import os
import sys
import time

import faust

JOB, SERVERS, TOPIC, COUNT, SECONDS, FOLDER = sys.argv[1:7]

app = faust.App(
    f"faust-{JOB}",
    broker=f"kafka://{SERVERS}",
    store="rocksdb://",
    datadir=FOLDER,
    topic_partitions=1,
    topic_replication_factor=1,
    broker_commit_interval=float(SECONDS),
    web_enabled=False,
)
words = app.topic(TOPIC, key_type=str, key_serializer="raw", value_serializer="json")
out = app.topic(f"faust-{JOB}-out", key_type=str, key_serializer="raw", value_serializer="json")
counts = app.Table("counts", default=int, partitions=1) if JOB == "wordcount" else None


@app.agent(words)
async def work(stream) -> None:
    done, began = 0, 0.0
    async for key, value in stream.items():
        if not done:
            began = time.process_time()
        if counts is not None:
            counts[key] += value
        else:
            await out.send(key=key, value=value)
        done += 1
        if done == int(COUNT):
            await app.producer.flush()
            await app.consumer.commit()
            os.write(1, f"{time.process_time() - began}\n".encode())
            os._exit(0)


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "worker", "-l", "error"]
    app.main()
