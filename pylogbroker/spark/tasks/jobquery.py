"""
A job as a query of Structured Streaming. A module of its own, since the driver runs it and workers
do not.

Our source reads all inputs as one stream, whose positions are in Spark's checkpoint. The job's
steps are operators of Spark where these do the same (L{pylogbroker.spark.tasks.operatorplan}).
Other jobs run by tasks: rows are grouped by the number of their task, and L{TaskProcessor} handles
them over Spark's state store. Outputs, and the changes of stores, leave through our sink.

What must be true: a checkpoint is of one of these ways, and no other one goes on from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pylogbroker.config.kafka.clientsettings import EARLIEST, LATEST, READ_COMMITTED
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.errors import (
    ConfigurationError,
    PylogbrokerError,
    SparkQueryError,
    describeError,
)
from pylogbroker.spark.kafka.options import BOOTSTRAP_SERVERS
from pylogbroker.spark.kafka.rangereader import HEADERS_TYPE
from pylogbroker.spark.loader.jobprogress import reason
from pylogbroker.spark.options import SUBSCRIBE
from pylogbroker.spark.tasks.inputpositions import InputPositions, checkpointTopics, handledUpTo
from pylogbroker.spark.tasks.operatorplan import OPERATORS, OperatorPlan, obstaclesOf, operatorPlan
from pylogbroker.spark.tasks.operatorstages import (
    COUNT_SCHEMA,
    RESULT_SCHEMA,
    SENT_SCHEMA,
    CountStage,
    ResultStage,
    SentStage,
)
from pylogbroker.spark.tasks.processor import INPUT_COLUMNS, OUTPUT_SCHEMA, TaskProcessor
from pylogbroker.tasks.job import Job

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MAX_OFFSETS, MAX_OFFSETS_DEFAULT = "spark.pylogbroker.task.maxOffsetsPerTrigger", 100_000
"""A setting of Spark: messages of a micro-batch, over all partitions."""

CHECKPOINT = "spark-checkpoint"
"""The folder, in that of the job's state."""

BY_TASKS, BY_FUNCTIONS, BY_COUNTS = (
    "its tasks",
    "Spark's operators",
    "Spark's operators and state",
)
"""What handles a job's messages, and so what its checkpoint is of."""

_WAY = "pylogbroker-way"
"""The file of a checkpoint that has one of these words. Earlier ones are of L{BY_TASKS}."""

_Stages: TypeAlias = TaskProcessor | SentStage | tuple[CountStage, ResultStage]

_METRICS = "pylogbroker-tasks"
_RESET, _ISOLATION, _COMPRESSION = "auto.offset.reset", "isolation.level", "compression.type"
_KNOWN = {"consumer": {_RESET, _ISOLATION}, "producer": {_COMPRESSION}}


class JobPlace(NamedTuple):
    """
    Where a job runs.

    @ivar stateDir: the folder of state; each job has one in it. All of Spark's machines see it.
    @ivar cluster: the data source's options that say where the brokers are.
    @ivar reading: more of the source's.
    @ivar writing: more of the sink's.
    @ivar cacheSize: as L{TaskProcessor} has it.
    """

    stateDir: str
    cluster: Mapping[str, str]
    reading: Mapping[str, str]
    writing: Mapping[str, str]
    cacheSize: int


def jobPlace(
    settings: KafkaTaskSettings, propertyFile: str | None, warn: Callable[[str], None]
) -> JobPlace:
    """
    Where a container's settings say that a job runs.

    @param propertyFile: of the settings, which the driver and all workers read for credentials.
    @raise ConfigurationError: a setting asks for what Spark does not do.
    """
    if settings.isExactlyOnce:
        raise ConfigurationError(
            f"processing.guarantee={settings.processingGuarantee}: on Spark state and positions are"
            " exactly once, and outputs at least once: it must be at_least_once"
        )
    given: dict[str, Any] = {name: getattr(settings, name) for name in _KNOWN}
    reading, writing = given["consumer"], given["producer"]
    start = reading.get(_RESET, EARLIEST)
    if start not in (EARLIEST, LATEST):
        raise ConfigurationError(
            f"consumer.{_RESET}={start}: on Spark it is {EARLIEST} or {LATEST}"
        )
    for prefix, known in _KNOWN.items():
        for name in sorted(given[prefix].keys() - known):
            warn(f"{prefix}.{name} has no effect on Spark")
    cluster = {
        BOOTSTRAP_SERVERS: ",".join(settings.bootstrapServers),
        "kafka.client.id": settings.clientId,
        "kafka.request.timeout.ms": str(settings.requestTimeoutMs),
    }
    if propertyFile is not None:
        cluster["config"] = os.path.abspath(propertyFile)
    isolation = reading.get(_ISOLATION, READ_COMMITTED)
    return JobPlace(
        settings.stateDir,
        cluster,
        {"startingOffsets": start, "kafka.isolation.level": isolation},
        {f"kafka.{_COMPRESSION}": writing.get(_COMPRESSION, "none")},
        settings.statestoreCacheMaxBytes,
    )


class JobProgress(NamedTuple):
    """
    What a query has done since it began, of whole micro-batches.

    @ivar handledCount: messages, with those that were left out.
    @ivar failedCount: messages that were left out, or are dead letters.
    @ivar batchCount: micro-batches.
    @ivar isShutdownAsked: whether a task has asked for the end.
    """

    handledCount: int = 0
    failedCount: int = 0
    batchCount: int = 0
    isShutdownAsked: bool = False


def checkJob(job: Job) -> None:
    """
    @raise ConfigurationError: the job has something that Spark cannot run.
    """
    if job.isAsync:
        raise ConfigurationError(
            f"job {job.name}: its task has coroutine functions, which await on a reactor; Spark's"
            " workers have none"
        )


class JobQuery:
    """
    The query of a job.

    @ivar job: that it runs.
    @ivar obstacles: why its steps are not Spark's operators, a sentence each; empty: they are.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        place: JobPlace,
        taskCount: int,
        areOperatorsWanted: bool = True,
    ) -> None:
        """
        @param taskCount: the greatest number of partitions that an input has.
        @param areOperatorsWanted: whether its steps are to be Spark's operators, if they can.
        @raise ConfigurationError: the job has something that Spark cannot run, or that cannot go
            to its workers.
        """
        checkJob(job)
        self._bootstrapped = [each.topic for each in job.inputs if each.isBootstrap]
        if self._bootstrapped and place.reading.get("startingOffsets") == LATEST:
            raise ConfigurationError(
                f"job {job.name}: consumer.{_RESET}={LATEST}: on Spark a job with a bootstrapped"
                f" input ({', '.join(self._bootstrapped)}) begins at the earliest messages"
            )
        self.job = job
        self._spark = spark
        self._place = place
        self._taskCount = taskCount
        self._query: Any = None  # the hints of C{awaitTermination} lack parts of a second
        self._isUntilEnd = self._isBootstrapping = self._endsByPosition = False
        self._seenBatch = -1
        self._progress = JobProgress()
        self.obstacles = obstaclesOf(job, areOperatorsWanted)
        plan = None if self.obstacles else operatorPlan(job.steps)
        self._repartitions = (
            [] if plan else [job.repartitionTopicOf(each) for each in job.repartitions]
        )
        self._topics = [*(each.topic for each in job.inputs), *self._repartitions]
        self._positions = InputPositions(self._options(self._topics), self._repartitions)
        self._stages = _stagesOf(job, plan, taskCount, place.cacheSize)
        try:
            pickled: Any = cloudpickle
            pickled.dumps(self._stages)
        except Exception as error:  # of whatever the author's objects hold
            raise ConfigurationError(
                f"job {job.name}: it cannot be sent to Spark's workers: {describeError(error)}"
            ) from error

    @property
    def checkpoint(self) -> str:
        """The folder of positions and state."""
        return os.path.join(os.path.abspath(self._place.stateDir), self.job.name, CHECKPOINT)

    def start(self, isUntilEnd: bool = False) -> None:
        """
        Begin, or go on from the checkpoint. At the first start a query of the bootstrapped inputs
        alone comes before that of all, over the same checkpoint, until their present end.

        @param isUntilEnd: end with what the inputs have now.
        @raise ConfigurationError: the checkpoint is of another way to run the job.
        @raise SparkQueryError: Spark refuses the query.
        """
        self._isUntilEnd = isUntilEnd
        self._checkWay()
        others = [each for each in self._topics if each not in self._bootstrapped]
        begun = checkpointTopics(self.checkpoint)
        self._isBootstrapping = bool(self._bootstrapped and others) and begun.isdisjoint(others)
        if self._isBootstrapping:
            self._begin(self._bootstrapped, isUntilEnd=True)
        else:
            self._begin(self._topics, isUntilEnd)

    def _checkWay(self) -> None:
        if isinstance(self._stages, TaskProcessor):
            way = BY_TASKS
        else:
            way = BY_FUNCTIONS if isinstance(self._stages, SentStage) else BY_COUNTS
        path = Path(self.checkpoint, _WAY)
        if not checkpointTopics(self.checkpoint):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(way, encoding="utf-8")
            return
        found = path.read_text(encoding="utf-8") if path.exists() else BY_TASKS
        if found != way:
            why = f" ({'; '.join(self.obstacles)})" if self.obstacles else ""
            if found == BY_TASKS:
                why = f", unless {OPERATORS}=false"
            raise ConfigurationError(
                f"job {self.job.name}: its checkpoint {self.checkpoint} is of {found}, and it is"
                f" to run by {way}{why}. Reset the job, or run it under another name"
            )

    def _begin(self, topics: list[str], isUntilEnd: bool) -> None:
        settings = {
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB_PROVIDER,
            # A checkpoint keeps this number; a key is a task.
            "spark.sql.shuffle.partitions": str(self._taskCount),
        }
        before: dict[str, Any] = {name: self._spark.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                self._spark.conf.set(name, value)
            # Spark looks for the sink in the session of the thread, which this call sets.
            self._spark.createDataFrame([], "nothing int")
            options = self._options(topics)
            self._positions = InputPositions(options, [*set(self._repartitions) & set(topics)])
            # A query with timers has no end in the trigger of what is available now, and what it
            # writes to itself is behind that end.
            isOwnEnd = bool(self.job.windowMs or self._positions.repartitions)
            self._endsByPosition = isUntilEnd and isOwnEnd
            if self._endsByPosition:
                options |= self._positions.fixEnds()
            writer = self._newWriter(options).queryName(self.job.name)
            writer = writer.option("checkpointLocation", self.checkpoint)
            if isUntilEnd and not isOwnEnd:
                writer = writer.trigger(availableNow=True)
            self._query = writer.start()
        except (PySparkException, Py4JError) as error:
            raise self._failure(error) from error
        finally:
            for name, value in before.items():
                if value is None:
                    self._spark.conf.unset(name)
                else:
                    self._spark.conf.set(name, value)

    def _options(self, topics: list[str]) -> dict[str, str]:
        """The source's."""
        most = self._spark.conf.get(MAX_OFFSETS, str(MAX_OFFSETS_DEFAULT))
        return {
            "maxOffsetsPerTrigger": str(most),
            **self._place.cluster,
            **self._place.reading,
            "includeHeaders": "true",
            SUBSCRIBE.key: ",".join(topics),
        }

    def _newWriter(self, options: dict[str, str]) -> DataStreamWriter:
        sinkOptions = {
            **self._place.cluster,
            **self._place.writing,
            "timestampColumn": "timestamp",
        }
        rows, stages = self._read(options), self._stages
        if isinstance(stages, tuple):

            def write(batch: DataFrame, _number: int) -> None:
                batch.write.format("pylogbroker").mode("append").options(**sinkOptions).save()

            # Spark's sinks in Python do not take updates, as batches they do.
            results = self._messages(self._results(rows, *stages))
            return results.writeStream.outputMode("update").foreachBatch(write)
        if isinstance(stages, SentStage):
            sent = rows.mapInArrow(stages, from_arrow_schema(SENT_SCHEMA))
        else:
            sent = self._handled(rows, stages)
        messages = self._messages(self._observed(sent).where("topic IS NOT NULL"))
        return messages.writeStream.format("pylogbroker").options(**sinkOptions)

    def _read(self, options: dict[str, str]) -> DataFrame:
        stream = self._spark.readStream.format("pylogbroker").options(**options).load()
        broadcast = [each.topic for each in self.job.inputs if each.isBroadcast]
        own = sql.array("partition")
        every = sql.array(*map(sql.lit, range(self._taskCount)))
        tasks = sql.when(sql.col("topic").isin(broadcast), every).otherwise(own)
        return stream.withColumns(
            {
                "task": sql.explode(tasks) if broadcast else sql.col("partition"),
                "timestampMs": sql.unix_millis("timestamp"),
                "headers": _notNull("headers"),
            }
        ).select(*INPUT_COLUMNS)

    def _handled(self, rows: DataFrame, processor: TaskProcessor) -> DataFrame:
        """What the tasks give."""
        timeMode = "ProcessingTime" if self.job.windowMs else "None"
        return rows.groupBy("task").transformWithState(processor, OUTPUT_SCHEMA, "Append", timeMode)

    def _results(self, rows: DataFrame, count: CountStage, result: ResultStage) -> DataFrame:
        """What comes of the counts that a micro-batch changes."""
        rows = rows.drop("headers")  # counts have none
        partial = self._observed(rows.mapInArrow(count, from_arrow_schema(COUNT_SCHEMA)))
        counts = (
            partial.where("store IS NOT NULL")
            .groupBy("store", "task", "key")
            .agg(sql.sum("count").alias("count"), sql.max("timestampMs").alias("timestampMs"))
        )
        return counts.mapInArrow(result, from_arrow_schema(RESULT_SCHEMA))

    def _observed(self, rows: DataFrame) -> DataFrame:
        """The rows, of which Spark counts what was done."""
        done = {name: sql.sum(name) for name in ("handled", "failed")}
        hasAsked = "shutdowns" in rows.columns
        done["shutdowns"] = sql.sum("shutdowns" if hasAsked else sql.lit(0))
        return rows.observe(_METRICS, *(each.alias(name) for name, each in done.items()))

    def _messages(self, rows: DataFrame) -> DataFrame:
        """The columns of the sink."""
        return rows.select(
            *("topic", "partition", "key", "value"),
            _notNull("headers").alias("headers"),
            sql.timestamp_millis("timestampMs").alias("timestamp"),
        )

    # -- while it runs

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return self._query is not None and self._query.isActive

    def progress(self) -> JobProgress:
        """What was done so far; called now and then, or micro-batches are missed."""
        if self._query is not None:
            for each in self._query.recentProgress:
                if each.batchId > self._seenBatch:
                    self._seenBatch = each.batchId
                    self._count(each.observedMetrics.get(_METRICS))
        return self._progress

    def _count(self, counts: Any) -> None:
        before = self._progress
        if counts is not None and counts["handled"] is not None:
            self._progress = JobProgress(
                before.handledCount + counts["handled"],
                before.failedCount + counts["failed"],
                before.batchCount + 1,
                before.isShutdownAsked or counts["shutdowns"] > 0,
            )

    def wait(self, seconds: float) -> bool:
        """
        Wait for the end. A task that asks for the end of its container ends the query here.

        @return: whether it has ended.
        @raise SparkQueryError: it has failed.
        """
        assert self._query is not None
        try:
            hasEnded = self._query.awaitTermination(seconds)
        except (PySparkException, Py4JError) as error:
            raise self._failure(error) from error
        if not hasEnded:
            hasEnded = self.progress().isShutdownAsked or self._isAtEnd()
            if hasEnded:
                self.stop()
        if hasEnded and self._isBootstrapping and not self.progress().isShutdownAsked:
            self._isBootstrapping = False
            self._begin(self._topics, self._isUntilEnd)
            return False
        return bool(hasEnded)

    def _isAtEnd(self) -> bool:
        """Whether all is handled, if the query is to end then and has no end of its own."""
        handled = handledUpTo(self._query.lastProgress)
        return self._endsByPosition and self._positions.areReached(handled)

    def purge(self) -> None:
        """
        Delete from repartition topics what is handled; now and then, or they grow without end.

        @raise PylogbrokerError: it may not be deleted, or no broker can be asked.
        """
        if self._query is not None:
            self._positions.purge(handledUpTo(self._query.lastProgress))

    def stop(self) -> None:
        """End it; a micro-batch in hand counts as if it had not begun, and is done again."""
        if self._query is not None:
            self._query.stop()

    def _failure(self, error: Exception) -> SparkQueryError:
        return SparkQueryError(f"job {self.job.name}: Spark's query failed: {reason(str(error))}")


def _stagesOf(job: Job, plan: OperatorPlan | None, taskCount: int, cacheSize: int) -> _Stages:
    """What runs in Spark's workers; without a plan it is the job's tasks."""
    if plan is None:
        return TaskProcessor(job, cacheSize)
    if plan.counts:
        return CountStage(job, plan, taskCount, cacheSize), ResultStage(job, plan)
    return SentStage(job, plan, cacheSize)


def _notNull(headers: str) -> Column:
    """
    A column of headers, where those that are null are empty. Spark 4.3 goes over all of an Arrow
    batch for each list in it that is null, to find out how large the batch is by now.
    """
    return sql.coalesce(headers, sql.array().cast(from_arrow_type(HEADERS_TYPE)))


def waitForAll(
    queries: list[JobQuery],
    isStopped: Callable[[], bool],
    onProgress: Callable[[], None],
    purgeMs: int,
    clock: Callable[[], float],
    warn: Callable[[str], object],
) -> None:
    """
    Wait until all queries have ended. The first failure ends all.

    @param isStopped: whether all are to end now.
    @param purgeMs: milliseconds between two purges.
    @param clock: seconds.
    @param warn: is told of each purge that fails.
    @raise SparkQueryError: one has failed.
    """
    waiting = list(queries)
    purgeAt = clock() + purgeMs / 1000
    try:
        while waiting and not isStopped():
            waiting = [each for each in waiting if not each.wait(0.2)]
            onProgress()
            if clock() >= purgeAt:
                purgeAt = clock() + purgeMs / 1000
                for each in waiting:
                    try:
                        each.purge()
                    except PylogbrokerError as error:  # the next one deletes more
                        warn(f"job {each.job.name}: {error}")
    finally:
        for each in queries:
            each.stop()
