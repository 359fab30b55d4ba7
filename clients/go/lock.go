package redislock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// Lock is a lock on one or several keys, with one owner at a time: goroutines that share it exclude
// each other like those that share a sync.Mutex, and any of them may release it. It is safe for
// concurrent use. A Lock that is collected while it is held is released, except WithDetached.
type Lock struct {
	owner *owner
}

// Acquire waits for the lock, until the context or the time of WithWait ends, and returns the
// fence, which is greater than that of every earlier grant.
//
// It fails with ErrNotAcquired if somebody else had the lock until then; with ErrUnavailable if that
// isn't known, because no server answered; with context.Canceled; and at once with ErrDeadlock,
// ErrModuleMissing, ErrNotReplicated, or another error of the server. Without a limit, it waits
// through outages, and reports them to the observer. If the context's own deadline was the limit,
// the error is context.DeadlineExceeded as well.
func (l *Lock) Acquire(ctx context.Context) (fence int64, err error) {
	got, err := l.acquire(ctx, l.owner.patience())
	return got.fence, err
}

// acquire keeps the Lock until its end, because a Lock that is collected before is never released.
func (l *Lock) acquire(ctx context.Context, p patience) (hold, error) {
	defer runtime.KeepAlive(l)
	return l.owner.acquire(ctx, p)
}

// AcquireWithin is Acquire with this limit instead of that of WithWait; 0 tries once. It fails with
// an *ArgumentError if wait is negative.
func (l *Lock) AcquireWithin(ctx context.Context, wait time.Duration) (fence int64, err error) {
	if wait < 0 {
		return 0, errNegativeWait
	}
	got, err := l.acquire(ctx, l.owner.within(wait))
	return got.fence, err
}

var errNegativeWait = &ArgumentError{"wait", "0 or greater"}

// TryAcquire acquires the lock if it is free, and fails with ErrNotAcquired if it isn't. It fails
// with ErrUnavailable if no server answers within the command timeout, and then holds no lock; with
// other errors as Acquire does.
func (l *Lock) TryAcquire(ctx context.Context) (fence int64, err error) {
	got, err := l.acquire(ctx, l.owner.once())
	return got.fence, err
}

// Do acquires the lock as Acquire does, calls work, and releases the lock, even if work panics or
// calls runtime.Goexit. The context of work ends when the lock is lost, with ErrLost as its cause.
// Renewal ends when ctx does. In a reentrant lock, it ends with the context of the first hold.
//
// It returns the error of work if there is one, and else ErrLost if the lock was lost. If only the
// release finds no server, it returns nil after the command timeout at most: the observer hears of
// it, and the release goes on in the background.
func (l *Lock) Do(ctx context.Context, work func(ctx context.Context, fence int64) error) error {
	got, err := l.acquire(ctx, l.owner.patience())
	if err != nil {
		return err
	}
	return l.guard(ctx, got, work)
}

// DoWithin is Do with this limit of the wait, as in AcquireWithin.
func (l *Lock) DoWithin(
	ctx context.Context, wait time.Duration, work func(ctx context.Context, fence int64) error,
) error {
	if wait < 0 {
		return errNegativeWait
	}
	got, err := l.acquire(ctx, l.owner.within(wait))
	if err != nil {
		return err
	}
	return l.guard(ctx, got, work)
}

func (l *Lock) guard(
	ctx context.Context, got hold, work func(ctx context.Context, fence int64) error,
) (err error) {
	inner, cancel := context.WithCancelCause(ctx)
	lost := l.Lost()
	go func() {
		select {
		case <-lost:
			cancel(ErrLost)
		case <-inner.Done():
		}
	}()
	stop := context.AfterFunc(ctx, func() { l.owner.endRenewal(got) })
	defer func() {
		stop()
		cancel(nil)
		failed := l.leaveBlock(ctx, got.fence, lost)
		switch {
		case errors.Is(failed, ErrLost) && err == nil:
			err = failed
		case failed != nil && !errors.Is(failed, ErrLost) && !errors.Is(failed, ErrUnavailable):
			l.owner.locks.report(failed)
		}
	}()
	return work(inner, got.fence)
}

// leaveBlock releases the lock, unless another goroutine has acquired this Lock meanwhile: after a
// loss, or after a release in the block.
func (l *Lock) leaveBlock(ctx context.Context, fence int64, lost <-chan struct{}) error {
	switch {
	case l.Fence() == fence:
		return l.Release(context.WithoutCancel(ctx))
	case isOver(lost):
		return ErrLost
	}
	return nil
}

func isOver(lost <-chan struct{}) bool {
	select {
	case <-lost:
		return true
	default:
		return false
	}
}

// Release removes one hold, and releases the lock with the last one. Any goroutine may call it. It
// fails with ErrNotHeld if the lock isn't held, and with ErrLost if it had been lost.
//
// Call it after a loss too, because an acquire of this Lock waits for that call: for the time of a
// lease at most.
//
// It fails with ErrUnavailable if no server answers within the command timeout, and with the
// context's error when that ends. The lock is no longer held here then, and the release goes on in
// the background until the lease is over, when the lock ends at the latest.
func (l *Lock) Release(ctx context.Context) error {
	return l.owner.release(ctx, false)
}

// Extend sets the lease, which counts from now and is used by later renewals too. It fails with
// ErrNotHeld or ErrLost; with ErrUnavailable if no server answers within the command timeout; with
// an *ArgumentError if the lease is less than 1 ms. The lease stays as it is after any error
// except ErrLost. If the server may have set a shorter one, the lock is renewed at once, or lost.
func (l *Lock) Extend(ctx context.Context, lease time.Duration) error {
	if lease < shortestLease {
		return &ArgumentError{"lease", leaseRange}
	}
	return l.owner.extend(ctx, lease)
}

// Left returns the remaining lease by the server's clock, or 0 if the lock isn't held. It fails with
// ErrUnavailable if no server answers within the command timeout.
func (l *Lock) Left(ctx context.Context) (time.Duration, error) {
	o := l.owner
	least := Unlimited
	err := o.call(ctx, func(_ context.Context, report func(error)) error {
		within, cancel := context.WithTimeout(context.Background(), o.locks.timeout)
		defer cancel()
		for _, key := range o.keys {
			a := o.ask(within, o.locks.link.shared, command{[]any{"LOCK.CHECK", key, o.token()}, 1}, report)
			if a.err != nil {
				return a.err
			}
			least = min(least, time.Duration(a.count)*time.Millisecond)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return least, nil
}

// Owned asks the server whether this lock holds all its keys now. It fails as Left does.
func (l *Lock) Owned(ctx context.Context) (bool, error) {
	left, err := l.Left(ctx)
	return left > 0, err
}

// Adopt takes over the grant of another Lock with this token, in this process or elsewhere, sets its
// lease, and returns its fence. The other Lock doesn't learn of it, and mustn't be used any more.
//
// It fails with ErrNotHeld if the token doesn't hold the lock; with ErrNotAcquired if this Lock is in
// use; with ErrUnavailable if no server answers within the command timeout. The grant isn't released
// then: it stays until its lease is over.
func (l *Lock) Adopt(ctx context.Context) (fence int64, err error) {
	o := l.owner
	var sent time.Time
	err = o.call(ctx, func(_ context.Context, report func(error)) error {
		within, cancel := context.WithTimeout(context.Background(), o.locks.timeout)
		defer cancel()
		a := o.ask(within, o.locks.link.shared, o.command("EXTEND", "PX", ms(o.lease)), report)
		if a.err == nil && a.count != int64(len(o.keys)) {
			return ErrNotHeld
		}
		sent = a.sent
		return a.err
	})
	if err != nil {
		return 0, err
	}
	// The reply to the holder is the fence that it has.
	got, err := o.begin(ctx, o.once(), (*search).leaveToLease)
	if err == nil && time.Since(sent) >= o.lease {
		// The lease may have been over, and this another grant.
		_ = l.Release(ctx)
		return 0, ErrNotHeld
	}
	return got.fence, err
}

// Holder is a holder of a lock, as LOCK.INFO shows it.
type Holder struct {
	// Fence is the fence of its grant.
	Fence int64
	// Data is what WithData says.
	Data  string
	token secret
}

// Token returns the token, or "" if this client may not write the key. Who knows it controls the
// lock.
func (h Holder) Token() string { return h.token() }

// Holders asks the server who holds the first key now. It fails as Left does.
func (l *Lock) Holders(ctx context.Context) ([]Holder, error) {
	o := l.owner
	var holders []Holder
	err := o.call(ctx, func(_ context.Context, report func(error)) error {
		within, cancel := context.WithTimeout(context.Background(), o.locks.timeout)
		defer cancel()
		info := command{[]any{"LOCK.INFO", o.keys[0], "WAITERS", 0}, 1}
		a := o.ask(within, o.locks.link.shared, info, report)
		holders = holdersOf(a.reply)
		return a.err
	})
	if err != nil {
		return nil, err
	}
	return holders, nil
}

// holdersOf returns the holders in a reply of LOCK.INFO.
func holdersOf(reply any) []Holder {
	var holders []Holder
	list, _ := fieldsOf(reply)["holders"].([]any)
	for _, item := range list {
		fields := fieldsOf(item)
		fence, _ := fields["fence"].(int64)
		data, _ := fields["data"].(string)
		token, _ := fields["token"].(string)
		holders = append(holders, Holder{fence, data, newSecret(token)})
	}
	return holders
}

// fieldsOf returns the fields of a map in the server's older protocol.
func fieldsOf(reply any) map[any]any {
	fields := map[any]any{}
	items, _ := reply.([]any)
	for i := 0; i+1 < len(items); i += 2 {
		if name, ok := items[i].(string); ok {
			fields[name] = items[i+1]
		}
	}
	return fields
}

// Fence returns the fence of the latest grant, also after its release or loss, or 0 before the first.
func (l *Lock) Fence() int64 {
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	return l.owner.fence
}

// Keys returns the keys.
func (l *Lock) Keys() []string { return append([]string(nil), l.owner.keys...) }

// Token returns the token. Who knows it controls the lock. Unless WithToken chose it, another one may be
// drawn whenever the lock isn't held.
func (l *Lock) Token() string { return l.owner.token() }

// IsHeld returns true if the lock is held, by the local clock and without asking the server.
func (l *Lock) IsHeld() bool {
	held, _ := l.owner.held()
	return held != nil
}

// Until returns the time at which the lease ends by the local clock unless it is renewed, or the
// zero time if the lock isn't held.
func (l *Lock) Until() time.Time {
	held, _ := l.owner.held()
	if held == nil {
		return time.Time{}
	}
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	return held.until
}

// IsLost returns true if the latest grant was lost: the server said so, or the lease has ended on
// the local monotonic clock.
func (l *Lock) IsLost() bool {
	_, isLost := l.owner.held()
	return isLost
}

// Lost returns a channel that is closed when the latest grant is lost.
func (l *Lock) Lost() <-chan struct{} {
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	return l.owner.lost
}

// String returns the keys and the state, without the token.
func (l *Lock) String() string {
	state := "free"
	if held, isLost := l.owner.held(); held != nil {
		state = fmt.Sprintf("held, fence %d", held.fence)
	} else if isLost {
		state = "lost"
	}
	return fmt.Sprintf("redislock.Lock(%s: %s)", strings.Join(l.owner.keys, ", "), state)
}

// Locker returns a sync.Locker. Its Lock waits without a limit, and panics with errors that aren't
// outages. Its Unlock panics if the lock isn't held. Lost locks and outages are the observer's.
func (l *Lock) Locker() sync.Locker { return locker{l} }

type locker struct{ lock *Lock }

func (l locker) Lock() {
	if _, err := l.lock.owner.acquire(context.Background(), patience{waits: true}); err != nil {
		panic(err)
	}
}

func (l locker) Unlock() {
	switch err := l.lock.Release(context.Background()); {
	case err == nil, errors.Is(err, ErrLost), errors.Is(err, ErrUnavailable):
	default:
		panic(err)
	}
}

// owner is a lock's state. Background work refers to it and not to the Lock, which can be collected.
type owner struct {
	settings
	locks   *Locks
	lock    weak.Pointer[Lock]
	keys    []string
	channel string
	// The right to acquire. Its value is in the channel while somebody acquires, holds or cleans up.
	turn chan struct{}
	// True if a command of this token had no reply. It may reach the server during the next grant, which
	// is to have another token.
	isSpent atomic.Bool

	mu      sync.Mutex
	current *grant
	fence   int64
	isLost  bool
	lost    chan struct{}
	// The holds of a reentrant lock that were lost and not released since.
	lostHolds int
	// The grant that was lost and not released since, or nil.
	owed *grant
	// The latest sight of the lock.
	sight sight
	// The last time when the lock was seen to be taken. Zero after an outage.
	takenAt time.Time
	// Closed at the next sight. Nil unless a goroutine waits for it.
	seen chan struct{}
}

// hold is one hold of a grant.
type hold struct {
	fence int64
	grant *grant
	// 1 for the first hold. A reentrant lock can have more.
	number int
}

// grant is one grant of the lock. Its times are those of the local monotonic clock. The owner's
// mutex guards it.
type grant struct {
	fence        int64
	holds        int
	lease        time.Duration
	since, until time.Time
	noRenewal    bool
	// Runs when a renewal or the end is due.
	timer *time.Timer
	// Ends when the grant does.
	ctx  context.Context
	stop context.CancelFunc
	// Held by the goroutine that extends the lease.
	extending chan struct{}
	// The connection of its own, or nil.
	own redis.UniversalClient
	// The longest lease that Extend asked for without a reply, or 0. The server may keep the lock for it.
	unanswered time.Duration
	// Closed by the release after a loss.
	settled chan struct{}
}

// end returns the time at which renewal ends for good.
func (o *owner) end(g *grant) time.Time {
	// Longer durations could overflow.
	return g.since.Add(min(o.maxHold, 100*365*24*time.Hour))
}

// held returns the grant if the lock is held, and whether it is lost.
func (o *owner) held() (*grant, bool) {
	o.mu.Lock()
	g := o.current
	if g == nil || time.Now().Before(g.until) {
		defer o.mu.Unlock()
		return g, o.isLost
	}
	o.mu.Unlock()
	o.lose(g)
	return nil, true
}

// grant begins a grant, or adds a hold to the one before. It returns nil if that one was lost.
func (s *search) grant(fence int64, sent time.Time) *grant {
	o := s.owner
	o.mu.Lock()
	g := o.current
	if g != s.before || g != nil && g.fence != fence {
		o.mu.Unlock()
		return nil
	}
	if g != nil {
		defer o.mu.Unlock()
		g.holds, g.until = s.holds, sent.Add(o.leaseOf(g, g.lease, sent))
		o.schedule(g)
		return g
	}
	g = &grant{
		fence: fence, holds: s.holds, since: sent, noRenewal: o.noRenewal, own: s.own, extending: make(chan struct{}, 1),
		settled: make(chan struct{}),
	}
	g.lease = o.leaseOf(g, o.lease, sent)
	g.until = sent.Add(g.lease)
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.timer = time.AfterFunc(time.Hour, func() { o.tend(g) })
	o.schedule(g)
	if o.isLost {
		o.isLost = false
		o.lost = make(chan struct{})
	}
	o.current, o.fence = g, fence
	// A reentrant lock isn't taken for its own goroutines.
	o.look(sight{isTaken: !o.reentrant})
	o.locks.mu.Lock()
	o.locks.held[o] = g
	o.locks.mu.Unlock()
	o.mu.Unlock()
	o.observe(o.locks.observer.Granted)
	return g
}

// leaseOf returns a lease that doesn't go beyond the longest hold.
func (o *owner) leaseOf(g *grant, lease time.Duration, sent time.Time) time.Duration {
	return min(lease, o.end(g).Sub(sent))
}

// schedule sets the timer to the next renewal, or to the end. The caller has the mutex.
func (o *owner) schedule(g *grant) {
	due := g.until
	if !g.noRenewal && g.until.Before(o.end(g)) {
		due = due.Add(g.lease/3 - g.lease)
	}
	g.timer.Reset(time.Until(due))
}

// drop ends a grant here, and returns true if it was the current one.
func (o *owner) drop(g *grant, isLost bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current != g {
		return false
	}
	o.current = nil
	if len(g.extending) > 0 {
		// The extension may come after the next grant.
		o.isSpent.Store(true)
	}
	o.isLost = isLost
	if isLost {
		close(o.lost)
		o.owed = g
		if o.reentrant {
			o.lostHolds = g.holds
		}
	} else {
		// From now on, the goroutines in line wait for the server.
		o.look(sight{})
	}
	g.stop()
	g.timer.Stop()
	o.locks.mu.Lock()
	delete(o.locks.held, o)
	o.locks.mu.Unlock()
	return true
}

// owesReleases returns true if holds of a reentrant lock were lost, of which Release hasn't told yet.
func (o *owner) owesReleases() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lostHolds > 0
}

// paidRelease notes a release of a lock that was lost.
func (o *owner) paidRelease() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lostHolds = max(0, o.lostHolds-1)
	if o.owed != nil {
		close(o.owed.settled)
		o.owed = nil
	}
}

// lose marks a grant as lost, and reports it. The turn is given at the holder's Release, because that
// would otherwise release the grant of the next goroutine. Without a Release, it is given after a lease.
func (o *owner) lose(g *grant) {
	if !o.drop(g, true) {
		return
	}
	o.mu.Lock()
	lease, unanswered := g.lease, g.unanswered
	o.mu.Unlock()
	o.isSpent.Store(true)
	rest := o.command("RELEASE", "HOLDS", 0)
	go func() {
		// What is detached may belong to another Lock with the token by now.
		mayRemain := len(o.keys) > 1 || unanswered > 0
		if mayRemain && !o.detached && !o.sharesToken {
			o.releaseRest(rest, max(o.locks.timeout, unanswered))
		}
		g.close()
		if o.reentrant {
			return
		}
		select {
		case <-g.settled:
		case <-time.After(lease):
		}
		o.giveTurn(true)
	}()
	o.tellLoss()
}

// drawAgain draws another token, unless the program chose the token.
func (o *owner) drawAgain() {
	if o.redraw != nil {
		o.redraw()
	}
}

// releaseRest releases what may still be held of a lost lock: its other keys, or all after an Extend
// without a reply. A chosen token may be that of the next grant too.
func (o *owner) releaseRest(release command, within time.Duration) {
	if o.reentrant && o.redraw == nil {
		o.turn <- struct{}{}
		defer o.giveTurn(true)
		if held, _ := o.held(); held != nil {
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	a := o.ask(ctx, o.locks.link.shared, release, func(err error) {
		if !o.reentrant {
			o.sees(outage(err))
		}
	})
	if a.again && !o.reentrant {
		o.sees(sight{isTaken: a.err == nil, outage: a.err})
	}
}

func (o *owner) tellLoss() {
	go func() {
		o.observe(o.onLost)
		o.observe(o.locks.observer.Lost)
	}()
}

func (g *grant) close() {
	if g.own != nil {
		_ = g.own.Close()
	}
}

// observe calls a function of the program, unless the lock was collected.
func (o *owner) observe(hook func(*Lock)) {
	if hook == nil {
		return
	}
	if lock := o.lock.Value(); lock != nil {
		protect(func() { hook(lock) })
	}
}

// giveTurn ends an acquire, a hold or a cleanup.
func (o *owner) giveTurn(has bool) {
	if has {
		<-o.turn
	}
}

// endRenewal leaves a grant to its lease, if this is its first hold.
func (o *owner) endRenewal(h hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h.number == 1 && h.grant != nil && h.grant == o.current {
		h.grant.noRenewal = true
		o.schedule(h.grant)
	}
}

// abandon releases the lock in the background, or leaves it to its lease, because its Lock was
// collected.
func (o *owner) abandon() {
	if o.detached {
		held, _ := o.held()
		o.endRenewal(hold{grant: held, number: 1})
		return
	}
	go func() { _ = o.release(context.Background(), true) }()
}
