// Prints records of __consumer_offsets as Apache Kafka 4.3.1 encodes them: tests/golden/kafka43/offsetstopic.txt.
// java -cp kafka-clients-4.3.1.jar:kafka-group-coordinator-4.3.1.jar:slf4j-api-1.7.36.jar OffsetsTopic.java
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.Uuid;
import java.nio.ByteBuffer; import java.util.*;
public class OffsetsTopic {
  static void p(String n, short v, Message m){ ByteBuffer b = MessageUtil.toVersionPrefixedByteBuffer(v, m); StringBuilder s=new StringBuilder(); while(b.hasRemaining()) s.append(String.format("%02x", b.get())); System.out.println(n+" "+s); }
  public static void main(String[] a){
    p("offsetCommitKey",(short)1,new OffsetCommitKey().setGroup("gr\u00fcppe").setTopic("t\ud83d\ude00").setPartition(17));
    p("groupMetadataKey",(short)2,new GroupMetadataKey().setGroup("gr\u00fcppe"));
    OffsetCommitValue o = new OffsetCommitValue().setOffset(123456789012L).setLeaderEpoch(5).setMetadata("m\u00e9ta").setCommitTimestamp(1700000000123L);
    for (int v=0; v<=4; v++) p("commit"+v,(short)v,o);
    p("commitExpiring",(short)1,o.duplicate().setExpireTimestamp(1700000099999L));
    p("commitTopicId",(short)4,o.duplicate().setTopicId(new Uuid(0x0011223344556677L,0x8899aabbccddeeffL)));
    p("commitLong",(short)4,o.duplicate().setMetadata("x".repeat(300)));
    GroupMetadataValue g = new GroupMetadataValue().setProtocolType("consumer").setGeneration(7).setProtocol("range").setLeader("m-1").setCurrentStateTimestamp(1700000000123L)
      .setMembers(List.of(new GroupMetadataValue.MemberMetadata().setMemberId("m-1").setGroupInstanceId("i-1").setClientId("c").setClientHost("/127.0.0.1").setRebalanceTimeout(300000).setSessionTimeout(45000).setSubscription(new byte[]{1,2}).setAssignment(new byte[]{3,4,5}),
        new GroupMetadataValue.MemberMetadata().setMemberId("m-2").setClientId("c2").setClientHost("/127.0.0.1").setRebalanceTimeout(300000).setSessionTimeout(45000).setSubscription(new byte[0]).setAssignment(new byte[0])));
    for (int v=0; v<=4; v++) p("group"+v,(short)v,g);
    p("groupEmpty",(short)3,new GroupMetadataValue().setProtocolType("").setGeneration(0).setProtocol(null).setLeader(null).setCurrentStateTimestamp(1700000000123L).setMembers(List.of()));
  }
}
