import java.nio.file.Files;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * Kafka Streams: counts the records of each key in a state store with a changelog, behind a
 * repartition topic. In the second run the store is rebuilt from the changelog, since its directory
 * is new.
 *
 *     java -cp JARS StreamsTrial.java GUARANTEE SERVERS first|second
 */
public class StreamsTrial {
    static final int KEYS = 7;

    public static void main(String[] arguments) throws Exception {
        String guarantee = arguments[0], servers = arguments[1];
        boolean isFirst = arguments[2].equals("first");
        int start = isFirst ? 0 : 300, end = isFirst ? 300 : 310;
        if (isFirst) {
            try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
                admin.createTopics(List.of(new NewTopic("source", 2, (short) 1),
                    new NewTopic("counts", 2, (short) 1))).all().get();
            }
        }
        Map<String, Object> producing = Map.of("bootstrap.servers", servers);
        try (var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
            for (int number = start; number < end; number++)
                producer.send(new ProducerRecord<>("source", "key " + number, "" + number % KEYS));
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("source", Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy((key, value) -> value, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("store"))
            .toStream().to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        Properties settings = new Properties();
        settings.put("application.id", "streams");
        settings.put("bootstrap.servers", servers);
        settings.put("processing.guarantee", guarantee);
        settings.put("num.stream.threads", 2);
        settings.put("commit.interval.ms", 200);
        settings.put("state.dir", Files.createTempDirectory("streams").toString());
        settings.put("auto.offset.reset", "earliest");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        Map<String, Long> counts = new TreeMap<>(), wanted = new TreeMap<>();
        for (int number = 0; number < end; number++)
            wanted.merge("" + number % KEYS, 1L, Long::sum);
        Map<String, Object> consuming = Map.of("bootstrap.servers", servers, "group.id", "reader" + start,
            "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        try (var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of("counts"));
            while (!counts.equals(wanted)) {
                if (System.nanoTime() > deadline)
                    throw new TimeoutException(counts + " instead of " + wanted);
                for (var each : consumer.poll(Duration.ofMillis(200)))
                    counts.put(each.key(), each.value());
            }
        }
        if (!streams.close(Duration.ofSeconds(60)))
            throw new TimeoutException("close");
    }
}
