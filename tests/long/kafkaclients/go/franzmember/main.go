// franz-go for tests.long.kafkaclients.cluster: a producer of numbered messages, a member of a group,
// and an application that copies a topic in transactions, at the client's default settings. They
// print what the programs of tests.integration.kafkachaosmember write down, until SIGTERM.
//
//	franzmember SERVERS producer NAME | consumer GROUP | copier TARGET
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

	"github.com/twmb/franz-go/pkg/kgo"
)

const pause = 100 * time.Millisecond

var lock sync.Mutex

func say(format string, what ...any) {
	lock.Lock()
	defer lock.Unlock()
	fmt.Printf(format+"\n", what...)
}

func client(options ...kgo.Opt) *kgo.Client {
	found, err := kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(os.Args[1], ",")...))...)
	if err != nil {
		log.Fatal(err)
	}
	return found
}

func produce(ctx context.Context, name string) {
	c := client()
	for number := 0; ctx.Err() == nil; number++ {
		key := fmt.Sprintf("%s%d", name, number%20+1)
		say("sent %d", number)
		value := fmt.Sprintf("%s.%d.%s.", name, number, key)
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
		var places []string
		for _, each := range topics["clicks"] {
			places = append(places, fmt.Sprintf("clicks/%d", each))
		}
		if len(places) > 0 {
			say("%s %s", word, strings.Join(places, ","))
		}
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
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
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
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	programs := map[string]func(context.Context, string){
		"producer": produce, "consumer": consume, "copier": duplicate,
	}
	programs[os.Args[2]](ctx, os.Args[3])
}
