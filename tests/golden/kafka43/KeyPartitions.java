// Prints the SHA-256 of the partitions of a million random keys, as kafka-clients 4.3.1 chooses them: a constant of
// tests/cluster/test_kafkapartitioner.py. A key of 0 to 200 bytes, mostly fewer than 50, is cut from SHA-256 digests of a counter; the number
// of partitions depends on the counter, too. A partition is written as an int32.
// java -cp kafka-clients-4.3.1.jar:slf4j-api-1.7.36.jar KeyPartitions.java
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.*;
public class KeyPartitions {
  public static void main(String[] arguments) throws Exception {
    int[] counts = {1, 2, 3, 7, 12, 50, 1000};
    MessageDigest all = MessageDigest.getInstance("SHA-256"), random = MessageDigest.getInstance("SHA-256");
    for (int number = 0; number < 1000000; number++) {
      ByteBuffer bytes = ByteBuffer.allocate(224), partition = ByteBuffer.allocate(4);
      for (int part = 0; part < 7; part++) bytes.put(random.digest(ByteBuffer.allocate(8).putInt(number).putInt(part).array()));
      byte[] key = Arrays.copyOfRange(bytes.array(), 4, 4 + ((bytes.getInt(0) & Integer.MAX_VALUE) % 201 >> number % 4));
      partition.putInt(BuiltInPartitioner.partitionForKey(key, counts[number % counts.length]));
      all.update(partition.array());
    }
    System.out.println(HexFormat.of().formatHex(all.digest()));
  }
}
