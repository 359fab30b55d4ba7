package redislock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

type state int

const (
	held state = iota
	lost
	left
)

// hold is the state of a grant.
type hold struct {
	*Lock
	token string
	fence int64
	// The connection that the server ties the grant to, or nil.
	session *session
	// True if a command that asked for this grant may still arrive.
	isUnclear bool
	// True if it is a drop-in's: it isn't released when it is collected, and its lease may shrink.
	isShaped bool
	// Closed at the loss.
	gone chan struct{}

	mu    sync.Mutex
	state state
	lease time.Duration
	// The deadline, the latest one, and the time of the next renewal or else of the loss.
	deadline, longest, due time.Time
	// The server keeps a lock with atLeast until then.
	staysUntil time.Time
	// Nil before the program has the grant.
	timer *time.Timer
	// True if the observer knows that renewals are refused.
	isRefused bool
}

func newHold(lock *Lock, token string, fence int64) *hold {
	return &hold{
		Lock: lock, token: token, fence: fence, gone: make(chan struct{}), lease: lock.options.lease,
		staysUntil: time.Now().Add(lock.options.atLeast),
	}
}

// begin has the hold looked after.
func (h *hold) begin() {
	h.commands.mu.Lock()
	h.commands.held[h] = struct{}{}
	h.commands.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(time.Until(h.due), h.lookAfter)
}

// --- the lease -----------------------------------------------------------------------------------

// lookAfter renews the grant, or tells of its loss, if that is due.
func (h *hold) lookAfter() {
	h.mu.Lock()
	now, until := time.Now(), h.deadline
	lease := min(h.lease, h.longest.Sub(now)+h.options.margin)
	isDue := h.state == held && !now.Before(h.due)
	h.mu.Unlock()
	switch {
	case !isDue:
	case now.Before(until):
		h.renew(lease, until)
	default:
		h.lose()
	}
}

func (h *hold) renew(lease time.Duration, until time.Time) {
	err := h.extendUntil(context.Background(), until, h.commands.report, lease)
	h.mu.Lock()
	wasRefused := h.isRefused
	h.isRefused = err != nil && !errors.Is(err, ErrUnavailable)
	isNews := h.isRefused && !wasRefused && h.state == held
	if err != nil {
		// It may succeed before the deadline.
		h.schedule(time.Now().Add(h.lease / 10))
	}
	h.mu.Unlock()
	if isNews {
		tell(h.commands.observer.Unavailable, err)
	}
}

// schedule sets the time of the next renewal. The mutex is locked.
func (h *hold) schedule(renewal time.Time) {
	h.due = earlier(renewal, h.deadline)
	if h.timer != nil && h.state == held {
		h.timer.Reset(time.Until(h.due))
	}
}

// prolong moves the deadline, and the next renewal. The lease counts from the request: the server
// counts from then or later. It fails with ErrLost if the grant has ended.
func (h *hold) prolong(lease time.Duration, askedAt time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held {
		return ErrLost
	}
	if h.longest.IsZero() {
		h.longest = askedAt.Add(h.options.maxHold)
	}
	if h.isUnclear {
		// A late command of the acquire sets its own lease, which may be shorter.
		lease = min(lease, h.options.lease)
	}
	deadline := askedAt.Add(lease - h.options.margin)
	if h.isShaped || deadline.After(h.deadline) {
		h.deadline = deadline
	}
	renewal := askedAt.Add(lease / 3)
	if isLast := !h.deadline.Before(h.longest); isLast || !h.options.renews {
		renewal = h.deadline
	}
	h.schedule(renewal)
	return nil
}

// extendUntil repeats an extension until it has a reply. It fails with ErrLost or ErrNotHeld.
func (h *hold) extendUntil(
	ctx context.Context, until time.Time, onFault func(*outage), lease time.Duration,
) error {
	c := &call{token: h.token}
	return h.commands.retry(ctx, until, onFault, func(within time.Duration) error {
		switch h.stateNow() {
		case lost:
			return ErrLost
		case left:
			// A renewal that is repeated after the release would undo its time of WithAtLeast.
			return ErrNotHeld
		}
		askedAt := time.Now()
		words, by := h.extension(lease)
		count, err := h.commands.ask(ctx, c, words, within, by)
		switch isGranted := h.timer != nil; {
		case err == nil && count == int64(len(h.options.keys)):
			return h.prolong(lease, askedAt)
		case err == nil:
			// The keys that aren't lost stay until the release, because the body may still run.
			h.lose()
			return ErrLost
		case isGranted && h.session != nil && !isReply(err) && !isLate(err) && ctx.Err() == nil:
			// The server releases the lock, because its connection has ended.
			h.lose()
		}
		return err
	})
}

// extension returns the command that sets the lease, and its way.
func (h *hold) extension(lease time.Duration) ([]any, sender) {
	switch {
	case h.session != nil:
		return h.options.extend(h.token, lease, "GT", "SESSION"), h.session
	case h.isShaped:
		return h.options.extend(h.token, lease), h.commands.servers.prompt
	}
	return h.options.extend(h.token, lease, "GT"), h.commands.servers.prompt
}

// confirm sets the lease of what isn't a grant yet, and ties a session to a connection.
func (h *hold) confirm(ctx context.Context, until time.Time) (err error) {
	if h.options.session {
		limited, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		if h.session, err = h.commands.servers.session(limited, h.options.keys[0]); err != nil {
			return err
		}
	}
	if err = h.extendUntil(ctx, until, unreported, h.lease); err != nil {
		h.end(left)
		h.closeSession()
	}
	return err
}

// extend sets the lease for a caller, and for later renewals.
func (h *hold) extend(ctx context.Context, lease time.Duration) error {
	ctx, until, stop := bounded(ctx, h.commands.timeout)
	defer stop()
	lease = min(lease, century)
	err := h.extendUntil(ctx, until, unreported, lease)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.lease = lease
	}
	return err
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

// end moves the grant to a later state, and returns the state before.
func (h *hold) end(s state) (was state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was = h.state
	h.state = max(was, s)
	if h.timer != nil {
		h.timer.Stop()
	}
	h.commands.mu.Lock()
	defer h.commands.mu.Unlock()
	delete(h.commands.held, h)
	return was
}

// lose ends the grant as lost, and tells the program once.
func (h *hold) lose() {
	if h.end(lost) != held {
		return
	}
	close(h.gone)
	// The close of the connection releases the lock.
	time.AfterFunc(h.options.margin, h.closeSession)
	if isGranted := h.timer != nil; isGranted {
		tell(h.commands.observer.Lost, &Grant{h})
		go tell(h.options.onLost, &Grant{h})
	}
}

// drop releases the grant of a program that has lost sight of it.
func (h *hold) drop() {
	if h.end(left) == held {
		slog.Warn("redislock: a grant was dropped without a release", "keys", h.options.keys)
		// The program may have kept the channel, or a context that ends with it.
		close(h.gone)
		tell(h.commands.observer.Lost, &Grant{h})
		go h.leaveLater()
	}
}

// release releases the lock until the end of a time. Later that goes on without a caller.
func (h *hold) release(ctx context.Context, until time.Time) error {
	was := h.stateNow()
	if h.end(left) == left {
		return ErrNotHeld
	}
	err := h.leave(ctx, until, unreported)
	if err != nil && !errors.Is(err, ErrLost) {
		go h.leaveLater()
	}
	if was == lost {
		return ErrLost
	}
	return err
}

// leaveLater sends the release until the lease is over.
func (h *hold) leaveLater() {
	until := h.deadline
	if now := time.Now(); until.Before(now) {
		until = now
	}
	// If it fails, the server ends the lock with its lease.
	_ = h.leave(context.Background(), until.Add(h.options.margin), h.commands.report)
	h.closeSession()
}

// leave sends the release until a server has replied, or the time is over. It fails with ErrLost.
func (h *hold) leave(ctx context.Context, until time.Time, onFault func(*outage)) error {
	c := &call{token: h.token}
	err := h.commands.retry(ctx, until, onFault, func(within time.Duration) error {
		count, err := h.commands.ask(ctx, c, h.lastWords(), within, h.commands.servers.prompt)
		// If a reply was lost, the command before may have released the lock.
		mayHave := c.isDoubtful.Load() && time.Now().Before(h.deadline)
		if err == nil && count != int64(len(h.options.keys)) && !mayHave {
			return ErrLost
		}
		return err
	})
	if err == nil || errors.Is(err, ErrLost) {
		h.closeSession()
	}
	return err
}

func (h *hold) lastWords() []any {
	rest := time.Until(h.staysUntil)
	switch {
	case rest > 0 && h.session != nil:
		return h.options.extend(h.token, rest, "NOSESSION")
	case rest > 0:
		return h.options.extend(h.token, rest)
	case h.isUnclear:
		// A late command has the lease of the acquire, which an extension may have made shorter.
		return h.options.leave(h.token, h.options.longestTrace())
	}
	return h.options.words("RELEASE", h.token)
}

func (h *hold) closeSession() {
	if h.session != nil {
		h.session.close()
	}
}
