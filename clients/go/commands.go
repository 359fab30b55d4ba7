package redislock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The longest time of one command, so that there is time for another one.
	attemptTime = time.Second
	// The pause after the first failure, and the longest one.
	firstPause, longestPause = 50 * time.Millisecond, time.Second
)

// commands sends commands for the locks of one client.
type commands struct {
	servers  *servers
	observer Observer
	timeout  time.Duration
	// The longest time of one attempt.
	attempt time.Duration

	mu     sync.Mutex
	crowds map[string]*crowd
	held   map[*hold]struct{}
	// The servers whose outage the observer knows of.
	down map[string]bool
}

// request is a command on its way.
type request struct {
	*redis.Cmd
	call *call
}

// SetErr notes the error of a try. The client of a cluster repeats a command by itself.
func (r *request) SetErr(err error) {
	if !isReply(err) && wasSent(err) {
		r.call.isDoubtful.Store(true)
	}
	r.Cmd.SetErr(err)
}

// ask sends a command of a call once, and returns its reply. It fails with an *outage, with the
// error that ends the call, or with the context's error if that is cancelled.
func (c *commands) ask(
	ctx context.Context, call *call, words []any, within time.Duration, by sender,
) (any, error) {
	sent := &request{redis.NewCmd(ctx, words...), call}
	sent.SetFirstKeyPos(int8(keyAt(words)))
	err := c.exchange(ctx, sent, within, by)
	key := words[keyAt(words)].(string)
	switch {
	case !isReply(err) && ctx.Err() != nil:
		return nil, cancelled(ctx)
	case err != nil && isOutage(err):
		c.servers.failed()
		return nil, &outage{c.servers.address(key), err}
	}
	c.recovered(key)
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return sent.Val(), final(err, call.token)
}

// exchange sends a command, and returns at the end of the time or of the context.
func (c *commands) exchange(
	ctx context.Context, sent *request, within time.Duration, by sender,
) error {
	if within <= 0 {
		return os.ErrDeadlineExceeded
	}
	// perf: Two goroutines for a command cost as much as the command.
	isPrompt := by == c.servers.prompt || by == c.servers.acquires
	if isPrompt && ctx.Done() == nil && within >= c.attempt-firstPause {
		limited, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return by.Process(limited, sent)
	}
	// A deadline of the context would have go-redis close the connection. What was sent goes on
	// without the caller, so its connection stays usable.
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	replied := make(chan error, 1)
	go func() { replied <- by.Process(sending, sent) }()
	result, err := await(ctx, replied, within)
	if err != nil {
		sent.call.isDoubtful.Store(true)
		return err
	}
	return result
}

// await waits for a value, until the end of the time or of the context.
func await[T any](ctx context.Context, from <-chan T, within time.Duration) (value T, err error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case value = <-from:
		return value, nil
	case <-timer.C:
		within = within.Round(time.Millisecond)
		return value, fmt.Errorf("no answer within %v: %w", within, os.ErrDeadlineExceeded)
	case <-ctx.Done():
		return value, cancelled(ctx)
	}
}

// retry repeats an action after outages, until it succeeds or the time is over. OnFault hears of
// each outage.
func (c *commands) retry(
	ctx context.Context, until time.Time, onFault func(*outage), act func(within time.Duration) error,
) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := act(min(c.attempt, time.Until(until)))
		var fault *outage
		if !errors.As(err, &fault) {
			return err
		}
		onFault(fault)
		left := time.Until(until)
		if _, err := await[any](ctx, nil, min(pause, left)); !isLate(err) {
			return err
		}
		if left <= pause {
			return fault
		}
	}
}

// ofEachKey returns the replies to a command about each key, within the command timeout.
func (c *commands) ofEachKey(
	ctx context.Context, call *call, keys []string, verb string, words ...any,
) (replies []any, err error) {
	ctx, until, stop := bounded(ctx, c.timeout)
	defer stop()
	for _, key := range keys {
		var reply any
		err = c.retry(ctx, until, unreported, func(within time.Duration) (err error) {
			about := append([]any{verb, key}, words...)
			reply, err = c.ask(ctx, call, about, within, c.servers.prompt)
			return err
		})
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply)
	}
	return replies, nil
}

// bounded returns the end of a call with a limit, and a context that ends only when that of the
// call is cancelled. The end of a deadline isn't the end of its call: a reply may still come in
// time.
func bounded(
	ctx context.Context, limit time.Duration,
) (within context.Context, until time.Time, stop func()) {
	until = time.Now().Add(limit)
	deadline, isLimited := ctx.Deadline()
	if !isLimited {
		return ctx, until, func() {}
	}
	within, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel(context.Cause(ctx))
		}
	})
	return within, earlier(until, deadline), func() {
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
		tell(c.observer.Unavailable, error(fault))
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

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
