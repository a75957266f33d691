// franz-go: records with keys and headers in every codec, a group that rebalances, positions that
// survive a restart of the broker, topics created and deleted, and (where asked) transactions.
//
//	franz SERVERS first|second|transactions
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const count = 300

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func client(servers string, options ...kgo.Opt) *kgo.Client {
	found, err := kgo.NewClient(append(options, kgo.SeedBrokers(servers))...)
	must(err)
	return found
}

func record(topic string, number int) *kgo.Record {
	return &kgo.Record{
		Topic: topic, Key: []byte(fmt.Sprintf("key %d", number)),
		Value:   bytes.Repeat([]byte(fmt.Sprintf("value %d ", number)), 20),
		Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(fmt.Sprint(number))}, {Key: "from", Value: nil}},
	}
}

func produce(ctx context.Context, c *kgo.Client, topic string, from, to int) {
	var records []*kgo.Record
	for number := from; number < to; number++ {
		records = append(records, record(topic, number))
	}
	must(c.ProduceSync(ctx, records...).FirstErr())
}

func consume(ctx context.Context, c *kgo.Client, from, to int) {
	left := map[string]*kgo.Record{}
	for number := from; number < to; number++ {
		one := record("", number)
		left[string(one.Key)] = one
	}
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		for _, err := range fetches.Errors() {
			log.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			wanted := left[string(r.Key)]
			if wanted == nil || !bytes.Equal(wanted.Value, r.Value) || len(r.Headers) != 2 ||
				string(r.Headers[0].Value) != string(wanted.Headers[0].Value) {
				log.Fatalf("not expected: %v", r)
			}
			delete(left, string(r.Key))
		})
	}
	must(c.CommitUncommittedOffsets(ctx))
}

func group(servers, name, topic string, options ...kgo.Opt) *kgo.Client {
	return client(servers, append(options, kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())...)
}

func rebalance(ctx context.Context, servers string, balancer kgo.GroupBalancer) {
	type member struct {
		c     *kgo.Client
		owned chan map[int32]bool
	}
	join := func() member {
		m := member{owned: make(chan map[int32]bool, 1000)}
		own := map[int32]bool{}
		tell := func() {
			now := map[int32]bool{}
			for k := range own {
				now[k] = true
			}
			m.owned <- now
		}
		gone := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			for _, each := range lost["rebalance"] {
				delete(own, each)
			}
			tell()
		}
		m.c = group(servers, "rebalance-"+balancer.ProtocolName(), "rebalance", kgo.Balancers(balancer),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
				for _, each := range got["rebalance"] {
					own[each] = true
				}
				tell()
			}),
			kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone))
		go func() {
			for !m.c.PollFetches(ctx).IsClientClosed() && ctx.Err() == nil {
			}
		}()
		return m
	}
	until := func(m member, size int) {
		for {
			select {
			case own := <-m.owned:
				if len(own) == size {
					return
				}
			case <-ctx.Done():
				log.Fatalf("no member with %d partitions", size)
			}
		}
	}
	first := join()
	until(first, 2)
	second := join()
	until(second, 1)
	until(first, 1)
	second.c.Close()
	until(first, 2)
	first.c.Close()
}

func transactions(ctx context.Context, servers string) {
	admin := kadm.NewClient(client(servers))
	_, err := admin.CreateTopic(ctx, 2, 1, nil, "transactions")
	must(err)
	admin.Close()
	c := client(servers, kgo.TransactionalID("franz"))
	for number, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		must(c.BeginTransaction())
		produce(ctx, c, "transactions", number*100, number*100+100)
		must(c.EndTransaction(ctx, end))
	}
	c.Close()
	reader := group(servers, "transactions", "transactions", kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	consume(ctx, reader, 100, 200)
	reader.Close()
}

func main() {
	servers, phase := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	if phase == "transactions" {
		transactions(ctx, servers)
		return
	}
	from, to := 0, count
	if phase == "second" {
		from, to = count, count+10
	} else {
		admin := kadm.NewClient(client(servers))
		for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd", "rebalance", "deleted"} {
			_, err := admin.CreateTopic(ctx, 2, 1, nil, name)
			must(err)
		}
		_, err := admin.DeleteTopic(ctx, "deleted")
		must(err)
		topics, err := admin.ListTopics(ctx)
		must(err)
		if topics.Has("deleted") || len(topics["none"].Partitions) != 2 {
			log.Fatalf("topics: %v", topics.Names())
		}
		admin.Close()
		rebalance(ctx, servers, kgo.RangeBalancer())
		rebalance(ctx, servers, kgo.CooperativeStickyBalancer())
	}
	for name, codec := range codecs {
		c := client(servers, kgo.ProducerBatchCompression(codec))
		produce(ctx, c, name, from, to)
		c.Close()
		reader := group(servers, "g-"+name, name)
		consume(ctx, reader, from, to)
		reader.Close()
	}
}
