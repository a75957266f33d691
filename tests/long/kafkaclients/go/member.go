// What the programs of Go for tests.long.kafkaclients.cluster share; it is copied beside each of
// them when that is built.
//
//	PROGRAM SERVERS producer NAME | consumer GROUP | copier TARGET
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const pause = 100 * time.Millisecond

var lock sync.Mutex

// say prints a line; several threads may.
func say(format string, what ...any) {
	lock.Lock()
	defer lock.Unlock()
	fmt.Printf(format+"\n", what...)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }

func servers() []string { return strings.Split(os.Args[1], ",") }

// message gives the key and the value of a numbered message.
func message(name string, number int) (string, string) {
	key := fmt.Sprintf("%s%d", name, number%20+1)
	return key, fmt.Sprintf("%s.%d.%s.", name, number, key)
}

// tell says that the member has partitions, or has them no more.
func tell(word string, partitions []int32) {
	var places []string
	for _, each := range partitions {
		places = append(places, fmt.Sprintf("clicks/%d", each))
	}
	if len(places) > 0 {
		say("%s %s", word, strings.Join(places, ","))
	}
}

// run runs the program that the command line names, until SIGTERM.
func run(programs map[string]func(context.Context, string)) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	programs[os.Args[2]](ctx, os.Args[3])
}
