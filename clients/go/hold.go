package redislock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The least time by which a renewal must move the deadline.
const leastProlonging = 2 * time.Millisecond

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
	token    string
	fence    int64
	// The connection that the server ties the grant to, or nil.
	session *redis.Client
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
		lock: lock, options: lock.options, commands: lock.commands, token: token, fence: fence,
		gone: make(chan struct{}), lease: lock.options.lease,
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
	_, err := h.extendUntil(context.Background(), until, h.commands.report, lease)
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
// counts from then or later.
func (h *hold) prolong(lease time.Duration, askedAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.longest.IsZero() {
		h.longest = askedAt.Add(h.options.maxHold)
	}
	deadline := askedAt.Add(lease - h.options.margin)
	if h.isShaped || deadline.After(h.deadline) {
		h.deadline = deadline
	}
	if h.isUnclear {
		// A late command of the acquire sets its own lease, which may be shorter.
		lease = min(lease, h.options.lease)
	}
	renewal := askedAt.Add(lease / 3)
	if isLast := h.deadline.After(h.longest.Add(-leastProlonging)); isLast || !h.options.renews {
		renewal = h.deadline
	}
	h.schedule(renewal)
}

// extendUntil repeats an extension until it has a reply. It returns false if the grant is lost.
func (h *hold) extendUntil(
	ctx context.Context, until time.Time, onFault func(*outage), lease time.Duration,
) (isHeld bool, err error) {
	c := &call{token: h.token}
	err = h.commands.retry(ctx, until, onFault, func(within time.Duration) (err error) {
		isHeld, err = h.extendOnce(ctx, c, within, lease)
		return err
	})
	return isHeld, err
}

func (h *hold) extendOnce(ctx context.Context, c *call, within, lease time.Duration) (bool, error) {
	if h.stateNow() != held {
		// A renewal that is repeated after the release would undo its time of WithAtLeast.
		return false, nil
	}
	askedAt := time.Now()
	cmd, by := h.extension(c, lease)
	count, err := h.commands.ask(ctx, cmd, within, by)
	if err != nil {
		if h.session != nil && !isReply(err) && !isLate(err) {
			// Its connection has failed, and the server releases the lock.
			h.lose()
		}
		return false, err
	}
	if count != int64(len(h.options.keys)) {
		// The keys that aren't lost stay until the release, because the body may still run.
		h.lose()
		return false, nil
	}
	h.prolong(lease, askedAt)
	return h.stateNow() == held, nil
}

// extension returns the command that sets the lease, and its way.
func (h *hold) extension(c *call, lease time.Duration) (command, sender) {
	switch {
	case h.session != nil:
		return h.options.extend(c, lease, "GT", "SESSION"), h.session
	case h.isShaped:
		return h.options.extend(c, lease), h.commands.servers.prompt
	}
	return h.options.extend(c, lease, "GT"), h.commands.servers.prompt
}

// confirm sets the lease of what isn't a grant yet, and ties a session to a connection.
func (h *hold) confirm(ctx context.Context, until time.Time) (err error) {
	if h.options.session {
		if h.session, err = h.commands.servers.session(ctx, h.options.keys[0]); err != nil {
			return err
		}
	}
	isHeld, err := h.extendUntil(ctx, until, unreported, h.lease)
	if err == nil && !isHeld {
		err = ErrLost
	}
	if err != nil {
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
	isHeld, err := h.extendUntil(ctx, until, unreported, lease)
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

// end moves the grant to a later state. It returns false if the grant is there.
func (h *hold) end(s state) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state >= s {
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
func (h *hold) lose() {
	if !h.end(lost) {
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
	if h.end(left) {
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
	if !h.end(left) {
		return ErrNotHeld
	}
	isHeld, err := h.leave(ctx, until, unreported)
	if err != nil {
		go h.leaveLater()
	}
	if was == lost || err == nil && !isHeld {
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
	_, _ = h.leave(context.Background(), until.Add(h.options.margin), h.commands.report)
	h.closeSession()
}

// leave sends the release until a server has replied, or the time is over.
func (h *hold) leave(
	ctx context.Context, until time.Time, onFault func(*outage),
) (isHeld bool, err error) {
	c := &call{token: h.token}
	err = h.commands.retry(ctx, until, onFault, func(within time.Duration) error {
		count, err := h.commands.ask(ctx, h.lastWords(c), within, h.commands.servers.prompt)
		// If a reply was lost, the command before may have released the lock.
		mayHave := c.isDoubtful.Load() && time.Now().Before(h.deadline)
		isHeld = count == int64(len(h.options.keys)) || mayHave
		return err
	})
	if err == nil {
		h.closeSession()
	}
	return isHeld, err
}

func (h *hold) lastWords(c *call) command {
	rest := time.Until(h.staysUntil)
	switch {
	case rest > 0 && h.session != nil:
		return h.options.extend(c, rest, "NOSESSION")
	case rest > 0:
		return h.options.extend(c, rest)
	case h.isUnclear:
		// A late command has the lease of the acquire, which an extension may have made shorter.
		return h.options.leave(c, h.options.longestTrace())
	}
	return h.options.command("RELEASE", c)
}

func (h *hold) closeSession() {
	if h.session != nil {
		// A connection that was closed already is no failure.
		_ = h.session.Close()
	}
}
