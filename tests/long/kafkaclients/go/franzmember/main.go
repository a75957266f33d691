// franz-go for tests.long.kafkaclients.cluster: a producer of numbered messages, a member of a
// group, and an application that copies a topic in transactions, at the client's default settings.
// They print what the programs of tests.integration.kafkachaosmember write down, until SIGTERM.
//
//	franzmember SERVERS producer NAME | consumer GROUP | copier TARGET
package main

import (
	"context"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func client(options ...kgo.Opt) *kgo.Client {
	found, err := kgo.NewClient(append(options, kgo.SeedBrokers(servers()...))...)
	if err != nil {
		log.Fatal(err)
	}
	return found
}

func produce(ctx context.Context, name string) {
	c := client()
	for number := 0; ctx.Err() == nil; number++ {
		key, value := message(name, number)
		say("sent %d", number)
		one := &kgo.Record{Topic: "clicks", Key: []byte(key), Value: []byte(value)}
		here := number
		c.Produce(context.Background(), one, func(r *kgo.Record, err error) {
			if err != nil {
				say("unknown %d %v", here, err)
			} else {
				say("ok %d clicks/%d %d", here, r.Partition, r.Offset)
			}
		})
		time.Sleep(pause)
	}
	if err := c.Flush(context.Background()); err != nil {
		log.Fatal(err)
	}
	c.Close()
}

// told says which partitions the member has or has no more.
func told(word string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		tell(word, topics["clicks"])
	}
}

func consume(ctx context.Context, group string) {
	c := client(kgo.ConsumerGroup(group), kgo.ConsumeTopics("clicks"),
		kgo.OnPartitionsAssigned(told("assigned")), kgo.OnPartitionsRevoked(told("revoked")),
		kgo.OnPartitionsLost(told("lost")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for ctx.Err() == nil {
		fetches := c.PollFetches(ctx)
		for _, each := range fetches.Errors() {
			if ctx.Err() == nil {
				say("error %v", each.Err)
			}
		}
		fetches.EachRecord(func(r *kgo.Record) {
			say("got clicks/%d %d %s", r.Partition, r.Offset, r.Value)
		})
	}
	c.Close()
}

func duplicate(ctx context.Context, target string) {
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(servers()...),
		kgo.TransactionalID(target), kgo.ConsumerGroup(target), kgo.ConsumeTopics("clicks"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		fetches := session.PollFetches(ctx)
		if ctx.Err() != nil || fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(context.Background(), &kgo.Record{Topic: target, Partition: r.Partition,
				Key: r.Key, Value: r.Value}, func(_ *kgo.Record, err error) {
				if err != nil {
					say("error %v", err)
				}
			})
		})
		isCommitted, err := session.End(context.Background(), kgo.TryCommit)
		if err != nil {
			say("error %v", err)
		} else if isCommitted {
			say("copied %d", fetches.NumRecords())
		}
	}
	session.Close()
}

func main() {
	run(map[string]func(context.Context, string){
		"producer": produce, "consumer": consume, "copier": duplicate,
	})
}
