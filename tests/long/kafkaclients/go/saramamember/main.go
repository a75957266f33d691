// sarama for tests.long.kafkaclients.cluster, as franzmember: acks of all, since its default is 1,
// and returned successes, from which the offsets come; idempotent if its name ends with "once". It
// has no copier.
//
//	saramamember SERVERS producer NAME | consumer GROUP
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

const pause = 100 * time.Millisecond

var lock sync.Mutex

func say(format string, what ...any) {
	lock.Lock()
	defer lock.Unlock()
	fmt.Printf(format+"\n", what...)
}

func produce(ctx context.Context, servers []string, name string) {
	settings := sarama.NewConfig()
	if strings.HasSuffix(name, "once") { // idempotence asks for one request at a time
		settings.Producer.Idempotent = true
		settings.Net.MaxOpenRequests = 1
	}
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Producer.Return.Successes = true
	producer, err := sarama.NewAsyncProducer(servers, settings)
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
			say("unknown %v %v", m.Msg.Metadata, strings.ReplaceAll(m.Err.Error(), "\n", " "))
		}
		both.Done()
	}()
	for number := 0; ctx.Err() == nil; number++ {
		key := fmt.Sprintf("%s%d", name, number%20+1)
		say("sent %d", number)
		value := fmt.Sprintf("%s.%d.%s.", name, number, key)
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
	var places []string
	for _, each := range session.Claims()["clicks"] {
		places = append(places, fmt.Sprintf("clicks/%d", each))
	}
	if len(places) > 0 {
		say("%s %s", word, strings.Join(places, ","))
	}
	return nil
}

func (handler) Setup(s sarama.ConsumerGroupSession) error   { return told("assigned", s) }
func (handler) Cleanup(s sarama.ConsumerGroupSession) error { return told("revoked", s) }
func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
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

func consume(ctx context.Context, servers []string, name string) {
	settings := sarama.NewConfig()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	var group sarama.ConsumerGroup
	for group == nil && ctx.Err() == nil {
		made, err := sarama.NewConsumerGroup(servers, name, settings)
		if err != nil {
			say("error %v", strings.ReplaceAll(err.Error(), "\n", " "))
			time.Sleep(pause)
		} else {
			group = made
		}
	}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{"clicks"}, handler{}); err != nil && ctx.Err() == nil {
			say("error %v", strings.ReplaceAll(err.Error(), "\n", " "))
			time.Sleep(pause)
		}
	}
	group.Close()
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	servers := strings.Split(os.Args[1], ",")
	programs := map[string]func(context.Context, []string, string){"producer": produce, "consumer": consume}
	programs[os.Args[2]](ctx, servers, os.Args[3])
}
