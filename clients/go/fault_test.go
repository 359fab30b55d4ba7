package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

// faults decide the fate of replies.
type faults struct {
	mu   sync.Mutex
	verb string
	fate func() error
}

// choose sets what is called before the reply to each command of a verb is read. If it fails, the reply
// is lost together with its connection. No verb chooses nothing.
func (f *faults) choose(verb string, fate func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verb, f.fate = verb, fate
}

// of returns the fate of a command's reply, or nil.
func (f *faults) of(written []byte) func() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.verb == "" || !bytes.Contains(written, []byte("LOCK."+f.verb)) {
		return nil
	}
	return f.fate
}

// lost is the fate of a reply that is lost.
func lost() error { return io.EOF }

// faulty is a connection whose replies have fates.
type faulty struct {
	net.Conn
	faults *faults
	mu     sync.Mutex
	fate   func() error
}

func (c *faulty) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.fate = c.faults.of(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *faulty) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	fate := c.fate
	c.fate = nil
	c.mu.Unlock()
	if fate != nil && n > 0 {
		if failed := fate(); failed != nil {
			_ = c.Conn.Close()
			return 0, failed
		}
	}
	return n, err
}

// faulty returns a maker of locks, and the faults of its connections.
func (s server) faulty(t *testing.T, options ...redislock.LocksOption) (*redislock.Locks, *faults) {
	t.Helper()
	f := &faults{}
	client := redis.NewClient(&redis.Options{
		Addr: s.Address,
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return &faulty{Conn: conn, faults: f}, err
		},
	})
	locks, err := redislock.New(client, options...)
	check(t, err)
	t.Cleanup(func() {
		check(t, locks.Close())
		check(t, client.Close())
	})
	return locks, f
}

// leftAtServer returns what is left of the lease of a lock on k.
func (s server) leftAtServer(t *testing.T, lock *redislock.Lock) time.Duration {
	t.Helper()
	return time.Duration(s.Call(t, "LOCK.CHECK", "k", lock.Token()).(int64)) * time.Millisecond
}

func TestAFurtherHoldKeepsTheLeaseOfExtend(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	lock := lockOf(t, locks, "k", redislock.WithReentrant())
	acquired(t, lock)
	check(t, lock.Extend(background, time.Hour))
	acquired(t, lock)
	check(t, lock.Release(background))
	if left, local := s.leftAtServer(t, lock), time.Until(lock.Until()); left < time.Minute || local < time.Minute {
		t.Errorf("%v at the server, and %v here", left, local)
	}
	if count, err := locks.ReleaseAll(background); count != 1 || err != nil || !s.IsFree(t, "k") {
		t.Errorf("%d released, %v, or not free at once", count, err)
	}
}

func TestAFurtherHoldWaitsForTheReplyToAnExtension(t *testing.T) {
	s := serve(t)
	locks, faults := s.faulty(t, redislock.WithCommandTimeout(patience))
	lock := lockOf(t, locks, "k", redislock.WithReentrant())
	acquired(t, lock)
	isCarriedOut, mayReply := make(chan struct{}), make(chan struct{})
	faults.choose("EXTEND", func() error {
		close(isCarriedOut)
		<-mayReply
		return nil
	})
	extended := begin(func(ctx context.Context) (int64, error) { return 0, lock.Extend(ctx, time.Hour) })
	receive(t, isCarriedOut)
	again := begin(lock.Acquire)
	time.Sleep(aWhile)
	faults.choose("", nil)
	close(mayReply)
	check(t, receive(t, extended))
	check(t, receive(t, again))
	if left, local := s.leftAtServer(t, lock), time.Until(lock.Until()); left < time.Minute || local < time.Minute {
		t.Errorf("%v at the server, and %v here", left, local)
	}
	check(t, lock.Release(background))
	check(t, lock.Release(background))
}

func TestAFurtherHoldThatHangsDoesntDelayTheReportOfALoss(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithReentrant(), redislock.WithLease(2*time.Second))
	acquired(t, lock)
	goOn := s.Stop(t)
	ended := make(chan error, 1)
	left := time.Until(lock.Until())
	go func() {
		_, err := lock.Acquire(background)
		ended <- err
	}()
	takes(t, "the loss", left, late, func() { receive(t, lock.Lost()) })
	goOn()
	expect(t, receive(t, ended), redislock.ErrLost)
	expect(t, lock.Release(background), redislock.ErrLost)
}

func TestAShorterLeaseThatMayCountIsRenewedAtOnce(t *testing.T) {
	s := serve(t)
	locks, faults := s.faulty(t, redislock.WithCommandTimeout(300*time.Millisecond))
	lock := lockOf(t, locks, "k")
	acquired(t, lock)
	faults.choose("EXTEND", lost)
	expect(t, lock.Extend(background, 5*time.Second), redislock.ErrUnavailable)
	until(t, "it may end early", func() bool { return time.Until(lock.Until()) <= 5*time.Second })
	faults.choose("", nil)
	until(t, "it is renewed, or lost", func() bool {
		return lock.IsLost() || s.leftAtServer(t, lock) > 10*time.Second && time.Until(lock.Until()) > 10*time.Second
	})
	check(t, lock.Release(background))
}

func TestALongerLeaseThatMayCountEndsWithTheLoss(t *testing.T) {
	s := serve(t)
	locks, faults := s.faulty(t, redislock.WithCommandTimeout(300*time.Millisecond))
	options := map[string]redislock.Option{"reentrant": redislock.WithReentrant(), "chosen": redislock.WithToken("token")}
	for name, option := range options {
		t.Run(name, func(t *testing.T) {
			lock := lockOf(t, locks, "k", redislock.WithLease(2*time.Second), redislock.WithoutRenewal(), option)
			acquired(t, lock)
			faults.choose("EXTEND", lost)
			expect(t, lock.Extend(background, 20*time.Second), redislock.ErrUnavailable)
			faults.choose("", nil)
			goOn := s.Stop(t)
			receive(t, lock.Lost())
			time.Sleep(2 * aWhile)
			goOn()
			takes(t, "the end", 0, 8*time.Second, func() {
				until(t, "it is free", func() bool { return s.IsFree(t, "k") })
			})
			expect(t, lock.Release(background), redislock.ErrLost)
		})
	}
}

// A server that has lost its data takes over while the release finds no server.
func TestAReleaseThatWasNeverSentFindsTheLoss(t *testing.T) {
	s, empty := serve(t), serve(t)
	var isGone atomic.Bool
	client := redis.NewClient(&redis.Options{Dialer: func(_ context.Context, network, _ string) (net.Conn, error) {
		if isGone.Load() {
			return net.Dial(network, empty.Address)
		}
		return net.Dial(network, s.Address)
	}})
	defer client.Close()
	observer := redislock.Observer{Unavailable: func(error) {}}
	locks, err := redislock.New(client, redislock.WithObserver(observer), redislock.WithCommandTimeout(5*time.Second))
	check(t, err)
	defer locks.Close()
	lock := lockOf(t, locks, "k")
	acquired(t, lock)
	s.End()
	// It drops the connections that have ended.
	ctx, cancel := context.WithTimeout(background, aWhile)
	defer cancel()
	_, err = lock.Left(ctx)
	expect(t, err, redislock.ErrUnavailable)
	released := begin(func(ctx context.Context) (int64, error) { return 0, lock.Release(ctx) })
	until(t, "it is being released", func() bool { return !lock.IsHeld() })
	time.Sleep(aWhile)
	isGone.Store(true)
	expect(t, receive(t, released), redislock.ErrLost)
}

func TestAReleaseWhoseReplyIsLostIsOne(t *testing.T) {
	s := serve(t)
	locks, faults := s.faulty(t, redislock.WithCommandTimeout(patience))
	lock := lockOf(t, locks, "k")
	acquired(t, lock)
	faults.choose("RELEASE", func() error {
		faults.choose("", nil)
		return lost()
	})
	check(t, lock.Release(background))
}

func TestARefusalAfterALostReplyLeavesNothing(t *testing.T) {
	s := serve(t)
	locks, faults := s.faulty(t, redislock.WithCommandTimeout(patience))
	lock := lockOf(t, locks, "k")
	faults.choose("ACQUIRE", func() error {
		faults.choose("", nil)
		check(t, s.Client.Do(background, "ACL", "SETUSER", "default", "-lock.acquire").Err())
		return lost()
	})
	_, err := lock.TryAcquire(background)
	var refused redis.Error
	if !errors.As(err, &refused) {
		t.Errorf("%v instead of a refusal", err)
	}
	takes(t, "the end", 0, 5*late, func() {
		until(t, "it is free", func() bool { return s.IsFree(t, "k") })
	})
}

func TestFurtherHoldsOfASessionLeaveNoConnections(t *testing.T) {
	s, replica := serve(t), serve(t)
	host, port, err := net.SplitHostPort(s.Address)
	check(t, err)
	replica.Call(t, "REPLICAOF", host, port)
	until(t, "it replicates", func() bool {
		return strings.Contains(s.Call(t, "INFO", "replication").(string), "state=online")
	})
	options := []redislock.Option{redislock.WithSession(), redislock.WithReplicas(1), redislock.WithReentrant()}
	lock := lockOf(t, s.locks(t, redislock.WithCommandTimeout(patience)), "k", options...)
	connections := func() int { return strings.Count(s.Call(t, "CLIENT", "LIST").(string), " addr=") }
	acquired(t, lock)
	before := connections()
	for range 5 {
		acquired(t, lock)
	}
	takes(t, "the end", 0, 5*late, func() {
		until(t, "their connections end", func() bool { return connections() <= before })
	})
	for range 6 {
		check(t, lock.Release(background))
	}
}

func TestATryDuringAReleaseIsNotRefused(t *testing.T) {
	s := serve(t)
	locks, faults := s.faulty(t, redislock.WithCommandTimeout(patience))
	lock := lockOf(t, locks, "k")
	acquired(t, lock)
	mayReply := make(chan struct{})
	faults.choose("RELEASE", func() error {
		<-mayReply
		return nil
	})
	released := begin(func(ctx context.Context) (int64, error) { return 0, lock.Release(ctx) })
	until(t, "it is being released", func() bool { return !lock.IsHeld() })
	ctx, cancel := context.WithTimeout(background, aWhile)
	defer cancel()
	_, err := lock.TryAcquire(ctx)
	expect(t, err, redislock.ErrUnavailable)
	close(mayReply)
	check(t, receive(t, released))
}

func TestTriesThatFindNoServerLeaveNothingBehind(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	locks, err := redislock.New(client, redislock.WithObserver(redislock.Observer{Unavailable: func(error) {}}))
	check(t, err)
	defer locks.Close()
	before := runtime.NumGoroutine()
	var all []<-chan error
	for range 50 {
		all = append(all, begin(lockOf(t, locks, "k", redislock.WithLease(time.Hour)).TryAcquire))
	}
	for _, each := range all {
		expect(t, receive(t, each), redislock.ErrUnavailable)
	}
	takes(t, "the end", 0, 5*late, func() {
		until(t, "nothing goes on", func() bool { return runtime.NumGoroutine() < before+len(all)/2 })
	})
}
