package redsync_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
	"github.com/redis-lock/redis-lock/clients/go/redsync"
)

var (
	background = context.Background()
	check      = testserver.Check
	expect     = testserver.Expect
	equal      = testserver.Equal
	takes      = testserver.Takes
)

func TestMain(m *testing.M) { testserver.Main(m, new(string)) }

func serve(t *testing.T) (*testserver.Server, *redsync.Redsync) {
	t.Helper()
	s := testserver.Serve(t)
	return s, redsync.New(s.Client)
}

func locked(t *testing.T, mutex *redsync.Mutex) *redsync.Mutex {
	t.Helper()
	check(t, mutex.Lock())
	return mutex
}

func unlocked(t *testing.T, mutex *redsync.Mutex) {
	t.Helper()
	if ok, err := mutex.Unlock(); !ok {
		t.Errorf("unlock: %v", err)
	}
}

// failed returns the error of a call, which returns true only without one.
func failed(ok bool, err error) error {
	if ok != (err == nil) {
		panic(fmt.Sprint(ok, err))
	}
	return err
}

// expectTaken checks that somebody else had the lock on these nodes.
func expectTaken(t *testing.T, err error, nodes ...int) {
	t.Helper()
	taken := testserver.ExpectAs[*redsync.ErrTaken](t, err)
	slices.Sort(taken.Nodes)
	equal(t, "nodes", taken.Nodes, nodes)
}

// expectOutage checks that the error is that of a server that doesn't answer, and nothing else.
func expectOutage(t *testing.T, err error) {
	t.Helper()
	testserver.ExpectAs[*redsync.RedisError](t, err)
	expect(t, err, redislock.ErrUnavailable)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		t.Errorf("an outage is reported as contention: %v", err)
	}
}

// --- locking -------------------------------------------------------------------------------------

func TestLockWaitsInTheQueueOfTheServer(t *testing.T) {
	s, rs := serve(t)
	first := locked(t, rs.NewMutex("k"))
	second := rs.NewMutex("k", redsync.WithRetryDelay(time.Hour))
	granted := make(chan error)
	go func() { granted <- second.Lock() }()
	s.UntilWaiting(t, "k", 1)
	unlocked(t, first)
	check(t, testserver.Receive(t, granted))
	if second.Fence() <= first.Fence() || first.Fence() == 0 {
		t.Errorf("fence %d after %d", second.Fence(), first.Fence())
	}
	unlocked(t, second)
}

func TestLockWaitsForTheSumOfTheDelays(t *testing.T) {
	const ms = time.Millisecond
	s, rs := serve(t)
	locked(t, rs.NewMutex("k"))
	five, delay := redsync.WithTries(5), redsync.WithRetryDelay(100*ms)
	rising := redsync.WithRetryDelayFunc(func(try int) time.Duration {
		return time.Duration(try) * 40 * ms
	})
	waits := map[time.Duration][]func() error{
		400 * ms: {rs.NewMutex("k", five, delay).Lock, rs.NewMutex("k", five, rising).Lock},
		0: {
			rs.NewMutex("k", redsync.WithRetryDelay(0)).Lock,
			rs.NewMutex("k", redsync.WithTries(1)).Lock,
			rs.NewMutex("k").TryLock,
		},
	}
	for expected, locks := range waits {
		for _, lock := range locks {
			takes(t, "a wait", expected, func() { expectTaken(t, lock(), 0) })
		}
	}
	s.UntilWaiting(t, "k", 0)
}

func TestTheContextEndsTheWait(t *testing.T) {
	s, rs := serve(t)
	locked(t, rs.NewMutex("k"))
	within, end := context.WithTimeout(background, 300*time.Millisecond)
	defer end()
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(100*time.Millisecond, cancel)
	for _, ctx := range []context.Context{within, ctx} {
		takes(t, "a wait", 100*time.Millisecond, func() {
			equal(t, "the error", rs.NewMutex("k").LockContext(ctx), redsync.ErrFailed)
		})
	}
	s.UntilWaiting(t, "k", 0)
	err := rs.NewMutex("free").TryLockContext(ctx)
	testserver.ExpectAs[*redsync.RedisError](t, err)
	expect(t, err, context.Canceled)
}

func TestGoroutinesThatShareAMutexExcludeEachOther(t *testing.T) {
	_, rs := serve(t)
	mutex := rs.NewMutex("k", redsync.WithRetryDelay(time.Minute))
	inside, count := 0, 0
	testserver.Together(30, func(int) {
		locked(t, mutex)
		inside++
		equal(t, "inside", inside, 1)
		count++
		inside--
		unlocked(t, mutex)
	})
	equal(t, "count", count, 30)
}

func TestOldClientsThatHoldTheKeyAreWaitedFor(t *testing.T) {
	s, rs := serve(t)
	short := redsync.WithRetryDelay(50 * time.Millisecond)
	s.Call(t, "SET", "k", "of redsync")
	expectTaken(t, rs.NewMutex("k").TryLock(), 0)
	expectTaken(t, rs.NewMutex("k", redsync.WithTries(3), short).Lock(), 0)
	mutex := rs.NewMutex("k", redsync.WithTries(1000), short)
	granted := make(chan error)
	go func() { granted <- mutex.Lock() }()
	s.Call(t, "DEL", "k")
	check(t, testserver.Receive(t, granted))
	s.Call(t, "SET", "k", "of redsync")
	if failed(mutex.Unlock()) == nil || s.Call(t, "GET", "k") != "of redsync" {
		t.Error("unlocked what an old client has")
	}
}

// --- what a mutex holds --------------------------------------------------------------------------

func TestOnlyExtendRenews(t *testing.T) {
	const expiry = 3 * time.Second
	s, rs := serve(t)
	mutex := locked(t, rs.NewMutex("k", redsync.WithExpiry(expiry)))
	first := mutex.Until()
	if left := time.Until(first); left > expiry-expiry/100 || left < 0 {
		t.Errorf("until %v", first)
	}
	check(t, failed(mutex.Extend()))
	equal(t, "later", mutex.Until().After(first), true)
	check(t, failed(mutex.Valid()))
	s.UntilFree(t, "k")
	expectTaken(t, failed(mutex.Valid()), 0)
	expectTaken(t, failed(mutex.Extend()), 0)
	expect(t, failed(mutex.Unlock()), redsync.ErrLockAlreadyExpired)
}

func TestAnExpiryMayBeLongerThanADay(t *testing.T) {
	const week = 7 * 24 * time.Hour
	_, rs := serve(t)
	mutex := locked(t, rs.NewMutex("k", redsync.WithExpiry(week)))
	for range 2 {
		equal(t, "as long as asked", time.Until(mutex.Until()) > week-week/50, true)
		check(t, failed(mutex.Extend()))
	}
	unlocked(t, mutex)
}

func TestAGrantThatIsNoLongerValidIsGivenBack(t *testing.T) {
	s, rs := serve(t)
	// All but 10 us are left off.
	short := []redsync.Option{
		redsync.WithExpiry(5 * time.Second), redsync.WithDriftFactor(0.999998),
		redsync.WithTimeoutFactor(1),
	}
	mutex := rs.NewMutex("k", short...)
	for _, lock := range []func() error{mutex.Lock, mutex.TryLock} {
		equal(t, "the error", lock(), redsync.ErrFailed)
		equal(t, "free", s.IsFree(t, "k"), true)
	}
	value := redsync.WithValue(locked(t, rs.NewMutex("k")).Value())
	extended := failed(rs.NewMutex("k", append(short, value)...).Extend())
	equal(t, "the error", extended, redsync.ErrExtendFailed)
}

func TestSetNXOnExtendAcquiresALockThatIsFree(t *testing.T) {
	s, rs := serve(t)
	mutex := locked(t, rs.NewMutex("k", redsync.WithSetNXOnExtend()))
	s.Call(t, "DEL", "k")
	check(t, failed(mutex.Extend()))
	s.Call(t, "DEL", "k")
	locked(t, rs.NewMutex("k"))
	expectTaken(t, failed(mutex.Extend()), 0)
}

func TestAMutexThatWasNeverLockedHoldsNothing(t *testing.T) {
	_, rs := serve(t)
	locked(t, rs.NewMutex("k"))
	mutex := rs.NewMutex("k")
	for _, call := range []func() (bool, error){mutex.Unlock, mutex.Extend, mutex.Valid} {
		if failed(call()) == nil {
			t.Error("held")
		}
	}
	equal(t, "value, until", []any{mutex.Value(), mutex.Until()}, []any{"", time.Time{}})
}

func TestAValueHandsTheLockOver(t *testing.T) {
	s, rs := serve(t)
	elsewhere := redsync.New(redis.NewClient(s.Client.Options()))
	chosen := redsync.WithGenValueFunc(func() (string, error) { return "job 7", nil })
	given := rs.NewMutex("given", chosen)
	drawn := rs.NewMutex("drawn", redsync.WithExpiry(2*time.Second))
	for _, mutex := range []*redsync.Mutex{locked(t, given), locked(t, drawn)} {
		value := redsync.WithValue(mutex.Value())
		other := elsewhere.NewMutex(mutex.Name(), value, redsync.WithExpiry(time.Hour))
		check(t, errors.Join(failed(other.Valid()), failed(other.Extend())))
		if time.Until(other.Until()) < 59*time.Minute {
			t.Errorf("until %v", other.Until())
		}
	}
	unlocked(t, elsewhere.NewMutex("given", redsync.WithValue("job 7")))
	// The lease of this object is over, and that of the other one isn't.
	time.Sleep(time.Until(drawn.Until()) + time.Second)
	check(t, failed(drawn.Valid()))
	unlocked(t, drawn)
	equal(t, "free", []bool{s.IsFree(t, "given"), s.IsFree(t, "drawn")}, []bool{true, true})
	locked(t, rs.NewMutex("k"))
	for _, wrong := range []string{"wrong", "*", strings.Repeat("x", 257)} {
		mutex := rs.NewMutex("k", redsync.WithValue(wrong))
		expect(t, failed(mutex.Unlock()), redsync.ErrLockAlreadyExpired)
	}
}

func TestOwnersWithOneValueExcludeEachOther(t *testing.T) {
	s, rs := serve(t)
	same := redsync.WithGenValueFunc(func() (string, error) { return "host-1", nil })
	first := locked(t, rs.NewMutex("k", same))
	expectTaken(t, rs.NewMutex("k", same).TryLock(), 0)
	unlocked(t, first)
	failure := errors.New("no value")
	fails := redsync.WithGenValueFunc(func() (string, error) { return "", failure })
	mutex := rs.NewMutex("k", fails)
	equal(t, "the error", mutex.Lock(), failure)
	equal(t, "free", s.IsFree(t, "k"), true)
}

func TestAMutexThatIsCollectedStaysLocked(t *testing.T) {
	s, rs := serve(t)
	locked(t, rs.NewMutex("k"))
	for end := time.Now().Add(time.Second); time.Now().Before(end); runtime.GC() {
		equal(t, "free", s.IsFree(t, "k"), false)
	}
	runtime.KeepAlive(rs)
}

func TestNoTextShowsTheValue(t *testing.T) {
	_, rs := serve(t)
	mutex := locked(t, rs.NewMutex("k"))
	texts := fmt.Sprintf("%v %+v %#v %s", mutex, mutex, mutex, mutex)
	equal(t, texts, strings.Contains(texts, mutex.Value()), false)
}

// --- errors --------------------------------------------------------------------------------------

func TestEveryCallReturnsInTimeThoughTheServerStandsStill(t *testing.T) {
	const timeout = 5 * time.Second
	s := testserver.Serve(t)
	node, err := redislock.New(s.Client, redislock.WithCommandTimeout(timeout))
	check(t, err)
	defer node.Close()
	rs := redsync.NewFromLocks(node)
	released, extended := locked(t, rs.NewMutex("a")), locked(t, rs.NewMutex("b"))
	four := []redsync.Option{redsync.WithTries(4), redsync.WithRetryDelay(100 * time.Millisecond)}
	const within = 600 * time.Millisecond
	goOn := s.Stop()
	testserver.TakeTogether(t, expectOutage, map[time.Duration]func() error{
		400 * time.Millisecond: rs.NewMutex("free1").TryLock,
		300 * time.Millisecond: rs.NewMutex("free2", four...).Lock,
		within: func() error {
			ctx, end := context.WithTimeout(background, within)
			defer end()
			return rs.NewMutex("free3").LockContext(ctx)
		},
		timeout:     func() error { return failed(released.Unlock()) },
		timeout + 1: func() error { return failed(extended.Extend()) },
	})
	goOn()
	s.UntilFree(t, "a", "free1", "free2", "free3")
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	s, rs := serve(t)
	zero := 0.0
	long := func() (string, error) { return strings.Repeat("x", 1025), nil }
	mutexes := map[string]*redsync.Mutex{
		"lease":   rs.NewMutex("k", redsync.WithExpiry(0)),
		"expiry":  rs.NewMutex("k", redsync.WithExpiry(-time.Second)),
		"tries":   rs.NewMutex("k", redsync.WithTries(0)),
		"delay":   rs.NewMutex("k", redsync.WithRetryDelayFunc(nil)),
		"drift":   rs.NewMutex("k", redsync.WithDriftFactor(1)),
		"NaN":     rs.NewMutex("k", redsync.WithDriftFactor(zero/zero)),
		"timeout": rs.NewMutex("k", redsync.WithTimeoutFactor(0)),
		"data":    rs.NewMutex("k", redsync.WithGenValueFunc(long)),
		"none":    redsync.New().NewMutex("k"),
		"nil":     redsync.New(nil).NewMutex("k"),
		"locks":   redsync.NewFromLocks(nil).NewMutex("k"),
	}
	for name, mutex := range mutexes {
		for _, err := range []error{mutex.Lock(), mutex.TryLock()} {
			t.Log(name)
			testserver.ExpectAs[*redislock.ArgumentError](t, err)
		}
	}
	equal(t, "free", s.IsFree(t, "k"), true)
}

func TestErrorsOfTheServerAreThoseOfTheNode(t *testing.T) {
	s, rs := serve(t)
	s.Call(t, "ACL", "SETUSER", "default", "-lock.queue", "-lock.acquire")
	for _, err := range []error{rs.NewMutex("k").Lock(), rs.NewMutex("k").TryLock()} {
		failed := testserver.ExpectAs[*redsync.RedisError](t, err)
		equal(t, "node", failed.Node, 0)
		equal(t, "NOPERM", redis.HasErrorPrefix(failed.Err, "NOPERM"), true)
	}
}

// --- several masters -----------------------------------------------------------------------------

func masters(t *testing.T, count int) (servers []*testserver.Server, rs *redsync.Redsync) {
	t.Helper()
	var clients []redis.UniversalClient
	for range count {
		s := testserver.Serve(t)
		servers, clients = append(servers, s), append(clients, s.Client)
	}
	return servers, redsync.New(clients...)
}

func TestAMajorityOfMastersIsEnough(t *testing.T) {
	servers, rs := masters(t, 3)
	servers[2].Stop()
	expiry := redsync.WithExpiry(20 * time.Second)
	mutex := rs.NewMutex("k", expiry)
	takes(t, "lock", time.Second, func() { locked(t, mutex) })
	equal(t, "fence", mutex.Fence(), int64(0))
	expectTaken(t, rs.NewMutex("k", expiry).TryLock(), 0, 1)
	fast := rs.NewMutex("fast", redsync.WithFailFast(true), redsync.WithExpiry(time.Minute))
	takes(t, "fast lock and unlock", 0, func() { unlocked(t, locked(t, fast)) })
	check(t, failed(mutex.Extend()))
	unlocked(t, mutex)
	_ = servers[1].Client.ShutdownNoSave(background).Err()
	err := rs.NewMutex("k", redsync.WithTries(2), redsync.WithExpiry(4*time.Second)).Lock()
	expectOutage(t, err)
	for node := range servers {
		isNamed := strings.Contains(fmt.Sprint(err), fmt.Sprint("node ", node))
		equal(t, fmt.Sprint("node ", node, " is named"), isNamed, node > 0)
	}
	servers[0].UntilFree(t, "k")
}

func TestWhatAMinorityGrantedIsGivenBack(t *testing.T) {
	servers, rs := masters(t, 3)
	for _, s := range servers[1:] {
		s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	}
	servers[0].Call(t, "CONFIG", "SET", "slowlog-log-slower-than", 0)
	mutex := rs.NewMutex("k", redsync.WithExpiry(time.Minute), redsync.WithTries(3),
		redsync.WithRetryDelay(0))
	expectTaken(t, mutex.Lock(), 1, 2)
	equal(t, "free", servers[0].IsFree(t, "k"), true)
	// A late release of a try ends no other grant, because each try has a token of its own.
	log, err := servers[0].Client.SlowLogGet(background, 100).Result()
	check(t, err)
	tokens := map[string]bool{}
	for _, entry := range log {
		if entry.Args[0] == "LOCK.ACQUIRE" {
			tokens[entry.Args[2]] = true
		}
	}
	equal(t, "tokens in 3 tries", len(tokens), 3)
}

// Two masters at most are away, each for longer than the expiry.
func TestHoldsNeverOverlapWhileMastersComeAndGo(t *testing.T) {
	const expiry = time.Second
	servers, rs := masters(t, 5)
	var mu sync.Mutex
	var heldUntil time.Time
	holds := 0
	// hold notes until when the mutex is held, and checks that nobody else holds it.
	hold := func(until time.Time, isNew bool) {
		mu.Lock()
		defer mu.Unlock()
		if isNew {
			holds++
			if time.Now().Before(heldUntil) {
				t.Errorf("locked though held until %v", heldUntil)
			}
		}
		heldUntil = until
	}
	// compete locks a mutex once, extends it now and then, and leaves it locked now and then.
	compete := func() {
		pause := func(int) time.Duration { return rand.N(30 * time.Millisecond) }
		mutex := rs.NewMutex("k", redsync.WithExpiry(expiry), redsync.WithTimeoutFactor(0.2),
			redsync.WithTries(3), redsync.WithRetryDelayFunc(pause))
		if mutex.Lock() != nil {
			return
		}
		hold(mutex.Until(), true)
		within, cancel := context.WithTimeout(background, expiry/5)
		defer cancel()
		time.Sleep(rand.N(15 * time.Millisecond))
		if rand.IntN(4) == 0 && failed(mutex.ExtendContext(within)) == nil {
			hold(mutex.Until(), false)
		}
		if rand.IntN(20) > 0 {
			hold(time.Now(), false)
			_, _ = mutex.UnlockContext(within)
		}
	}
	isOver := time.Now().Add(10 * expiry)
	ended := make(chan bool)
	go func() {
		testserver.Together(6, func(int) {
			for time.Now().Before(isOver) {
				compete()
			}
		})
		close(ended)
	}()
	for range 5 {
		first := rand.IntN(5)
		away := []*testserver.Server{servers[first], servers[(first+1+rand.IntN(4))%5]}
		away[0].Call(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
		resume := []func(){away[0].Stop(), away[1].Stop()}
		time.Sleep(expiry + expiry/20)
		for _, goOn := range resume {
			goOn()
		}
	}
	<-ended
	if holds < 10 {
		t.Errorf("the mutex was locked %d times", holds)
	}
}

// Two tries of each lock are still under way when it is unlocked.
func TestAFailFastUnlockLeavesNoGrant(t *testing.T) {
	servers, rs := masters(t, 5)
	mutex := rs.NewMutex("k", redsync.WithFailFast(true), redsync.WithExpiry(10*time.Minute))
	for range 1000 {
		// A machine that is busy may answer late. Then the release goes on in the background.
		if mutex.Lock() == nil {
			_, _ = mutex.Unlock()
		}
	}
	for _, s := range servers {
		s.UntilFree(t, "k")
	}
}

// --- the page ------------------------------------------------------------------------------------

const page = "../../../docs/migrate/redsync.md"

func TestTheProgramsOfThePageRun(t *testing.T) {
	servers, _ := masters(t, 3)
	testserver.RunPrograms(t, page, "127.0.0.1:6379", servers[0].Address,
		"127.0.0.1:7001", servers[0].Address, "127.0.0.1:7002", servers[1].Address,
		"127.0.0.1:7003", servers[2].Address)
}

func TestTheCallsOfThePageRun(t *testing.T) {
	s, _ := serve(t)
	calls := testserver.Calls(t, page, "| call |", 0)
	functions := strings.NewReplacer("DelayFunc(f)", "DelayFunc(delay)",
		"ValueFunc(f)", "ValueFunc(value)")
	for _, option := range testserver.Calls(t, page, "| option |", 0) {
		calls = append(calls, "rs.NewMutex(name, redsync."+functions.Replace(option)+").Lock()")
	}
	testserver.RunCalls(t,
		`"github.com/redis-lock/redis-lock/clients/go/redsync"`,
		fmt.Sprintf(`
			client := redis.NewClient(&redis.Options{Addr: %q})
			ctx, name, options := context.Background(), "k", []redsync.Option{redsync.WithTries(2)}
			clients := []redis.UniversalClient{client}
			d, n, f, v, b := time.Minute, 2, 0.1, "mine", true
			delay := func(int) time.Duration { return d }
			value := func() (string, error) { return v, nil }
			rs := redsync.New(clients...)
			mutex := rs.NewMutex(name, options...)`, s.Address),
		"did(mutex.Lock())", calls)
}
