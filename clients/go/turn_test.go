package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

// aWhile is a time in which a wrong event would come.
const aWhile = 200 * time.Millisecond

// begin calls acquire in a goroutine. The channel gets its error.
func begin(acquire func(context.Context) (int64, error)) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := acquire(background)
		done <- err
	}()
	return done
}

func TestAReleaseWithAnEndedContextIsCarriedOut(t *testing.T) {
	s := serve(t)
	// The release counts as one in an outage if it is interrupted.
	locks := s.locks(t, redislock.WithObserver(redislock.Observer{Unavailable: func(error) {}}))
	ended, cancel := context.WithCancel(background)
	cancel()
	for range 20 {
		lock := lockOf(t, locks, "k", redislock.WithReentrant())
		acquired(t, lock)
		if err := lock.Release(ended); err != nil {
			expect(t, err, context.Canceled)
		}
		until(t, "it is free", func() bool { return s.IsFree(t, "k") })
	}
}

func TestEveryReleaseOfAReentrantLockOutlivesAnOutage(t *testing.T) {
	s := serve(t)
	reports := make(chan error, 10)
	observer := redislock.Observer{Unavailable: func(err error) { reports <- err }}
	locks := s.locks(t, redislock.WithCommandTimeout(300*time.Millisecond), redislock.WithObserver(observer))
	lock := lockOf(t, locks, "k", redislock.WithReentrant())
	acquired(t, lock)
	acquired(t, lock)
	goOn := s.Stop(t)
	for range 2 {
		expect(t, lock.Release(background), redislock.ErrUnavailable)
		expect(t, receive(t, reports), redislock.ErrUnavailable)
	}
	goOn()
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
	until(t, "it isn't held", func() bool { return !lock.IsHeld() })
}

func TestAReleaseAfterALossSparesTheNextGoroutine(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithLease(time.Minute))
	lost := acquired(t, lock)
	next := begin(lock.Acquire)
	s.Call(t, "DEL", "k")
	expect(t, lock.Extend(background, time.Minute), redislock.ErrLost)
	_, err := lock.TryAcquire(background)
	expect(t, err, redislock.ErrNotAcquired)
	_, err = lock.AcquireWithin(background, aWhile)
	expect(t, err, redislock.ErrNotAcquired)
	if lock.IsHeld() {
		t.Error("the next goroutine is granted before the release")
	}
	expect(t, lock.Release(background), redislock.ErrLost)
	check(t, receive(t, next))
	if !lock.IsHeld() || lock.Fence() == lost {
		t.Error("the next goroutine's lock was released")
	}
	check(t, lock.Release(background))
}

func TestALossWithoutAReleaseKeepsOthersOutForALease(t *testing.T) {
	s := serve(t)
	lost := make(chan []string, 1)
	observer := redislock.Observer{Lost: func(lock *redislock.Lock) { lost <- lock.Keys() }}
	locks := s.locks(t, redislock.WithObserver(observer))
	lock := lockOf(t, locks, "k", redislock.WithLease(time.Second), redislock.WithoutRenewal())
	acquired(t, lock)
	receive(t, lock.Lost())
	takes(t, "the next acquire", time.Second, late, func() { acquired(t, lock) })
	if keys := fmt.Sprint(receive(t, lost)); keys != "[k]" {
		t.Errorf("the observer heard of %s", keys)
	}
	check(t, lock.Release(background))
}

func TestABlockThatReleasedItsLockSparesTheNextOneOfItsObject(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k")
	check(t, lock.Do(background, func(context.Context, int64) error {
		check(t, lock.Release(background))
		acquired(t, lock)
		return nil
	}))
	if !lock.IsHeld() || s.IsFree(t, "k") {
		t.Error("the next one's lock was released")
	}
	check(t, lock.Release(background))
}

func TestAnInnerBlockLeavesTheRenewalToTheOuterOne(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithReentrant(), redislock.WithLease(2*time.Second))
	check(t, lock.Do(background, func(context.Context, int64) error {
		ctx, cancel := context.WithCancel(background)
		check(t, lock.Do(ctx, func(context.Context, int64) error {
			cancel()
			return nil
		}))
		before := lock.Until()
		until(t, "it is renewed or lost", func() bool { return lock.IsLost() || lock.Until().After(before) })
		return nil
	}))
}

func TestAnOutageOfAnotherGoroutineIsNoContention(t *testing.T) {
	reports := make(chan error, 10)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	observer := redislock.Observer{Unavailable: func(err error) { reports <- err }}
	locks, err := redislock.New(client, redislock.WithObserver(observer), redislock.WithCommandTimeout(aWhile))
	check(t, err)
	defer locks.Close()
	lock := lockOf(t, locks, "k")
	ctx, cancel := context.WithCancel(background)
	first := begin(func(context.Context) (int64, error) { return lock.Acquire(ctx) })
	receive(t, reports)
	_, err = lock.TryAcquire(background)
	expect(t, err, redislock.ErrUnavailable)
	_, err = lock.AcquireWithin(background, aWhile)
	expect(t, err, redislock.ErrUnavailable)
	cancel()
	expect(t, receive(t, first), context.Canceled)
	runtime.KeepAlive(lock)
}

func TestTriesOfOneObjectEndAtOnce(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t, redislock.WithCommandTimeout(time.Minute)), "k")
	tries := func(count int) (granted int) {
		var all []<-chan error
		for range count {
			all = append(all, begin(lock.TryAcquire))
		}
		takes(t, "the tries", 0, late, func() {
			for _, each := range all {
				if err := receive(t, each); err == nil {
					granted++
				} else {
					expect(t, err, redislock.ErrNotAcquired)
				}
			}
		})
		return granted
	}
	if granted := tries(20); granted != 1 {
		t.Errorf("%d are granted", granted)
	}
	check(t, lock.Release(background))
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	next := begin(lock.Acquire)
	until(t, "one waits", func() bool { return s.Waiters(t, "k") == 1 })
	if granted := tries(20); granted != 0 {
		t.Errorf("%d are granted", granted)
	}
	s.Call(t, "LOCK.RELEASE", "k", "other")
	check(t, receive(t, next))
	runtime.KeepAlive(lock)
}

func TestManyGoroutinesThatGiveUpSeeNoOutage(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k")
	// A machine that is busy may stand still for longer than a wait.
	until(t, "a round without an outage", func() bool { return giveUp(t, lock) == nil })
}

// giveUp lets goroutines give up waiting for a lock, and returns the errors that say something else.
func giveUp(t *testing.T, lock *redislock.Lock) (failed error) {
	var all []<-chan error
	for range 50 {
		all = append(all, begin(func(ctx context.Context) (int64, error) {
			for range 5 {
				fence, err := lock.AcquireWithin(ctx, 100*time.Millisecond)
				switch {
				case err == nil:
					time.Sleep(5 * time.Millisecond)
					check(t, lock.Release(ctx))
				case !errors.Is(err, redislock.ErrNotAcquired):
					return fence, err
				}
			}
			return 0, nil
		}))
	}
	for _, each := range all {
		failed = errors.Join(failed, receive(t, each))
	}
	return failed
}

func TestAHoldThatComesAfterTheLossIsNone(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithReentrant(), redislock.WithLease(700*time.Millisecond), redislock.WithoutRenewal())
	acquired(t, lock)
	// The lease of the server is longer than that of the local clock.
	s.Call(t, "LOCK.EXTEND", "k", lock.Token(), "PX", 600_000)
	goOn := s.Stop(t)
	again := begin(lock.Acquire)
	until(t, "it is lost", lock.IsLost)
	goOn()
	expect(t, receive(t, again), redislock.ErrLost)
	expect(t, lock.Release(background), redislock.ErrLost)
	until(t, "nothing is left", func() bool { return s.IsFree(t, "k") })
	acquired(t, lock)
	check(t, lock.Release(background))
}

func TestAnExtensionThatFailedIsntAppliedLater(t *testing.T) {
	s := serve(t)
	reports := make(chan error, 10)
	observer := redislock.Observer{Unavailable: func(err error) { reports <- err }}
	locks := s.locks(t, redislock.WithCommandTimeout(300*time.Millisecond), redislock.WithObserver(observer))
	lock := lockOf(t, locks, "k", redislock.WithLease(6*time.Second))
	acquired(t, lock)
	goOn := s.Stop(t)
	// The renewal has failed once, and goes on.
	receive(t, reports)
	before := lock.Until()
	expect(t, lock.Extend(background, time.Hour), redislock.ErrUnavailable)
	goOn()
	until(t, "it is renewed", func() bool { return lock.Until().After(before) })
	time.Sleep(aWhile)
	if left := time.Until(lock.Until()); left > time.Minute {
		t.Errorf("extended by %v", left)
	}
	check(t, lock.Release(background))
}

func TestAnExtensionThatHangsDoesntDelayTheReportOfALoss(t *testing.T) {
	s := serve(t)
	locks := s.locks(t, redislock.WithCommandTimeout(5*time.Second))
	lock := lockOf(t, locks, "k", redislock.WithLease(time.Second), redislock.WithoutRenewal())
	acquired(t, lock)
	left := time.Until(lock.Until())
	goOn := s.Stop(t)
	defer goOn()
	extended := make(chan error, 1)
	go func() { extended <- lock.Extend(background, time.Hour) }()
	takes(t, "the loss", left, late, func() { receive(t, lock.Lost()) })
	expect(t, receive(t, extended), redislock.ErrLost)
	// A lock that is collected is released.
	runtime.KeepAlive(lock)
}

func TestALockThatIsAcquiredIsNotCollected(t *testing.T) {
	s := serve(t)
	outcomes := make(chan redislock.Outcome, 10)
	locks := s.locks(t, redislock.WithObserver(redislock.Observer{
		Waited: func(_ *redislock.Lock, _ time.Duration, outcome redislock.Outcome) { outcomes <- outcome },
	}))
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	done := begin(func(ctx context.Context) (int64, error) { return lockOf(t, locks, "k").Acquire(ctx) })
	until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
	for range 3 {
		runtime.GC()
		time.Sleep(aWhile / 10)
	}
	s.Call(t, "LOCK.RELEASE", "k", "other")
	check(t, receive(t, done))
	if outcome := receive(t, outcomes); outcome != redislock.Granted {
		t.Error(outcome)
	}
	until(t, "it is collected and released", func() bool {
		runtime.GC()
		return s.IsFree(t, "k")
	})
}

// distant is a connection whose replies are late.
type distant struct {
	net.Conn
	by time.Duration
}

func (d distant) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	time.Sleep(d.by)
	return n, err
}

// at returns a maker of locks on a server that is this far away.
func (s server) at(t *testing.T, distance time.Duration) *redislock.Locks {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: s.Address,
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return distant{conn, distance}, err
		},
	})
	locks, err := redislock.New(client)
	check(t, err)
	t.Cleanup(func() {
		check(t, locks.Close())
		check(t, client.Close())
	})
	return locks
}

// lingering is a connection whose replies can be late, and whose end by the library waits for the test.
type lingering struct {
	net.Conn
	lateBy    *atomic.Int64
	isClosing chan struct{}
	mayClose  chan struct{}
}

func (c lingering) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(time.Duration(c.lateBy.Load()))
	return n, err
}

func (c lingering) Close() error {
	select {
	case c.isClosing <- struct{}{}:
		<-c.mayClose
	default:
	}
	return c.Conn.Close()
}

// The reply of the try comes between the undo and the end of the connection, which the pool then
// has for the next command.
func TestAConnectionThatEndsCarriesNoOtherCommand(t *testing.T) {
	s := serve(t)
	var lateBy atomic.Int64
	isClosing, mayClose := make(chan struct{}), make(chan struct{})
	endClose := sync.OnceFunc(func() { close(mayClose) })
	defer endClose()
	client := redis.NewClient(&redis.Options{
		Addr: s.Address,
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return lingering{conn, &lateBy, isClosing, mayClose}, err
		},
	})
	locks, err := redislock.New(client)
	check(t, err)
	acquired(t, lockOf(t, locks, "connected"))
	lateBy.Store(int64(300 * time.Millisecond))
	ended := begin(func(ctx context.Context) (int64, error) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return lockOf(t, locks, "late").TryAcquire(ctx)
	})
	receive(t, isClosing)
	lateBy.Store(0)
	for i := range 50 {
		if _, err := lockOf(t, locks, fmt.Sprint("free", i)).TryAcquire(background); err != nil {
			t.Fatalf("the reply of another command: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	endClose()
	expect(t, receive(t, ended), redislock.ErrUnavailable)
	until(t, "it is given back", func() bool { return s.IsFree(t, "late") })
	check(t, locks.Close())
	check(t, client.Close())
}

// overtaken is a connection that delivers late from an armed LOCK.ACQUIRE on, also after its close.
type overtaken struct {
	net.Conn
	isArmed   *atomic.Bool
	delivered chan struct{}
	late      chan []byte
	closed    sync.Once
}

func (c *overtaken) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("LOCK.ACQUIRE")) && c.isArmed.CompareAndSwap(true, false) {
		c.late = make(chan []byte, 10)
	}
	if c.late == nil {
		return c.Conn.Write(b)
	}
	c.late <- bytes.Clone(b)
	return len(b), nil
}

func (c *overtaken) Close() error {
	if c.late == nil {
		return c.Conn.Close()
	}
	c.closed.Do(func() { close(c.late); go c.deliver() })
	return nil
}

func (c *overtaken) deliver() {
	defer close(c.delivered)
	defer c.Conn.Close()
	time.Sleep(500 * time.Millisecond)
	_ = c.SetDeadline(time.Now().Add(patience))
	for b := range c.late {
		_, _ = c.Conn.Write(b)
	}
	// The replies show that the server has carried them out.
	_, _ = io.ReadAtLeast(c.Conn, make([]byte, 100), len("*-1\r\n:0\r\n:1\r\n"))
}

// The commands that undo the first try arrive after the second grant.
func TestAnUndoThatArrivesLateSparesTheNextGrant(t *testing.T) {
	s := serve(t)
	var isArmed atomic.Bool
	delivered := make(chan struct{})
	client := redis.NewClient(&redis.Options{
		Addr: s.Address,
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return &overtaken{Conn: conn, isArmed: &isArmed, delivered: delivered}, err
		},
	})
	defer client.Close()
	locks, err := redislock.New(client)
	check(t, err)
	defer locks.Close()
	acquired(t, lockOf(t, locks, "connected"))
	lock := lockOf(t, locks, "k")
	isArmed.Store(true)
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	_, err = lock.TryAcquire(ctx)
	expect(t, err, redislock.ErrUnavailable)
	acquired(t, lock)
	receive(t, delivered)
	isOwned, err := lock.Owned(background)
	check(t, err)
	if !isOwned {
		t.Error("the undo of the first try released the second grant")
	}
	check(t, lock.Release(background))
}

// A late extension would set the next grant's lease, and a late RELEASE of a loss would end it.
func TestATokenWhoseCommandMayComeLateIsNotUsedAgain(t *testing.T) {
	s := serve(t)
	locks := s.locks(t, redislock.WithCommandTimeout(2*time.Second))
	ends := map[string]func(lock *redislock.Lock){
		"an extension without a reply": func(lock *redislock.Lock) {
			goOn := s.Stop(t)
			ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
			defer cancel()
			expect(t, lock.Extend(ctx, time.Hour), redislock.ErrUnavailable)
			goOn()
			check(t, lock.Release(background))
		},
		"a loss": func(lock *redislock.Lock) {
			s.Call(t, "DEL", "a")
			expect(t, lock.Extend(background, time.Hour), redislock.ErrLost)
			expect(t, lock.Release(background), redislock.ErrLost)
		},
	}
	for name, end := range ends {
		for _, reentrant := range [][]redislock.Option{nil, {redislock.WithReentrant()}} {
			lock, err := locks.LockAll([]string{"a", "b"}, reentrant...)
			check(t, err)
			acquired(t, lock)
			token := lock.Token()
			end(lock)
			acquired(t, lock)
			if lock.Token() == token {
				t.Errorf("%s: the token is used again", name)
			}
			check(t, lock.Release(background))
		}
	}
}

func TestAWaitOnASlowNetworkIsRefusedInTheEnd(t *testing.T) {
	s := serve(t)
	locks := s.at(t, 60*time.Millisecond)
	acquired(t, lockOf(t, locks, "connected"))
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	// A machine that is busy is slower than the network.
	until(t, "a wait is refused", func() bool {
		_, err := lockOf(t, locks, "k").AcquireWithin(background, 400*time.Millisecond)
		return errors.Is(err, redislock.ErrNotAcquired)
	})
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
}

func TestALeaseShorterThanAReplyIsNotAskedForAgainAndAgain(t *testing.T) {
	s := serve(t)
	locks := s.at(t, 20*time.Millisecond)
	acquired(t, lockOf(t, locks, "connected"))
	lock := lockOf(t, locks, "k", redislock.WithLease(2*time.Millisecond))
	const limit = 500 * time.Millisecond
	ended := begin(func(ctx context.Context) (int64, error) { return lock.AcquireWithin(ctx, limit) })
	takes(t, "the wait", limit, late, func() { expect(t, receive(t, ended), redislock.ErrUnavailable) })
}

func TestAnAdoptionThatFailsLeavesTheGrant(t *testing.T) {
	s := serve(t)
	locks := s.locks(t, redislock.WithCommandTimeout(300*time.Millisecond))
	first := lockOf(t, locks, "k")
	acquired(t, first)
	second := lockOf(t, locks, "k", redislock.WithToken(first.Token()), redislock.WithReplicas(1))
	_, err := second.Adopt(background)
	expect(t, err, redislock.ErrNotReplicated)
	time.Sleep(aWhile)
	check(t, first.Release(background))
}
