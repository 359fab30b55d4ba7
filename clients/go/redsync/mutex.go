package redsync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
)

// Mutex is a lock, which ends with its expiry unless Extend renews it. Goroutines that share a Mutex
// exclude each other. A Mutex that is collected stays locked until then.
type Mutex struct {
	redsync *Redsync

	name           string
	expiry         time.Duration
	tries          int
	delay          DelayFunc
	drift, timeout float64
	generate       func() (string, error)
	failFast       bool
	reacquires     bool

	mu sync.Mutex
	// The value, or nil before the first lock. It is a function because no text form shows it then.
	value func() string
	until time.Time
	// One for each node, or nil if the mutex wasn't locked through this object.
	locks []*redislock.Lock
}

// Name returns the name, which is the key.
func (m *Mutex) Name() string { return m.name }

// Value returns the value of the latest lock, or "" before the first one. Who knows it can unlock it.
func (m *Mutex) Value() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.value == nil {
		return ""
	}
	return m.value()
}

// Until returns the time until which the latest lock is surely held, or the zero time.
func (m *Mutex) Until() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.until
}

// Fence returns the fence of the latest lock, which is greater than that of every earlier one. It is
// 0 before the first lock, and always 0 with several nodes, whose fences can't be compared.
func (m *Mutex) Fence() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.locks) != 1 {
		return 0
	}
	return m.locks[0].Fence()
}

// String returns the name, without the value.
func (m *Mutex) String() string { return "redsync.Mutex(" + m.name + ")" }

// TryLock is TryLockContext without a context.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext locks the mutex if it is free. It fails with *ErrTaken if it isn't, and with a
// *RedisError if that isn't known.
func (m *Mutex) TryLockContext(ctx context.Context) error { return m.lock(ctx, 1) }

// Lock is LockContext without a context.
func (m *Mutex) Lock() error { return m.LockContext(context.Background()) }

// LockContext waits for the mutex, for as long as the delays between all tries would take together.
// It fails with *ErrTaken if somebody else had it until then; with ErrFailed if the context ended
// before; with a *RedisError if a server wasn't available or refused the command.
func (m *Mutex) LockContext(ctx context.Context) error { return m.lock(ctx, m.tries) }

func (m *Mutex) lock(ctx context.Context, tries int) error {
	ctx = orBackground(ctx)
	if err := m.check(); err != nil {
		return err
	}
	var value func() string
	if m.generate != nil {
		text, err := m.generate()
		if err != nil {
			return err
		}
		value = func() string { return text }
	}
	if len(m.redsync.nodes) == 1 && tries > 1 {
		return m.wait(ctx, value)
	}
	var failed error
	for try := range tries {
		if try > 0 {
			select {
			case <-time.After(m.delay(try)):
			case <-ctx.Done():
				return ErrFailed
			}
		}
		if failed = m.try(ctx, value); failed == nil || isArgument(failed) {
			return failed
		}
	}
	return failed
}

// check returns the error of a wrong argument.
func (m *Mutex) check() error {
	refuse := func(argument, reason string) error {
		return &redislock.ArgumentError{Argument: argument, Reason: reason}
	}
	switch {
	case m.redsync.wrong != nil:
		return m.redsync.wrong
	case m.expiry <= 0:
		return refuse("expiry", "greater than 0")
	case m.tries < 1:
		return refuse("tries", "1 or greater")
	case m.delay == nil:
		return refuse("delay", "a function")
	case !(m.drift >= 0 && m.drift < 1):
		return refuse("drift factor", "from 0 up to, and not including, 1")
	case !(m.timeout > 0 && m.timeout <= 1):
		return refuse("timeout factor", "greater than 0, and at most 1")
	}
	return nil
}

func isArgument(err error) bool {
	var wrong *redislock.ArgumentError
	return errors.As(err, &wrong)
}

// wait waits in the queue of the only node.
func (m *Mutex) wait(ctx context.Context, value func() string) error {
	locks, err := m.newLocks(value)
	if err != nil {
		return err
	}
	pause := func() time.Duration { return m.delay(1) }
	err = dropin.Acquire(ctx, locks[0], m.patience(), pause)
	switch {
	case err == nil:
		return m.hold(ctx, value, locks)
	case errors.Is(err, context.Canceled), isRefusal(err) && ctx.Err() != nil:
		return ErrFailed
	case isRefusal(err):
		return &ErrTaken{Nodes: []int{0}}
	}
	return &RedisError{Node: 0, Err: err}
}

// mostDelays is the number of delays that are asked for. A program that tries for ever says so with
// a great number of tries.
const mostDelays = 1000

// patience returns the sum of the delays between the tries. The mean stands for those after the
// first thousand.
func (m *Mutex) patience() time.Duration {
	asked := min(m.tries-1, mostDelays)
	var sum time.Duration
	for try := 1; try <= asked; try++ {
		sum += min(max(0, m.delay(try)), longestPatience/mostDelays)
	}
	all := float64(sum) / float64(asked) * float64(m.tries-1)
	return time.Duration(min(all, float64(longestPatience)))
}

const longestPatience = 10 * 365 * 24 * time.Hour

// try tries once on each node.
func (m *Mutex) try(ctx context.Context, value func() string) error {
	within, cancel := context.WithTimeout(ctx, m.tryTimeout())
	defer cancel()
	locks, err := m.newLocks(value)
	if err != nil {
		return err
	}
	trying, stop := context.WithCancel(within)
	n, err := m.onNodes(func(node int) error { return tryOn(trying, locks[node]) })
	// Fail-fast leaves tries behind, which end here.
	stop()
	if n >= m.quorum() {
		err = m.hold(ctx, value, locks)
		if err == nil {
			return nil
		}
	}
	m.giveBack(within, locks)
	return err
}

// tryOn tries on one node. A grant that comes after the end of the context is given back, because
// the Unlock of the mutex may be over.
func tryOn(ctx context.Context, lock *redislock.Lock) error {
	_, err := lock.TryAcquire(ctx)
	if err == nil && ctx.Err() != nil {
		go func() { _ = lock.Release(context.Background()) }()
		return ctx.Err()
	}
	return err
}

func (m *Mutex) tryTimeout() time.Duration {
	return max(time.Millisecond, time.Duration(float64(m.expiry)*m.timeout))
}

// giveBack releases what was granted on too few nodes. What doesn't end within the context goes on
// in the background.
func (m *Mutex) giveBack(ctx context.Context, locks []*redislock.Lock) {
	var all sync.WaitGroup
	for _, lock := range locks {
		if lock.IsHeld() {
			all.Add(1)
			go func() {
				defer all.Done()
				_ = lock.Release(ctx)
			}()
		}
	}
	all.Wait()
}

func (m *Mutex) quorum() int { return len(m.redsync.nodes)/2 + 1 }

// options returns the options of a Lock of this mutex.
func (m *Mutex) options(more ...redislock.Option) []redislock.Option {
	return append([]redislock.Option{
		redislock.WithLease(m.expiry), redislock.WithoutRenewal(), redislock.WithDetached(),
		// Extend may go on for ever.
		redislock.WithMaxHold(redislock.Unlimited),
	}, more...)
}

// newLocks returns a Lock for each node. A program's value isn't the token, because two owners with one
// value must exclude each other.
func (m *Mutex) newLocks(value func() string) ([]*redislock.Lock, error) {
	own := redislock.WithToken(dropin.RandomToken())
	if value != nil {
		own = redislock.WithData(value())
	}
	var locks []*redislock.Lock
	for _, node := range m.redsync.nodes {
		lock, err := node.Lock(m.name, m.options(own)...)
		if err != nil {
			return nil, err
		}
		locks = append(locks, lock)
	}
	return locks, nil
}

// hold makes a grant the one of this mutex, or gives it back if it came too late.
func (m *Mutex) hold(ctx context.Context, value func() string, locks []*redislock.Lock) error {
	until := m.validUntil(locks)
	if !time.Now().Before(until) {
		m.giveBack(ctx, locks)
		return ErrFailed
	}
	if value == nil {
		value = locks[0].Token
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value, m.locks, m.until = value, locks, until
	return nil
}

// validUntil returns the time until which a majority holds the lock, less the drift, or the zero time.
func (m *Mutex) validUntil(locks []*redislock.Lock) time.Time {
	var ends []time.Time
	for _, lock := range locks {
		if lock != nil && !lock.Until().IsZero() {
			ends = append(ends, lock.Until())
		}
	}
	if len(ends) < m.quorum() {
		return time.Time{}
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[m.quorum()-1].Add(-time.Duration(float64(m.expiry) * m.drift))
}

// Unlock is UnlockContext without a context.
func (m *Mutex) Unlock() (bool, error) { return m.UnlockContext(context.Background()) }

// UnlockContext unlocks the mutex. It returns false and ErrLockAlreadyExpired if the mutex wasn't
// held any more, and false and a *RedisError if that isn't known. The release goes on in the
// background then.
func (m *Mutex) UnlockContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	if err := m.check(); err != nil {
		return false, err
	}
	n, err := m.onNodes(func(node int) error {
		lock, isFound, err := m.on(ctx, node)
		if err == nil && isFound {
			_, err = lock.Adopt(ctx)
		}
		if err == nil {
			err = lock.Release(ctx)
		}
		if errors.Is(err, redislock.ErrLost) || errors.Is(err, redislock.ErrNotHeld) {
			return ErrLockAlreadyExpired
		}
		return err
	})
	if n < m.quorum() {
		return false, err
	}
	return true, nil
}

// Extend is ExtendContext without a context.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext sets the lease to the expiry again. It returns false and *ErrTaken if the mutex isn't
// held any more, and false and a *RedisError if that isn't known.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	if err := m.check(); err != nil {
		return false, err
	}
	n, err := m.onNodes(func(node int) error {
		lock, isFound, err := m.on(ctx, node)
		switch {
		case err != nil:
		case isFound:
			_, err = lock.Adopt(ctx)
		default:
			err = lock.Extend(ctx, m.expiry)
		}
		if m.reacquires && lock != nil && isRefusal(err) {
			lock, err = m.reacquire(ctx, node)
		}
		if err == nil {
			m.keep(node, lock)
		}
		return err
	})
	if n < m.quorum() {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	until := m.validUntil(m.locks)
	if !time.Now().Before(until) {
		return false, ErrExtendFailed
	}
	m.until = until
	return true, nil
}

// reacquire acquires a lock that was lost or released, with the same value, if it is free. The token is
// another one, because a release with the one before may still be on its way.
func (m *Mutex) reacquire(ctx context.Context, node int) (*redislock.Lock, error) {
	lock, err := m.redsync.nodes[node].Lock(m.name, m.options(
		redislock.WithToken(dropin.RandomToken()), redislock.WithData(m.Value()))...)
	if err == nil {
		_, err = lock.TryAcquire(ctx)
	}
	return lock, err
}

// Valid is ValidContext without a context.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext asks the servers whether this mutex is held. Until answers that without a server.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	if err := m.check(); err != nil {
		return false, err
	}
	n, err := m.onNodes(func(node int) error {
		lock, isFound, err := m.on(ctx, node)
		if err != nil || isFound {
			return err
		}
		isOwned, err := lock.Owned(ctx)
		if err == nil && !isOwned {
			return redislock.ErrNotHeld
		}
		return err
	})
	return n >= m.quorum(), err
}

// on returns the Lock of this mutex on a node. If another mutex locked it with this value, or extended
// it beyond the lease of this one, it is found at the server, and isFound is true. It fails with
// redislock.ErrNotHeld.
func (m *Mutex) on(ctx context.Context, node int) (lock *redislock.Lock, isFound bool, err error) {
	m.mu.Lock()
	value := m.value
	if m.locks != nil {
		lock = m.locks[node]
	}
	m.mu.Unlock()
	if lock != nil && value != nil && lock.IsLost() {
		// Nothing is sent: it only ends the claim of this Lock.
		_ = lock.Release(ctx)
		lock = nil
	}
	switch {
	case lock != nil:
		return lock, false, nil
	case value == nil:
		return nil, false, redislock.ErrNotHeld
	}
	lock, err = m.find(ctx, m.redsync.nodes[node], value())
	return lock, err == nil, err
}

// find returns the Lock with this value: its token, or else the data of a holder. It fails with
// redislock.ErrNotHeld, and returns a Lock that may acquire it if there can be one.
func (m *Mutex) find(ctx context.Context, node *redislock.Locks, value string) (*redislock.Lock, error) {
	byToken, err := node.Lock(m.name, m.options(redislock.WithToken(value))...)
	if err == nil {
		isOwned, err := byToken.Owned(ctx)
		if err != nil || isOwned {
			return byToken, err
		}
	}
	asker, err := node.Lock(m.name)
	if err != nil {
		return nil, err
	}
	holders, err := asker.Holders(ctx)
	if err != nil {
		return nil, err
	}
	for _, holder := range holders {
		if holder.Data == value && holder.Token() != "" {
			return node.Lock(m.name, m.options(redislock.WithToken(holder.Token()))...)
		}
	}
	return byToken, redislock.ErrNotHeld
}

// keep notes the Lock of a node.
func (m *Mutex) keep(node int, lock *redislock.Lock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks == nil {
		m.locks = make([]*redislock.Lock, len(m.redsync.nodes))
	}
	m.locks[node] = lock
}

// onNodes calls act for all nodes at once. It returns how many succeeded, and the errors of the
// others: *ErrTaken if the majority refused.
func (m *Mutex) onNodes(act func(node int) error) (int, error) {
	type answer struct {
		node int
		err  error
	}
	count := len(m.redsync.nodes)
	answers := make(chan answer, count)
	for node := range count {
		go func() { answers <- answer{node, act(node)} }()
	}
	succeeded := 0
	var taken []int
	var failed error
	for range count {
		a := <-answers
		switch {
		case a.err == nil:
			succeeded++
		case isArgument(a.err):
			return 0, a.err
		case errors.Is(a.err, ErrLockAlreadyExpired):
			failed = errors.Join(failed, a.err)
		case isRefusal(a.err):
			taken = append(taken, a.node)
			failed = errors.Join(failed, &ErrNodeTaken{Node: a.node})
		default:
			failed = errors.Join(failed, &RedisError{Node: a.node, Err: a.err})
		}
		if m.failFast && (succeeded >= m.quorum() || len(taken) >= m.quorum()) {
			break
		}
	}
	if len(taken) >= m.quorum() {
		failed = &ErrTaken{Nodes: taken}
	}
	return succeeded, failed
}

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
