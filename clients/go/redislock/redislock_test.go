package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	client "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
	"github.com/redis-lock/redis-lock/clients/go/redislock"
)

const late = testserver.Late

var (
	background = context.Background()
	serve      = testserver.Serve
	check      = testserver.Check
	expect     = testserver.Expect
	until      = testserver.Until
	takes      = testserver.Takes
)

func obtained(t *testing.T, locker *redislock.Client, key string, options *redislock.Options) *redislock.Lock {
	t.Helper()
	lock, err := locker.Obtain(background, key, time.Minute, options)
	check(t, err)
	return lock
}

// expectOutage checks that the error is that of a server that doesn't answer, and nothing else.
func expectOutage(t *testing.T, err error) {
	t.Helper()
	expect(t, err, client.ErrUnavailable)
	if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, redislock.ErrLockNotHeld) {
		t.Errorf("an outage is reported as contention: %v", err)
	}
}

func retry(backoff time.Duration, most int) *redislock.Options {
	return &redislock.Options{RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(backoff), most)}
}

func TestObtainWaitsInTheQueueOfTheServer(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	first := obtained(t, locker, "k", nil)
	granted := make(chan *redislock.Lock)
	go func() {
		lock, err := locker.Obtain(background, "k", time.Minute, retry(time.Hour, 1))
		if err != nil {
			t.Error(err)
		}
		granted <- lock
	}()
	until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
	check(t, first.Release(background))
	second := <-granted
	if second.Fence() <= first.Fence() || first.Fence() == 0 {
		t.Errorf("fence %d after %d", second.Fence(), first.Fence())
	}
	check(t, second.Release(background))
	expect(t, second.Release(background), redislock.ErrLockNotHeld)
}

func TestObtainWaitsForTheSumOfTheBackoffs(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	obtained(t, locker, "k", nil)
	waits := map[string]struct {
		options  *redislock.Options
		expected time.Duration
	}{
		"nothing":     {nil, 0},
		"no strategy": {&redislock.Options{}, 0},
		"no retry":    {&redislock.Options{RetryStrategy: redislock.NoRetry()}, 0},
		"linear":      {retry(100*time.Millisecond, 4), 400 * time.Millisecond},
		"exponential": {&redislock.Options{RetryStrategy: redislock.LimitRetry(
			redislock.ExponentialBackoff(64*time.Millisecond, 128*time.Millisecond), 7)}, 576 * time.Millisecond},
	}
	for name, wait := range waits {
		takes(t, name, wait.expected, late, func() {
			lock, err := locker.Obtain(background, "k", time.Minute, wait.options)
			if err != redislock.ErrNotObtained || lock != nil {
				t.Errorf("%v instead of ErrNotObtained", err)
			}
		})
	}
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
}

func TestTheContextOrTheLeaseEndsTheWait(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	obtained(t, locker, "k", nil)
	endless := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Nanosecond)}
	takes(t, "lease", 400*time.Millisecond, late, func() {
		_, err := locker.Obtain(background, "k", 400*time.Millisecond, endless)
		expect(t, err, redislock.ErrNotObtained, context.DeadlineExceeded)
	})
	within, end := context.WithTimeout(background, 300*time.Millisecond)
	defer end()
	takes(t, "deadline", 300*time.Millisecond, late, func() {
		_, err := locker.Obtain(within, "k", time.Minute, endless)
		expect(t, err, redislock.ErrNotObtained, context.DeadlineExceeded)
	})
	ctx, cancel := context.WithCancel(background)
	failed := make(chan error)
	go func() {
		_, err := locker.Obtain(ctx, "k", time.Minute, endless)
		failed <- err
	}()
	until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
	takes(t, "cancel", 0, late, func() {
		cancel()
		expect(t, <-failed, redislock.ErrNotObtained, context.Canceled)
	})
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	_, err := locker.Obtain(ctx, "k", time.Minute, endless)
	if expect(t, err, context.Canceled); errors.Is(err, redislock.ErrNotObtained) {
		t.Error("nothing was asked, and it isn't obtained")
	}
}

func TestAStrategyThatIsSharedIsUsedUpOnlyByWaits(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	options := retry(100*time.Millisecond, 3)
	for range 5 {
		check(t, obtained(t, locker, "k", options).Release(background))
	}
	obtained(t, locker, "k", nil)
	takes(t, "first wait", 300*time.Millisecond, late, func() {
		_, err := locker.Obtain(background, "k", time.Minute, options)
		expect(t, err, redislock.ErrNotObtained)
	})
	takes(t, "second wait", 0, late, func() {
		_, err := locker.Obtain(background, "k", time.Minute, options)
		expect(t, err, redislock.ErrNotObtained)
	})
}

func TestTokenAndMetadataAreTheServers(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	data := func() string {
		holder := s.Holder(t, "k")
		return holder["token"].(string) + " " + holder["data"].(string)
	}
	first := obtained(t, locker, "k", &redislock.Options{Token: "foo", Metadata: "bar"})
	if data() != "foo bar" || first.Token() != "foo" || first.Metadata() != "bar" || first.Key() != "k" {
		t.Errorf("%s, %s, %s, %s", data(), first.Token(), first.Metadata(), first.Key())
	}
	for _, metadata := range []string{"baz", ""} {
		again := obtained(t, locker, "k", &redislock.Options{Token: "foo", Metadata: metadata})
		if data() != "foo "+metadata || again.Fence() != first.Fence() {
			t.Errorf("%s instead of %s", data(), metadata)
		}
	}
	_, err := locker.Obtain(background, "k", time.Minute, nil)
	expect(t, err, redislock.ErrNotObtained)
	check(t, first.Release(background))
	drawn := obtained(t, locker, "k", nil)
	if len(drawn.Token()) != 32 || drawn.Metadata() != "" || data() != drawn.Token()+" " {
		t.Errorf("%s", data())
	}
}

func TestAFailedObtainReleasesNothingOfItsToken(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	first, err := locker.ObtainMulti(background, []string{"a", "b"}, time.Minute, &redislock.Options{Token: "foo"})
	check(t, err)
	goOn := s.Stop(t)
	for _, limit := range []time.Duration{time.Hour, 100 * time.Millisecond} {
		ctx, cancel := context.WithCancel(background)
		time.AfterFunc(limit, cancel)
		_, err := locker.ObtainMulti(ctx, []string{"a", "b"}, time.Minute, &redislock.Options{Token: "foo"})
		if err == nil {
			t.Error("obtained from a server that stands still")
		}
	}
	goOn()
	until(t, "it gave up twice", func() bool { return calls(t, s, "lock.cancel") >= 2 })
	if released := calls(t, s, "lock.mrelease"); released != 0 {
		t.Errorf("%d releases", released)
	}
	check(t, first.Release(background))
}

// calls returns how often the server has executed a command.
func calls(t *testing.T, s *testserver.Server, command string) int {
	t.Helper()
	stats, err := s.Client.Info(background, "commandstats").Result()
	check(t, err)
	_, rest, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	number, _, _ := strings.Cut(rest, ",")
	count, _ := strconv.Atoi(number)
	return count
}

func TestOnlyRefreshRenews(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	lock, err := locker.Obtain(background, "k", 2*time.Second, nil)
	check(t, err)
	check(t, lock.Refresh(background, 4*time.Second, nil))
	if left, err := lock.TTL(background); left < 2*time.Second || left > 4*time.Second {
		t.Errorf("%v left, %v", left, err)
	}
	until(t, "it has ended", func() bool { return s.IsFree(t, "k") })
	if left, err := lock.TTL(background); left != 0 || err != nil {
		t.Errorf("%v left, %v", left, err)
	}
	expect(t, lock.Refresh(background, time.Second, retry(time.Hour, 3)), redislock.ErrNotObtained)
	expect(t, lock.Release(background), redislock.ErrLockNotHeld)
}

func TestSeveralKeysAreObtainedTogether(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	both, err := locker.ObtainMulti(background, []string{"a", "b"}, time.Minute, nil)
	check(t, err)
	_, err = redislock.ObtainMulti(background, s.Client, []string{"b", "c"}, time.Minute, nil)
	expect(t, err, redislock.ErrNotObtained)
	if !s.IsFree(t, "c") || both.Key() != "a" || len(both.Keys()) != 2 {
		t.Error("c isn't free, or the keys are wrong")
	}
	check(t, both.Release(background))
	if !s.IsFree(t, "a") || !s.IsFree(t, "b") {
		t.Error("not released")
	}
}

func TestALockThatIsCollectedStays(t *testing.T) {
	s := serve(t)
	_, err := redislock.Obtain(background, s.Client, "k", time.Minute, nil)
	check(t, err)
	for end := time.Now().Add(time.Second); time.Now().Before(end); runtime.GC() {
		if s.IsFree(t, "k") {
			t.Fatal("it is free")
		}
	}
}

func TestOldClientsThatHoldTheKeyAreWaitedFor(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	s.Call(t, "SET", "k", "of redislock")
	for _, options := range []*redislock.Options{nil, retry(50*time.Millisecond, 3)} {
		_, err := locker.Obtain(background, "k", time.Minute, options)
		expect(t, err, redislock.ErrNotObtained)
	}
	granted := make(chan *redislock.Lock)
	go func() {
		lock, err := locker.Obtain(background, "k", time.Minute, retry(50*time.Millisecond, 1000))
		if err != nil {
			t.Error(err)
		}
		granted <- lock
	}()
	s.Call(t, "DEL", "k")
	lock := <-granted
	s.Call(t, "SET", "k", "of redislock")
	if left, err := lock.TTL(background); left != 0 || err != nil {
		t.Errorf("%v left, %v", left, err)
	}
	expect(t, lock.Refresh(background, time.Minute, nil), redislock.ErrNotObtained)
	expect(t, lock.Release(background), redislock.ErrLockNotHeld)
	if s.Call(t, "GET", "k") != "of redislock" {
		t.Error("released what an old client has")
	}
}

func TestEveryCallReturnsInTimeThoughTheServerStandsStill(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	released, refreshed, asked := obtained(t, locker, "a", nil), obtained(t, locker, "b", nil), obtained(t, locker, "c", nil)
	holder := obtained(t, locker, "k", nil)
	deadline := func() context.Context {
		ctx, cancel := context.WithTimeout(background, 600*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	waits := make(chan error)
	go func() {
		_, err := locker.Obtain(background, "k", time.Minute, retry(time.Second, 5))
		waits <- err
	}()
	until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
	goOn := s.Stop(t)
	var all sync.WaitGroup
	play := func(what string, expected, tolerance time.Duration, call func() error) {
		all.Add(1)
		go func() {
			defer all.Done()
			takes(t, what, expected, tolerance, func() { expectOutage(t, call()) })
		}()
	}
	play("obtain", time.Second, late, func() error {
		_, err := locker.Obtain(background, "free1", time.Minute, nil)
		return err
	})
	play("obtain with a deadline", 600*time.Millisecond, late, func() error {
		_, err := locker.Obtain(deadline(), "free2", time.Minute, retry(time.Hour, 1))
		return err
	})
	play("obtain within the lease", 300*time.Millisecond, late, func() error {
		_, err := locker.Obtain(background, "free3", 300*time.Millisecond, retry(time.Hour, 1))
		return err
	})
	play("ttl with a deadline", 600*time.Millisecond, late, func() error {
		_, err := asked.TTL(deadline())
		return err
	})
	play("refresh", time.Second, late, func() error { return refreshed.Refresh(background, time.Minute, nil) })
	play("refresh with tries", 2200*time.Millisecond, late, func() error {
		return refreshed.Refresh(background, time.Minute, retry(200*time.Millisecond, 1))
	})
	play("release", time.Second, late, func() error { return released.Release(background) })
	play("wait", 3*time.Second, 2*time.Second+late, func() error { return <-waits })
	all.Wait()
	goOn()
	for _, key := range []string{"a", "free1", "free2", "free3"} {
		until(t, key+" is free", func() bool { return s.IsFree(t, key) })
	}
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	check(t, holder.Release(background))
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	s := serve(t)
	locker := redislock.New(s.Client)
	obtain := func(locker *redislock.Client, keys []string, ttl time.Duration, options redislock.Options) error {
		_, err := locker.ObtainMulti(background, keys, ttl, &options)
		return err
	}
	k, none := []string{"k"}, redislock.Options{}
	var nothing *redis.Client
	failures := map[string]error{
		"lease":    obtain(locker, k, 0, none),
		"keys":     obtain(locker, nil, time.Minute, none),
		"twice":    obtain(locker, []string{"k", "k"}, time.Minute, none),
		"token":    obtain(locker, k, time.Minute, redislock.Options{Token: "*"}),
		"metadata": obtain(locker, k, time.Minute, redislock.Options{Metadata: strings.Repeat("x", 1025)}),
		"client":   obtain(redislock.New(nil), k, time.Minute, none),
		"nil":      obtain(redislock.New(nothing), k, time.Minute, none),
		"ring":     obtain(redislock.New(redis.NewRing(&redis.RingOptions{})), k, time.Minute, none),
		"locks":    obtain(redislock.NewFromLocks(nil), k, time.Minute, none),
	}
	if !s.IsFree(t, "k") {
		t.Error("something was sent")
	}
	failures["refresh"] = obtained(t, locker, "k", nil).Refresh(background, 0, nil)
	for name, err := range failures {
		var wrong *client.ArgumentError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoLockIsNotHeld(t *testing.T) {
	var lock *redislock.Lock
	_, err := lock.TTL(background)
	expect(t, err, redislock.ErrLockNotHeld)
	expect(t, lock.Release(background), redislock.ErrLockNotHeld)
	expect(t, lock.Refresh(background, time.Minute, nil), redislock.ErrNotObtained)
}

func TestNoTextShowsTheToken(t *testing.T) {
	s := serve(t)
	lock := obtained(t, redislock.New(s.Client), "k", nil)
	if texts := fmt.Sprintf("%v %+v %#v %s", lock, lock, lock, lock); strings.Contains(texts, lock.Token()) {
		t.Error(texts)
	}
}

func TestStrategies(t *testing.T) {
	strategies := map[string]struct {
		strategy redislock.RetryStrategy
		expected []time.Duration
	}{
		"none":    {redislock.NoRetry(), []time.Duration{0, 0}},
		"linear":  {redislock.LinearBackoff(7), []time.Duration{7, 7, 7}},
		"limited": {redislock.LimitRetry(redislock.LinearBackoff(7), 2), []time.Duration{7, 7, 0, 0}},
		"exponential": {redislock.ExponentialBackoff(5*time.Millisecond, 20*time.Millisecond), []time.Duration{
			5 * time.Millisecond, 8 * time.Millisecond, 16 * time.Millisecond, 20 * time.Millisecond}},
		"unlimited": {redislock.ExponentialBackoff(0, 0), []time.Duration{4 * time.Millisecond, 8 * time.Millisecond}},
	}
	for name, s := range strategies {
		for i, expected := range s.expected {
			if got := s.strategy.NextBackoff(); got != expected {
				t.Errorf("%s: backoff %d is %v instead of %v", name, i, got, expected)
			}
		}
	}
	long := redislock.ExponentialBackoff(0, 0)
	for range 100 {
		long.NextBackoff()
	}
	if got := long.NextBackoff(); got != time.Millisecond<<26 {
		t.Errorf("%v", got)
	}
}

func TestTheProgramOfThePageRuns(t *testing.T) {
	testserver.RunPage(t, "../../../docs/migrate/bsm-redislock.md", "127.0.0.1:6379", serve(t).Address)
}

// service has the client as bsm/redislock takes it, and embeds it.
type service struct {
	*redis.Client
	scripts redis.Scripter
	cache   redis.Cmdable
}

func TestClientsThatShareConnectionsShareWaits(t *testing.T) {
	s := serve(t)
	holder := obtained(t, redislock.New(s.Client), "k", nil)
	before, err := s.Client.ClientList(background).Result()
	check(t, err)
	for range 300 {
		under := service{Client: s.Client, scripts: s.Client, cache: s.Client}
		for _, below := range []redislock.RedisClient{under, &under, under.scripts, under.cache} {
			_, err := redislock.Obtain(background, below, "k", time.Minute, retry(time.Millisecond, 1))
			expect(t, err, redislock.ErrNotObtained)
		}
	}
	after, err := s.Client.ClientList(background).Result()
	check(t, err)
	if more := strings.Count(after, "\n") - strings.Count(before, "\n"); more > 10 {
		t.Errorf("%d connections more", more)
	}
	check(t, holder.Release(background))
	var wrong *client.ArgumentError
	for _, below := range []redislock.RedisClient{nil, (*redis.Client)(nil), service{}.scripts, struct{ redis.Scripter }{s.Client}} {
		if _, err := redislock.New(below).Obtain(background, "k", time.Minute, nil); !errors.As(err, &wrong) {
			t.Errorf("%v", err)
		}
	}
}

func TestTheCallsOfThePageRun(t *testing.T) {
	s := serve(t)
	const page = "../../../docs/migrate/bsm-redislock.md"
	ctx, key, keys, ttl := background, "orders:42", []string{"a", "b"}, time.Minute
	var options *redislock.Options
	var locker *redislock.Client
	var lock *redislock.Lock
	// obtains runs a call that returns a lock, and releases the lock of the one before.
	obtains := func(obtain func() (*redislock.Lock, error)) func() error {
		return func() error {
			if lock != nil {
				check(t, lock.Release(ctx))
			}
			var err error
			lock, err = obtain()
			return err
		}
	}
	with := func(options redislock.Options) func() error {
		return obtains(func() (*redislock.Lock, error) { return locker.Obtain(ctx, key, ttl, &options) })
	}
	is := func(isTrue func() bool) func() error {
		return func() error {
			if !isTrue() {
				return errors.New("not so")
			}
			return nil
		}
	}
	testserver.RunTable(t, page, "| call |", 0, map[string]func() error{
		"locker := redislock.New(client)": func() error {
			locker = redislock.New(s.Client)
			return nil
		},
		"lock, err := redislock.Obtain(ctx, client, key, ttl, options)": obtains(func() (*redislock.Lock, error) {
			return redislock.Obtain(ctx, s.Client, key, ttl, options)
		}),
		"lock, err := redislock.ObtainMulti(ctx, client, keys, ttl, options)": obtains(func() (*redislock.Lock, error) {
			return redislock.ObtainMulti(ctx, s.Client, keys, ttl, options)
		}),
		"lock, err := locker.Obtain(ctx, key, ttl, options)": obtains(func() (*redislock.Lock, error) {
			return locker.Obtain(ctx, key, ttl, options)
		}),
		"lock, err := locker.ObtainMulti(ctx, keys, ttl, options)": obtains(func() (*redislock.Lock, error) {
			return locker.ObtainMulti(ctx, keys, ttl, options)
		}),
		"Options.Metadata":                with(redislock.Options{Metadata: "refund 7"}),
		"Options.Token":                   with(redislock.Options{Token: "foo"}),
		"Options.RetryStrategy":           with(redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Second)}),
		"lock.Key()":                      is(func() bool { return lock.Key() == key }),
		"lock.Keys()":                     is(func() bool { return len(lock.Keys()) == 1 }),
		"lock.Token()":                    is(func() bool { return lock.Token() != "" }),
		"lock.Metadata()":                 is(func() bool { return lock.Metadata() == "" }),
		"lock.TTL(ctx)":                   func() error { _, err := lock.TTL(ctx); return err },
		"lock.Refresh(ctx, ttl, options)": func() error { return lock.Refresh(ctx, ttl, options) },
		"lock.Release(ctx)":               func() error { return lock.Release(ctx) },
		"lock.Fence()":                    is(func() bool { return lock.Fence() > 0 }),
	})

	holder := obtained(t, locker, "held", nil)
	waits := func(limit time.Duration, strategy redislock.RetryStrategy) func() error {
		return func() error {
			takes(t, "a wait", limit, late, func() {
				_, err := locker.Obtain(ctx, "held", 500*time.Millisecond, &redislock.Options{RetryStrategy: strategy})
				expect(t, err, redislock.ErrNotObtained)
			})
			return nil
		}
	}
	const untilTTL = 500 * time.Millisecond
	testserver.RunTable(t, page, "| strategy |", 0, map[string]func() error{
		"NoRetry()": waits(0, redislock.NoRetry()),
		"LimitRetry(LinearBackoff(100*time.Millisecond), 20)": waits(
			untilTTL, redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 20)),
		"LimitRetry(ExponentialBackoff(16*time.Millisecond, 0), 6)": waits(
			272*time.Millisecond, redislock.LimitRetry(redislock.ExponentialBackoff(16*time.Millisecond, 0), 6)),
		"LinearBackoff(d)":             waits(untilTTL, redislock.LinearBackoff(time.Second)),
		"ExponentialBackoff(min, max)": waits(untilTTL, redislock.ExponentialBackoff(time.Millisecond, time.Second)),
	})
	check(t, holder.Release(background))
}
