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

const late = testserver.Late

var (
	background = context.Background()
	serve      = testserver.Serve
	check      = testserver.Check
	until      = testserver.Until
	takes      = testserver.Takes
)

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

// expectTaken checks that somebody else had the lock on these nodes.
func expectTaken(t *testing.T, err error, nodes ...int) {
	t.Helper()
	var taken *redsync.ErrTaken
	if !errors.As(err, &taken) {
		t.Fatalf("%v instead of ErrTaken", err)
	}
	slices.Sort(taken.Nodes)
	if !slices.Equal(taken.Nodes, nodes) {
		t.Errorf("nodes %v instead of %v", taken.Nodes, nodes)
	}
}

// expectOutage checks that the error is that of a server that doesn't answer, and nothing else.
func expectOutage(t *testing.T, err error) {
	t.Helper()
	var failed *redsync.RedisError
	var taken *redsync.ErrTaken
	if !errors.As(err, &failed) || !errors.Is(err, redislock.ErrUnavailable) {
		t.Errorf("%v instead of a RedisError with ErrUnavailable", err)
	}
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		t.Errorf("an outage is reported as contention: %v", err)
	}
}

func TestLockWaitsInTheQueueOfTheServer(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	first, second := locked(t, rs.NewMutex("k")), rs.NewMutex("k", redsync.WithRetryDelay(time.Hour))
	granted := make(chan error)
	go func() { granted <- second.Lock() }()
	until(t, "it waits", func() bool { return s.Waiters(t, "k") == 1 })
	unlocked(t, first)
	check(t, <-granted)
	if second.Fence() <= first.Fence() || first.Fence() == 0 {
		t.Errorf("fence %d after %d", second.Fence(), first.Fence())
	}
	unlocked(t, second)
}

func TestLockWaitsForTheSumOfTheDelays(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	locked(t, rs.NewMutex("k"))
	delays := map[string]redsync.Option{
		"delay":    redsync.WithRetryDelay(100 * time.Millisecond),
		"function": redsync.WithRetryDelayFunc(func(try int) time.Duration { return time.Duration(try) * 40 * time.Millisecond }),
	}
	for name, delay := range delays {
		mutex := rs.NewMutex("k", redsync.WithTries(5), delay)
		takes(t, name, 400*time.Millisecond, late, func() { expectTaken(t, mutex.Lock(), 0) })
	}
	takes(t, "no delay", 0, late, func() { expectTaken(t, rs.NewMutex("k", redsync.WithRetryDelay(0)).Lock(), 0) })
	takes(t, "one try", 0, late, func() { expectTaken(t, rs.NewMutex("k", redsync.WithTries(1)).Lock(), 0) })
	takes(t, "try", 0, late, func() { expectTaken(t, rs.NewMutex("k").TryLock(), 0) })
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
}

func TestTheContextEndsTheWait(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	locked(t, rs.NewMutex("k"))
	within, end := context.WithTimeout(background, 300*time.Millisecond)
	defer end()
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(100*time.Millisecond, cancel)
	for _, ctx := range []context.Context{within, ctx} {
		takes(t, "a wait", 100*time.Millisecond, late, func() {
			if err := rs.NewMutex("k").LockContext(ctx); err != redsync.ErrFailed {
				t.Errorf("%v instead of ErrFailed", err)
			}
		})
	}
	until(t, "nobody waits", func() bool { return s.Waiters(t, "k") == 0 })
	var refused *redsync.RedisError
	if err := rs.NewMutex("free").TryLockContext(ctx); !errors.As(err, &refused) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v instead of a RedisError with context.Canceled", err)
	}
}

func TestGoroutinesThatShareAMutexExcludeEachOther(t *testing.T) {
	s := serve(t)
	mutex := redsync.New(s.Client).NewMutex("k", redsync.WithRetryDelay(time.Minute))
	inside, count := 0, 0
	var all sync.WaitGroup
	for range 30 {
		all.Add(1)
		go func() {
			defer all.Done()
			locked(t, mutex)
			if inside++; inside != 1 {
				t.Error("two are inside")
			}
			count++
			inside--
			unlocked(t, mutex)
		}()
	}
	all.Wait()
	if count != 30 {
		t.Errorf("%d were inside", count)
	}
}

func TestOnlyExtendRenews(t *testing.T) {
	const expiry = 3 * time.Second
	s := serve(t)
	mutex := locked(t, redsync.New(s.Client).NewMutex("k", redsync.WithExpiry(expiry)))
	first := mutex.Until()
	if left := time.Until(first); left > expiry-expiry/100 || left < 0 {
		t.Errorf("until %v", first)
	}
	check(t, second(mutex.Extend()))
	if !mutex.Until().After(first) {
		t.Errorf("until %v after %v", mutex.Until(), first)
	}
	check(t, second(mutex.Valid()))
	until(t, "it has ended", func() bool { return s.IsFree(t, "k") })
	expectTaken(t, second(mutex.Valid()), 0)
	expectTaken(t, second(mutex.Extend()), 0)
	if ok, err := mutex.Unlock(); ok || !errors.Is(err, redsync.ErrLockAlreadyExpired) {
		t.Errorf("%v instead of ErrLockAlreadyExpired", err)
	}
}

func TestAGrantThatIsNoLongerValidIsGivenBack(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	// All but 10 us are left off.
	short := []redsync.Option{
		redsync.WithExpiry(5 * time.Second), redsync.WithDriftFactor(0.999998), redsync.WithTimeoutFactor(1),
	}
	for _, lock := range []func() error{rs.NewMutex("k", short...).Lock, rs.NewMutex("k", short...).TryLock} {
		if err := lock(); err != redsync.ErrFailed {
			t.Errorf("%v instead of ErrFailed", err)
		}
		if !s.IsFree(t, "k") {
			t.Error("it isn't free")
		}
	}
	value := locked(t, rs.NewMutex("k")).Value()
	if ok, err := rs.NewMutex("k", append(short, redsync.WithValue(value))...).Extend(); ok || err != redsync.ErrExtendFailed {
		t.Errorf("%v instead of ErrExtendFailed", err)
	}
}

func TestSetNXOnExtendAcquiresALockThatIsFree(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	mutex := locked(t, rs.NewMutex("k", redsync.WithSetNXOnExtend()))
	s.Call(t, "DEL", "k")
	check(t, second(mutex.Extend()))
	s.Call(t, "DEL", "k")
	locked(t, rs.NewMutex("k"))
	expectTaken(t, second(mutex.Extend()), 0)
}

func TestAMutexThatWasNeverLockedHoldsNothing(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	locked(t, rs.NewMutex("k"))
	mutex := rs.NewMutex("k")
	for _, call := range []func() (bool, error){mutex.Unlock, mutex.Extend, mutex.Valid} {
		if ok, err := call(); ok || err == nil {
			t.Errorf("held: %v", err)
		}
	}
	if mutex.Value() != "" || !mutex.Until().IsZero() || mutex.Fence() != 0 {
		t.Error("it is valid")
	}
}

func TestAValueHandsTheLockOver(t *testing.T) {
	s := serve(t)
	rs, elsewhere := redsync.New(s.Client), redsync.New(redis.NewClient(s.Client.Options()))
	generate := redsync.WithGenValueFunc(func() (string, error) { return "job 7", nil })
	given := locked(t, rs.NewMutex("given", generate))
	if given.Value() != "job 7" {
		t.Errorf("%s instead of job 7", given.Value())
	}
	for _, mutex := range []*redsync.Mutex{given, locked(t, rs.NewMutex("drawn"))} {
		value := redsync.WithValue(mutex.Value())
		other := elsewhere.NewMutex(mutex.Name(), value, redsync.WithExpiry(time.Hour))
		check(t, errors.Join(second(other.Valid()), second(other.Extend())))
		if time.Until(other.Until()) < 59*time.Minute {
			t.Errorf("until %v", other.Until())
		}
		unlocked(t, elsewhere.NewMutex(mutex.Name(), value))
		if !s.IsFree(t, mutex.Name()) {
			t.Error("it isn't free")
		}
	}
	locked(t, rs.NewMutex("k"))
	for _, wrong := range []string{"wrong", "*", strings.Repeat("x", 257)} {
		_, err := rs.NewMutex("k", redsync.WithValue(wrong)).Unlock()
		if !errors.Is(err, redsync.ErrLockAlreadyExpired) {
			t.Errorf("unlocked with another value: %v", err)
		}
	}
}

func TestALockThatAnotherMutexExtendedCanBeUnlocked(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	mutex := locked(t, rs.NewMutex("k", redsync.WithExpiry(2*time.Second)))
	check(t, second(rs.NewMutex("k", redsync.WithValue(mutex.Value()), redsync.WithExpiry(time.Hour)).Extend()))
	time.Sleep(time.Until(mutex.Until()) + time.Second)
	check(t, second(mutex.Valid()))
	unlocked(t, mutex)
	if !s.IsFree(t, "k") {
		t.Error("it isn't free")
	}
}

func TestOwnersWithOneValueExcludeEachOther(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	same := redsync.WithGenValueFunc(func() (string, error) { return "host-1", nil })
	first := locked(t, rs.NewMutex("k", same))
	expectTaken(t, rs.NewMutex("k", same).TryLock(), 0)
	unlocked(t, first)
	failure := errors.New("no value")
	mutex := rs.NewMutex("k", redsync.WithGenValueFunc(func() (string, error) { return "", failure }))
	if err := mutex.Lock(); err != failure || !s.IsFree(t, "k") {
		t.Errorf("%v instead of %v", err, failure)
	}
}

func TestAMutexThatIsCollectedStaysLocked(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	locked(t, rs.NewMutex("k"))
	for end := time.Now().Add(time.Second); time.Now().Before(end); runtime.GC() {
		if s.IsFree(t, "k") {
			t.Fatal("it is free")
		}
	}
	runtime.KeepAlive(rs)
}

func TestOldClientsThatHoldTheKeyAreWaitedFor(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	s.Call(t, "SET", "k", "of redsync")
	expectTaken(t, rs.NewMutex("k").TryLock(), 0)
	expectTaken(t, rs.NewMutex("k", redsync.WithTries(3), redsync.WithRetryDelay(50*time.Millisecond)).Lock(), 0)
	mutex := rs.NewMutex("k", redsync.WithTries(1000), redsync.WithRetryDelay(50*time.Millisecond))
	granted := make(chan error)
	go func() { granted <- mutex.Lock() }()
	s.Call(t, "DEL", "k")
	check(t, <-granted)
	s.Call(t, "SET", "k", "of redsync")
	if ok, err := mutex.Unlock(); ok || err == nil || s.Call(t, "GET", "k") != "of redsync" {
		t.Errorf("unlocked what an old client has: %v", err)
	}
}

func TestEveryCallReturnsInTimeThoughTheServerStandsStill(t *testing.T) {
	s := serve(t)
	const timeout = 5 * time.Second
	node, err := redislock.New(s.Client, redislock.WithCommandTimeout(timeout))
	check(t, err)
	defer node.Close()
	rs := redsync.NewFromLocks(node)
	released, extended := locked(t, rs.NewMutex("a")), locked(t, rs.NewMutex("b"))
	within, end := context.WithTimeout(background, 600*time.Millisecond)
	goOn := s.Stop(t)
	defer end()
	four := []redsync.Option{redsync.WithTries(4), redsync.WithRetryDelay(100 * time.Millisecond)}
	calls := map[time.Duration]func() error{
		400 * time.Millisecond: rs.NewMutex("free1").TryLock,
		300 * time.Millisecond: rs.NewMutex("free2", four...).Lock,
		600 * time.Millisecond: func() error { return rs.NewMutex("free3").LockContext(within) },
		timeout:                func() error { return second(released.Unlock()) },
		timeout + 1:            func() error { return second(extended.Extend()) },
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
	for _, key := range []string{"a", "free1", "free2", "free3"} {
		until(t, key+" is free", func() bool { return s.IsFree(t, key) })
	}
}

func second(_ bool, err error) error { return err }

func TestWrongArgumentsAreRefused(t *testing.T) {
	s := serve(t)
	rs := redsync.New(s.Client)
	zero := 0.0
	mutexes := map[string]*redsync.Mutex{
		"lease":   rs.NewMutex("k", redsync.WithExpiry(0)),
		"expiry":  rs.NewMutex("k", redsync.WithExpiry(-time.Second)),
		"tries":   rs.NewMutex("k", redsync.WithTries(0)),
		"delay":   rs.NewMutex("k", redsync.WithRetryDelayFunc(nil)),
		"drift":   rs.NewMutex("k", redsync.WithDriftFactor(1)),
		"NaN":     rs.NewMutex("k", redsync.WithDriftFactor(zero/zero)),
		"timeout": rs.NewMutex("k", redsync.WithTimeoutFactor(0)),
		"data":    rs.NewMutex("k", redsync.WithGenValueFunc(func() (string, error) { return strings.Repeat("x", 1025), nil })),
		"none":    redsync.New().NewMutex("k"),
		"nil":     redsync.New(nil).NewMutex("k"),
		"ring":    redsync.New(redis.NewRing(&redis.RingOptions{})).NewMutex("k"),
		"locks":   redsync.NewFromLocks(nil).NewMutex("k"),
	}
	for name, mutex := range mutexes {
		for _, err := range []error{mutex.Lock(), mutex.TryLock()} {
			var wrong *redislock.ArgumentError
			if !errors.As(err, &wrong) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if !s.IsFree(t, "k") {
		t.Error("something was sent")
	}
}

func TestErrorsOfTheServerAreThoseOfTheNode(t *testing.T) {
	s := serve(t)
	s.Call(t, "ACL", "SETUSER", "default", "-lock.queue", "-lock.acquire")
	rs := redsync.New(s.Client)
	for _, err := range []error{rs.NewMutex("k").Lock(), rs.NewMutex("k").TryLock()} {
		var failed *redsync.RedisError
		if !errors.As(err, &failed) || failed.Node != 0 || !redis.HasErrorPrefix(failed.Err, "NOPERM") {
			t.Errorf("%v instead of NOPERM", err)
		}
	}
}

func TestNoTextShowsTheValue(t *testing.T) {
	s := serve(t)
	mutex := locked(t, redsync.New(s.Client).NewMutex("k"))
	if texts := fmt.Sprintf("%v %+v %#v %s", mutex, mutex, mutex, mutex); strings.Contains(texts, mutex.Value()) {
		t.Error(texts)
	}
}

// --- several masters --------------------------------------------------------------------------

func masters(t *testing.T, count int) ([]*testserver.Server, *redsync.Redsync) {
	t.Helper()
	servers := make([]*testserver.Server, count)
	var all sync.WaitGroup
	for i := range servers {
		all.Add(1)
		go func() {
			defer all.Done()
			servers[i] = serve(t)
		}()
	}
	all.Wait()
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, s.Client)
	}
	return servers, redsync.New(clients...)
}

func TestAMajorityOfMastersIsEnough(t *testing.T) {
	servers, rs := masters(t, 3)
	servers[2].Stop(t)
	expiry := redsync.WithExpiry(20 * time.Second)
	mutex := rs.NewMutex("k", expiry)
	takes(t, "lock", time.Second, late, func() { check(t, mutex.Lock()) })
	if mutex.Fence() != 0 {
		t.Error("a fence of several masters")
	}
	expectTaken(t, rs.NewMutex("k", expiry).TryLock(), 0, 1)
	fast := rs.NewMutex("fast", redsync.WithFailFast(true), redsync.WithExpiry(time.Minute))
	takes(t, "fast lock and unlock", 0, late, func() { unlocked(t, locked(t, fast)) })
	check(t, second(mutex.Extend()))
	unlocked(t, mutex)
	_ = servers[1].Client.ShutdownNoSave(background).Err()
	err := rs.NewMutex("k", redsync.WithTries(2), redsync.WithExpiry(4*time.Second)).Lock()
	expectOutage(t, err)
	for node := range servers {
		if isNamed := strings.Contains(fmt.Sprint(err), fmt.Sprint("node ", node)); isNamed != (node > 0) {
			t.Errorf("node %d: %v", node, err)
		}
	}
	until(t, "the grant of a minority is given back", func() bool { return servers[0].IsFree(t, "k") })
}

func TestWhatAMinorityGrantedIsGivenBack(t *testing.T) {
	servers, rs := masters(t, 3)
	for _, s := range servers[1:] {
		s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	}
	servers[0].Call(t, "CONFIG", "SET", "slowlog-log-slower-than", 0)
	mutex := rs.NewMutex("k", redsync.WithExpiry(time.Minute), redsync.WithTries(3), redsync.WithRetryDelay(0))
	expectTaken(t, mutex.Lock(), 1, 2)
	if !servers[0].IsFree(t, "k") {
		t.Error("the first master isn't free")
	}
	// A late release of a try ends no other grant, because each try has a token of its own.
	log, err := servers[0].Client.SlowLogGet(background, 100).Result()
	check(t, err)
	tokens := map[string]bool{}
	for _, entry := range log {
		if entry.Args[0] == "LOCK.ACQUIRE" {
			tokens[entry.Args[2]] = true
		}
	}
	if len(tokens) != 3 {
		t.Errorf("%d tokens in 3 tries", len(tokens))
	}
}

// Two masters at most are away, each for longer than the expiry.
func TestHoldsNeverOverlapWhileMastersComeAndGo(t *testing.T) {
	const expiry = time.Second
	servers, rs := masters(t, 5)
	type hold struct{ from, to time.Time }
	var mu sync.Mutex
	var holds []hold
	// compete locks the mutex once, extends it now and then, and leaves it locked now and then.
	compete := func() {
		mutex := rs.NewMutex("k", redsync.WithExpiry(expiry), redsync.WithTimeoutFactor(0.2), redsync.WithTries(3),
			redsync.WithRetryDelayFunc(func(int) time.Duration { return rand.N(30 * time.Millisecond) }))
		if mutex.Lock() != nil {
			return
		}
		h := hold{from: time.Now()}
		within, cancel := context.WithTimeout(background, expiry/5)
		defer cancel()
		time.Sleep(rand.N(15 * time.Millisecond))
		if rand.IntN(4) == 0 {
			// If it fails, the hold ends as it would have without it.
			_, _ = mutex.ExtendContext(within)
		}
		isLeft := rand.IntN(20) == 0
		h.to = mutex.Until()
		if now := time.Now(); !isLeft && now.Before(h.to) {
			h.to = now
		}
		mu.Lock()
		holds = append(holds, h)
		mu.Unlock()
		if !isLeft {
			_, _ = mutex.UnlockContext(within)
		}
	}
	ctx, end := context.WithCancel(background)
	var all sync.WaitGroup
	for range 6 {
		all.Add(1)
		go func() {
			defer all.Done()
			for ctx.Err() == nil {
				compete()
			}
		}()
	}
	for range 5 {
		first := rand.IntN(5)
		away := []*testserver.Server{servers[first], servers[(first+1+rand.IntN(4))%5]}
		away[0].Call(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
		resume := []func(){away[0].Stop(t), away[1].Stop(t)}
		time.Sleep(expiry + expiry/20)
		for _, goOn := range resume {
			goOn()
		}
	}
	time.Sleep(2 * expiry)
	end()
	all.Wait()
	t.Logf("%d holds", len(holds))
	slices.SortFunc(holds, func(a, b hold) int { return a.from.Compare(b.from) })
	for i := 1; i < len(holds); i++ {
		if holds[i].from.Before(holds[i-1].to) {
			t.Errorf("a hold until %v and one from %v", holds[i-1].to, holds[i].from)
		}
	}
	if len(holds) < 20 {
		t.Error("the mutex was seldom locked")
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
		until(t, "it is free", func() bool { return s.IsFree(t, "k") })
	}
}

func TestTheProgramsOfThePageRun(t *testing.T) {
	servers, _ := masters(t, 3)
	testserver.RunPage(t, "../../../docs/migrate/redsync.md", "127.0.0.1:6379", servers[0].Address,
		"127.0.0.1:7001", servers[0].Address, "127.0.0.1:7002", servers[1].Address, "127.0.0.1:7003", servers[2].Address)
}

func TestTheCallsOfThePageRun(t *testing.T) {
	s := serve(t)
	ctx := background
	var rs *redsync.Redsync
	var mutex *redsync.Mutex
	unlock := func(unlock func() (bool, error)) func() error {
		return func() error { return second(unlock()) }
	}
	// locks runs a call that locks, after an unlock by the other mutexes of the page.
	locks := func(lock func() error) func() error {
		return func() error {
			s.Call(t, "DEL", "k")
			return lock()
		}
	}
	with := func(options ...redsync.Option) func() error {
		return func() error {
			other := rs.NewMutex("with options", options...)
			return errors.Join(other.Lock(), unlock(other.Extend)(), unlock(other.Unlock)())
		}
	}
	const page = "../../../docs/migrate/redsync.md"
	testserver.RunTable(t, page, "| call |", 0, map[string]func() error{
		"rs := redsync.New(clients...)": func() error {
			rs = redsync.New(s.Client)
			return nil
		},
		"mutex := rs.NewMutex(name, options...)": func() error {
			mutex = rs.NewMutex("k", redsync.WithTries(2))
			return nil
		},
		"mutex.Lock()":              locks(func() error { return mutex.Lock() }),
		"mutex.LockContext(ctx)":    locks(func() error { return mutex.LockContext(ctx) }),
		"mutex.TryLock()":           locks(func() error { return mutex.TryLock() }),
		"mutex.TryLockContext(ctx)": locks(func() error { return mutex.TryLockContext(ctx) }),
		"mutex.Extend()":            func() error { return unlock(mutex.Extend)() },
		"mutex.ExtendContext(ctx)":  unlock(func() (bool, error) { return mutex.ExtendContext(ctx) }),
		"mutex.Unlock()":            func() error { return errors.Join(unlock(mutex.Unlock)(), mutex.Lock()) },
		"mutex.UnlockContext(ctx)": func() error {
			return errors.Join(unlock(func() (bool, error) { return mutex.UnlockContext(ctx) })(), mutex.Lock())
		},
		"mutex.Valid()":           func() error { return unlock(mutex.Valid)() },
		"mutex.ValidContext(ctx)": unlock(func() (bool, error) { return mutex.ValidContext(ctx) }),
		"mutex.Until()":           testserver.Is(func() bool { return time.Until(mutex.Until()) > 0 }),
		"mutex.Name()":            testserver.Is(func() bool { return mutex.Name() == "k" }),
		"mutex.Value()":           testserver.Is(func() bool { return mutex.Value() != "" }),
		"mutex.Fence()":           testserver.Is(func() bool { return mutex.Fence() > 0 }),
	})
	testserver.RunTable(t, page, "| option |", 0, map[string]func() error{
		"WithExpiry(d)":         with(redsync.WithExpiry(time.Minute)),
		"WithTries(n)":          with(redsync.WithTries(2)),
		"WithRetryDelay(d)":     with(redsync.WithRetryDelay(time.Second)),
		"WithRetryDelayFunc(f)": with(redsync.WithRetryDelayFunc(func(int) time.Duration { return time.Second })),
		"WithDriftFactor(f)":    with(redsync.WithDriftFactor(0.1)),
		"WithTimeoutFactor(f)":  with(redsync.WithTimeoutFactor(0.1)),
		"WithGenValueFunc(f)":   with(redsync.WithGenValueFunc(func() (string, error) { return "mine", nil })),
		"WithValue(v)":          func() error { return unlock(rs.NewMutex("k", redsync.WithValue(mutex.Value())).Extend)() },
		"WithSetNXOnExtend()":   with(redsync.WithSetNXOnExtend()),
		"WithFailFast(b)":       with(redsync.WithFailFast(true)),
		"WithShufflePools(b)":   with(redsync.WithShufflePools(true)),
	})
}
