// Writes a segment and its indexes with Apache's own classes, into the folder that is its argument.
//
//   javac -cp 'LIB/*' -d out SegmentFiles.java
//   java -cp 'out:LIB/*' SegmentFiles segment
//   java -cp 'LIB/*' org.apache.kafka.tools.DumpLogSegments --deep-iteration --print-data-log \
//       --files segment/00000000000000000500.log > segment/log.txt
//   java -cp 'LIB/*' org.apache.kafka.tools.DumpLogSegments \
//       --files segment/00000000000000000500.index,segment/00000000000000000500.timeindex \
//       > segment/indexes.txt
//
// LIB holds kafka-tools and kafka_2.13 4.3.1, and what they depend on.

import java.io.File;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;

public class SegmentFiles {
    static final long MS = 1_700_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        LogConfig config = new LogConfig(Map.of("index.interval.bytes", "700"));
        LogSegment segment = LogSegment.open(new File(arguments[0]), 500, config, Time.SYSTEM, 1 << 20, false);
        Compression[] codecs = {Compression.NONE, Compression.gzip().build(), Compression.snappy().build(),
            Compression.lz4().build(), Compression.zstd().build()};
        Random random = new Random(43);
        long offset = 500;
        int sequence = 0;
        for (int i = 0; i < 24; i++) {
            MemoryRecords records;
            if (i % 8 == 7) {
                ControlRecordType type = i % 16 == 7 ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
                records = MemoryRecords.withEndTransactionMarker(
                    offset, MS + 1000 * i, 3, 77, (short) 2, new EndTransactionMarker(type, 9));
                offset += 1;
            } else {
                int count = 1 + random.nextInt(4);
                MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 16), (byte) 2,
                    codecs[i % 5], TimestampType.CREATE_TIME, offset, -1, 77, (short) 2, sequence, i % 8 > 3, 3);
                for (int j = 0; j < count; j++) {
                    byte[] key = i % 3 == 0 ? null : ("key" + j).getBytes();
                    byte[] value = i % 7 == 6 ? null : ("value " + i + " " + j + " ").repeat(random.nextInt(30)).getBytes();
                    builder.append(MS + 1000 * i + random.nextInt(5000), key, value,
                        new Header[] {new RecordHeader("h" + j, new byte[] {1})});
                }
                records = builder.build();
                offset += count;
                sequence += count;
            }
            segment.append(offset - 1, records);
            if (i % 6 == 5) {
                offset += 10;
            }
        }
        segment.onBecomeInactiveSegment();
        segment.flush();
        segment.close();
    }
}
