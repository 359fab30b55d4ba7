package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	go func() { granted <- obtained(t, locker, "k", retry(time.Hour, 1)) }()
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
	obtain := func(ctx context.Context, ttl time.Duration) error {
		endless := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Nanosecond)}
		_, err := locker.Obtain(ctx, "k", ttl, endless)
		return err
	}
	takes(t, "lease", 400*time.Millisecond, late, func() {
		err := obtain(background, 400*time.Millisecond)
		expect(t, err, redislock.ErrNotObtained, context.DeadlineExceeded)
	})
	within, end := context.WithTimeout(background, 300*time.Millisecond)
	defer end()
	takes(t, "deadline", 300*time.Millisecond, late, func() {
		expect(t, obtain(within, time.Minute), redislock.ErrNotObtained, context.DeadlineExceeded)
	})
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(100*time.Millisecond, cancel)
	expect(t, obtain(ctx, time.Minute), redislock.ErrNotObtained, context.Canceled)
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	err := obtain(ctx, time.Minute)
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
	for _, expected := range []time.Duration{300 * time.Millisecond, 0} {
		takes(t, "a wait", expected, late, func() {
			_, err := locker.Obtain(background, "k", time.Minute, options)
			expect(t, err, redislock.ErrNotObtained)
		})
	}
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
	options := &redislock.Options{Token: "foo"}
	first := obtained(t, locker, "k", options)
	goOn := s.Stop(t)
	_, err := locker.Obtain(background, "k", time.Minute, options)
	expectOutage(t, err)
	goOn()
	until(t, "it gives up", func() bool {
		stats, err := s.Client.Info(background, "commandstats").Result()
		return err == nil && strings.Contains(stats, "cmdstat_lock.cancel:")
	})
	check(t, first.Release(background))
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
	go func() { granted <- obtained(t, locker, "k", retry(50*time.Millisecond, 1000)) }()
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
	lock, released := obtained(t, locker, "a", nil), obtained(t, locker, "b", nil)
	within, end := context.WithTimeout(background, 600*time.Millisecond)
	goOn := s.Stop(t)
	defer end()
	calls := map[time.Duration]func() error{
		600 * time.Millisecond: func() error {
			_, err := locker.Obtain(within, "free", time.Minute, retry(time.Hour, 1))
			return err
		},
		300 * time.Millisecond: func() error {
			_, err := locker.Obtain(background, "free", 300*time.Millisecond, retry(time.Hour, 1))
			return err
		},
		2200 * time.Millisecond: func() error {
			return lock.Refresh(background, time.Minute, retry(200*time.Millisecond, 1))
		},
		time.Second: func() error { return released.Release(background) },
	}
	var all sync.WaitGroup
	for expected, call := range calls {
		all.Add(1)
		go func() {
			defer all.Done()
			takes(t, "a call", expected, late, func() { expectOutage(t, call()) })
		}()
	}
	all.Wait()
	goOn()
	for _, key := range []string{"b", "free"} {
		until(t, key+" is free", func() bool { return s.IsFree(t, key) })
	}
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
	const ms = time.Millisecond
	strategies := map[string]struct {
		strategy redislock.RetryStrategy
		expected []time.Duration
	}{
		"none":        {redislock.NoRetry(), []time.Duration{0, 0}},
		"linear":      {redislock.LinearBackoff(7), []time.Duration{7, 7, 7}},
		"limited":     {redislock.LimitRetry(redislock.LinearBackoff(7), 2), []time.Duration{7, 7, 0, 0}},
		"exponential": {redislock.ExponentialBackoff(5*ms, 20*ms), []time.Duration{5 * ms, 8 * ms, 16 * ms, 20 * ms}},
		"unlimited":   {redislock.ExponentialBackoff(0, 0), []time.Duration{4 * ms, 8 * ms}},
	}
	for name, s := range strategies {
		for i, expected := range s.expected {
			if got := s.strategy.NextBackoff(); got != expected {
				t.Errorf("%s: backoff %d is %v instead of %v", name, i, got, expected)
			}
		}
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
		"lock.Key()":                      testserver.Is(func() bool { return lock.Key() == key }),
		"lock.Keys()":                     testserver.Is(func() bool { return len(lock.Keys()) == 1 }),
		"lock.Token()":                    testserver.Is(func() bool { return lock.Token() != "" }),
		"lock.Metadata()":                 testserver.Is(func() bool { return lock.Metadata() == "" }),
		"lock.TTL(ctx)":                   func() error { _, err := lock.TTL(ctx); return err },
		"lock.Refresh(ctx, ttl, options)": func() error { return lock.Refresh(ctx, ttl, options) },
		"lock.Release(ctx)":               func() error { return lock.Release(ctx) },
		"lock.Fence()":                    testserver.Is(func() bool { return lock.Fence() > 0 }),
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
