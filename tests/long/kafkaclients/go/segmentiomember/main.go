// segmentio/kafka-go for tests.long.kafkaclients.cluster, as franzmember: acks of all, since its
// default is none. It has no copier. A write of one message returns when it is acknowledged, and
// does not say where it is.
//
//	segmentiomember SERVERS producer NAME | consumer GROUP
package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

func produce(ctx context.Context, name string) {
	w := &kafka.Writer{Addr: kafka.TCP(servers()...), Topic: "clicks", RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.Murmur2Balancer{}, BatchTimeout: 10 * time.Millisecond}
	for number := 0; ctx.Err() == nil; number++ {
		key, value := message(name, number)
		say("sent %d", number)
		one := kafka.Message{Key: []byte(key), Value: []byte(value)}
		err := w.WriteMessages(context.Background(), one)
		if err != nil {
			say("unknown %d %v", number, oneLine(err))
		} else {
			say("ok %d clicks/0 -1", number)
		}
		time.Sleep(pause)
	}
	w.Close()
}

func consume(ctx context.Context, group string) {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: servers(), GroupID: group, Topic: "clicks",
		StartOffset: kafka.FirstOffset})
	last := map[int]int64{}
	for ctx.Err() == nil {
		m, err := r.FetchMessage(ctx) // ReadMessage drops a message whose position it cannot commit
		if errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			say("error %v", oneLine(err))
			continue
		}
		// It does not say that it has joined again; it shows when it begins at its position.
		before, isKnown := last[m.Partition]
		if isKnown && m.Offset <= before {
			say("revoked clicks/%d", m.Partition)
		}
		if !isKnown || m.Offset <= before {
			say("assigned clicks/%d", m.Partition)
		}
		last[m.Partition] = m.Offset
		say("got clicks/%d %d %s", m.Partition, m.Offset, m.Value)
		if err := r.CommitMessages(ctx, m); err != nil && ctx.Err() == nil {
			say("error %v", oneLine(err))
		}
	}
	r.Close()
}

func main() {
	run(map[string]func(context.Context, string){"producer": produce, "consumer": consume})
}
