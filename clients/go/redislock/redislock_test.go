package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	client "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
	"github.com/redis-lock/redis-lock/clients/go/redislock"
)

var (
	background = context.Background()
	check      = testserver.Check
	expect     = testserver.Expect
	equal      = testserver.Equal
	takes      = testserver.Takes
)

func TestMain(m *testing.M) { testserver.Main(m, new(string)) }

func serve(t *testing.T) (*testserver.Server, *redislock.Client) {
	t.Helper()
	s := testserver.Serve(t)
	return s, redislock.New(s.Client)
}

func obtained(
	t *testing.T, locker *redislock.Client, key string, options *redislock.Options,
) *redislock.Lock {
	t.Helper()
	lock, err := locker.Obtain(background, key, time.Minute, options)
	check(t, err)
	return lock
}

// refused returns the error of an Obtain of a key that somebody else has.
func refused(locker *redislock.Client, options *redislock.Options) error {
	_, err := locker.Obtain(background, "k", time.Minute, options)
	return err
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
	return by(redislock.LimitRetry(redislock.LinearBackoff(backoff), most))
}

func by(strategy redislock.RetryStrategy) *redislock.Options {
	return &redislock.Options{RetryStrategy: strategy}
}

// --- obtaining -----------------------------------------------------------------------------------

func TestObtainWaitsInTheQueueOfTheServer(t *testing.T) {
	s, locker := serve(t)
	first := obtained(t, locker, "k", nil)
	granted := make(chan *redislock.Lock)
	go func() { granted <- obtained(t, locker, "k", retry(time.Hour, 1)) }()
	s.UntilWaiting(t, "k", 1)
	check(t, first.Release(background))
	second := testserver.Receive(t, granted)
	if second.Fence() <= first.Fence() || first.Fence() == 0 {
		t.Errorf("fence %d after %d", second.Fence(), first.Fence())
	}
	check(t, second.Release(background))
	expect(t, second.Release(background), redislock.ErrLockNotHeld)
}

func TestObtainWaitsForTheSumOfTheBackoffs(t *testing.T) {
	s, locker := serve(t)
	obtained(t, locker, "k", nil)
	const ms = time.Millisecond
	waits := map[time.Duration][]*redislock.Options{
		0:        {nil, {}, by(redislock.NoRetry())},
		400 * ms: {retry(100*ms, 4)},
		// The strategy of the page.
		272 * ms: {by(redislock.LimitRetry(redislock.ExponentialBackoff(16*ms, 0), 6))},
	}
	for expected, all := range waits {
		for _, options := range all {
			takes(t, "a wait", expected, func() {
				equal(t, "the error", refused(locker, options), redislock.ErrNotObtained)
			})
		}
	}
	s.UntilWaiting(t, "k", 0)
}

func TestTheContextOrTheLeaseEndsTheWait(t *testing.T) {
	const limit = 300 * time.Millisecond
	s, locker := serve(t)
	obtained(t, locker, "k", nil)
	obtain := func(ctx context.Context, ttl time.Duration, endless redislock.RetryStrategy) error {
		_, err := locker.Obtain(ctx, "k", ttl, by(endless))
		return err
	}
	linear := redislock.LinearBackoff(time.Nanosecond)
	exponential := redislock.ExponentialBackoff(time.Millisecond, time.Second)
	for _, endless := range []redislock.RetryStrategy{linear, exponential} {
		takes(t, "lease", limit, func() {
			err := obtain(background, limit, endless)
			expect(t, err, redislock.ErrNotObtained, context.DeadlineExceeded)
		})
	}
	within, end := context.WithTimeout(background, limit)
	defer end()
	takes(t, "deadline", limit, func() {
		err := obtain(within, time.Minute, linear)
		expect(t, err, redislock.ErrNotObtained, context.DeadlineExceeded)
	})
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(limit, cancel)
	expect(t, obtain(ctx, time.Minute, linear), redislock.ErrNotObtained, context.Canceled)
	s.UntilWaiting(t, "k", 0)
	err := obtain(ctx, time.Minute, linear)
	if !errors.Is(err, context.Canceled) || errors.Is(err, redislock.ErrNotObtained) {
		t.Errorf("%v, though nothing was asked", err)
	}
}

func TestAStrategyThatIsSharedIsUsedUpOnlyByWaits(t *testing.T) {
	_, locker := serve(t)
	options := retry(100*time.Millisecond, 3)
	for range 5 {
		check(t, obtained(t, locker, "k", options).Release(background))
	}
	obtained(t, locker, "k", nil)
	for _, expected := range []time.Duration{300 * time.Millisecond, 0} {
		takes(t, "a wait", expected, func() {
			expect(t, refused(locker, options), redislock.ErrNotObtained)
		})
	}
}

func TestSeveralKeysAreObtainedTogether(t *testing.T) {
	s, locker := serve(t)
	both, err := locker.ObtainMulti(background, []string{"a", "b"}, time.Minute, nil)
	check(t, err)
	_, err = redislock.ObtainMulti(background, s.Client, []string{"b", "c"}, time.Minute, nil)
	expect(t, err, redislock.ErrNotObtained)
	equal(t, "c is free", s.IsFree(t, "c"), true)
	equal(t, "keys", both.Keys(), []string{"a", "b"})
	equal(t, "key", both.Key(), "a")
	check(t, both.Release(background))
	equal(t, "a and b are free", []bool{s.IsFree(t, "a"), s.IsFree(t, "b")}, []bool{true, true})
}

func TestOldClientsThatHoldTheKeyAreWaitedFor(t *testing.T) {
	s, locker := serve(t)
	s.Call(t, "SET", "k", "of redislock")
	for _, options := range []*redislock.Options{nil, retry(50*time.Millisecond, 3)} {
		expect(t, refused(locker, options), redislock.ErrNotObtained)
	}
	granted := make(chan *redislock.Lock)
	go func() { granted <- obtained(t, locker, "k", retry(50*time.Millisecond, 1000)) }()
	s.Call(t, "DEL", "k")
	lock := testserver.Receive(t, granted)
	s.Call(t, "SET", "k", "of redislock")
	expectOver(t, lock)
	equal(t, "what an old client has", s.Call(t, "GET", "k"), "of redislock")
}

// service has the client as bsm/redislock takes it, and embeds it.
type service struct {
	*redis.Client
	scripts redis.Scripter
	cache   redis.Cmdable
}

func TestClientsThatShareConnectionsShareWaits(t *testing.T) {
	s, locker := serve(t)
	holder := obtained(t, locker, "k", nil)
	before := s.Number(t, "Clients", "connected_clients")
	for range 300 {
		under := service{Client: s.Client, scripts: s.Client, cache: s.Client}
		for _, below := range []redislock.RedisClient{under, &under, under.scripts, under.cache} {
			err := refused(redislock.New(below), retry(time.Millisecond, 1))
			expect(t, err, redislock.ErrNotObtained)
		}
	}
	if more := s.Number(t, "Clients", "connected_clients") - before; more > 10 {
		t.Errorf("%d connections more", more)
	}
	check(t, holder.Release(background))
}

// --- what a lock holds ---------------------------------------------------------------------------

func TestTokenAndMetadataAreTheServers(t *testing.T) {
	s, locker := serve(t)
	// holds checks what the server and the lock say.
	holds := func(lock *redislock.Lock, token, metadata string) {
		t.Helper()
		holder := s.Call(t, "LOCK.INFO", "k").(map[any]any)["holders"].([]any)[0].(map[any]any)
		equal(t, "at the server", []any{holder["token"], holder["data"]}, []any{token, metadata})
		equal(t, "here", []any{lock.Token(), lock.Metadata()}, []any{token, metadata})
	}
	first := obtained(t, locker, "k", &redislock.Options{Token: "foo", Metadata: "bar"})
	holds(first, "foo", "bar")
	for _, metadata := range []string{"baz", ""} {
		again := obtained(t, locker, "k", &redislock.Options{Token: "foo", Metadata: metadata})
		holds(again, "foo", metadata)
		equal(t, "fence", again.Fence(), first.Fence())
	}
	expect(t, refused(locker, nil), redislock.ErrNotObtained)
	check(t, first.Release(background))
	drawn := obtained(t, locker, "k", nil)
	holds(drawn, drawn.Token(), "")
	equal(t, "length of the token", len(drawn.Token()), 32)
	texts := fmt.Sprintf("%v %+v %#v %s", drawn, drawn, drawn, drawn)
	equal(t, texts, strings.Contains(texts, drawn.Token()), false)
}

func TestAFailedObtainReleasesNothingOfItsToken(t *testing.T) {
	s, locker := serve(t)
	options := &redislock.Options{Token: "foo"}
	first := obtained(t, locker, "k", options)
	goOn := s.Stop()
	expectOutage(t, refused(locker, options))
	goOn()
	testserver.Until(t, "it gives up", func() bool {
		stats, err := s.Client.Info(background, "commandstats").Result()
		return err == nil && strings.Contains(stats, "cmdstat_lock.cancel:")
	})
	check(t, first.Release(background))
}

// expectOver checks the calls of a lock that isn't held.
func expectOver(t *testing.T, lock *redislock.Lock) {
	t.Helper()
	left, err := lock.TTL(background)
	if left != 0 || err != nil && lock != nil {
		t.Errorf("%v left, %v", left, err)
	}
	expect(t, lock.Refresh(background, time.Second, retry(time.Hour, 3)), redislock.ErrNotObtained)
	expect(t, lock.Release(background), redislock.ErrLockNotHeld)
}

func TestOnlyRefreshRenews(t *testing.T) {
	s, locker := serve(t)
	lock, err := locker.Obtain(background, "k", 2*time.Second, nil)
	check(t, err)
	check(t, lock.Refresh(background, 4*time.Second, nil))
	if left, err := lock.TTL(background); left < 2*time.Second || left > 4*time.Second {
		t.Errorf("%v left, %v", left, err)
	}
	s.UntilFree(t, "k")
	expectOver(t, lock)
}

func TestALeaseMayBeLongerThanADay(t *testing.T) {
	const week, least = 7 * 24 * time.Hour, 7*24*time.Hour - time.Minute
	_, locker := serve(t)
	lock, err := locker.Obtain(background, "k", week, nil)
	check(t, err)
	for range 2 {
		left, err := lock.TTL(background)
		check(t, err)
		equal(t, "as long as asked", left > least, true)
		check(t, lock.Refresh(background, week, nil))
	}
	check(t, lock.Release(background))
}

func TestNoLockIsNotHeld(t *testing.T) {
	var lock *redislock.Lock
	_, err := lock.TTL(background)
	expect(t, err, redislock.ErrLockNotHeld)
	expectOver(t, lock)
}

func TestALockThatIsCollectedStays(t *testing.T) {
	s, locker := serve(t)
	obtained(t, locker, "k", nil)
	for end := time.Now().Add(time.Second); time.Now().Before(end); runtime.GC() {
		equal(t, "free", s.IsFree(t, "k"), false)
	}
}

// --- errors --------------------------------------------------------------------------------------

func TestEveryCallReturnsInTimeThoughTheServerStandsStill(t *testing.T) {
	s, locker := serve(t)
	lock, released := obtained(t, locker, "a", nil), obtained(t, locker, "b", nil)
	obtain := func(ctx context.Context, ttl time.Duration) error {
		_, err := locker.Obtain(ctx, "free", ttl, retry(time.Hour, 1))
		return err
	}
	const deadline, ttl = 600 * time.Millisecond, 300 * time.Millisecond
	goOn := s.Stop()
	testserver.TakeTogether(t, expectOutage, map[time.Duration]func() error{
		deadline: func() error {
			within, end := context.WithTimeout(background, deadline)
			defer end()
			return obtain(within, time.Minute)
		},
		ttl:         func() error { return obtain(background, ttl) },
		time.Second: func() error { return released.Release(background) },
		2200 * time.Millisecond: func() error {
			return lock.Refresh(background, time.Minute, retry(200*time.Millisecond, 1))
		},
	})
	goOn()
	s.UntilFree(t, "b", "free")
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	s, locker := serve(t)
	obtain := func(ttl time.Duration, keys ...string) error {
		_, err := locker.ObtainMulti(background, keys, ttl, nil)
		return err
	}
	wrong := []error{
		obtain(0, "k"),
		obtain(time.Minute),
		obtain(time.Minute, "k", "k"),
		refused(locker, &redislock.Options{Token: "*"}),
		refused(locker, &redislock.Options{Metadata: strings.Repeat("x", 1025)}),
		refused(redislock.NewFromLocks(nil), nil),
	}
	for _, below := range []redislock.RedisClient{
		nil, (*redis.Client)(nil), redis.NewRing(&redis.RingOptions{}), service{}.scripts,
		struct{ redis.Scripter }{s.Client},
	} {
		wrong = append(wrong, refused(redislock.New(below), nil))
	}
	equal(t, "free", s.IsFree(t, "k"), true)
	wrong = append(wrong, obtained(t, locker, "k", nil).Refresh(background, 0, nil))
	for i, err := range wrong {
		t.Log(i)
		testserver.ExpectAs[*client.ArgumentError](t, err)
	}
}

func TestStrategies(t *testing.T) {
	const ms = time.Millisecond
	limited := redislock.LimitRetry(redislock.LinearBackoff(7), 2)
	backoffs := map[redislock.RetryStrategy][]time.Duration{
		redislock.NoRetry():        {0, 0},
		redislock.LinearBackoff(7): {7, 7, 7},
		limited:                    {7, 7, 0, 0},
		redislock.ExponentialBackoff(5*ms, 20*ms): {5 * ms, 8 * ms, 16 * ms, 20 * ms},
		redislock.ExponentialBackoff(0, 0):        {4 * ms, 8 * ms},
	}
	for strategy, all := range backoffs {
		for i, expected := range all {
			equal(t, fmt.Sprintf("%T: backoff %d", strategy, i), strategy.NextBackoff(), expected)
		}
	}
}

// --- the page ------------------------------------------------------------------------------------

const page = "../../../docs/migrate/bsm-redislock.md"

func TestTheProgramOfThePageRuns(t *testing.T) {
	s, _ := serve(t)
	testserver.RunPrograms(t, page, "127.0.0.1:6379", s.Address)
}

func TestTheCallsOfThePageRun(t *testing.T) {
	s, _ := serve(t)
	testserver.RunCalls(t,
		`"github.com/redis-lock/redis-lock/clients/go/redislock"`,
		fmt.Sprintf(`
			client := redis.NewClient(&redis.Options{Addr: %q})
			ctx, ttl := context.Background(), time.Minute
			key, keys := "orders:42", []string{"a", "b"}
			options := &redislock.Options{Metadata: "refund 7"}
			locker := redislock.New(client)
			var lock *redislock.Lock
			var err error`, s.Address),
		"lock, err = locker.Obtain(ctx, key, ttl, options)",
		testserver.Calls(t, page, "| call |", 0))
}
