package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

var (
	background = context.Background()
	serve      = testserver.Serve
	check      = testserver.Check
	expect     = testserver.Expect
	equal      = testserver.Equal
	until      = testserver.Until
	takes      = testserver.Takes
)

func locksOf(
	t *testing.T, client redis.UniversalClient, options ...redislock.LocksOption,
) *redislock.Locks {
	t.Helper()
	locks, err := redislock.New(client, options...)
	check(t, err)
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

func lockOf(
	t *testing.T, locks *redislock.Locks, key string, options ...redislock.Option,
) *redislock.Lock {
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

// observed counts what the observer hears.
type observed struct{ losses, outages atomic.Int32 }

func (o *observed) option() redislock.LocksOption {
	return redislock.WithObserver(redislock.Observer{
		Lost:        func(*redislock.Grant) { o.losses.Add(1) },
		Unavailable: func(error) { o.outages.Add(1) },
	})
}

// --- guarded blocks ------------------------------------------------------------------------------

func TestDoReleasesThoughItsWorkPanicsOrExits(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	ends := map[string]func(){"panic": func() { panic("panic") }, "exit": runtime.Goexit}
	for name, end := range ends {
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			_ = lock.Do(background, func(context.Context, *redislock.Grant) error {
				end()
				return nil
			})
		}()
		if result := testserver.Receive(t, ended); result != nil {
			equal(t, "the panic", result, name)
		}
		equal(t, "free after the "+name, s.IsFree(t, "k"), true)
	}
}

func TestTheLossEndsTheContextOfDo(t *testing.T) {
	s := serve(t)
	heard := &observed{}
	locks := locksOf(t, s.Client, heard.option())
	lock := lockOf(t, locks, "k", redislock.WithLease(300*time.Millisecond))
	own := errors.New("of the work")
	err := lock.Do(background, func(ctx context.Context, grant *redislock.Grant) error {
		s.Call(t, "DEL", "k")
		testserver.Receive(t, ctx.Done())
		testserver.Receive(t, grant.Lost())
		expect(t, context.Cause(ctx), redislock.ErrLost)
		return own
	})
	expect(t, err, redislock.ErrLost, own)
	until(t, "the loss is told", func() bool { return heard.losses.Load() > 0 })
	check(t, acquired(t, lock).Release(background))
	equal(t, "losses", heard.losses.Load(), int32(1))
}

// The release at the end of a block has the command timeout, and no context.
func TestDoReleasesThoughItsContextEnds(t *testing.T) {
	s := serve(t)
	heard := &observed{}
	lock := lockOf(t, locksOf(t, s.Client, heard.option()), "k")
	for _, own := range []error{nil, errors.New("of the work")} {
		within, cancel := context.WithCancel(background)
		err := lock.Do(within, func(context.Context, *redislock.Grant) error {
			cancel()
			return own
		})
		equal(t, "the error", err, own)
		equal(t, "free", s.IsFree(t, "k"), true)
	}
	equal(t, "outages", heard.outages.Load(), int32(0))
}

func TestABlockMayReleaseItsGrant(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k"))
	check(t, grant.Do(background, grant.Release))
	expect(t, grant.Release(background), redislock.ErrNotHeld)
	expect(t, grant.Extend(background, time.Minute), redislock.ErrNotHeld)
	expect(t, grant.Do(background, grant.Release), redislock.ErrNotHeld)
}

// --- the life of a grant -------------------------------------------------------------------------

func TestAGrantThatIsDroppedIsALossAndReleased(t *testing.T) {
	s := serve(t)
	heard := &observed{}
	locks := locksOf(t, s.Client, heard.option())
	grant := acquired(t, lockOf(t, locks, "k"))
	gone := grant.Lost()
	within, cancel := grant.Context(background)
	defer cancel()
	kept := acquired(t, lockOf(t, locks, "kept"))
	until(t, "it is collected", func() bool {
		runtime.GC()
		return s.IsFree(t, "k")
	})
	testserver.Receive(t, gone)
	testserver.Receive(t, within.Done())
	expect(t, context.Cause(within), redislock.ErrLost)
	equal(t, "losses", heard.losses.Load(), int32(1))
	check(t, kept.Release(background))
}

// The server counts from the arrival of the command, and the reply may be late.
func TestTheLeaseCountsFromTheCommand(t *testing.T) {
	const lease, pause = 3 * time.Second, 500 * time.Millisecond
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k", redislock.WithLease(lease),
		redislock.WithMargin(0), redislock.WithoutRenewal())
	var grant *redislock.Grant
	calls := []func(){
		func() { grant = acquired(t, lock) },
		func() { check(t, grant.Extend(background, lease)) },
	}
	for i, call := range calls {
		time.AfterFunc(pause, s.Stop())
		call()
		if left := grant.Left(); left > lease-pause || left < lease/2 {
			t.Errorf("%v left after call %d", left, i)
		}
	}
}

func TestAReleaseGoesOnWithoutItsContext(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k"))
	ended, cancel := context.WithCancel(background)
	cancel()
	goOn := s.Stop()
	expect(t, grant.Release(ended), context.Canceled)
	goOn()
	s.UntilFree(t, "k")
}

func TestExtensionsAndRenewalsMeetReleases(t *testing.T) {
	s := serve(t)
	short := []redislock.Option{redislock.WithLease(40 * time.Millisecond), redislock.WithMargin(0)}
	lock := lockOf(t, locksOf(t, s.Client), "k", short...)
	for range 200 {
		grant := acquired(t, lock)
		results := make(chan error, 2)
		go func() { results <- grant.Extend(background, time.Minute) }()
		time.Sleep(rand.N(20 * time.Millisecond))
		results <- grant.Release(background)
		for range 2 {
			err := testserver.Receive(t, results)
			if !errors.Is(err, redislock.ErrLost) && !errors.Is(err, redislock.ErrNotHeld) {
				check(t, err)
			}
		}
	}
	s.UntilFree(t, "k")
}

func TestAnExtensionIsNoShorterThanTheLease(t *testing.T) {
	s := serve(t)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k", redislock.WithLease(time.Minute)))
	check(t, grant.Extend(background, 2*time.Second))
	left, err := grant.TTL(background)
	check(t, err)
	if min(left, grant.Left()) < 50*time.Second {
		t.Errorf("%v left at the server, %v here", left, grant.Left())
	}
}

func TestAGrantIsHandedOn(t *testing.T) {
	s := serve(t)
	others := locksOf(t, s.Client)
	grant := acquired(t, lockOf(t, locksOf(t, s.Client), "k"))
	check(t, grant.Detach())
	expect(t, grant.Detach(), redislock.ErrNotHeld)
	expect(t, grant.Release(background), redislock.ErrNotHeld)
	adopt := func() (*redislock.Grant, error) {
		return others.Adopt(background, grant.Keys(), grant.Token(), grant.Fence())
	}
	adopted, err := adopt()
	check(t, err)
	holders, err := adopted.Lock().Holders(background)
	check(t, err)
	equal(t, "holders", len(holders), 1)
	equal(t, "fence", holders[0].Fence, adopted.Fence())
	equal(t, "token", holders[0].Token(), grant.Token())
	check(t, adopted.Release(background))
	_, err = adopt()
	expect(t, err, redislock.ErrNotHeld)
	// A command of the first process that comes late is turned away.
	late := s.Client.Do(background, "LOCK.ACQUIRE", "k", grant.Token(), "PX", 60_000).Err()
	equal(t, fmt.Sprint("LEFT: ", late), redis.HasErrorPrefix(late, "LEFT"), true)
}

func TestOneComputesAndTheOthersRead(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	var result, computed, failed atomic.Int32
	read := func(context.Context) (int32, bool, error) {
		value := result.Load()
		return value, value != 0, nil
	}
	failure := errors.New("of the first one")
	compute := func(ctx context.Context) (int32, error) {
		if computed.Add(1) == 1 {
			s.UntilWaiting(t, "k", 4)
			return 0, failure
		}
		result.Store(7)
		return 7, nil
	}
	testserver.Together(20, func(int) {
		value, err := redislock.Once(background, locks, "k", read, compute)
		if errors.Is(err, failure) {
			failed.Add(1)
		} else if err != nil || value != 7 {
			t.Errorf("%d, %v", value, err)
		}
	})
	equal(t, "computed, failed", []int32{computed.Load(), failed.Load()}, []int32{2, 1})
}

func TestAPanicOfAHookChangesNothing(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client, redislock.WithObserver(redislock.Observer{
		Granted: func(*redislock.Grant) { panic("granted") },
		Lost:    func(*redislock.Grant) { panic("lost") },
	}))
	told := make(chan bool, 1)
	acquired(t, lockOf(t, locks, "k", redislock.WithLease(200*time.Millisecond),
		redislock.WithoutRenewal(),
		redislock.WithOnLost(func(grant *redislock.Grant) { told <- grant.IsLost() })))
	equal(t, "lost", testserver.Receive(t, told), true)
	// It is collected after the loss.
	runtime.GC()
	runtime.GC()
}

// --- arguments and contexts ----------------------------------------------------------------------

// The conformance suite cancels waits, and ends them by AcquireWithin.
func TestTheContextIsTheLimitAndTheCancel(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	holder := acquired(t, lock)
	within, cancel := context.WithTimeout(background, 300*time.Millisecond)
	defer cancel()
	takes(t, "a deadline", 300*time.Millisecond, func() {
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
	s.UntilWaiting(t, "k", 0)
	check(t, holder.Release(background))
}

// The conformance suite has the values that a driver can say.
func TestAWrongArgumentIsNamed(t *testing.T) {
	s := serve(t)
	locks := locksOf(t, s.Client)
	grant := acquired(t, lockOf(t, locks, "k", redislock.WithLease(time.Minute)))
	session := acquired(t, lockOf(t, locks, "session", redislock.WithSession()))
	adopted := func(token string) error {
		_, err := locks.Adopt(background, []string{"k"}, token, 1)
		return err
	}
	over := func(client redis.UniversalClient) error {
		_, err := redislock.New(client)
		return err
	}
	_, margin := locks.Lock("k", redislock.WithMargin(30*time.Second))
	var none *redis.Client
	wrong := map[string][]error{
		"margin":  {margin},
		"lease":   {grant.Extend(background, time.Second)},
		"token":   {adopted(""), adopted("*"), adopted(strings.Repeat("t", 257))},
		"session": {session.Detach()},
		"client":  {over(nil), over(none), over(redis.NewRing(&redis.RingOptions{}))},
	}
	for argument, errs := range wrong {
		for _, err := range errs {
			found := testserver.ExpectAs[*redislock.ArgumentError](t, err)
			equal(t, fmt.Sprint(err), found.Argument, argument)
		}
	}
	check(t, grant.Release(background))
}

func TestTheCallsOfTheMigrationPagesRun(t *testing.T) {
	const pages = "../../docs/migrate/"
	testserver.RunCalls(t,
		`redislock "github.com/redis-lock/redis-lock/clients/go"`,
		fmt.Sprintf(`
			client := redis.NewClient(&redis.Options{Addr: %q})
			ctx, d := context.Background(), time.Minute
			locks, err := redislock.New(client)
			did(err)
			lock, err := locks.Lock("k")
			did(err)
			var grant *redislock.Grant`, serve(t).Address),
		"grant, err = lock.Acquire(ctx)",
		slices.Concat(
			testserver.Calls(t, pages+"redsync.md", "| redsync | Go |", 1),
			testserver.Calls(t, pages+"set-nx.md", "| now | Python |", 4),
			testserver.Calls(t, pages+"zookeeper-etcd-consul.md", "| etcd's mutex | Go |", 1)))
}
