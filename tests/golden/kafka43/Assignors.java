// Prints what the assignors of kafka-clients 4.3.1 give random groups: tests/golden/kafka43/assignors.json.gz,
// one JSON object a line. Member ids are single letters, so that the order of Java's hash tables is the alphabet's.
// Left out are groups in which three claim a partition: which two of them Java compares first depends on its hash table.
// java -cp kafka-clients-4.3.1.jar:slf4j-api-1.7.36.jar Assignors.java | gzip -9n > assignors.json.gz
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;
import java.util.*;
import java.util.stream.*;
public class Assignors {
  static final Random random = new Random(13);
  static final Node node = new Node(1, "h", 1);
  static String text(String s){ return "\"" + s + "\""; }
  static String places(Collection<TopicPartition> some){ return some.stream().map(p -> text(p.toString())).collect(Collectors.joining(",", "[", "]")); }
  static ConsumerPartitionAssignor assignor(int number){ return number == 0 ? new RangeAssignor() : number == 1 ? new RoundRobinAssignor() : new CooperativeStickyAssignor(); }
  static Map<String, List<TopicPartition>> print(Map<String, Integer> counts, Map<String, Subscription> members, int number){
    ConsumerPartitionAssignor assignor = assignor(number);
    List<PartitionInfo> infos = new ArrayList<>();
    counts.forEach((topic, count) -> { for (int i = 0; i < count; i++) infos.add(new PartitionInfo(topic, i, node, new Node[]{node}, new Node[]{node})); });
    Cluster cluster = new Cluster("c", List.of(node), infos, Set.of(), Set.of());
    Map<String, List<TopicPartition>> found = new TreeMap<>();
    assignor.assign(cluster, new GroupSubscription(members)).groupAssignment().forEach((id, a) -> found.put(id, a.partitions()));
    String who = members.entrySet().stream().map(e -> { Subscription s = e.getValue();
      return text(e.getKey()) + ":[" + s.groupInstanceId().map(Assignors::text).orElse("null") + ","
        + s.topics().stream().map(Assignors::text).collect(Collectors.joining(",", "[", "]")) + "," + places(s.ownedPartitions()) + "," + s.generationId().orElse(-1) + "]"; }).collect(Collectors.joining(",", "{", "}"));
    Map<TopicPartition, Long> claims = members.values().stream().flatMap(s -> s.ownedPartitions().stream()).collect(Collectors.groupingBy(p -> p, Collectors.counting()));
    if (claims.values().stream().allMatch(c -> c < 3)) System.out.println("{\"assignor\":" + text(assignor.name())
      + ",\"counts\":" + counts.entrySet().stream().map(e -> text(e.getKey()) + ":" + e.getValue()).collect(Collectors.joining(",", "{", "}"))
      + ",\"members\":" + who
      + ",\"found\":" + found.entrySet().stream().map(e -> text(e.getKey()) + ":" + places(e.getValue())).collect(Collectors.joining(",", "{", "}")) + "}");
    return found;
  }
  static List<String> topics(List<String> all){ List<String> some = new ArrayList<>(all); Collections.shuffle(some, random); return some.subList(0, 1 + random.nextInt(some.size())); }
  public static void main(String[] arguments){
    for (int group = 0; group < 150; group++) {
      Map<String, Integer> counts = new TreeMap<>();
      for (int t = 0; t < 1 + random.nextInt(4); t++) counts.put("t" + t, random.nextInt(9));
      List<String> all = new ArrayList<>(counts.keySet());
      all.add("missing");
      boolean isEqual = random.nextInt(3) > 0;
      List<String> same = topics(all);
      int count = 1 + random.nextInt(9);
      Map<String, Subscription> members = new TreeMap<>();
      for (int m = 0; m < count; m++) {
        Optional<String> instance = random.nextInt(3) == 0 ? Optional.of("i" + random.nextInt(100000)) : Optional.empty();
        Subscription s = new Subscription(isEqual ? same : topics(all), null, List.of(), -1, Optional.empty());
        s.setGroupInstanceId(instance);
        members.put("" + (char) ('a' + m), s);
      }
      print(counts, members, 0);
      print(counts, members, 1);
      for (int round = 0; round < 4 && isEqual; round++) {   // members come, go, rejoin with older generations and claim what others have
        Map<String, List<TopicPartition>> found = print(counts, members, 2);
        Map<String, Subscription> next = new TreeMap<>();
        for (String id : members.keySet()) if (round % 2 == 0 || random.nextInt(4) > 0 || next.isEmpty()) {
          List<TopicPartition> owned = new ArrayList<>(found.get(id));
          int generation = round + 5;
          if (random.nextInt(6) == 0) { generation -= random.nextInt(2); owned.addAll(found.get(members.keySet().stream().skip(random.nextInt(members.size())).findFirst().get())); owned = new ArrayList<>(new LinkedHashSet<>(owned)); }
          Subscription s = new Subscription(same, null, owned, generation, Optional.empty());
          s.setGroupInstanceId(members.get(id).groupInstanceId());
          next.put(id, s);
        }
        if (round % 2 == 1) for (char id = 'a'; id < 'l' && next.size() < 11; id++) if (random.nextInt(5) == 0) next.putIfAbsent("" + id, new Subscription(same, null, List.of(), -1, Optional.empty()));
        members = next;
      }
    }
  }
}
