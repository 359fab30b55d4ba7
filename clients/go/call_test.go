package redislock

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestACallMayReportTwoOutages(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	locks, err := New(client, WithCommandTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lock, err := locks.LockAll([]string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := lock.owner.call(ctx, func(_ context.Context, report func(error)) error {
		report(errors.New("first"))
		report(errors.New("second"))
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestOnlyTheConnectionsOfATokenAreClosed(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	l, err := newLink(client, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	connect := func(token string) *wire {
		conn, other := net.Pipe()
		t.Cleanup(func() { _ = other.Close() })
		w := l.remember(conn)
		w.unanswered = encode([]any{"LOCK.ACQUIRE", "k", token})
		return w
	}
	own, others := connect("worker-1"), connect("worker-10")
	l.undo(newSecret("worker-1"))
	if _, isOpen := l.wires[own]; isOpen {
		t.Error("the token's connection is open")
	}
	if _, isOpen := l.wires[others]; !isOpen {
		t.Error("the connection of another token is closed")
	}
}
