package redislock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

const (
	patience = testserver.Patience
	late     = testserver.Late
)

var (
	background = context.Background()
	check      = testserver.Check
	expect     = testserver.Expect
	until      = testserver.Until
	takes      = testserver.Takes
	blocks     = testserver.Blocks
)

// server is a server for one test.
type server struct{ *testserver.Server }

func serve(t *testing.T) server {
	t.Helper()
	return server{testserver.Serve(t)}
}

func (s server) locks(t *testing.T, options ...redislock.LocksOption) *redislock.Locks {
	t.Helper()
	locks, err := redislock.New(s.Client, options...)
	check(t, err)
	t.Cleanup(func() { check(t, locks.Close()) })
	return locks
}

func lockOf(t *testing.T, locks *redislock.Locks, key string, options ...redislock.Option) *redislock.Lock {
	t.Helper()
	lock, err := locks.Lock(key, options...)
	check(t, err)
	return lock
}

func acquired(t *testing.T, lock *redislock.Lock) int64 {
	t.Helper()
	fence, err := lock.Acquire(background)
	check(t, err)
	return fence
}

// receive returns the next value of a channel.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatalf("nothing within %v", patience)
		panic("unreachable")
	}
}

func TestAPanicInDoReleasesAndGoesOn(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k")
	failure := errors.New("of the work")
	if err := lock.Do(background, func(context.Context, int64) error { return failure }); err != failure {
		t.Errorf("%v instead of the error of the work", err)
	}
	func() {
		defer func() {
			if caught := recover(); caught != lock.Fence() {
				t.Errorf("the panic became %v", caught)
			}
		}()
		_ = lock.Do(background, func(_ context.Context, fence int64) error { panic(fence) })
	}()
	if !s.IsFree(t, "k") {
		t.Error("not released")
	}
}

func TestGoexitInDoReleases(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = lock.Do(background, func(context.Context, int64) error {
			runtime.Goexit()
			return nil
		})
	}()
	<-ended
	if !s.IsFree(t, "k") {
		t.Error("not released")
	}
}

func TestDoEndsItsContextWithTheLock(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithLease(300*time.Millisecond))
	err := lock.Do(background, func(ctx context.Context, _ int64) error {
		s.Call(t, "DEL", "k")
		select {
		case <-ctx.Done():
			expect(t, context.Cause(ctx), redislock.ErrLost)
		case <-time.After(patience):
			t.Error("the context doesn't end")
		}
		return nil
	})
	expect(t, err, redislock.ErrLost)
}

func TestRenewalEndsWithTheContextOfDo(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithLease(3*time.Second))
	ctx, cancel := context.WithCancel(background)
	err := lock.Do(ctx, func(context.Context, int64) error {
		time.Sleep(4 * time.Second)
		if !lock.IsHeld() {
			t.Error("it wasn't renewed")
		}
		cancel()
		until(t, "the lock is lost", lock.IsLost)
		return nil
	})
	expect(t, err, redislock.ErrLost)
}

func TestGoroutinesThatShareALockExcludeEachOther(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k")
	mutex := lock.Locker()
	inside, count := 0, 0
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			mutex.Lock()
			defer mutex.Unlock()
			inside++
			if inside != 1 {
				t.Error("two are inside")
			}
			count++
			inside--
		}()
	}
	all.Wait()
	if count != 50 {
		t.Errorf("%d were inside", count)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second Unlock doesn't panic")
		}
	}()
	mutex.Unlock()
}

// waitInVain waits for the lock k until its holder is seen, by tries of this time: a machine that is
// busy may get no reply within a short one.
func waitInVain(t *testing.T, locks *redislock.Locks, within time.Duration) {
	t.Helper()
	until(t, "a wait in vain", func() bool {
		_, err := lockOf(t, locks, "k").AcquireWithin(background, within)
		return errors.Is(err, redislock.ErrNotAcquired)
	})
}

// contend lets goroutines acquire and release the lock k once, each with a lock object of its own. The
// channel gets the error of each, or nil.
func contend(t *testing.T, locks *redislock.Locks, count int) chan error {
	t.Helper()
	done := make(chan error, count)
	for range count {
		lock := lockOf(t, locks, "k")
		go func() {
			_, err := lock.Acquire(background)
			if err == nil {
				err = lock.Release(background)
			}
			done <- err
		}()
	}
	return done
}

func TestAThousandGoroutinesWaitOnFewConnections(t *testing.T) {
	const count = 1000
	s := serve(t)
	locks := s.locks(t)
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	failures := contend(t, locks, count)
	until(t, "all wait", func() bool { return s.Waiters(t, "k") == count })
	connections := strings.Count(s.Call(t, "CLIENT", "LIST").(string), " addr=")
	if connections > 40 {
		t.Errorf("%d connections", connections)
	}
	began := time.Now()
	s.Call(t, "LOCK.RELEASE", "k", "other")
	for range count {
		check(t, receive(t, failures))
	}
	t.Logf("%d connections, %v for all", connections, time.Since(began))
}

func TestAContendedWaitBlocksForAMomentAndGoesOnInTheQueue(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	waitInVain(t, locks, 10*time.Millisecond)
	kind := func() string { return fmt.Sprint(s.Call(t, "LOCK.INFO", "k", "WAITERS", 1)) }
	done := contend(t, locks, 1)
	until(t, "it has blocked", func() bool {
		return strings.Contains(s.Call(t, "INFO", "commandstats").(string), "cmdstat_lock.wait:calls=1,")
	})
	until(t, "it has a place", func() bool { return s.Waiters(t, "k") == 1 && !strings.Contains(kind(), "blocked") })
	s.Call(t, "LOCK.RELEASE", "k", "other")
	check(t, receive(t, done))
}

func TestThoseFurtherBackBlockOnceOthersAreGranted(t *testing.T) {
	const count = 300
	s := serve(t)
	locks := s.locks(t)
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	failures := contend(t, locks, count)
	until(t, "all have a place", func() bool {
		queue := fmt.Sprint(s.Call(t, "LOCK.INFO", "k", "WAITERS", count))
		return s.Waiters(t, "k") == count && !strings.Contains(queue, "blocked")
	})
	s.Call(t, "CONFIG", "RESETSTAT")
	s.Call(t, "LOCK.RELEASE", "k", "other")
	for range count {
		check(t, receive(t, failures))
	}
	stats := s.Call(t, "INFO", "commandstats").(string)
	_, waits, _ := strings.Cut(stats, "cmdstat_lock.wait:calls=")
	waits, _, _ = strings.Cut(waits, ",")
	if n, _ := strconv.Atoi(waits); n < count/2 {
		t.Errorf("%q of %d blocked", waits, count)
	}
}

// slowly delays the first bytes of each connection while isSlow, for longer than a wait blocks.
type slowly struct {
	net.Conn
	isSlow bool
}

func (c *slowly) Write(b []byte) (int, error) {
	if c.isSlow {
		c.isSlow = false
		time.Sleep(400 * time.Millisecond)
	}
	return c.Conn.Write(b)
}

func TestAWaitWhoseConnectionComesLateIsGrantedAtOnce(t *testing.T) {
	var isSlow atomic.Bool
	dialers := map[string]func(network, address string) (net.Conn, error){
		"connecting": func(network, address string) (net.Conn, error) {
			if isSlow.Load() {
				time.Sleep(400 * time.Millisecond)
			}
			return net.Dial(network, address)
		},
		"handshake": func(network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return &slowly{conn, isSlow.Load()}, err
		},
	}
	for name, dialer := range dialers {
		t.Run(name, func(t *testing.T) {
			isSlow.Store(false)
			s := serve(t)
			client := redis.NewClient(&redis.Options{
				Addr:   s.Address,
				Dialer: func(_ context.Context, network, address string) (net.Conn, error) { return dialer(network, address) },
			})
			defer client.Close()
			locks, err := redislock.New(client)
			check(t, err)
			defer locks.Close()
			s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
			waitInVain(t, locks, 10*time.Millisecond)
			isSlow.Store(true)
			done := contend(t, locks, 1)
			until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
			// The connection is there by then.
			time.Sleep(600 * time.Millisecond)
			s.Call(t, "LOCK.RELEASE", "k", "other")
			released := time.Now()
			check(t, receive(t, done))
			if took := time.Since(released); took > time.Second {
				t.Errorf("granted after %v", took)
			}
		})
	}
}

func TestAServerThatRefusesToBlockQueues(t *testing.T) {
	refusals := map[string][]any{
		"NOPERM":     {"ACL", "SETUSER", "default", "-lock.wait"},
		"MAXWAITERS": {"CONFIG", "SET", "lock.max-waiters", 1},
	}
	for name, refusal := range refusals {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			locks := s.locks(t)
			s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
			s.Call(t, "LOCK.ACQUIRE", "elsewhere", "other", "PX", 600_000)
			elsewhere := redis.NewClient(&redis.Options{Addr: s.Address, ReadTimeout: -1})
			defer elsewhere.Close()
			go elsewhere.Do(background, "LOCK.WAIT", "elsewhere", "token")
			until(t, "one blocks", func() bool { return s.Waiters(t, "elsewhere") == 1 })
			s.Call(t, refusal...)
			for range 3 {
				waitInVain(t, locks, 10*time.Millisecond)
			}
			done := contend(t, locks, 3)
			until(t, "all have a place", func() bool { return s.Waiters(t, "k") == int64(cap(done)) })
			s.Call(t, "LOCK.RELEASE", "k", "other")
			for range cap(done) {
				check(t, receive(t, done))
			}
			s.Call(t, "CONFIG", "RESETSTAT")
			s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
			waitInVain(t, locks, time.Second)
			if stats := s.Call(t, "INFO", "commandstats").(string); strings.Contains(stats, "lock.wait") {
				t.Error("it is asked again")
			}
		})
	}
}

func TestAWaitThatIsCancelledWhileItBlocksLeavesNothing(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	for range 50 {
		waitInVain(t, locks, 5*time.Millisecond)
		ctx, cancel := context.WithTimeout(background, time.Minute)
		time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
		_, err := lockOf(t, locks, "k").Acquire(ctx)
		expect(t, err, context.Canceled)
	}
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	s.Call(t, "LOCK.RELEASE", "k", "other")
	acquired(t, lockOf(t, locks, "k"))
}

func TestAnExhaustedPoolOfTheClientDoesntMatter(t *testing.T) {
	s := serve(t)
	client := redis.NewClient(&redis.Options{Addr: s.Address, PoolSize: 1, PoolTimeout: time.Hour})
	defer client.Close()
	_, err := client.Ping(background).Result()
	check(t, err)
	go client.BLPop(background, 0, "never")
	until(t, "the pool is exhausted", func() bool { return client.PoolStats().IdleConns == 0 })
	locks, err := redislock.New(client)
	check(t, err)
	defer locks.Close()
	lock := lockOf(t, locks, "k")
	_, err = lock.TryAcquire(background)
	check(t, err)
	check(t, lock.Release(background))
}

func TestACollectedLockIsReleased(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	acquired(t, lockOf(t, locks, "k", redislock.WithOnLost(func(*redislock.Lock) {})))
	until(t, "it is released", func() bool {
		runtime.GC()
		return s.IsFree(t, "k")
	})
}

func TestADetachedLockOutlivesItsCollection(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	const lease = time.Second
	options := []redislock.Option{redislock.WithLease(lease), redislock.WithDetached()}
	acquired(t, lockOf(t, locks, "k", options...))
	began := time.Now()
	until(t, "it ends", func() bool {
		runtime.GC()
		return s.IsFree(t, "k")
	})
	if ended := time.Since(began); ended < lease/2 {
		t.Errorf("it ended after %v", ended)
	}
}

func TestAnAdoptedLockHasTheFenceAndEndsForTheOther(t *testing.T) {
	s := serve(t)
	locks, others := s.locks(t), s.locks(t)
	first := lockOf(t, locks, "k", redislock.WithData("job 7"), redislock.WithoutRenewal())
	fence := acquired(t, first)
	second := lockOf(t, others, "k", redislock.WithToken(first.Token()), redislock.WithLease(time.Hour))
	adopted, err := second.Adopt(background)
	check(t, err)
	left, err := first.Left(background)
	check(t, err)
	if adopted != fence || !second.IsHeld() || left < 59*time.Minute {
		t.Errorf("fence %d instead of %d, or not held for an hour but %v", adopted, fence, left)
	}
	_, err = second.Adopt(background)
	expect(t, err, redislock.ErrNotAcquired)
	check(t, second.Release(background))
	expect(t, first.Release(background), redislock.ErrLost)
}

func TestOnlyAHeldTokenIsAdopted(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	lock := lockOf(t, locks, "k")
	_, err := lock.Adopt(background)
	expect(t, err, redislock.ErrNotHeld)
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	_, err = lock.Adopt(background)
	expect(t, err, redislock.ErrNotHeld)
	if lock.IsHeld() || s.Call(t, "LOCK.CHECK", "k", "other").(int64) == 0 {
		t.Error("it holds what another one has")
	}
	goOn := s.Stop(t)
	defer goOn()
	takes(t, "adopt", time.Second, late, func() {
		_, err = lock.Adopt(background)
		expect(t, err, redislock.ErrUnavailable)
	})
}

func TestHoldersAreThoseOfTheServer(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k")
	none, err := lock.Holders(background)
	check(t, err)
	s.Call(t, "LOCK.ACQUIRE", "k", "t0psecret", "PX", 600_000, "DATA", "job 7", "SHARED")
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000, "SHARED")
	two, err := lock.Holders(background)
	check(t, err)
	if len(none) != 0 || len(two) != 2 {
		t.Fatalf("%v, %v", none, two)
	}
	first := two[0]
	if first.Token() != "t0psecret" {
		first = two[1]
	}
	if first.Token() != "t0psecret" || first.Data != "job 7" || first.Fence == 0 {
		t.Errorf("%v", two)
	}
	if texts := fmt.Sprintf("%v %+v %#v", two, two, two); strings.Contains(texts, "t0psecret") {
		t.Error(texts)
	}
}

func TestUntilIsTheEndOfTheLease(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithLease(time.Minute))
	if !lock.Until().IsZero() {
		t.Error("it ends before it begins")
	}
	began := time.Now()
	acquired(t, lock)
	if least := began.Add(time.Minute); lock.Until().Before(least) || lock.Until().After(time.Now().Add(time.Minute)) {
		t.Errorf("until %v instead of %v", lock.Until(), least)
	}
	check(t, lock.Extend(background, time.Hour))
	if lock.Until().Before(began.Add(time.Hour)) {
		t.Error("an extension doesn't change it")
	}
	check(t, lock.Release(background))
	if !lock.Until().IsZero() {
		t.Error("it is held after its release")
	}
}

// The conformance suite plays the calls without a context of their own.
func TestACallEndsWithItsContextThoughTheServerStandsStill(t *testing.T) {
	s := serve(t)
	const timeout = 5 * time.Second
	locks := s.locks(t, redislock.WithCommandTimeout(timeout))
	held := func(key string) *redislock.Lock {
		lock := lockOf(t, locks, key)
		acquired(t, lock)
		return lock
	}
	released, left, cancelled := held("a"), held("c"), held("d")
	goOn := s.Stop(t)
	var all sync.WaitGroup
	play := func(what string, time time.Duration, call func() error, expected ...error) {
		all.Add(1)
		go func() {
			defer all.Done()
			takes(t, what, time, late, func() { expect(t, call(), expected...) })
		}()
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	play("try with a deadline", 300*time.Millisecond, func() error {
		_, err := lockOf(t, locks, "free").TryAcquire(short())
		return err
	}, redislock.ErrUnavailable, context.DeadlineExceeded)
	play("release", timeout, func() error { return released.Release(background) }, redislock.ErrUnavailable)
	play("left with a deadline", 300*time.Millisecond, func() error {
		_, err := left.Left(short())
		return err
	}, redislock.ErrUnavailable)
	play("release with an ended context", 0, func() error {
		ended, cancel := context.WithCancel(background)
		cancel()
		return cancelled.Release(ended)
	}, context.Canceled)
	all.Wait()
	if released.IsHeld() {
		t.Error("released is held")
	}
	goOn()
	for _, key := range []string{"free", "a", "d"} {
		until(t, key+" is free", func() bool { return s.IsFree(t, key) })
	}
}

// Nothing but the connection itself can undo the try, because the cleanup is over when the server
// goes on.
func TestATryThatTimedOutIsUndoneOnItsConnection(t *testing.T) {
	s := serve(t)
	locks, err := redislock.New(s.Client)
	check(t, err)
	lock := lockOf(t, locks, "k")
	acquired(t, lock)
	check(t, lock.Release(background))
	goOn := s.Stop(t)
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	_, err = lock.TryAcquire(ctx)
	expect(t, err, redislock.ErrUnavailable)
	check(t, locks.Close())
	goOn()
	until(t, "the try was carried out", func() bool {
		return strings.Contains(s.Call(t, "INFO", "commandstats").(string), "cmdstat_lock.acquire:calls=1,")
	})
	if !s.IsFree(t, "k") {
		t.Error("the try left a grant")
	}
}

// The dialer ignores its context, as the one of TLS does.
func TestADialThatHangsEndsWithItsContext(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-never
		return nil, errors.New("it ends")
	}})
	defer client.Close()
	locks, err := redislock.New(client)
	check(t, err)
	defer locks.Close()
	for range 20 {
		lock := lockOf(t, locks, "k")
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		takes(t, "try", 100*time.Millisecond, late, func() {
			_, err := lock.TryAcquire(ctx)
			expect(t, err, redislock.ErrUnavailable)
		})
		cancel()
	}
}

func TestAWaitWithoutALimitReportsAnOutageOnce(t *testing.T) {
	reports := make(chan error, 10)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	observer := redislock.Observer{Unavailable: func(err error) {
		reports <- err
		panic("an observer that panics does no harm")
	}}
	locks, err := redislock.New(client, redislock.WithObserver(observer))
	check(t, err)
	defer locks.Close()
	lock := lockOf(t, locks, "k")
	ctx, cancel := context.WithCancel(background)
	failed := make(chan error, 1)
	go func() {
		_, err := lock.Acquire(ctx)
		failed <- err
	}()
	report := receive(t, reports)
	expect(t, report, redislock.ErrUnavailable, syscall.ECONNREFUSED)
	time.Sleep(500 * time.Millisecond)
	if len(reports) != 0 {
		t.Errorf("and %v", <-reports)
	}
	cancel()
	expect(t, receive(t, failed), context.Canceled)
}

func TestCloseEndsSessions(t *testing.T) {
	s := serve(t)
	locks, err := redislock.New(s.Client)
	check(t, err)
	lock := lockOf(t, locks, "k", redislock.WithSession())
	acquired(t, lock)
	if s.IsFree(t, "k") {
		t.Error("not held")
	}
	check(t, locks.Close())
	until(t, "the session ends", func() bool { return s.IsFree(t, "k") })
	_, err = lockOf(t, locks, "other").Acquire(background)
	expect(t, err, redis.ErrClosed)
}

func TestAReentrantLockThatWasLostSaysSo(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithReentrant())
	acquired(t, lock)
	s.Call(t, "DEL", "k")
	_, err := lock.Acquire(background)
	expect(t, err, redislock.ErrLost)
	until(t, "nothing is left", func() bool { return s.IsFree(t, "k") })
	expect(t, lock.Release(background), redislock.ErrLost)
	acquired(t, lock)
	s.Call(t, "DEL", "k")
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	_, err = lock.Acquire(background)
	expect(t, err, redislock.ErrLost)
	if lock.IsHeld() {
		t.Error("held after its loss")
	}
	s.Call(t, "LOCK.RELEASE", "k", "other")
	expect(t, lock.Release(background), redislock.ErrLost)
	acquired(t, lock)
	check(t, lock.Release(background))
}

func TestEveryBlockAroundALossEndsWithIt(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithReentrant(), redislock.WithLease(600*time.Millisecond))
	var inner error
	outer := lock.Do(background, func(context.Context, int64) error {
		s.Call(t, "DEL", "k")
		<-lock.Lost()
		inner = lock.Do(background, func(context.Context, int64) error { return nil })
		return nil
	})
	expect(t, inner, redislock.ErrLost)
	expect(t, outer, redislock.ErrLost)
	acquired(t, lock)
	check(t, lock.Release(background))
}

func TestABlockWhoseLockWasLostSparesTheNextOneOfItsObject(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, s.locks(t), "k", redislock.WithLease(600*time.Millisecond))
	outer := lock.Do(background, func(context.Context, int64) error {
		s.Call(t, "DEL", "k")
		<-lock.Lost()
		acquired(t, lock)
		return nil
	})
	expect(t, outer, redislock.ErrLost)
	if !lock.IsHeld() || s.IsFree(t, "k") {
		t.Error("the next one's lock was released")
	}
	check(t, lock.Release(background))
}

func TestAnExtensionThatMeetsAReleaseSaysSo(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	for range 100 {
		lock := lockOf(t, locks, "k")
		acquired(t, lock)
		extended := make(chan error, 1)
		go func() { extended <- lock.Extend(background, time.Minute) }()
		check(t, lock.Release(background))
		if err := <-extended; err != nil && !errors.Is(err, redislock.ErrNotHeld) {
			t.Fatal(err)
		}
	}
}

func TestNoTextShowsTheToken(t *testing.T) {
	const token = "t0psecret"
	s := serve(t)
	locks := s.locks(t)
	lock := lockOf(t, locks, "k", redislock.WithToken(token))
	acquired(t, lock)
	forms, err := json.Marshal([]any{lock, locks})
	check(t, err)
	texts := string(forms)
	for _, value := range []any{lock, *lock, locks, redislock.WithToken(token)} {
		texts += fmt.Sprintf("%v %+v %#v %s %d\n", value, value, value, value, value)
	}
	s.Call(t, "ACL", "SETUSER", "default", "-lock.extend")
	err = lock.Extend(background, time.Minute)
	texts += fmt.Sprintf("%v %+v %#v", err, err, err)
	if strings.Contains(texts, token) || !strings.Contains(texts, "held, fence") {
		t.Error(texts)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	s := serve(t)
	locks := s.locks(t)
	wrong := map[string]redislock.Option{
		"lease": redislock.WithLease(0), "wait": redislock.WithWait(-1), "keep": redislock.WithKeep(-time.Second),
		"max hold": redislock.WithMaxHold(0), "at least": redislock.WithAtLeast(-1), "token": redislock.WithToken("*"),
		"limit": redislock.WithLimit(0), "permits": redislock.WithPermits(1), "replicas": redislock.WithReplicas(1001),
		"data": redislock.WithData(strings.Repeat("x", 1025)),
	}
	expectNamed := func(err error, name string) {
		t.Helper()
		var argument *redislock.ArgumentError
		if !errors.As(err, &argument) || argument.Argument != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, option := range wrong {
		_, err := locks.Lock("k", option)
		expectNamed(err, name)
	}
	_, err := locks.Lock("k", redislock.WithLease(time.Millisecond-1))
	expectNamed(err, "lease")
	_, err = locks.LockAll(nil)
	expectNamed(err, "keys")
	_, err = locks.LockAll([]string{"a", "a"})
	expectNamed(err, "keys")
	_, err = redislock.New(redis.NewRing(&redis.RingOptions{}))
	expectNamed(err, "client")
	_, err = redislock.New(s.Client, redislock.WithCommandTimeout(0))
	expectNamed(err, "command timeout")
	lock := lockOf(t, locks, "k")
	_, err = lock.AcquireWithin(background, -1)
	expectNamed(err, "wait")
	acquired(t, lock)
	expectNamed(lock.Extend(background, 0), "lease")
	expectNamed(lock.Extend(background, time.Millisecond-1), "lease")
	if !lock.IsHeld() {
		t.Error("a wrong extend ended the lock")
	}
	if s.Call(t, "LOCK.INFO", "k") == nil {
		t.Error("it isn't held")
	}
}

// shell runs a script of the README.
func shell(t *testing.T, folder, script string) {
	t.Helper()
	command := exec.Command("sh", "-euc", script)
	command.Dir = folder
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

func TestTheFirstLockOfTheReadmeIsWaitedFor(t *testing.T) {
	text, err := os.ReadFile("README.md")
	check(t, err)
	here, err := filepath.Abs(".")
	check(t, err)
	s := serve(t)
	folder := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(folder, "redis-lock/clients"), 0o755))
	check(t, os.Symlink(here, filepath.Join(folder, "redis-lock/clients/go")))
	commands := blocks(string(text), "sh")
	shell(t, folder, commands[0])
	project := filepath.Join(folder, "first-lock")
	source := strings.Replace(blocks(string(text), "go")[0], "127.0.0.1:6379", s.Address, 1)
	check(t, os.WriteFile(filepath.Join(project, "main.go"), []byte(source), 0o644))
	shell(t, project, commands[1])
	check(t, os.Mkdir(filepath.Join(project, "parts"), 0o755))
	check(t, os.WriteFile(filepath.Join(project, "parts/parts.go"), []byte(partsOf(string(text))), 0o644))
	shell(t, project, "go vet ./parts")

	run := func() chan string {
		said := make(chan string, 1)
		go func() {
			output, err := exec.Command(filepath.Join(project, "first-lock")).CombinedOutput()
			said <- fmt.Sprint(string(output), err)
		}()
		return said
	}
	// Held until both programs wait, however long the second program takes to start.
	s.Call(t, "LOCK.ACQUIRE", "orders:42", "other", "PX", 600_000)
	first := run()
	until(t, "the first one waits", func() bool { return s.Waiters(t, "orders:42") == 1 })
	second := run()
	until(t, "the second one waits", func() bool { return s.Waiters(t, "orders:42") == 2 })
	s.Call(t, "LOCK.RELEASE", "orders:42", "other")
	fences := [2]int64{}
	for i, said := range []string{receive(t, first), receive(t, second)} {
		if _, err := fmt.Sscanf(said, "got it, fence %d\nreleased\n<nil>", &fences[i]); err != nil {
			t.Fatalf("%v: %q", err, said)
		}
	}
	if fences[1] <= fences[0] {
		t.Errorf("fences %v", fences)
	}
}

// partsOf returns a program of the README's other blocks, which are parts of one.
func partsOf(readme string) string {
	return `package parts

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

func all(
	ctx context.Context, lock *redislock.Lock, client *redis.Client, tlsConfig *tls.Config, sentinels, nodes []string,
	store func(context.Context, int64) error,
) (*redislock.Locks, []redis.UniversalClient, error) {
	var err error
` + strings.Join(blocks(readme, "go")[1:], "\n") + `
	return locks, []redis.UniversalClient{one, sentinel, cluster}, err
}
`
}
