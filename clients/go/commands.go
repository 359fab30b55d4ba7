package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The longest time of one command, so that there is time for another one.
	attemptTime = time.Second
	// The pause after the first failure, and the longest one.
	firstPause, longestPause = 50 * time.Millisecond, time.Second
)

// call is the commands of one call of the program.
type call struct {
	key   string
	token secret
	// The number of commands that got no reply, and may still arrive.
	unanswered atomic.Int32
	// True if the latest command may have arrived, but its caller got no reply.
	isDoubtful bool
}

type callKey struct{}

func (s *settings) call(token secret) *call { return &call{key: s.keys[0], token: token} }

// commands sends commands for the locks of one client.
type commands struct {
	servers  *servers
	observer Observer
	timeout  time.Duration
	// The longest time of one attempt.
	attempt time.Duration
	crowds  crowds

	mu   sync.Mutex
	held map[*hold]struct{}
	// The servers whose outage the observer knows of.
	down map[string]bool
}

func newCommands(client redis.UniversalClient, observer Observer, timeout time.Duration) (*commands, error) {
	attempt := max(min(timeout, attemptTime), timeout/3)
	s, err := newServers(client, attempt, timeout)
	return &commands{
		servers: s, observer: observer, timeout: timeout, attempt: attempt,
		crowds: crowds{byKeys: map[string]*crowd{}}, held: map[*hold]struct{}{}, down: map[string]bool{},
	}, err
}

// ask sends a command once, and returns its reply. It fails with an *outage, with the error that
// ends the call, or with the context's error if that is cancelled.
func (c *commands) ask(
	ctx context.Context, call *call, cmd command, until time.Time, by way,
) (any, error) {
	within := time.Until(until)
	sent := redis.NewCmd(ctx, cmd.words...)
	sent.SetFirstKeyPos(cmd.keyAt)
	err := c.exchange(ctx, call, sent, within, by)
	if isReply(err) {
		c.recovered(call.key)
	}
	switch {
	case err == nil:
		return sent.Val(), nil
	case errors.Is(err, redis.Nil):
		return nil, nil
	case ctx.Err() != nil:
		return nil, cancelled(ctx)
	case isOutage(err):
		c.servers.failed()
		if isLate(err) && within > c.attempt*9/10 {
			// A short limit says nothing about the connections.
			c.servers.doubt(call.key)
		}
		return nil, newOutage(err, c.servers.address(call.key), within)
	}
	return nil, final(err, call.token)
}

// exchange sends a command, and returns at the end of the time or of the context.
func (c *commands) exchange(
	ctx context.Context, call *call, cmd redis.Cmder, within time.Duration, by way,
) error {
	call.isDoubtful = false
	if within <= 0 {
		return os.ErrDeadlineExceeded
	}
	call.isDoubtful = true
	call.unanswered.Add(1)
	// perf: Two goroutines for a command cost as much as the command.
	if ctx.Done() == nil && within >= c.attempt-firstPause && by.isPrompt != nil && by.isPrompt() {
		limited, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return call.replied(call.sent(by.process(limited, cmd)))
	}
	// A deadline of the context would have go-redis close the connection. What was sent goes on
	// without the caller, so its connection stays usable.
	sending, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), callKey{}, call))
	defer cancel()
	replied := make(chan error, 1)
	go func() { replied <- call.sent(by.process(sending, cmd)) }()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case err := <-replied:
		return call.replied(err)
	case <-timer.C:
		return os.ErrDeadlineExceeded
	case <-ctx.Done():
		return cancelled(ctx)
	}
}

// sent notes the outcome of a command.
func (c *call) sent(err error) error {
	if isReply(err) || !wasSent(err) {
		c.unanswered.Add(-1)
	}
	return err
}

// replied notes the outcome of the latest command for its caller.
func (c *call) replied(err error) error {
	c.isDoubtful = !isReply(err) && wasSent(err)
	return err
}

// retry repeats an action after outages, until it succeeds or the time is over. OnFault hears of
// each outage.
func (c *commands) retry(
	ctx context.Context, until time.Time, onFault func(*outage), act func(end time.Time) error,
) error {
	var fault *outage
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		began := time.Now()
		err := act(earlier(until, began.Add(c.attempt)))
		var latest *outage
		if !errors.As(err, &latest) {
			return err
		}
		// A last try that had little time says nothing about the cause.
		if fault == nil || until.Sub(began) > firstPause {
			fault = latest
		}
		onFault(fault)
		if err := pauseBefore(ctx, pause, until, fault); err != nil {
			return err
		}
	}
}

// pauseBefore pauses before the next try. It returns the fault if there is no time for one.
func pauseBefore(ctx context.Context, pause time.Duration, until time.Time, fault error) error {
	left := time.Until(until)
	if left <= 0 {
		return fault
	}
	if beforeLast := left - firstPause; beforeLast > 0 {
		left = beforeLast
	}
	timer := time.NewTimer(min(pause, left))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return cancelled(ctx)
	}
}

// ofEachKey returns the replies to a command about each key, within the command timeout.
func (c *commands) ofEachKey(
	ctx context.Context, call *call, keys []string, verb string, words ...any,
) (replies []any, err error) {
	ctx, until, stop := c.bounded(ctx)
	defer stop()
	err = c.retry(ctx, until, unreported, func(end time.Time) error {
		replies = nil
		for _, key := range keys {
			cmd := command{append([]any{verb, key}, words...), 1}
			reply, err := c.ask(ctx, call, cmd, end, c.servers.command)
			if err != nil {
				return err
			}
			replies = append(replies, reply)
		}
		return nil
	})
	return replies, err
}

// bounded returns the end of a call that doesn't wait for a lock, and the context without its
// deadline.
func (c *commands) bounded(ctx context.Context) (within context.Context, until time.Time, stop func()) {
	until = time.Now().Add(c.timeout)
	if deadline, isLimited := ctx.Deadline(); isLimited {
		until = earlier(until, deadline)
	}
	within, stop = withoutDeadline(ctx)
	return within, until, stop
}

// withoutDeadline returns a context that ends only when the other one is cancelled. The end of a
// limit isn't the end of its call: a reply may still come in time.
func withoutDeadline(ctx context.Context) (within context.Context, stop func()) {
	if _, isLimited := ctx.Deadline(); !isLimited {
		return ctx, func() {}
	}
	within, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel(context.Cause(ctx))
		}
	})
	return within, func() {
		forget()
		cancel(nil)
	}
}

// cancelled returns the error of a context that has ended, with its cause.
func cancelled(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// report tells the observer of an outage, once until the server replies again.
func (c *commands) report(fault *outage) {
	c.mu.Lock()
	isKnown := c.down[fault.address]
	c.down[fault.address] = true
	c.mu.Unlock()
	if !isKnown {
		c.observer.unavailable(fault)
	}
}

func unreported(*outage) {}

func (c *commands) recovered(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.down) > 0 {
		delete(c.down, c.servers.address(key))
	}
}

// all returns the grants that are held.
func (c *commands) all() []*hold {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.held))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
