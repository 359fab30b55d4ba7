package redsync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
	"github.com/redis-lock/redis-lock/clients/go/internal/shape"
)

// Mutex is a lock, which ends with its expiry unless Extend renews it. Goroutines that share a
// Mutex exclude each other. A Mutex that is collected stays locked until then.
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
	// The grants of the nodes, each nil if the mutex wasn't locked there through this object.
	grants []*redislock.Grant
}

// Name returns the name, which is the key.
func (m *Mutex) Name() string { return m.name }

// Value returns the value of the latest lock, or "" before the first one. Who knows it can unlock
// it.
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

// Fence returns the fence of the latest lock, which is greater than that of every earlier one. It
// is 0 before the first lock, and always 0 with several nodes, whose fences can't be compared.
func (m *Mutex) Fence() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.grants) != 1 || m.grants[0] == nil {
		return 0
	}
	return m.grants[0].Fence()
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
	claims, err := m.claims()
	if err != nil {
		return err
	}
	if len(m.redsync.nodes) == 1 && tries > 1 {
		return m.wait(ctx, claims())
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
		if failed = m.try(ctx, claims()); failed == nil || isArgument(failed) {
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

// claim is what one lock of a mutex says of its owner.
type claim struct {
	value   func() string
	shape   shape.Shape
	options []redislock.Option
}

// claims returns a function that makes the claim of each try. By default its value is a token that
// no other try uses. A value that the program generates isn't the token, because two owners with
// one value must exclude each other.
func (m *Mutex) claims() (func() claim, error) {
	if m.generate == nil {
		return drawn, nil
	}
	value, err := m.generate()
	return func() claim { return claimOf(value) }, err
}

func drawn() claim {
	s := dropin.Drawn()
	return claim{s.Token, s, nil}
}

// claimOf shows the value as data.
func claimOf(value string) claim {
	return claim{func() string { return value }, shape.Shape{}, []redislock.Option{redislock.WithData(value)}}
}

func isArgument(err error) bool {
	var wrong *redislock.ArgumentError
	return errors.As(err, &wrong)
}

// wait waits in the queue of the only node.
func (m *Mutex) wait(ctx context.Context, c claim) error {
	lock, err := m.lockOn(0, c)
	if err != nil {
		return err
	}
	pause := func() time.Duration { return m.delay(1) }
	grant, err := dropin.Acquire(ctx, lock, c.shape, m.patience(), pause)
	switch {
	case err == nil:
		return m.hold(ctx, c.value, []*redislock.Grant{grant})
	case errors.Is(err, context.Canceled), isRefusal(err) && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
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
func (m *Mutex) try(ctx context.Context, c claim) error {
	within, cancel := context.WithTimeout(ctx, m.tryTimeout())
	defer cancel()
	got := grants{of: make([]*redislock.Grant, len(m.redsync.nodes))}
	n, err := m.onNodes(func(node int) error {
		lock, err := m.lockOn(node, c)
		if err != nil {
			return err
		}
		grant, err := dropin.Try(within, lock, c.shape)
		if err != nil {
			return err
		}
		return got.add(node, grant)
	})
	all := got.close()
	if n >= m.quorum() {
		if err = m.hold(within, c.value, all); err == nil {
			return nil
		}
	}
	giveBack(within, all)
	return err
}

// grants are the grants of one try.
type grants struct {
	mu     sync.Mutex
	of     []*redislock.Grant
	closed bool
}

// add gives a grant back that comes after the end of the try, which fail-fast leaves behind: the
// Unlock of the mutex may be over.
func (g *grants) add(node int, grant *redislock.Grant) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		go func() { _ = grant.Release(context.Background()) }()
		return ErrFailed
	}
	g.of[node] = grant
	return nil
}

func (g *grants) close() []*redislock.Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.of
}

func (m *Mutex) tryTimeout() time.Duration {
	return max(time.Millisecond, time.Duration(float64(m.expiry)*m.timeout))
}

// giveBack releases what was granted on too few nodes. What doesn't end within the context goes on
// in the background.
func giveBack(ctx context.Context, all []*redislock.Grant) {
	var releases sync.WaitGroup
	for _, grant := range all {
		if grant != nil {
			releases.Add(1)
			go func() {
				defer releases.Done()
				_ = grant.Release(ctx)
			}()
		}
	}
	releases.Wait()
}

func (m *Mutex) quorum() int { return len(m.redsync.nodes)/2 + 1 }

// lockOn returns the lock of this mutex on a node.
func (m *Mutex) lockOn(node int, c claim) (*redislock.Lock, error) {
	return m.redsync.nodes[node].Lock(m.name, dropin.Options(m.expiry, c.options...)...)
}

// hold makes grants those of this mutex, or gives them back if they came too late.
func (m *Mutex) hold(ctx context.Context, value func() string, all []*redislock.Grant) error {
	until := m.validUntil(all)
	if !time.Now().Before(until) {
		giveBack(ctx, all)
		return ErrFailed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value, m.grants, m.until = value, all, until
	return nil
}

// validUntil returns the time until which a majority holds the lock, less the drift, or the zero
// time.
func (m *Mutex) validUntil(all []*redislock.Grant) time.Time {
	var ends []time.Time
	for _, grant := range all {
		if grant == nil {
			continue
		}
		if left := grant.Left(); left > 0 {
			ends = append(ends, time.Now().Add(left))
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
	was := m.now()
	n, err := m.onNodes(func(node int) error {
		grant, err := m.on(ctx, node, was)
		if err == nil {
			err = grant.Release(ctx)
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

// ExtendContext sets the lease to the expiry again. It returns false and *ErrTaken if the mutex
// isn't held any more, and false and a *RedisError if that isn't known.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	if err := m.check(); err != nil {
		return false, err
	}
	was := m.now()
	n, err := m.onNodes(func(node int) error {
		grant, err := m.on(ctx, node, was)
		if err == nil {
			err = dropin.Extend(ctx, grant, m.expiry)
		}
		if m.reacquires && isRefusal(err) {
			grant, err = m.reacquire(ctx, node, was)
		}
		if err == nil {
			m.keep(node, grant)
		}
		return err
	})
	if n < m.quorum() {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	until := m.validUntil(m.grants)
	if !time.Now().Before(until) {
		return false, ErrExtendFailed
	}
	m.until = until
	return true, nil
}

// reacquire acquires a lock that was lost or released, with the same value, if it is free. The
// token is another one, because a release with the one before may still be on its way.
func (m *Mutex) reacquire(ctx context.Context, node int, was ownership) (*redislock.Grant, error) {
	c := claimOf(was.value())
	lock, err := m.lockOn(node, c)
	if err != nil {
		return nil, err
	}
	return dropin.Try(ctx, lock, c.shape)
}

// Valid is ValidContext without a context.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext asks the servers whether this mutex is held. Until answers that without a server.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	if err := m.check(); err != nil {
		return false, err
	}
	was := m.now()
	n, err := m.onNodes(func(node int) error {
		if grant := was.grants[node]; grant != nil {
			isOwned, err := grant.Owned(ctx)
			if err != nil || isOwned {
				return err
			}
		}
		_, err := m.find(ctx, node, was)
		return err
	})
	return n >= m.quorum(), err
}

// ownership is what a mutex has at the begin of a call. A part of the call that fail-fast leaves
// behind must not meet the next lock.
type ownership struct {
	value func() string
	// The grants of the nodes, each nil if there is none or it is lost.
	grants []*redislock.Grant
}

func (m *Mutex) now() ownership {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := ownership{m.value, make([]*redislock.Grant, len(m.redsync.nodes))}
	for node, grant := range m.grants {
		if grant != nil && !grant.IsLost() {
			o.grants[node] = grant
		}
	}
	if o.value == nil {
		o.value = func() string { return "" }
	}
	return o
}

// on returns the grant of this mutex on a node. If another mutex locked it with this value, or
// extended it beyond the lease of this one, it is found at the server. It fails with
// redislock.ErrNotHeld.
func (m *Mutex) on(ctx context.Context, node int, was ownership) (*redislock.Grant, error) {
	if grant := was.grants[node]; grant != nil {
		return grant, nil
	}
	holder, err := m.find(ctx, node, was)
	if err != nil {
		return nil, err
	}
	return m.redsync.nodes[node].Adopt(
		shape.In(ctx, shape.Shape{}), []string{m.name}, holder.Token(), holder.Fence, dropin.Options(m.expiry)...)
}

// find returns the holder with the value of this mutex. It fails with redislock.ErrNotHeld.
func (m *Mutex) find(ctx context.Context, node int, was ownership) (redislock.Holder, error) {
	value := was.value()
	if value == "" {
		return redislock.Holder{}, redislock.ErrNotHeld
	}
	lock, err := m.redsync.nodes[node].Lock(m.name)
	if err != nil {
		return redislock.Holder{}, err
	}
	holders, err := lock.Holders(ctx)
	if err != nil {
		return redislock.Holder{}, err
	}
	for _, holder := range holders {
		if token := holder.Token(); token == value || token != "" && holder.Data == value {
			return holder, nil
		}
	}
	return redislock.Holder{}, redislock.ErrNotHeld
}

// keep notes the grant of a node.
func (m *Mutex) keep(node int, grant *redislock.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.grants == nil {
		m.grants = make([]*redislock.Grant, len(m.redsync.nodes))
	}
	m.grants[node] = grant
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
