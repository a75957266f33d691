// sarama for tests.long.kafkaclients.cluster, as franzmember: acks of all, since its default is 1,
// and returned successes, from which the offsets come; idempotent if its name ends with "once". It
// has no copier.
//
//	saramamember SERVERS producer NAME | consumer GROUP
package main

import (
	"context"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func produce(ctx context.Context, name string) {
	settings := sarama.NewConfig()
	if strings.HasSuffix(name, "once") { // idempotence asks for one request at a time
		settings.Producer.Idempotent = true
		settings.Net.MaxOpenRequests = 1
	}
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Producer.Return.Successes = true
	producer, err := sarama.NewAsyncProducer(servers(), settings)
	if err != nil {
		log.Fatal(err)
	}
	var both sync.WaitGroup
	both.Add(2)
	go func() {
		for m := range producer.Successes() {
			say("ok %v clicks/%d %d", m.Metadata, m.Partition, m.Offset)
		}
		both.Done()
	}()
	go func() {
		for m := range producer.Errors() {
			say("unknown %v %v", m.Msg.Metadata, oneLine(m.Err))
		}
		both.Done()
	}()
	for number := 0; ctx.Err() == nil; number++ {
		key, value := message(name, number)
		say("sent %d", number)
		producer.Input() <- &sarama.ProducerMessage{Topic: "clicks", Metadata: number,
			Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value)}
		time.Sleep(pause)
	}
	producer.AsyncClose()
	both.Wait()
}

type handler struct{}

// told says which partitions the member has or has no more.
func told(word string, session sarama.ConsumerGroupSession) error {
	tell(word, session.Claims()["clicks"])
	return nil
}

func (handler) Setup(s sarama.ConsumerGroupSession) error   { return told("assigned", s) }
func (handler) Cleanup(s sarama.ConsumerGroupSession) error { return told("revoked", s) }
func (handler) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for {
		select {
		case m, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			say("got clicks/%d %d %s", m.Partition, m.Offset, m.Value)
			session.MarkMessage(m, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func consume(ctx context.Context, name string) {
	settings := sarama.NewConfig()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	var group sarama.ConsumerGroup
	for group == nil && ctx.Err() == nil {
		made, err := sarama.NewConsumerGroup(servers(), name, settings)
		if err != nil {
			say("error %v", oneLine(err))
			time.Sleep(pause)
		} else {
			group = made
		}
	}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{"clicks"}, handler{}); err != nil && ctx.Err() == nil {
			say("error %v", oneLine(err))
			time.Sleep(pause)
		}
	}
	group.Close()
}

func main() {
	run(map[string]func(context.Context, string){"producer": produce, "consumer": consume})
}
