// Does to a log of Apache's own classes what a file of operations says, and prints what comes of
// each; the log's directory is left as a kill and as an orderly stop leave it.
//
//   javac -cp 'LIB/*' -d out BatchLogs.java
//   java -cp 'out:LIB/*' BatchLogs run operations.txt DIRECTORY > answers.txt
//   java -cp 'out:LIB/*' BatchLogs open DIRECTORY clean|killed RECOVERYPOINT LOGSTART
//
// LIB holds kafka-storage 4.3.1 and what it depends on.

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.TreeMap;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class BatchLogs {
    static long now = 1_700_000_000_000L;
    static final Time TIME = new Time() {
        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1_000_000; }
        public void sleep(long ms) { now += ms; }
        public void waitObject(Object o, Supplier<Boolean> s, long ms) { throw new UnsupportedOperationException(); }
    };
    static final Scheduler SCHEDULER = new Scheduler() {
        public void startup() {}
        public void shutdown() {}
        public void resizeThreadPool(int count) {}
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs <= 0) task.run();
            return NEVER;
        }
    };
    static final ScheduledFuture<?> NEVER = (ScheduledFuture<?>) java.lang.reflect.Proxy.newProxyInstance(
        BatchLogs.class.getClassLoader(), new Class<?>[] {ScheduledFuture.class},
        (proxy, method, arguments) -> method.getReturnType() == boolean.class ? (Object) true : null);
    static File directory;
    static UnifiedLog log;
    static int epoch = 0;
    static long number = 0;

    static UnifiedLog open(boolean isClean, long logStart, long recoveryPoint) throws Exception {
        LogConfig config = new LogConfig(Map.of(
            "internal.segment.bytes", "1500", "retention.ms", "100000000", "segment.ms", "50000000",
            "message.timestamp.after.max.ms", "9223372036854775807"));
        UnifiedLog found = UnifiedLog.create(directory, config, logStart, recoveryPoint, SCHEDULER,
            new BrokerTopicStats(), TIME, 900_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(1), isClean, Optional.of(Uuid.fromString("86GwxBI0SryN7wEjRWeJqw")));
        return found;
    }

    static SimpleRecord[] records(int count, long timestamp) {
        SimpleRecord[] found = new SimpleRecord[count];
        for (int i = 0; i < count; i++) found[i] = new SimpleRecord(timestamp + i, null, ("v" + number++).getBytes());
        return found;
    }

    static String append(MemoryRecords records, AppendOrigin origin, long transactionVersion) throws Exception {
        long end = log.logEndOffset();
        LogAppendInfo info = log.appendAsLeader(records, epoch, origin, RequestLocal.noCaching(),
            VerificationGuard.SENTINEL, (short) transactionVersion);
        return info.firstOffset() + " " + info.lastOffset() + (info.firstOffset() < end ? " duplicate" : "");
    }

    static String state() throws Exception {
        StringBuilder text = new StringBuilder();
        text.append(log.logStartOffset()).append(' ').append(log.lastStableOffset()).append(' ')
            .append(log.highWatermark()).append(' ').append(log.logEndOffset()).append(" segments");
        log.logSegments().forEach(each -> text.append(' ').append(each.baseOffset()).append(':').append(each.size()));
        text.append(" epochs");
        log.leaderEpochCache().epochEntries().forEach(each -> text.append(' ').append(each.epoch()).append(':').append(each.startOffset()));
        text.append(" producers");
        for (ProducerStateEntry each : new TreeMap<>(log.producerStateManager().activeProducers()).values()) {
            List<BatchMetadata> batches = new ArrayList<>(each.batchMetadata());
            String last = batches.isEmpty() ? "-" : batches.get(batches.size() - 1).lastSeq() + "@" + batches.get(batches.size() - 1).lastOffset();
            OptionalLong start = each.currentTxnFirstOffset();
            text.append(' ').append(each.producerId()).append('/').append(each.producerEpoch()).append(':').append(last)
                .append(':').append(start.isPresent() ? start.getAsLong() : -1).append(':').append(each.coordinatorEpoch());
        }
        text.append(" aborted");
        for (AbortedTxn each : log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset()))
            text.append(' ').append(each.producerId()).append(':').append(each.firstOffset()).append('-').append(each.lastOffset()).append('<').append(each.lastStableOffset());
        return text.toString();
    }

    static String perform(String[] words) throws Exception {
        long[] n = new long[words.length];
        for (int i = 1; i < words.length; i++) if (words[i].matches("-?\\d+")) n[i] = Long.parseLong(words[i]);
        switch (words[0]) {
            case "plain":
                return append(MemoryRecords.withRecords(Compression.NONE, records((int) n[1], n[2])), AppendOrigin.CLIENT, -1);
            case "idempotent":
                return append(MemoryRecords.withIdempotentRecords(Compression.NONE, n[1], (short) n[2], (int) n[3],
                    records((int) n[4], n[5])), AppendOrigin.CLIENT, -1);
            case "transactional":
                return append(MemoryRecords.withTransactionalRecords(Compression.NONE, n[1], (short) n[2], (int) n[3],
                    records((int) n[4], n[5])), AppendOrigin.CLIENT, -1);
            case "commit": case "abort":
                ControlRecordType type = words[0].equals("commit") ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
                return append(MemoryRecords.withEndTransactionMarker(n[4], n[1], (short) n[2],
                    new EndTransactionMarker(type, (int) n[3])), AppendOrigin.COORDINATOR, n[5]);
            case "roll": log.roll(); return "rolled";
            case "epoch": epoch = (int) n[1]; log.assignEpochStartOffset(epoch, log.logEndOffset()); return "assigned";
            case "visible": log.updateHighWatermark(log.logEndOffset()); return "" + log.lastStableOffset();
            case "time": now = n[1]; return "set";
            case "retain": log.deleteOldSegments(); return "" + log.logStartOffset();
            case "expire": log.producerStateManager().removeExpiredProducers(now); return "" + log.producerStateManager().producerIdCount();
            case "delete": log.maybeIncrementLogStartOffset(n[1], LogStartOffsetIncrementReason.ClientRecordDeletion); return "" + log.logStartOffset();
            case "epochend": { var found = log.leaderEpochCache().endOffsetFor((int) n[1], log.logEndOffset());
                return found.getKey() + " " + found.getValue(); }
            case "find": { var found = log.fetchOffsetByTimestamp(n[1], Optional.empty()).timestampAndOffsetOpt();
                return found.isPresent() ? found.get().offset + " " + found.get().timestamp + " " + found.get().leaderEpoch.orElse(-1) : "none"; }
            case "reopen": {
                long start = log.logStartOffset(), point = log.recoveryPoint();
                boolean isClean = words[1].equals("clean");
                if (isClean) { log.close(); point = log.logEndOffset(); } else log.closeHandlers();
                log = open(isClean, start, point);
                epoch = Math.max(epoch, 0);
                log.updateHighWatermark(log.logEndOffset());
                return state();
            }
            case "state": return state();
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    static void copy(String to) throws Exception {
        Path target = directory.toPath().resolveSibling(to);
        Files.createDirectories(target);
        for (File file : directory.listFiles()) Files.copy(file.toPath(), target.resolve(file.getName()), StandardCopyOption.REPLACE_EXISTING);
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("open")) {
            directory = new File(arguments[1]);
            if (arguments.length > 5) now = Long.parseLong(arguments[5]);
            log = open(arguments[2].equals("clean"), Long.parseLong(arguments[4]), Long.parseLong(arguments[3]));
            log.updateHighWatermark(log.logEndOffset());
            System.out.println(state());
            for (LogSegment segment : log.logSegments())
                for (RecordBatch batch : segment.log().batches())
                    if (!batch.isControlBatch())
                        for (Record record : batch)
                            if (record.offset() >= log.logStartOffset())
                                System.out.println(record.offset() + " " + new String(java.nio.charset.StandardCharsets.UTF_8.decode(record.value()).array()).trim());
            return;
        }
        directory = new File(arguments[2], "killed-0");
        directory.mkdirs();
        log = open(true, 0, 0);
        log.assignEpochStartOffset(0, 0);
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            String answer;
            try {
                answer = perform(line.split(" "));
            } catch (org.apache.kafka.common.errors.ApiException error) {
                answer = error.getClass().getSimpleName();
            }
            System.out.println(answer);
        }
        System.out.println("recoverypoint " + log.recoveryPoint() + " now " + now);
        copy("copy-0");
        log.close();
        Files.move(directory.toPath(), directory.toPath().resolveSibling("clean-0"));
        Files.move(directory.toPath().resolveSibling("copy-0"), directory.toPath());
    }
}
