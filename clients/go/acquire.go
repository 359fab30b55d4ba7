package redislock

import (
	"context"
	"errors"
	"time"
)

// grace is the time after the limit in which a reply still counts.
const grace = 100 * time.Millisecond

// shortestLeave is the mark of a token that has no command on its way.
const shortestLeave = time.Millisecond

// acquire is an acquire of one token until a limit: it asks, it waits, and it leaves if it ends
// without a grant. The states are those of docs/internals/clients.md.
type acquire struct {
	lock     *Lock
	options  *settings
	commands *commands
	call     *call
	// True if another process may use the token, so it must not be turned away later.
	isTokenChosen bool
	isTry         bool
	began, until  time.Time
	crowd         *crowd
	// True if the latest reply was "not now", and nothing failed since.
	isRefused bool
	// True if the server may have a place or a grant of this token.
	isKnown bool
	// True if the lock wasn't granted at once.
	hasWaited bool
}

func newAcquire(lock *Lock, token secret, limit time.Duration) *acquire {
	a := &acquire{
		lock: lock, options: lock.options, commands: lock.commands, call: lock.options.call(token),
		isTry: limit == 0, began: time.Now(),
	}
	if a.isTry {
		limit = a.commands.timeout
	}
	a.until = a.began.Add(min(limit, century))
	return a
}

// run returns the grant. It fails with ErrNotAcquired if the server said "not now" until the limit.
func (a *acquire) run(ctx context.Context) (*hold, error) {
	if !a.isTry {
		if err := a.enter(ctx); err != nil {
			return nil, err
		}
		defer a.crowd.leave()
	}
	h, err := a.askUntilGranted(ctx)
	if err == nil && a.options.session {
		err = h.bind(ctx, a.until.Add(a.grace()))
	}
	if err != nil {
		a.leave(err)
		return nil, err
	}
	return h, nil
}

// enter waits until this acquire is one of the few that ask.
func (a *acquire) enter(ctx context.Context) (err error) {
	var repliedAt time.Time
	a.crowd, repliedAt, err = a.commands.crowds.enter(ctx, a.options.keys, a.until)
	if err != nil || repliedAt.IsZero() && a.crowd != nil {
		return err
	}
	// The acquires that ask hear from the server at each sign of life, and note failures.
	a.isRefused, a.hasWaited = time.Since(repliedAt) < signOfLife+a.commands.timeout, true
	switch {
	case a.crowd != nil:
		return nil
	case a.isRefused:
		return ErrNotAcquired
	}
	cause := errors.New("no answer from the server to the acquires before this one")
	return &outage{cause, a.commands.servers.address(a.call.key), true}
}

func (a *acquire) askUntilGranted(ctx context.Context) (*hold, error) {
	var cause *outage
	for pause := firstPause; ; {
		if a.isRefused && a.isOver() {
			return nil, ErrNotAcquired
		}
		askedAt := time.Now()
		reply, err := a.ask(ctx, askedAt)
		var fault *outage
		switch {
		case errors.As(err, &fault):
			if a.isOver() && fault.isLate && a.isRefused {
				return nil, ErrNotAcquired
			}
			a.note(fault)
			// A last try that had little time says nothing about the cause.
			if cause == nil || a.until.Sub(askedAt) > firstPause {
				cause = fault
			}
			if err := pauseBefore(ctx, pause, a.until, cause); err != nil {
				return nil, err
			}
			pause = min(2*pause, longestPause)
			continue
		case isGivenUp(err):
			// Another client cancelled the wait, so it takes a new place.
			reply = nil
		case err != nil:
			return nil, err
		}
		pause, cause = firstPause, nil
		a.crowd.note(time.Now())
		if granted, isGranted := reply.([]any); isGranted {
			// The grant may be over. If it isn't, the server sets its lease anew.
			if lease := a.options.firstLease(); time.Since(askedAt) <= lease/3 {
				return a.hold(granted, lease, askedAt), nil
			}
			continue
		}
		a.isRefused = true
		if a.isTry {
			return nil, ErrNotAcquired
		}
		a.hasWaited = true
	}
}

// note notes an outage. The end of a limit says nothing about the server.
func (a *acquire) note(fault *outage) {
	a.isRefused, a.hasWaited = false, true
	if !a.isOver() || !fault.isLate {
		a.crowd.note(time.Time{})
	}
	if a.isEndless() {
		a.commands.report(fault)
	}
}

func (a *acquire) isOver() bool { return !time.Now().Before(a.until) }

func (a *acquire) isEndless() bool { return a.until.Sub(a.began) == century }

// grace returns the time after the limit. The server replies to REPLICAS within the command
// timeout.
func (a *acquire) grace() time.Duration {
	if a.options.replicas > 0 {
		return grace + a.commands.timeout
	}
	return grace
}

// ask asks once. It notes whether the server may know this token afterwards.
func (a *acquire) ask(ctx context.Context, askedAt time.Time) (any, error) {
	wasKnown, unanswered := a.isKnown, a.call.unanswered.Load()
	a.isKnown = true
	left, timeout := a.until.Sub(askedAt), a.commands.timeout
	by, end := askedAt.Add(a.commands.attempt), a.until
	if !a.isTry || a.options.replicas > 0 {
		end = end.Add(a.grace())
	}
	cmd, way, keepsPlace := a.options.acquire(a.call.token, timeout), a.commands.servers.acquire(), false
	if !a.isTry && a.hasWaited {
		block := min(signOfLife, a.options.firstLease()/3, left)
		cmd, way = a.options.waitFor(a.call.token, block, left, timeout), a.commands.servers.wait()
		by, keepsPlace = by.Add(block), block < left
	}
	if a.options.replicas > 0 {
		by, way = by.Add(timeout), a.commands.servers.wait()
	}
	reply, err := a.commands.ask(ctx, a.call, cmd, earlier(by, end), way)
	_, isGranted := reply.([]any)
	switch {
	case err != nil && a.isUnsent(unanswered) && !errors.Is(err, ErrNotReplicated):
		a.isKnown = wasKnown
	case err == nil && !isGranted:
		// A command before may be executed after this one.
		a.isKnown = keepsPlace || unanswered > 0 || a.call.unanswered.Load() > 0
	}
	return reply, err
}

// isUnsent returns true if the latest command can't have arrived. If the client of a cluster has
// sent it before it failed to connect, there are more commands without a reply than before.
func (a *acquire) isUnsent(before int32) bool {
	return !a.call.isDoubtful && a.call.unanswered.Load() <= before
}

func (a *acquire) hold(reply []any, lease time.Duration, askedAt time.Time) *hold {
	fence, _ := reply[1].(int64)
	h := newHold(a.lock, a.call.token, fence)
	h.isUnclear = a.call.unanswered.Load() > 0 && !a.isTokenChosen
	h.prolong(lease, askedAt)
	return h
}

// leave ends what the server may have of this token, in the background. The observer hears of an
// outage unless the caller does.
func (a *acquire) leave(err error) {
	if !a.isKnown {
		return
	}
	longest := a.options.longestTrace()
	cmd := a.options.leave(a.call.token, shortestLeave)
	switch {
	case a.isTokenChosen:
		cmd = a.options.cancel(a.call.token)
	case a.call.unanswered.Load() > 0:
		cmd = a.options.leave(a.call.token, longest)
	}
	onFault := a.commands.report
	if errors.Is(err, ErrUnavailable) {
		onFault = unreported
	}
	call, background := a.options.call(a.call.token), context.Background()
	go func() {
		until := time.Now().Add(longest)
		// If it fails, the server ends the lock with its lease.
		_ = a.commands.retry(background, until, onFault, func(end time.Time) error {
			_, err := a.commands.ask(background, call, cmd, end, a.commands.servers.command)
			return err
		})
	}()
}
