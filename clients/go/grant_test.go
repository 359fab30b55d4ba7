package redislock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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
	serve      = testserver.Serve
	check      = testserver.Check
	expect     = testserver.Expect
	until      = testserver.Until
	takes      = testserver.Takes
)

func locksOf(t *testing.T, client redis.UniversalClient, options ...redislock.LocksOption) *redislock.Locks {
	t.Helper()
	locks, err := redislock.New(client, options...)
	check(t, err)
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

func lockOf(t *testing.T, locks *redislock.Locks, key string, options ...redislock.Option) *redislock.Lock {
	t.Helper()
	lock, err := locks.Lock(key, options...)
	check(t, err)
	return lock
}

func acquired(t *testing.T, lock *redislock.Lock) *redislock.Grant {
	t.Helper()
	grant, err := lock.Acquire(background)
	check(t, err)
	return grant
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

// --- guarded blocks ------------------------------------------------------------------------------

func TestDoReleasesWhateverEndsIt(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	failure := errors.New("of the work")
	endings := []func() error{
		func() error { return failure }, func() error { panic(failure) },
		func() error {
			runtime.Goexit()
			return nil
		},
	}
	for number, end := range endings {
		ended := make(chan any)
		go func() {
			var result any
			defer func() { ended <- cmp.Or(recover(), result) }()
			result = lock.Do(background, func(context.Context, *redislock.Grant) error { return end() })
		}()
		if result := receive(t, ended); number < 2 && result != failure || !s.IsFree(t, "k") {
			t.Errorf("ending %d became %v", number, result)
		}
	}
}

func TestTheLossEndsTheContextOfDo(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k", redislock.WithLease(300*time.Millisecond))
	failure := errors.New("of the work")
	for _, own := range []error{nil, failure} {
		err := lock.Do(background, func(ctx context.Context, grant *redislock.Grant) error {
			s.Call(t, "DEL", "k")
			receive(t, ctx.Done())
			expect(t, context.Cause(ctx), redislock.ErrLost)
			receive(t, grant.Lost())
			return own
		})
		expect(t, err, redislock.ErrLost)
		if own != nil {
			expect(t, err, own)
		}
	}
}

func TestABlockMayReleaseItsGrant(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k"))
	check(t, grant.Do(background, func(ctx context.Context) error { return grant.Release(ctx) }))
	expect(t, grant.Release(background), redislock.ErrNotHeld)
	expect(t, grant.Extend(background, time.Minute), redislock.ErrNotHeld)
	expect(t, grant.Do(background, func(context.Context) error { return nil }), redislock.ErrNotHeld)
}

// --- the life of a grant -------------------------------------------------------------------------

func TestAGrantThatIsDroppedIsALossAndReleased(t *testing.T) {
	s := serve(t)
	lost := make(chan int64, 1)
	locks := locksOf(t, s.Client, redislock.WithObserver(redislock.Observer{
		Lost: func(grant *redislock.Grant) { lost <- grant.Fence() },
	}))
	grant := acquired(t, lockOf(t, locks, "k"))
	gone, fence := grant.Lost(), grant.Fence()
	within, cancel := grant.Context(background)
	defer cancel()
	kept := acquired(t, lockOf(t, locks, "kept"))
	until(t, "it is collected", func() bool {
		runtime.GC()
		return s.IsFree(t, "k")
	})
	if told := receive(t, lost); told != fence {
		t.Errorf("fence %d instead of %d", told, fence)
	}
	receive(t, gone)
	receive(t, within.Done())
	expect(t, context.Cause(within), redislock.ErrLost)
	check(t, kept.Release(background))
}

func TestAReleaseGoesOnWithoutItsContext(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k"))
	ended, cancel := context.WithCancel(background)
	cancel()
	expect(t, grant.Release(ended), context.Canceled)
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
}

func TestExtensionsAndRenewalsMeetReleases(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k", redislock.WithLease(40*time.Millisecond), redislock.WithMargin(0))
	for range 200 {
		grant := acquired(t, lock)
		results := make(chan error, 2)
		go func() { results <- grant.Extend(background, time.Minute) }()
		time.Sleep(time.Duration(time.Now().UnixNano()%20) * time.Millisecond)
		results <- grant.Release(background)
		for range 2 {
			if err := receive(t, results); err != nil && !errors.Is(err, redislock.ErrLost) && !errors.Is(err, redislock.ErrNotHeld) {
				t.Fatal(err)
			}
		}
	}
	until(t, "it is free", func() bool { return s.IsFree(t, "k") })
}

func TestAnExtensionIsNoShorterThanTheMargin(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k", redislock.WithLease(time.Minute)))
	for _, lease := range []time.Duration{-time.Second, 0, time.Second} {
		expectWrong(t, grant.Extend(background, lease), "lease")
	}
	check(t, grant.Extend(background, 2*time.Second))
	left, err := grant.TTL(background)
	check(t, err)
	if left < 50*time.Second || grant.Left() < 50*time.Second {
		t.Errorf("%v left at the server, %v here", left, grant.Left())
	}
}

func TestAGrantIsHandedOn(t *testing.T) {
	s := serve(t)
	locks, others := locksOf(t, s.Client), locksOf(t, s.Client)
	grant := acquired(t, lockOf(t, locks, "k"))
	check(t, grant.Detach())
	expect(t, grant.Detach(), redislock.ErrNotHeld)
	expect(t, grant.Release(background), redislock.ErrNotHeld)
	adopted, err := others.Adopt(background, grant.Keys(), grant.Token(), grant.Fence())
	check(t, err)
	holders, err := adopted.Lock().Holders(background)
	check(t, err)
	if len(holders) != 1 || holders[0].Fence != adopted.Fence() || holders[0].Token() != grant.Token() {
		t.Errorf("%v", holders)
	}
	check(t, adopted.Release(background))
	_, err = others.Adopt(background, grant.Keys(), grant.Token(), grant.Fence())
	expect(t, err, redislock.ErrNotHeld)
	for _, token := range []string{"", "*", strings.Repeat("t", 257)} {
		_, err := others.Adopt(background, []string{"k"}, token, 1)
		expectWrong(t, err, "token")
	}
	session := acquired(t, lockOf(t, locks, "k", redislock.WithSession()))
	expectWrong(t, session.Detach(), "session")
}

func TestOneComputesAndTheOthersRead(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	var computed atomic.Int32
	read := func(ctx context.Context) (string, bool, error) {
		text, err := s.Client.Get(ctx, "result").Result()
		if err == redis.Nil {
			return "", false, nil
		}
		return text, err == nil, err
	}
	failure := errors.New("of the first one")
	compute := func(ctx context.Context) (string, error) {
		until(t, "another one waits", func() bool { return s.Waiters(t, "k") > 0 || computed.Load() > 0 })
		if computed.Add(1) == 1 {
			return "", failure
		}
		return "done", s.Client.Set(ctx, "result", "done", 0).Err()
	}
	var all sync.WaitGroup
	var failed atomic.Int32
	for range 20 {
		all.Add(1)
		go func() {
			defer all.Done()
			result, err := redislock.Once(background, locks, "k", read, compute)
			if errors.Is(err, failure) {
				failed.Add(1)
			} else if err != nil || result != "done" {
				t.Errorf("%q, %v", result, err)
			}
		}()
	}
	all.Wait()
	if computed.Load() != 2 || failed.Load() != 1 {
		t.Errorf("computed %d times, %d failed", computed.Load(), failed.Load())
	}
}

// --- contexts and errors -------------------------------------------------------------------------

func TestTheContextIsTheLimitAndTheCancel(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	holder := acquired(t, lock)
	within, cancel := context.WithTimeout(background, 300*time.Millisecond)
	defer cancel()
	takes(t, "a deadline", 300*time.Millisecond, late, func() {
		_, err := lock.Acquire(within)
		expect(t, err, redislock.ErrNotAcquired, context.DeadlineExceeded)
	})
	_, err := lock.Acquire(within)
	expect(t, err, context.DeadlineExceeded)
	reason := errors.New("the user left")
	cancelled, leave := context.WithCancelCause(background)
	time.AfterFunc(100*time.Millisecond, func() { leave(reason) })
	_, err = lock.Acquire(cancelled)
	expect(t, err, context.Canceled, reason)
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	check(t, holder.Release(background))
}

func TestAPanicOfAHookChangesNothing(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client, redislock.WithObserver(redislock.Observer{
		Granted: func(*redislock.Grant) { panic("granted") },
		Lost:    func(*redislock.Grant) { panic("lost") },
	}))
	told := make(chan bool, 1)
	lock := lockOf(t, locks, "k", redislock.WithLease(200*time.Millisecond), redislock.WithoutRenewal(),
		redislock.WithOnLost(func(grant *redislock.Grant) { told <- grant.IsLost() }))
	acquired(t, lock)
	if !receive(t, told) {
		t.Error("not lost")
	}
	// It is collected after the loss.
	runtime.GC()
	runtime.GC()
}

func TestClientsOfAllKindsAreTakenOrRefused(t *testing.T) {
	s := serve(t)
	embedding := struct{ *redis.Client }{s.Client}
	check(t, acquired(t, lockOf(t, locksOf(t, embedding), "k")).Release(background))
	var none *redis.Client
	for _, client := range []redis.UniversalClient{nil, none, redis.NewRing(&redis.RingOptions{})} {
		_, err := redislock.New(client)
		expectWrong(t, err, "client")
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	locks := locksOf(t, redis.NewClient(&redis.Options{}))
	tests := map[string]redislock.Option{
		"lease":    redislock.WithLease(0),
		"margin":   redislock.WithMargin(30 * time.Second),
		"keep":     redislock.WithKeep(-1),
		"max hold": redislock.WithMaxHold(0),
		"at least": redislock.WithAtLeast(-1),
		"wait":     redislock.WithWait(-1),
		"limit":    redislock.WithLimit(0),
		"permits":  redislock.WithPermits(3),
		"replicas": redislock.WithReplicas(1001),
		"data":     redislock.WithData(strings.Repeat("d", 1025)),
	}
	for argument, option := range tests {
		_, err := locks.Lock("k", option)
		expectWrong(t, err, argument)
	}
	_, err := locks.LockAll([]string{"a", "a"})
	expectWrong(t, err, "keys")
	if text := fmt.Sprint(lockOf(t, locks, "shown")); !strings.Contains(text, "shown") {
		t.Error(text)
	}
}

// expectWrong checks that an error names this argument.
func expectWrong(t *testing.T, err error, argument string) {
	t.Helper()
	var wrong *redislock.ArgumentError
	if !errors.As(err, &wrong) || wrong.Argument != argument {
		t.Errorf("%v instead of an error about %s", err, argument)
	}
}

func TestTheCallsOfTheMigrationPagesRun(t *testing.T) {
	s := serve(t)
	lock, ctx, d := lockOf(t, locksOf(t, s.Client), "k"), background, time.Minute
	var grant *redislock.Grant
	// acquires runs a call that returns a grant, and releases the one before.
	acquires := func(acquire func() (*redislock.Grant, error)) func() error {
		return func() (err error) {
			if grant != nil {
				check(t, grant.Release(ctx))
			}
			grant, err = acquire()
			return err
		}
	}
	calls := map[string]func() error{
		"grant, err := lock.TryAcquire(ctx)": acquires(func() (*redislock.Grant, error) { return lock.TryAcquire(ctx) }),
		"grant, err := lock.AcquireWithin(ctx, d)": acquires(func() (*redislock.Grant, error) {
			return lock.AcquireWithin(ctx, d)
		}),
		"grant, err := lock.Acquire(ctx)": acquires(func() (*redislock.Grant, error) { return lock.Acquire(ctx) }),
		"grant.Extend(ctx, d)":            func() error { return grant.Extend(ctx, d) },
		"grant.Owned(ctx)":                func() error { _, err := grant.Owned(ctx); return err },
		"grant.Left()": func() error {
			if grant.Left() <= 0 {
				return errors.New("nothing is left")
			}
			return nil
		},
		"grant.Release(ctx)": func() (err error) {
			err = grant.Release(ctx)
			grant = acquired(t, lock)
			return err
		},
	}
	testserver.RunTable(t, "../../docs/migrate/redlock-redsync.md", "| redsync | Go |", 1, calls)
	// The columns of set-nx.md are the languages'. Two calls of the other page aren't in it.
	delete(calls, "grant, err := lock.Acquire(ctx)")
	delete(calls, "grant.Left()")
	testserver.RunTable(t, "../../docs/migrate/set-nx.md", "| now | Python |", 4, calls)
	check(t, grant.Release(ctx))
}
