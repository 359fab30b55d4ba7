package redsync

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
	"github.com/redis-lock/redis-lock/clients/go/internal/shape"
)

// Mutex is a lock, which ends with its expiry unless Extend renews it. Goroutines that share a
// Mutex exclude each other. A Mutex that is collected stays locked until then.
type Mutex struct {
	nodes []*redislock.Locks
	wrong error

	name           string
	expiry         time.Duration
	tries          int
	delay          DelayFunc
	drift, timeout float64
	generate       func() (string, error)
	failFast       bool
	reacquires     bool

	owner atomic.Pointer[ownership]
}

// ownership is what a mutex has, since its latest lock or extension. It never changes, so a part of
// a call that fail-fast leaves behind doesn't meet the next lock. No text shows the value, because
// it is behind a pointer.
type ownership struct {
	value string
	until time.Time
	// The grants of the nodes, each nil if the mutex wasn't locked there through this object.
	grants []*redislock.Grant
}

// now returns what the mutex has now.
func (m *Mutex) now() ownership {
	o := ownership{}
	if latest := m.owner.Load(); latest != nil {
		o = *latest
	}
	if o.grants == nil {
		o.grants = make([]*redislock.Grant, len(m.nodes))
	}
	return o
}

// Name returns the name, which is the key.
func (m *Mutex) Name() string { return m.name }

// Value returns the value of the latest lock, or "" before the first one. Who knows it can unlock
// it.
func (m *Mutex) Value() string { return m.now().value }

// Until returns the time until which the latest lock is surely held, or the zero time.
func (m *Mutex) Until() time.Time { return m.now().until }

// Fence returns the fence of the latest lock, which is greater than that of every earlier one. It
// is 0 before the first lock, and always 0 with several nodes, whose fences can't be compared.
func (m *Mutex) Fence() int64 {
	if grants := m.now().grants; len(grants) == 1 && grants[0] != nil {
		return grants[0].Fence()
	}
	return 0
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
	ctx, err := m.begin(ctx)
	if err != nil {
		return err
	}
	value, err := m.generate()
	if err != nil {
		return err
	}
	locks, err := m.locks(value)
	if err != nil {
		return err
	}
	if len(locks) == 1 && tries > 1 {
		return m.wait(ctx, locks[0], value)
	}
	for try := range tries {
		if try > 0 {
			select {
			case <-time.After(m.delay(try)):
			case <-ctx.Done():
				return ErrFailed
			}
		}
		if err = m.try(ctx, locks, value); err == nil {
			return nil
		}
	}
	return err
}

// begin returns the context of a call, or the error of a wrong argument.
func (m *Mutex) begin(ctx context.Context) (context.Context, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	for _, rule := range []struct {
		argument string
		isKept   bool
		mustBe   string
	}{
		{"expiry", m.expiry > 0, "greater than 0"},
		{"tries", m.tries >= 1, "1 or greater"},
		{"delay", m.delay != nil, "a function"},
		{"drift factor", m.drift >= 0 && m.drift < 1, "from 0 up to, and not including, 1"},
		{"timeout factor", m.timeout > 0 && m.timeout <= 1, "greater than 0, and at most 1"},
	} {
		if !rule.isKept && m.wrong == nil {
			return nil, &redislock.ArgumentError{Argument: rule.argument, Reason: rule.mustBe}
		}
	}
	return shape.In(ctx, shape.Shape{}), m.wrong
}

// locks returns the locks of the nodes. They show the value as data: it isn't the token, because
// two owners with one value must exclude each other.
func (m *Mutex) locks(value string) ([]*redislock.Lock, error) {
	var all []*redislock.Lock
	options := append(dropin.Options(m.expiry), redislock.WithData(value))
	for _, node := range m.nodes {
		lock, err := node.Lock(m.name, options...)
		if err != nil {
			return nil, err
		}
		all = append(all, lock)
	}
	return all, nil
}

// wait waits in the queue of the only node.
func (m *Mutex) wait(ctx context.Context, lock *redislock.Lock, value string) error {
	pause := func() time.Duration { return m.delay(1) }
	grant, err := dropin.Acquire(ctx, lock, m.patience(), pause)
	isOver := ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil:
		return m.hold(ctx, value, []*redislock.Grant{grant})
	case errors.Is(err, context.Canceled), isRefusal(err) && isOver:
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
func (m *Mutex) try(ctx context.Context, locks []*redislock.Lock, value string) error {
	timeout := max(time.Millisecond, time.Duration(float64(m.expiry)*m.timeout))
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	grants, err := m.onNodes(release, func(node int) (*redislock.Grant, error) {
		return locks[node].TryAcquire(within)
	})
	if err != nil {
		m.giveBack(within, grants)
		return err
	}
	return m.hold(within, value, grants)
}

// giveBack releases grants. What doesn't end within the context goes on in the background.
func (m *Mutex) giveBack(ctx context.Context, grants []*redislock.Grant) {
	_, _ = m.onNodes(ignore, func(node int) (*redislock.Grant, error) {
		if grants[node] == nil {
			return nil, nil
		}
		return nil, grants[node].Release(ctx)
	})
}

func (m *Mutex) quorum() int { return len(m.nodes)/2 + 1 }

// hold makes grants those of this mutex, or gives them back if they came too late.
func (m *Mutex) hold(ctx context.Context, value string, grants []*redislock.Grant) error {
	until := m.validUntil(grants)
	if !time.Now().Before(until) {
		m.giveBack(ctx, grants)
		return ErrFailed
	}
	m.owner.Store(&ownership{value, until, grants})
	return nil
}

// validUntil returns the time until which a majority holds the lock, less the drift.
func (m *Mutex) validUntil(grants []*redislock.Grant) time.Time {
	ends := make([]time.Time, len(m.nodes))
	for node, grant := range grants {
		if grant != nil {
			ends[node] = time.Now().Add(grant.Left())
		}
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
	ctx, err := m.begin(ctx)
	if err != nil {
		return false, err
	}
	was := m.now()
	_, err = m.onNodes(ignore, func(node int) (*redislock.Grant, error) {
		grant, err := m.on(ctx, node, was)
		if err == nil {
			err = grant.Release(ctx)
		}
		if errors.Is(err, redislock.ErrLost) || errors.Is(err, redislock.ErrNotHeld) {
			err = ErrLockAlreadyExpired
		}
		return nil, err
	})
	return err == nil, err
}

// Extend is ExtendContext without a context.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext sets the lease to the expiry again. It returns false and *ErrTaken if the mutex
// isn't held any more, and false and a *RedisError if that isn't known.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	ctx, err := m.begin(ctx)
	if err != nil {
		return false, err
	}
	was := m.now()
	locks, err := m.locks(was.value)
	if err != nil {
		return false, err
	}
	grants, err := m.onNodes(ignore, func(node int) (*redislock.Grant, error) {
		grant, err := m.on(ctx, node, was)
		if err == nil {
			err = grant.Extend(ctx, m.expiry)
		}
		if m.reacquires && isRefusal(err) {
			// The token is another one, because a release with the one before may still come.
			return locks[node].TryAcquire(ctx)
		}
		return grant, err
	})
	if err != nil {
		return false, err
	}
	for node, grant := range grants {
		grants[node] = cmp.Or(grant, was.grants[node])
	}
	until := m.validUntil(grants)
	if !time.Now().Before(until) {
		return false, ErrExtendFailed
	}
	m.owner.Store(&ownership{was.value, until, grants})
	return true, nil
}

// Valid is ValidContext without a context.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext asks the servers whether this mutex is held. Until answers that without a server.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	ctx, err := m.begin(ctx)
	if err != nil {
		return false, err
	}
	was := m.now()
	_, err = m.onNodes(ignore, func(node int) (*redislock.Grant, error) {
		if grant := was.grants[node]; grant != nil {
			isOwned, err := grant.Owned(ctx)
			if err != nil || isOwned {
				return nil, err
			}
		}
		_, err := m.find(ctx, node, was.value)
		return nil, err
	})
	return err == nil, err
}

// on returns the grant of this mutex on a node. If another mutex locked it with this value, or
// extended it beyond the lease of this one, it is found at the server. It fails with
// redislock.ErrNotHeld.
func (m *Mutex) on(ctx context.Context, node int, was ownership) (*redislock.Grant, error) {
	if grant := was.grants[node]; grant != nil && !grant.IsLost() {
		return grant, nil
	}
	holder, err := m.find(ctx, node, was.value)
	if err != nil {
		return nil, err
	}
	keys, options := []string{m.name}, dropin.Options(m.expiry)
	return m.nodes[node].Adopt(ctx, keys, holder.Token(), holder.Fence, options...)
}

// find returns the holder with the value of this mutex. It fails with redislock.ErrNotHeld.
func (m *Mutex) find(
	ctx context.Context, node int, value string,
) (holder redislock.Holder, err error) {
	lock, err := m.nodes[node].Lock(m.name)
	if err != nil {
		return holder, err
	}
	holders, err := lock.Holders(ctx)
	if err != nil {
		return holder, err
	}
	for _, holder := range holders {
		if value != "" && holder.Data == value && holder.Token() != "" {
			return holder, nil
		}
	}
	return holder, redislock.ErrNotHeld
}

// onNodes calls act for all nodes at once. It returns the grants of those that succeeded, and an
// error unless these are the majority: *ErrTaken if the majority refused. The grants for which
// fail-fast doesn't wait go to late.
func (m *Mutex) onNodes(
	late func(*redislock.Grant), act func(node int) (*redislock.Grant, error),
) ([]*redislock.Grant, error) {
	type answer struct {
		node  int
		grant *redislock.Grant
		err   error
	}
	missing, succeeded := len(m.nodes), 0
	answers, grants := make(chan answer), make([]*redislock.Grant, missing)
	for node := range missing {
		go func() {
			grant, err := act(node)
			answers <- answer{node, grant, err}
		}()
	}
	var taken []int
	var failed error
	for ; missing > 0 && !(m.failFast && max(succeeded, len(taken)) >= m.quorum()); missing-- {
		switch a := <-answers; {
		case a.err == nil:
			succeeded++
			grants[a.node] = a.grant
		case errors.Is(a.err, ErrLockAlreadyExpired):
			failed = errors.Join(failed, a.err)
		case isRefusal(a.err):
			taken = append(taken, a.node)
			failed = errors.Join(failed, &ErrNodeTaken{Node: a.node})
		default:
			failed = errors.Join(failed, &RedisError{Node: a.node, Err: a.err})
		}
	}
	go func() {
		for ; missing > 0; missing-- {
			late((<-answers).grant)
		}
	}()
	switch {
	case succeeded >= m.quorum():
		return grants, nil
	case len(taken) >= m.quorum():
		return grants, &ErrTaken{Nodes: taken}
	}
	return grants, failed
}

// release releases a grant that comes when the Unlock of the mutex may be over.
func release(grant *redislock.Grant) {
	if grant != nil {
		go grant.Release(context.Background())
	}
}

func ignore(*redislock.Grant) {}
