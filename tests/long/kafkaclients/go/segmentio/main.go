// segmentio's kafka-go: records with keys and headers in every codec, a group that rebalances,
// positions that survive a restart of the broker, topics created and deleted.
//
//	segmentio SERVERS first|second
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

const count = 300

var codecs = map[string]kafka.Compression{
	"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func value(number int) string { return strings.Repeat(fmt.Sprintf("value %d ", number), 20) }

func reader(servers, group, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{servers}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 500 * time.Millisecond,
	})
}

func rebalance(ctx context.Context, servers string) {
	join := func() (*kafka.ConsumerGroup, chan int) {
		group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
			ID: "rebalance", Brokers: []string{servers}, Topics: []string{"rebalance"},
		})
		must(err)
		sizes := make(chan int, 1000)
		go func() {
			for {
				generation, err := group.Next(ctx)
				if err == kafka.ErrGroupClosed {
					return
				}
				must(err)
				sizes <- len(generation.Assignments["rebalance"])
				generation.Start(func(ctx context.Context) { <-ctx.Done() })
			}
		}()
		return group, sizes
	}
	until := func(sizes chan int, size int) {
		for <-sizes != size {
		}
	}
	first, ofFirst := join()
	until(ofFirst, 2)
	second, ofSecond := join()
	until(ofSecond, 1)
	until(ofFirst, 1)
	must(second.Close())
	until(ofFirst, 2)
	must(first.Close())
}

func main() {
	servers, phase := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	from, to := 0, count
	address, err := net.ResolveTCPAddr("tcp", servers)
	must(err)
	if phase == "second" {
		from, to = count, count+10
	} else {
		client := &kafka.Client{Addr: address}
		var topics []kafka.TopicConfig
		for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd", "rebalance", "deleted"} {
			topics = append(topics, kafka.TopicConfig{Topic: name, NumPartitions: 2, ReplicationFactor: 1})
		}
		created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: topics})
		must(err)
		for _, each := range created.Errors {
			must(each)
		}
		deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{"deleted"}})
		must(err)
		must(deleted.Errors["deleted"])
		client.Transport = &kafka.Transport{} // the default one has kept the topics
		found, err := client.Metadata(ctx, &kafka.MetadataRequest{})
		must(err)
		for _, each := range found.Topics {
			if each.Name == "deleted" || each.Name == "none" && len(each.Partitions) != 2 {
				log.Fatalf("topics: %v", found.Topics)
			}
		}
		rebalance(ctx, servers)
	}
	for name, codec := range codecs {
		log.SetPrefix(name + ": ")
		writer := &kafka.Writer{
			Addr: address, Topic: name, Compression: codec, Balancer: &kafka.Hash{},
			BatchTimeout: 10 * time.Millisecond,
		}
		var messages []kafka.Message
		left := map[string]int{}
		for number := from; number < to; number++ {
			key := fmt.Sprintf("key %d", number)
			left[key] = number
			messages = append(messages, kafka.Message{
				Key: []byte(key), Value: []byte(value(number)),
				Headers: []kafka.Header{{Key: "number", Value: []byte(fmt.Sprint(number))}},
			})
		}
		must(writer.WriteMessages(ctx, messages...))
		must(writer.Close())
		r := reader(servers, "g-"+name, name)
		for len(left) > 0 {
			message, err := r.FetchMessage(ctx)
			must(err)
			number, isThere := left[string(message.Key)]
			if !isThere || string(message.Value) != value(number) || len(message.Headers) != 1 {
				log.Fatalf("not expected: %v", message)
			}
			delete(left, string(message.Key))
			must(r.CommitMessages(ctx, message))
		}
		must(r.Close())
	}
}
