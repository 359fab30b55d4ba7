package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"
)

const (
	// The time after the limit in which a reply still counts.
	grace = 100 * time.Millisecond
	// The mark of a token that has no command on its way.
	shortestLeave = time.Millisecond
)

// acquire is an acquire of one token until a limit: it asks, it waits, and it leaves if it ends
// without a grant. The states are those of docs/internals/clients.md.
type acquire struct {
	*Lock
	call  *call
	crowd *crowd
	// True if another process may use the token, so it must not be turned away later.
	isTokenChosen    bool
	isTry, isEndless bool
	until            time.Time
	grace            time.Duration
	// True if the latest reply was "not now", and nothing failed since.
	isRefused bool
	// True if the server has a place or a grant of this token by its latest reply.
	isKnown bool
	// True if the lock wasn't granted at once.
	hasWaited bool
}

// newAcquire makes an acquire with a limit, of which 0 tries once. If the program hasn't chosen a
// token, it draws one.
func newAcquire(lock *Lock, token string, limit time.Duration, until time.Time) *acquire {
	a := &acquire{
		Lock: lock, call: &call{token: token}, isTokenChosen: token != "", isTry: limit == 0,
		isEndless: time.Until(until) > century/2, until: until,
	}
	if !a.isTokenChosen {
		a.call.token = randomText()
	}
	if !a.isTry {
		a.grace = grace
	}
	if a.options.replicas > 0 {
		// The server replies within the command timeout.
		a.grace += a.commands.timeout
	}
	return a
}

// run returns the grant. It fails with ErrNotAcquired if the server said "not now" until the limit.
func (a *acquire) run(ctx context.Context) (h *hold, err error) {
	a.crowd = a.commands.join(a.options.keys)
	defer a.commands.quit(a.crowd)
	if !a.isTry {
		if err := a.enter(ctx); err != nil {
			return nil, err
		}
		defer func() { a.crowd.turns <- struct{}{} }()
	}
	for h == nil && err == nil {
		err = a.commands.retry(ctx, a.until, a.note, func(within time.Duration) (err error) {
			if h, err = a.ask(ctx); h != nil && a.options.session {
				err = a.tie(ctx, h)
			}
			return err
		})
		if errors.Is(err, ErrLost) {
			// A failover, for example, lost the grant before its tie.
			h, err, a.isRefused = nil, nil, false
		}
	}
	if err != nil {
		a.leave(err)
		return nil, err
	}
	return h, nil
}

// enter waits until this acquire is one of the few that ask.
func (a *acquire) enter(ctx context.Context) error {
	select {
	case <-a.crowd.turns:
		return nil
	default:
		a.hasWaited = true
	}
	_, err := await(ctx, a.crowd.turns, time.Until(a.until))
	a.isRefused = a.crowd.isHeard(a.commands.timeout)
	switch {
	case !isLate(err):
		return err
	case a.isRefused:
		return ErrNotAcquired
	}
	return &outage{a.commands.servers.address(a.options.keys[0]), err}
}

// ask asks once. It returns no grant and no error if the acquire has to go on.
func (a *acquire) ask(ctx context.Context) (*hold, error) {
	if a.isRefused && a.isOver() {
		return nil, ErrNotAcquired
	}
	askedAt := time.Now()
	words, within, by, isKept := a.next()
	reply, err := a.commands.ask(ctx, a.call, words, within, by)
	switch {
	case isLate(err) && a.isRefused && a.isOver():
		return nil, ErrNotAcquired
	case err != nil && !startsWithAny(replyOf(err), []string{"UNBLOCKED"}):
		a.isKnown = a.isKnown || errors.Is(err, ErrNotReplicated)
		return nil, err
	}
	now := time.Now()
	a.crowd.repliedAt.Store(&now)
	granted, isGranted := reply.([]any)
	a.isKnown = isKept || isGranted
	if isGranted {
		// The grant may be over. If it isn't, the server sets its lease anew.
		if now.Sub(askedAt) > a.options.lease/3 {
			return nil, nil
		}
		return a.hold(granted, askedAt), nil
	}
	// If another client cancelled the wait, it takes a new place.
	a.isRefused = true
	if a.isTry {
		return nil, ErrNotAcquired
	}
	a.hasWaited = true
	return nil, nil
}

// tie ties a session to a connection. If the tie gets no reply, the next try has another token: a
// late tie would end the grant with its connection. No session has a chosen token.
func (a *acquire) tie(ctx context.Context, h *hold) error {
	err := h.confirm(ctx, earlier(a.until.Add(a.grace), time.Now().Add(a.commands.attempt)))
	if errors.Is(err, ErrUnavailable) && !a.isOver() {
		a.leave(nil)
		a.call, a.isKnown = &call{token: randomText()}, false
	}
	return err
}

// next returns the next command, its longest time, its way, and true if the server keeps a place
// after a refusal. Once it has refused, the acquire waits there, the last time without a place.
func (a *acquire) next() (words []any, within time.Duration, by sender, isKept bool) {
	c, left, timeout := a.commands, time.Until(a.until), a.commands.timeout
	words, within, by = a.options.acquire(a.call.token, timeout), c.attempt, c.servers.acquires
	isKept = a.isKnown
	if a.isRefused {
		block := min(signOfLife, a.options.lease/3, left)
		words = a.options.waitFor(a.call.token, block, left, timeout)
		within, by, isKept = within+block, c.servers.waits, block < left
	}
	if a.options.replicas > 0 {
		within, by = within+timeout, c.servers.waits
	}
	return words, min(within, left+a.grace), by, isKept
}

// note notes an outage. The end of a limit says nothing about the server.
func (a *acquire) note(fault *outage) {
	a.isRefused, a.hasWaited = false, true
	if !a.isOver() || !isLate(fault) {
		a.crowd.repliedAt.Store(nil)
	}
	if a.isEndless {
		a.commands.report(fault)
	}
}

func (a *acquire) isOver() bool { return !time.Now().Before(a.until) }

func (a *acquire) hold(reply []any, askedAt time.Time) *hold {
	fence, _ := reply[1].(int64)
	h := newHold(a.Lock, a.call.token, fence)
	h.isUnclear = a.call.isDoubtful.Load() && !a.isTokenChosen
	// It can't be lost yet.
	_ = h.prolong(a.options.lease, askedAt)
	return h
}

// leave ends what the server may have of this token, in the background. The observer hears of an
// outage unless the caller does.
func (a *acquire) leave(err error) {
	longest, call := a.options.longestTrace(), a.call
	words := a.options.leave(call.token, shortestLeave)
	switch isDoubtful := call.isDoubtful.Load(); {
	case !isDoubtful && !a.isKnown:
		return
	case a.isTokenChosen:
		// It ends the waits of the token, also those for several keys.
		words = []any{"LOCK.CANCEL", a.options.keys[0], call.token}
	case isDoubtful:
		words = a.options.leave(call.token, longest)
	}
	onFault := a.commands.report
	if errors.Is(err, ErrUnavailable) {
		onFault = unreported
	}
	ctx, until := context.Background(), time.Now().Add(longest)
	// If it fails, the server ends the lock with its lease.
	go a.commands.retry(ctx, until, onFault, func(within time.Duration) error {
		_, err := a.commands.ask(ctx, call, words, within, a.commands.servers.prompt)
		return err
	})
}

func randomText() string {
	bits := make([]byte, 16)
	// It never fails: the program is ended if the system has no random bits.
	_, _ = rand.Read(bits)
	return hex.EncodeToString(bits)
}
