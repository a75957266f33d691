// Writes record batches with Apache's own builder: a line for each, its name and its bytes in hex.
//
//   javac -cp 'kafka-clients-4.3.1.jar' -d out RecordBatches.java
//   java -cp 'out:*' RecordBatches > recordbatches.txt
//
// The class path holds kafka-clients 4.3.1 and what it depends on. tests/records/goldenbatches.py
// knows what is in each batch.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;

public class RecordBatches {
    static final long MS = 1_700_000_000_000L;

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void show(String name, MemoryRecords records) {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] data = new byte[buffer.remaining()];
        buffer.get(data);
        System.out.println(name + " " + HexFormat.of().formatHex(data));
    }

    static MemoryRecordsBuilder builder(Compression compression, TimestampType type, long baseOffset,
                                        long logAppendTime, long producerId, int epoch, int sequence,
                                        boolean isTransactional, int leaderEpoch) {
        return MemoryRecords.builder(ByteBuffer.allocate(1 << 20), (byte) 2, compression, type, baseOffset,
            logAppendTime, producerId, (short) epoch, sequence, isTransactional, leaderEpoch);
    }

    static MemoryRecords mixed(MemoryRecordsBuilder builder) {
        builder.append(MS, bytes("key"), bytes("value"), new Header[0]);
        builder.append(MS + 70_000, null, bytes("later"), new Header[] {
            new RecordHeader("trace", bytes("abc")), new RecordHeader("none", null),
            new RecordHeader("gr\u00fc\u00df", new byte[0])});
        builder.append(MS - 5, bytes("tombstone"), null, new Header[0]);
        builder.append(MS + 1, new byte[0], new byte[0], new Header[0]);
        builder.append(MS + 2, bytes("k".repeat(100)), bytes("v".repeat(300)), new Header[0]);
        return builder.build();
    }

    static MemoryRecords many(Compression compression, int count) {
        MemoryRecordsBuilder builder =
            builder(compression, TimestampType.CREATE_TIME, 0, -1, -1, -1, -1, false, -1);
        for (int i = 0; i < count; i++) {
            builder.append(MS + i, bytes("k" + i), bytes(("record " + i + " ").repeat(20)), new Header[0]);
        }
        return builder.build();
    }

    public static void main(String[] arguments) {
        TimestampType create = TimestampType.CREATE_TIME;
        show("mixed", mixed(builder(Compression.NONE, create, 0, -1, -1, -1, -1, false, -1)));
        show("placed", mixed(builder(Compression.NONE, create, 1_000_000_000_000L, -1, -1, -1, -1, false, 9)));
        show("idempotent", mixed(builder(Compression.NONE, create, 0, -1, 4711, 3, 7, false, -1)));
        show("transactional", mixed(builder(Compression.NONE, create, 0, -1, 4711, 3, 7, true, -1)));
        show("appendTime", mixed(
            builder(Compression.NONE, TimestampType.LOG_APPEND_TIME, 0, MS + 99, -1, -1, -1, false, -1)));
        show("commit", MemoryRecords.withEndTransactionMarker(
            42, MS, 5, 4711, (short) 3, new EndTransactionMarker(ControlRecordType.COMMIT, 12)));
        show("abort", MemoryRecords.withEndTransactionMarker(
            43, MS, 5, 4711, (short) 3, new EndTransactionMarker(ControlRecordType.ABORT, 13)));
        show("none", many(Compression.NONE, 20));
        show("gzip", many(Compression.gzip().build(), 400));
        show("snappy", many(Compression.snappy().build(), 400));
        show("lz4", many(Compression.lz4().build(), 400));
        show("zstd", many(Compression.zstd().build(), 400));
    }
}
