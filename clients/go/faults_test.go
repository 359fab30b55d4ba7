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

// connected returns how many connections a server has had.
func connected(t *testing.T, s *testserver.Server) int {
	t.Helper()
	return counted(t, s, "stats", "total_connections_received:", "\r")
}

// clients returns how many connections a server has.
func clients(t *testing.T, s *testserver.Server) int {
	t.Helper()
	return counted(t, s, "clients", "connected_clients:", "\r")
}

// calls returns how many commands of a verb a server has executed.
func calls(t *testing.T, s *testserver.Server, verb string) int {
	t.Helper()
	return counted(t, s, "commandstats", "cmdstat_lock."+verb+":calls=", ",")
}

// counted returns the number between two texts in a section of INFO.
func counted(t *testing.T, s *testserver.Server, section, before, after string) int {
	t.Helper()
	text, err := s.Client.Info(background, section).Result()
	check(t, err)
	_, rest, _ := strings.Cut(text, before)
	number, _, _ := strings.Cut(rest, after)
	count, err := strconv.Atoi(number)
	check(t, err)
	return count
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

func TestAClosedClientEndsEveryCallAtOnce(t *testing.T) {
	s := serve(t)
	client := redis.NewClient(&redis.Options{Addr: s.Address})
	locks := locksOf(t, client)
	lock := lockOf(t, locks, "k")
	grant := acquired(t, lock)
	check(t, client.Close())
	calls := []func() error{
		func() error { _, err := lock.TryAcquire(background); return err },
		func() error { _, err := lock.Acquire(background); return err },
		func() error { return grant.Extend(background, time.Minute) },
		func() error { return grant.Release(background) },
	}
	for _, call := range calls {
		takes(t, "a call", 0, late, func() { expect(t, call(), redis.ErrClosed) })
	}
}

func TestAnAcquireWithoutATurnReturnsInTime(t *testing.T) {
	s := serve(t)
	client := redis.NewClient(&redis.Options{Addr: s.Address, PoolSize: 2})
	defer client.Close()
	one, two := client.Conn(), client.Conn()
	check(t, errors.Join(one.Ping(background).Err(), two.Ping(background).Err(), one.Close(), two.Close()))
	lock := lockOf(t, locksOf(t, client), "k")
	defer s.Stop(t)()
	ended := make(chan error)
	try := func() error { _, err := lock.TryAcquire(background); return err }
	go func() { ended <- try() }()
	// A half of the connections are for acquires.
	until(t, "one has the turn", func() bool { return client.PoolStats().IdleConns == 1 })
	// It still has time when it gets the turn.
	time.Sleep(100 * time.Millisecond)
	takes(t, "the other one", time.Second, 600*time.Millisecond, func() {
		expect(t, try(), redislock.ErrUnavailable)
	})
	expect(t, receive(t, ended), redislock.ErrUnavailable)
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

func TestASessionLeavesAConnectionThatWasReadOnly(t *testing.T) {
	s := serve(t)
	told := make(chan error, 1)
	locks := locksOf(t, s.Client, redislock.WithObserver(redislock.Observer{
		Unavailable: func(err error) { told <- err },
	}))
	grant := acquired(t, lockOf(t, locks, "k", redislock.WithLease(3*time.Second), redislock.WithSession()))
	s.Call(t, "REPLICAOF", "127.0.0.1", "1")
	expect(t, receive(t, told), redislock.ErrUnavailable)
	s.Call(t, "REPLICAOF", "NO", "ONE")
	renewed := grant.Left()
	until(t, "it is renewed or lost", func() bool { return grant.Left() > renewed || grant.IsLost() })
	check(t, grant.Release(background))
}

func TestASessionMovesToAnotherConnection(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	grant := acquired(t, lockOf(t, locks, "k", redislock.WithLease(900*time.Millisecond), redislock.WithSession()))
	// Waits for renewals on the connection of the session and, after its death, on another one. The
	// release of the lock by its close is a loss.
	for range 3 {
		time.Sleep(400 * time.Millisecond)
		if owned, err := grant.Owned(background); err != nil || !owned {
			t.Fatalf("%v, %v", owned, err)
		}
	}
	s.Call(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
	receive(t, grant.Lost())
	expect(t, grant.Release(background), redislock.ErrLost)
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
}

// A grant that comes in the moment of a cancel is given back.
func TestCancelsMeetGrants(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	together(8, func(number int) {
		lock := lockOf(t, locks, fmt.Sprint("k", number%2), redislock.WithLease(10*time.Minute))
		for range 150 {
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(rand.N(2*time.Millisecond), cancel)
			grant, err := lock.Acquire(ctx)
			if err == nil {
				err = grant.Release(background)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			cancel()
		}
	})
	for _, key := range []string{"k0", "k1"} {
		until(t, key+" is free", func() bool { return s.IsFree(t, key) })
	}
}

func TestALockThatIsHotIsGrantedOften(t *testing.T) {
	s := serve(t)
	var told atomic.Int32
	locks := locksOf(t, s.Client, redislock.WithObserver(redislock.Observer{
		Unavailable: func(error) { told.Add(1) },
	}))
	lock := lockOf(t, locks, "k")
	var granted atomic.Int32
	end := time.Now().Add(2 * time.Second)
	together(500, func(int) {
		for time.Now().Before(end) {
			grant, err := lock.AcquireWithin(background, rand.N(300*time.Millisecond))
			if err == nil {
				granted.Add(1)
				err = grant.Release(background)
			}
			if err != nil && !errors.Is(err, redislock.ErrNotAcquired) && !errors.Is(err, redislock.ErrUnavailable) {
				t.Error(err)
			}
		}
	})
	t.Logf("%d grants", granted.Load())
	if granted.Load() < 100 || told.Load() > 0 {
		t.Errorf("%d grants, %d outages", granted.Load(), told.Load())
	}
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
}
