package redislock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/redis-lock/redis-lock/clients/go/internal/shape"
)

// Lock is a lock on one key or several. It has no state, so all goroutines may share it.
type Lock struct {
	options  *settings
	commands *commands
}

// Keys returns the keys.
func (l *Lock) Keys() []string { return append([]string(nil), l.options.keys...) }

// String returns the keys.
func (l *Lock) String() string { return fmt.Sprintf("redislock.Lock(%q)", l.options.keys) }

// Acquire waits for the lock, until the context or the time of WithWait ends, and returns a grant.
//
// It fails with ErrNotAcquired if somebody else had the lock until then; with ErrUnavailable if
// that isn't known, because no server answered; with context.Canceled; and at once with
// ErrDeadlock, ErrModuleMissing, ErrNotReplicated, or another error of the server. Without a limit,
// it waits through outages, and reports them to the observer. If the context's own deadline was the
// limit, the error is context.DeadlineExceeded as well.
func (l *Lock) Acquire(ctx context.Context) (*Grant, error) {
	return l.acquire(ctx, l.options.wait)
}

// AcquireWithin is Acquire with this limit instead of that of WithWait; 0 tries once. It fails with
// an *ArgumentError if wait is negative.
func (l *Lock) AcquireWithin(ctx context.Context, wait time.Duration) (*Grant, error) {
	if wait < 0 {
		return nil, &ArgumentError{"wait", "0 or greater"}
	}
	return l.acquire(ctx, wait)
}

// TryAcquire returns a grant if the lock is free, and fails with ErrNotAcquired if it isn't. It
// fails with ErrUnavailable if no server answers within the command timeout.
func (l *Lock) TryAcquire(ctx context.Context) (*Grant, error) { return l.acquire(ctx, 0) }

// Do acquires the lock like Acquire, and calls work like Grant.Do.
func (l *Lock) Do(ctx context.Context, work func(ctx context.Context, grant *Grant) error) error {
	return l.DoWithin(ctx, l.options.wait, work)
}

// DoWithin is Do with the limit of AcquireWithin.
func (l *Lock) DoWithin(
	ctx context.Context, wait time.Duration, work func(ctx context.Context, grant *Grant) error,
) error {
	grant, err := l.AcquireWithin(ctx, wait)
	if err != nil {
		return err
	}
	return grant.Do(ctx, func(ctx context.Context) error { return work(ctx, grant) })
}

// Holder is a holder of a lock, as LOCK.INFO shows it.
type Holder struct {
	// Fence is the fence of its grant.
	Fence int64
	// Data is what WithData says.
	Data string
	// No text shows what is behind the pointer.
	token *string
}

// Token returns the token, or "" if this client may not write the key. Who knows it controls the
// grant.
func (h Holder) Token() string { return *h.token }

// Holders asks the server who holds the keys now, within the command timeout.
func (l *Lock) Holders(ctx context.Context) ([]Holder, error) {
	replies, err := l.commands.ofEachKey(ctx, &call{}, l.options.keys, "LOCK.INFO", "WAITERS", 0)
	var holders []Holder
	for _, reply := range replies {
		items, _ := fieldsOf(reply)["holders"].([]any)
		for _, item := range items {
			fields := fieldsOf(item)
			fence, _ := fields["fence"].(int64)
			data, _ := fields["data"].(string)
			token, _ := fields["token"].(string)
			holders = append(holders, Holder{fence, data, &token})
		}
	}
	return holders, err
}

// fieldsOf returns the fields of a map in either protocol of the server.
func fieldsOf(reply any) map[any]any {
	if fields, isMap := reply.(map[any]any); isMap {
		return fields
	}
	fields := map[any]any{}
	items, _ := reply.([]any)
	for i := 0; i+1 < len(items); i += 2 {
		fields[items[i]] = items[i+1]
	}
	return fields
}

func (l *Lock) acquire(ctx context.Context, limit time.Duration) (*Grant, error) {
	if ctx.Err() != nil {
		return nil, cancelled(ctx)
	}
	limit = min(limit, century)
	longest := limit
	if limit == 0 {
		longest = l.commands.timeout
	}
	within, until, stop := bounded(ctx, longest)
	defer stop()
	s, isShaped := shape.Of(ctx)
	a := newAcquire(l, s.Token, limit, until)
	began := time.Now()
	h, err := a.run(within)
	if observe := l.commands.observer.Waited; observe != nil && (a.hasWaited || err != nil) {
		protect(func() { observe(l, time.Since(began), outcomeOf(err)) })
	}
	switch {
	case err == nil:
		return l.granted(h, isShaped), nil
	case isPastDeadline(ctx) && !errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	}
	return nil, err
}

// granted makes the grant of a hold. A shaped one isn't released when it is collected.
func (l *Lock) granted(h *hold, isShaped bool) *Grant {
	grant := &Grant{h}
	h.isShaped = isShaped
	if !isShaped {
		runtime.AddCleanup(grant, (*hold).drop, h)
	}
	h.begin()
	tell(l.commands.observer.Granted, grant)
	return grant
}

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Granted
	case errors.Is(err, ErrNotAcquired):
		return NotAcquired
	case errors.Is(err, context.Canceled):
		return Cancelled
	}
	return Failed
}

// isPastDeadline returns true if the time of a context is over, also if its own timer hasn't fired
// yet.
func isPastDeadline(ctx context.Context) bool {
	deadline, isLimited := ctx.Deadline()
	return isLimited && !time.Now().Before(deadline)
}
