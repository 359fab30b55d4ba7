package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

// counted returns a number of INFO.
func counted(t *testing.T, s *testserver.Server, section, name string) int {
	t.Helper()
	text, err := s.Client.Info(background, section).Result()
	check(t, err)
	_, rest, _ := strings.Cut(text, name+":")
	number, _, _ := strings.Cut(rest, "\r")
	count, err := strconv.Atoi(number)
	check(t, err)
	return count
}

// connected returns how many connections a server has had.
func connected(t *testing.T, s *testserver.Server) int {
	t.Helper()
	return counted(t, s, "stats", "total_connections_received")
}

// clients returns how many connections a server has.
func clients(t *testing.T, s *testserver.Server) int {
	t.Helper()
	return counted(t, s, "clients", "connected_clients")
}

// together calls something in many goroutines.
func together(count int, call func(number int)) {
	var all sync.WaitGroup
	for number := range count {
		all.Add(1)
		go func() {
			defer all.Done()
			call(number)
		}()
	}
	all.Wait()
}

func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	s := serve(t)
	client := redis.NewClient(&redis.Options{Addr: s.Address, PoolSize: 1, MaxActiveConns: 1})
	defer client.Close()
	locks := locksOf(t, client)
	together(30, func(number int) {
		lock := lockOf(t, locks, fmt.Sprint("k", number%10))
		for range 5 {
			check(t, lock.Do(background, func(context.Context, *redislock.Grant) error { return nil }))
		}
	})
	holder := acquired(t, lockOf(t, locks, "k"))
	granted := make(chan *redislock.Grant)
	go func() { granted <- acquired(t, lockOf(t, locks, "k")) }()
	until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
	if unused := client.PoolStats().IdleConns; unused != 1 {
		t.Error("the wait has the connection")
	}
	check(t, holder.Release(background))
	check(t, receive(t, granted).Release(background))
}

func TestShortLimitsDontWasteConnections(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	lock := lockOf(t, locks, "k")
	holder := acquired(t, lock)
	before := connected(t, s)
	together(100, func(int) {
		for range 10 {
			ctx, cancel := context.WithTimeout(background, rand.N(20*time.Millisecond))
			_, err := lock.Acquire(ctx)
			cancel()
			if err == nil {
				t.Error("acquired")
			}
		}
	})
	if more := connected(t, s) - before; more > 20 {
		t.Errorf("%d connections", more)
	}
	check(t, holder.Release(background))
}

// The waiters of a server that stands still write one line, and leave neither goroutines nor
// places.
func TestAThousandWaitersTellOfOneOutage(t *testing.T) {
	s := serve(t)
	var told atomic.Int32
	locks := locksOf(t, s.Client, redislock.WithObserver(redislock.Observer{
		Unavailable: func(error) { told.Add(1) },
	}))
	holder := acquired(t, lockOf(t, locks, "k"))
	before := runtime.NumGoroutine()
	waiting, stop := context.WithCancel(background)
	ended := make(chan error)
	for range 1000 {
		go func() {
			_, err := lockOf(t, locks, "k").Acquire(waiting)
			ended <- err
		}()
	}
	until(t, "four of them ask", func() bool { return s.Waiters(t, "k") == 4 })
	goOn := s.Stop(t)
	until(t, "the outage is told", func() bool { return told.Load() > 0 })
	_, err := lockOf(t, locks, "other").TryAcquire(background)
	expect(t, err, redislock.ErrUnavailable)
	stop()
	for range 1000 {
		expect(t, receive(t, ended), context.Canceled)
	}
	goOn()
	if told.Load() > 1 {
		t.Errorf("told %d times", told.Load())
	}
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	until(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() < before+20 })
	check(t, holder.Release(background))
}

func TestAnOutageIsToldByTheErrorOfALimitAlone(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	var told atomic.Int32
	lock := lockOf(t, locksOf(t, client, redislock.WithObserver(redislock.Observer{
		Unavailable: func(error) { told.Add(1) },
	})), "k")
	ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, err := lock.Acquire(ctx)
	expect(t, err, redislock.ErrUnavailable)
	if told.Load() > 0 {
		t.Error("the observer heard of it too")
	}
}

func TestAClosedClientEndsEveryCallAtOnce(t *testing.T) {
	s := serve(t)
	client := redis.NewClient(&redis.Options{Addr: s.Address})
	lock := lockOf(t, locksOf(t, client), "k")
	grant := acquired(t, lock)
	check(t, client.Close())
	takes(t, "three calls", 0, late, func() {
		_, err := lock.Acquire(background)
		expect(t, err, redis.ErrClosed)
		expect(t, grant.Extend(background, time.Minute), redis.ErrClosed)
		expect(t, grant.Release(background), redis.ErrClosed)
	})
}

// cutOff loses the reply to a command, and then has no connection until it is mended.
type cutOff struct {
	verb    string
	isArmed atomic.Bool
	isCut   atomic.Bool
}

func (c *cutOff) dial(_ context.Context, network, address string) (net.Conn, error) {
	if c.isCut.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := net.Dial(network, address)
	return &cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	cutOff *cutOff
}

func (c *cutConn) Write(words []byte) (int, error) {
	count, err := c.Conn.Write(words)
	if strings.Contains(string(words), c.cutOff.verb) && c.cutOff.isArmed.CompareAndSwap(true, false) {
		_, err = c.Conn.Read(make([]byte, 1024))
		c.cutOff.isCut.Store(true)
		return count, errors.Join(err, c.Conn.Close())
	}
	return count, err
}

func (c *cutConn) Read(reply []byte) (int, error) {
	if c.cutOff.isCut.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(reply)
}

// The driver of a cluster repeats a command without a reply, and then says only that it can't
// connect.
func TestAGrantWhoseReplyWasLostIsLeftInACluster(t *testing.T) {
	s, err := testserver.Start("cluster 1")
	check(t, err)
	defer func() { check(t, s.End()) }()
	cut := &cutOff{verb: "LOCK.ACQUIRE"}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Address}, Dialer: cut.dial})
	defer client.Close()
	within, cancel := context.WithCancel(background)
	defer cancel()
	locks := locksOf(t, client, redislock.WithObserver(redislock.Observer{
		Unavailable: func(error) { cancel() },
	}))
	lock := lockOf(t, locks, "k", redislock.WithLease(10*time.Minute))
	check(t, acquired(t, lock).Release(background))
	cut.isArmed.Store(true)
	_, err = lock.Acquire(within)
	expect(t, err, context.Canceled)
	if s.IsFree(t, "k") {
		t.Error("it wasn't granted")
	}
	cut.isCut.Store(false)
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
}

func TestAFailedAdoptionKeepsNoConnection(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	s.Call(t, "SET", "k", "of another kind")
	before := clients(t, s)
	_, err := locks.Adopt(background, []string{"k"}, "token", 1, redislock.WithSession())
	if err == nil || errors.Is(err, redislock.ErrNotHeld) {
		t.Error(err)
	}
	until(t, "its connection is closed", func() bool { return clients(t, s) <= before })
}

// A late reply is waited for. The end of the connection is a loss, and told.
func TestAnAdoptionEndsInTimeInAClusterThatIsSilent(t *testing.T) {
	var silent []string
	for range 4 {
		node, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		defer node.Close()
		silent = append(silent, node.Addr().String())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: silent})
	defer client.Close()
	locks := locksOf(t, client)
	takes(t, "an adoption", time.Second, late, func() {
		_, err := locks.Adopt(background, []string{"k"}, "token", 1, redislock.WithSession())
		expect(t, err, redislock.ErrUnavailable)
	})
}

func TestASessionEndsWithItsConnection(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	grant := acquired(t, lockOf(t, locks, "k", redislock.WithLease(3*time.Second), redislock.WithSession()))
	goOn := s.Stop(t)
	time.Sleep(1500 * time.Millisecond)
	goOn()
	renewed := grant.Left()
	until(t, "it is renewed", func() bool { return grant.Left() > renewed })
	s.Call(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
	expect(t, grant.Extend(background, time.Minute), redislock.ErrLost)
	receive(t, grant.Lost())
	expect(t, grant.Release(background), redislock.ErrLost)
}

func TestACancelledExtensionIsNoLossOfASession(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k", redislock.WithSession()))
	ctx, cancel := context.WithCancel(background)
	goOn := s.Stop(t)
	time.AfterFunc(100*time.Millisecond, cancel)
	expect(t, grant.Extend(ctx, time.Minute), context.Canceled)
	goOn()
	if grant.IsLost() {
		t.Error("it is lost")
	}
	check(t, grant.Release(background))
}
