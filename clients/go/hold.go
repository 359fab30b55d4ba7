package redislock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// The least time by which a renewal must move the deadline.
	leastProlonging = 2 * time.Millisecond
	// The longest time of a grant without an end.
	century = 100 * 365 * 24 * time.Hour
)

type state int

const (
	held state = iota
	lost
	left
)

// hold is the state of a grant.
type hold struct {
	lock     *Lock
	options  *settings
	commands *commands
	token    secret
	fence    int64
	tie      *tie
	// True if a command that asked for this grant may still arrive.
	isUnclear bool
	// Closed at the loss.
	gone chan struct{}

	mu                           sync.Mutex
	state                        state
	lease                        time.Duration
	grantedAt, deadline, renewAt time.Time
	// The server keeps a lock with atLeast until then.
	staysUntil time.Time
	timer      *time.Timer
	// One renewal at a time, because each may move the tie.
	isRenewing bool
	// True if the observer knows that a renewal was refused.
	isRefused bool
}

func newHold(lock *Lock, token secret, fence int64) *hold {
	h := &hold{
		lock: lock, options: lock.options, commands: lock.commands, token: token, fence: fence,
		gone: make(chan struct{}), lease: lock.options.lease,
		staysUntil: time.Now().Add(lock.options.atLeast),
	}
	if h.options.session {
		h.tie = &tie{servers: h.commands.servers, key: h.options.keys[0], lease: h.lease}
	}
	return h
}

// begin has the hold looked after.
func (h *hold) begin() {
	h.commands.mu.Lock()
	h.commands.held[h] = struct{}{}
	h.commands.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(time.Until(h.due()), h.lookAfter)
}

// --- the lease -----------------------------------------------------------------------------------

// lookAfter renews the grant, or tells of its loss, if that is due.
func (h *hold) lookAfter() {
	h.mu.Lock()
	now := time.Now()
	switch {
	case h.state != held:
		h.mu.Unlock()
	case !now.Before(h.deadline):
		h.mu.Unlock()
		h.lose()
	case now.Before(h.due()):
		h.schedule()
		h.mu.Unlock()
	default:
		h.isRenewing = true
		until, longest := h.deadline, time.Until(h.longestDeadline())+h.options.margin
		lease := min(h.lease, longest)
		h.schedule()
		h.mu.Unlock()
		h.renew(lease, until)
	}
}

func (h *hold) renew(lease time.Duration, until time.Time) {
	_, err := h.extendUntil(context.Background(), until, h.commands.report, h.growth(lease))
	h.mu.Lock()
	isNews := err != nil && !errors.Is(err, ErrUnavailable) && !h.isRefused && h.state == held
	h.isRefused = isNews || err != nil && h.isRefused
	h.isRenewing = false
	if err != nil {
		// It may succeed before the deadline.
		h.renewAt = time.Now().Add(h.lease / 10)
	}
	h.schedule()
	h.mu.Unlock()
	if isNews {
		h.commands.observer.unavailable(err)
	}
}

// due returns the time of the next renewal, or else of the loss. The mutex is locked.
func (h *hold) due() time.Time {
	if h.renewAt.IsZero() || h.isRenewing {
		return h.deadline
	}
	return earlier(h.renewAt, h.deadline)
}

// schedule sets the timer to what is due. The mutex is locked.
func (h *hold) schedule() {
	if h.timer != nil && h.state == held {
		h.timer.Reset(time.Until(h.due()))
	}
}

func (h *hold) longestDeadline() time.Time { return h.grantedAt.Add(min(h.options.maxHold, century)) }

// prolong moves the deadline, unless it is later already.
func (h *hold) prolong(lease time.Duration, askedAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(lease, askedAt, h.deadline)
}

// set sets the deadline, which is never before the earliest one, and the next renewal. The lease
// counts from the request: the server counts from then or later. The mutex is locked.
func (h *hold) set(lease time.Duration, askedAt, earliest time.Time) {
	if h.grantedAt.IsZero() {
		h.grantedAt = askedAt
	}
	h.deadline, h.renewAt = askedAt.Add(min(lease, century)-h.options.margin), time.Time{}
	if earliest.After(h.deadline) {
		h.deadline = earliest
	}
	isLast := h.deadline.After(h.longestDeadline().Add(-leastProlonging))
	if h.isUnclear {
		// A late command of the acquire sets its own lease, which may be shorter.
		lease = min(lease, h.options.firstLease())
	}
	if h.options.renews && !isLast {
		h.renewAt = askedAt.Add(lease / 3)
	}
	h.schedule()
}

// extension is a command that sets the lease, and what follows from its success.
type extension struct {
	cmd   command
	by    way
	apply func(askedAt time.Time)
}

// growth never shortens the lease.
func (h *hold) growth(lease time.Duration) extension {
	if h.tie == nil {
		cmd := h.options.extend(h.token, lease, "GT")
		return extension{cmd, h.commands.servers.command, func(askedAt time.Time) { h.prolong(lease, askedAt) }}
	}
	cmd := h.options.extend(h.token, lease, "GT", "SESSION")
	return extension{cmd, way{process: h.tie.process}, func(askedAt time.Time) {
		h.prolong(lease, askedAt)
		h.tie.moved(askedAt)
	}}
}

// exactly sets the lease, also to a shorter one.
func (h *hold) exactly(lease time.Duration) extension {
	cmd := h.options.extend(h.token, lease)
	return extension{cmd, h.commands.servers.command, func(askedAt time.Time) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.set(lease, askedAt, time.Time{})
	}}
}

// extendUntil repeats an extension until it has a reply. It returns false if the grant is lost.
func (h *hold) extendUntil(
	ctx context.Context, until time.Time, onFault func(*outage), e extension,
) (isHeld bool, err error) {
	call := h.options.call(h.token)
	err = h.commands.retry(ctx, until, onFault, func(end time.Time) (err error) {
		isHeld, err = h.extendOnce(ctx, call, end, e)
		return err
	})
	return isHeld, err
}

func (h *hold) extendOnce(ctx context.Context, call *call, end time.Time, e extension) (bool, error) {
	if h.stateNow() != held {
		// A renewal that is repeated after the release would undo its time of WithAtLeast.
		return false, nil
	}
	askedAt := time.Now()
	count, err := h.commands.ask(ctx, call, e.cmd, end, e.by)
	if err != nil {
		return false, err
	}
	if count == int64(len(h.options.keys)) {
		e.apply(askedAt)
		return h.stateNow() == held, nil
	}
	// The keys that aren't lost stay until the release, because the body may still run.
	h.lose()
	return false, nil
}

// bind ties the grant to a connection.
func (h *hold) bind(ctx context.Context, until time.Time) error {
	end := earlier(until, time.Now().Add(h.commands.timeout))
	isHeld, err := h.extendUntil(ctx, end, unreported, h.growth(h.options.firstLease()))
	if err == nil && !isHeld {
		err = ErrLost
	}
	if err != nil {
		h.abandon()
	}
	return err
}

// abandon ends what doesn't become a grant.
func (h *hold) abandon() {
	h.end(left)
	if h.tie != nil {
		h.tie.cut()
	}
}

// extend sets the lease for a caller, and for later renewals.
func (h *hold) extend(ctx context.Context, lease time.Duration, e extension) error {
	ctx, until, stop := h.commands.bounded(ctx)
	defer stop()
	isHeld, err := h.extendUntil(ctx, until, unreported, e)
	if err != nil {
		return err
	}
	if !isHeld {
		return ErrLost
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease = lease
	return nil
}

// --- the end -------------------------------------------------------------------------------------

func (h *hold) stateNow() state {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == held && !time.Now().Before(h.deadline) && !h.deadline.IsZero() {
		return lost
	}
	return h.state
}

// end returns false if the grant has ended before.
func (h *hold) end(s state) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held {
		return false
	}
	h.state = s
	if h.timer != nil {
		h.timer.Stop()
	}
	h.commands.mu.Lock()
	defer h.commands.mu.Unlock()
	delete(h.commands.held, h)
	return true
}

// lose ends the grant as lost, and tells the program once.
func (h *hold) lose() bool {
	if !h.end(lost) {
		return false
	}
	close(h.gone)
	if h.tie != nil {
		// The close of a connection releases the lock.
		time.AfterFunc(h.options.margin, h.tie.cut)
	}
	h.mu.Lock()
	isGranted := h.timer != nil
	h.mu.Unlock()
	if !isGranted {
		return true
	}
	grant := grantOf(h)
	tell(h.commands.observer.Lost, grant)
	go tell(h.options.onLost, grant)
	return true
}

// drop releases the grant of a program that has lost sight of it.
func (h *hold) drop() {
	if h.end(left) {
		slog.Warn("redislock: a grant was dropped without a release", "keys", h.options.keys)
		// The program may have kept the channel, or a context that ends with it.
		close(h.gone)
		tell(h.commands.observer.Lost, grantOf(h))
		h.leaveLater(h.options.call(h.token))
	}
}

// release releases the lock until the end of a time. Later that goes on without a caller.
func (h *hold) release(ctx context.Context, until time.Time) error {
	was := h.stateNow()
	if !h.end(left) {
		h.mu.Lock()
		was, h.state = h.state, left
		h.mu.Unlock()
	}
	if was == left {
		return ErrNotHeld
	}
	call := h.options.call(h.token)
	isHeld, err := h.leave(ctx, call, until, unreported)
	if err != nil {
		h.leaveLater(call)
	}
	if was == lost || err == nil && !isHeld {
		return ErrLost
	}
	return err
}

// leaveLater sends the release in the background, until the lease is over.
func (h *hold) leaveLater(call *call) {
	h.mu.Lock()
	until := h.deadline
	h.mu.Unlock()
	if now := time.Now(); until.Before(now) {
		until = now
	}
	go func() {
		// If it fails, the server ends the lock with its lease.
		_, _ = h.leave(context.Background(), call, until.Add(h.options.margin), h.commands.report)
		if h.tie != nil {
			h.tie.cut()
		}
	}()
}

// leave sends the release until a server has replied, or the time is over.
func (h *hold) leave(
	ctx context.Context, call *call, until time.Time, onFault func(*outage),
) (isHeld bool, err error) {
	h.mu.Lock()
	deadline := h.deadline
	h.mu.Unlock()
	err = h.commands.retry(ctx, until, onFault, func(end time.Time) error {
		count, err := h.commands.ask(ctx, call, h.lastWords(), end, h.commands.servers.command)
		// If a reply was lost, the command before may have released the lock.
		mayHave := call.unanswered.Load() > 0 && time.Now().Before(deadline)
		isHeld = count == int64(len(h.options.keys)) || mayHave
		return err
	})
	if err == nil && h.tie != nil {
		h.tie.close()
	}
	return isHeld, err
}

func (h *hold) lastWords() command {
	if rest := time.Until(h.staysUntil); rest > 0 {
		return h.options.releaseAfter(h.token, rest)
	}
	if h.isUnclear {
		// A late command has the lease of the acquire, which an extension may have made shorter.
		return h.options.leave(h.token, h.options.longestTrace())
	}
	return h.options.release(h.token)
}
