// Prints records of __transaction_state as Apache Kafka 4.3.1 encodes them: tests/golden/kafka43/transactionstopic.txt.
// java -cp kafka-clients-4.3.1.jar:kafka-transaction-coordinator-4.3.1.jar:slf4j-api-1.7.36.jar TransactionsTopic.java
import org.apache.kafka.coordinator.transaction.generated.*;
import org.apache.kafka.common.protocol.*;
import java.nio.ByteBuffer; import java.util.*;
public class TransactionsTopic {
  static void p(String n, short v, Message m){ ByteBuffer b = MessageUtil.toVersionPrefixedByteBuffer(v, m); StringBuilder s=new StringBuilder(); while(b.hasRemaining()) s.append(String.format("%02x", b.get())); System.out.println(n+" "+s); }
  public static void main(String[] a){
    p("key",(short)0,new TransactionLogKey().setTransactionalId("tr\u00fc"));
    TransactionLogValue v = new TransactionLogValue().setProducerId(4000).setProducerEpoch((short)3).setTransactionTimeoutMs(60000).setTransactionStatus((byte)1)
      .setTransactionPartitions(List.of(new TransactionLogValue.PartitionsSchema().setTopic("t").setPartitionIds(List.of(0,2)), new TransactionLogValue.PartitionsSchema().setTopic("u").setPartitionIds(List.of(1))))
      .setTransactionLastUpdateTimestampMs(1700000000123L).setTransactionStartTimestampMs(1700000000001L);
    p("ongoing0",(short)0,v);
    p("ongoing1",(short)1,v);
    p("version2",(short)1,v.duplicate().setClientTransactionVersion((short)2).setTransactionStatus((byte)2).setPreviousProducerId(3999).setNextProducerId(4001));
    p("empty",(short)1,new TransactionLogValue().setProducerId(4000).setProducerEpoch((short)0).setTransactionTimeoutMs(1000).setTransactionStatus((byte)0).setTransactionPartitions(null).setTransactionLastUpdateTimestampMs(1700000000123L).setTransactionStartTimestampMs(-1));
    p("complete",(short)1,v.duplicate().setTransactionStatus((byte)4).setTransactionPartitions(List.of()));
  }
}
