// sarama: records with keys and headers in every codec, a group that rebalances, positions that
// survive a restart of the broker, topics created and deleted, and (where asked) transactions.
//
//	sarama SERVERS first|second|transactions
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const count = 300

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func value(number int) string { return strings.Repeat(fmt.Sprintf("value %d ", number), 20) }

func produce(servers []string, config *sarama.Config, topic string, from, to int) {
	config.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(servers, config)
	must(err)
	if producer.IsTransactional() {
		must(producer.BeginTxn())
	}
	var messages []*sarama.ProducerMessage
	for number := from; number < to; number++ {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(fmt.Sprintf("key %d", number)),
			Value:   sarama.StringEncoder(value(number)),
			Headers: []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(fmt.Sprint(number))}},
		})
	}
	must(producer.SendMessages(messages))
	if producer.IsTransactional() {
		if from == 0 {
			must(producer.AbortTxn())
		} else {
			must(producer.CommitTxn())
		}
	}
	must(producer.Close())
}

type handler struct {
	mutex sync.Mutex
	left  map[string]int
	owned chan int
	all   chan bool
}

func (h *handler) Setup(s sarama.ConsumerGroupSession) error {
	total := 0
	for _, each := range s.Claims() {
		total += len(each)
	}
	h.owned <- total
	return nil
}

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.mutex.Lock()
		number, isThere := h.left[string(message.Key)]
		if !isThere || string(message.Value) != value(number) || len(message.Headers) != 1 ||
			string(message.Headers[0].Value) != fmt.Sprint(number) {
			log.Fatalf("not expected: %v", message)
		}
		delete(h.left, string(message.Key))
		s.MarkMessage(message, "")
		if len(h.left) == 0 {
			s.Commit()
			h.all <- true
		}
		h.mutex.Unlock()
	}
	return nil
}

type member struct {
	*handler
	group sarama.ConsumerGroup
	end   func()
}

func join(servers []string, config *sarama.Config, name, topic string, from, to int) member {
	group, err := sarama.NewConsumerGroup(servers, name, config)
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	h := &handler{left: map[string]int{}, owned: make(chan int, 1000), all: make(chan bool, 1)}
	for number := from; number < to; number++ {
		h.left[fmt.Sprintf("key %d", number)] = number
	}
	done := make(chan bool)
	go func() {
		for ctx.Err() == nil {
			must(group.Consume(ctx, []string{topic}, h))
		}
		close(done)
	}()
	return member{h, group, func() { cancel(); <-done; must(group.Close()) }}
}

func (m member) until(size int) {
	for <-m.owned != size {
	}
}

func main() {
	servers, phase := []string{os.Args[1]}, os.Args[2]
	time.AfterFunc(120*time.Second, func() { log.Fatal("too slow") })
	fresh := func() *sarama.Config {
		config := sarama.NewConfig()
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		return config
	}
	if phase == "transactions" {
		config := fresh()
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Net.MaxOpenRequests = 1
		config.Producer.Transaction.ID = "sarama"
		produce(servers, config, "transactions", 0, 100)
		produce(servers, config, "transactions", 100, 200)
		config = fresh()
		config.Consumer.IsolationLevel = sarama.ReadCommitted
		m := join(servers, config, "transactions", "transactions", 100, 200)
		<-m.all
		m.end()
		return
	}
	from, to := 0, count
	if phase == "second" {
		from, to = count, count+10
	} else {
		admin, err := sarama.NewClusterAdmin(servers, fresh())
		must(err)
		for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd", "rebalance", "deleted"} {
			must(admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false))
		}
		must(admin.DeleteTopic("deleted"))
		topics, err := admin.ListTopics()
		must(err)
		if _, isThere := topics["deleted"]; isThere || topics["none"].NumPartitions != 2 {
			log.Fatalf("topics: %v", topics)
		}
		must(admin.Close())
		for _, strategy := range []sarama.BalanceStrategy{
			sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategySticky()} {
			config := fresh()
			config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
			first := join(servers, config, "r-"+strategy.Name(), "rebalance", 0, 0)
			first.until(2)
			second := join(servers, config, "r-"+strategy.Name(), "rebalance", 0, 0)
			second.until(1)
			first.until(1)
			second.end()
			first.until(2)
			first.end()
		}
	}
	for name, codec := range codecs {
		config := fresh()
		config.Producer.Compression = codec
		produce(servers, config, name, from, to)
		m := join(servers, config, "g-"+name, name, from, to)
		<-m.all
		m.end()
	}
}
