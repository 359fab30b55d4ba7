package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	s := serve(t)
	client := redis.NewClient(&redis.Options{Addr: s.Address, PoolSize: 1, MaxActiveConns: 1})
	defer client.Close()
	locks := locksOf(t, client)
	testserver.Together(30, func(number int) {
		lock := lockOf(t, locks, fmt.Sprint("k", number%10))
		for range 5 {
			check(t, acquired(t, lock).Release(background))
		}
	})
	holder := acquired(t, lockOf(t, locks, "k"))
	granted := make(chan *redislock.Grant)
	go func() { granted <- acquired(t, lockOf(t, locks, "k")) }()
	s.UntilWaiting(t, "k", 1)
	equal(t, "connections that the wait leaves", client.PoolStats().IdleConns, uint32(1))
	check(t, holder.Release(background))
	check(t, testserver.Receive(t, granted).Release(background))
}

func TestShortLimitsDontWasteConnections(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	holder := acquired(t, lock)
	before := s.Number(t, "Stats", "total_connections_received")
	testserver.Together(100, func(int) {
		for range 10 {
			ctx, cancel := context.WithTimeout(background, rand.N(20*time.Millisecond))
			_, err := lock.Acquire(ctx)
			cancel()
			if err == nil {
				t.Error("acquired")
			}
		}
	})
	if more := s.Number(t, "Stats", "total_connections_received") - before; more > 20 {
		t.Errorf("%d connections", more)
	}
	check(t, holder.Release(background))
}

// The waiters of a server that hangs write one line, and leave neither goroutines nor
// places.
func TestAThousandWaitersTellOfOneOutage(t *testing.T) {
	s := serve(t)
	heard := &observed{}
	locks := locksOf(t, s.Client, heard.option())
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
	s.UntilWaiting(t, "k", 4)
	goOn := s.Stop()
	until(t, "the outage is told", func() bool { return heard.outages.Load() > 0 })
	// The error of a limit tells the caller alone.
	_, err := lockOf(t, locks, "other").AcquireWithin(background, 200*time.Millisecond)
	expect(t, err, redislock.ErrUnavailable)
	stop()
	for range 1000 {
		expect(t, testserver.Receive(t, ended), context.Canceled)
	}
	goOn()
	equal(t, "outages told", heard.outages.Load(), int32(1))
	s.UntilWaiting(t, "k", 0)
	until(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() < before+20 })
	check(t, holder.Release(background))
}

func TestAClosedClientEndsEveryCallAtOnce(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: serve(t).Address})
	lock := lockOf(t, locksOf(t, client), "k")
	grant := acquired(t, lock)
	check(t, client.Close())
	takes(t, "three calls", 0, func() {
		_, err := lock.Acquire(background)
		expect(t, err, redis.ErrClosed)
		expect(t, grant.Extend(background, time.Minute), redis.ErrClosed)
		expect(t, grant.Release(background), redis.ErrClosed)
	})
}

// cutConn is a connection that loses the reply to LOCK.ACQUIRE when it is told to cut. Then no
// connection works until it is told not to.
type cutConn struct {
	net.Conn
	isArmed, isCut *atomic.Bool
}

func (c cutConn) Write(words []byte) (int, error) {
	if strings.Contains(string(words), "LOCK.ACQUIRE") && c.isArmed.CompareAndSwap(true, false) {
		_, sent := c.Conn.Write(words)
		_, replied := c.Conn.Read(make([]byte, 1024))
		c.isCut.Store(true)
		return 0, errors.Join(sent, replied, io.EOF)
	}
	return c.Conn.Write(words)
}

// The driver of a cluster repeats a command without a reply, and then says only that it can't
// connect.
func TestAGrantWhoseReplyWasLostIsLeftInACluster(t *testing.T) {
	s := testserver.ServeBy(t, "cluster 1")
	var isArmed, isCut atomic.Bool
	dial := func(_ context.Context, network, address string) (net.Conn, error) {
		if isCut.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		conn, err := net.Dial(network, address)
		return cutConn{conn, &isArmed, &isCut}, err
	}
	options := redis.ClusterOptions{Addrs: []string{s.Address}, Dialer: dial}
	client := redis.NewClusterClient(&options)
	defer client.Close()
	within, cancel := context.WithCancel(background)
	defer cancel()
	locks := locksOf(t, client, redislock.WithObserver(redislock.Observer{
		Unavailable: func(error) { cancel() },
	}))
	lock := lockOf(t, locks, "k", redislock.WithLease(10*time.Minute))
	check(t, acquired(t, lock).Release(background))
	isArmed.Store(true)
	_, err := lock.Acquire(within)
	expect(t, err, context.Canceled)
	equal(t, "free", s.IsFree(t, "k"), false)
	isCut.Store(false)
	s.UntilFree(t, "k")
}

// --- sessions ------------------------------------------------------------------------------------

func TestAFailedAdoptionKeepsNoConnection(t *testing.T) {
	s := serve(t)
	s.Call(t, "SET", "k", "of another kind")
	connected := func() int { return s.Number(t, "Clients", "connected_clients") }
	before, locks := connected(), locksOf(t, s.Client)
	_, err := locks.Adopt(background, []string{"k"}, "token", 1, redislock.WithSession())
	if err == nil || errors.Is(err, redislock.ErrNotHeld) {
		t.Error(err)
	}
	until(t, "its connection is closed", func() bool { return connected() <= before })
}

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
	takes(t, "an adoption", time.Second, func() {
		_, err := locks.Adopt(background, []string{"k"}, "token", 1, redislock.WithSession())
		expect(t, err, redislock.ErrUnavailable)
	})
}

// A late reply is waited for. The end of the connection is a loss, and told.
func TestASessionEndsWithItsConnection(t *testing.T) {
	const lease = 3 * time.Second
	s := serve(t)
	session := []redislock.Option{redislock.WithLease(lease), redislock.WithSession()}
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k", session...))
	goOn := s.Stop()
	until(t, "a renewal is late", func() bool { return grant.Left() < lease/2 })
	goOn()
	until(t, "it is renewed", func() bool { return grant.Left() > lease/2 })
	s.Call(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	s.UntilFree(t, "k")
	expect(t, grant.Extend(background, time.Minute), redislock.ErrLost)
	testserver.Receive(t, grant.Lost())
	expect(t, grant.Release(background), redislock.ErrLost)
}

func TestACancelledExtensionIsNoLossOfASession(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k", redislock.WithSession()))
	ctx, cancel := context.WithCancel(background)
	goOn := s.Stop()
	time.AfterFunc(100*time.Millisecond, cancel)
	expect(t, grant.Extend(ctx, time.Minute), context.Canceled)
	goOn()
	equal(t, "lost", grant.IsLost(), false)
	check(t, grant.Release(background))
}
