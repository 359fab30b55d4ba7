// Package redislock is used in place of github.com/bsm/redislock. A program changes its import. The
// locks are those of the redis-lock module, so Obtain waits in the server's queue instead of trying
// again and again.
//
// See docs/migrate/bsm-redislock.md for what differs.
package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	client "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
	"github.com/redis-lock/redis-lock/clients/go/internal/shape"
)

// Errors of this package. Compare with errors.Is. An outage is client.ErrUnavailable, and a wrong
// argument a *client.ArgumentError, where client is the package above this one.
var (
	// ErrNotObtained says that somebody else has the lock.
	ErrNotObtained = errors.New("redislock: not obtained")
	// ErrLockNotHeld says that the lock isn't held any more.
	ErrLockNotHeld = errors.New("redislock: lock not held")
)

// RedisClient is a client of go-redis: a *redis.Client (also one of NewFailoverClient), a
// *redis.ClusterClient, or what embeds one.
type RedisClient interface{ redis.Scripter }

// Client obtains locks. It is safe for concurrent use.
type Client struct {
	locks *client.Locks
	wrong error
}

// New returns a Client. It sends nothing. Each call fails with a *client.ArgumentError if this
// isn't a client of go-redis.
func New(below RedisClient) *Client {
	locks, err := dropin.LocksOf(below)
	return &Client{locks, err}
}

// NewFromLocks is New with a Locks in place of a client of go-redis. The caller closes it.
func NewFromLocks(locks *client.Locks) *Client {
	if locks == nil {
		return &Client{wrong: &client.ArgumentError{Argument: "locks", Reason: "not nil"}}
	}
	return &Client{locks: locks}
}

// Options are the options of Obtain, ObtainMulti and Refresh. Each may be left out, and so may all.
type Options struct {
	// RetryStrategy limits the wait. Default: NoRetry.
	RetryStrategy RetryStrategy
	// Metadata is shown in LOCK.INFO, up to 1024 bytes.
	Metadata string
	// Token names the owner, in 1 to 256 bytes. Who knows it controls the lock, and obtains it
	// though it is held. Default: 128 random bits.
	Token string
}

// Obtain is short for New(client).Obtain.
func Obtain(
	ctx context.Context, client RedisClient, key string, ttl time.Duration, options *Options,
) (*Lock, error) {
	return New(client).Obtain(ctx, key, ttl, options)
}

// ObtainMulti is short for New(client).ObtainMulti.
func ObtainMulti(
	ctx context.Context, client RedisClient, keys []string, ttl time.Duration, options *Options,
) (*Lock, error) {
	return New(client).ObtainMulti(ctx, keys, ttl, options)
}

// Obtain obtains a lock with this lease, which is renewed by Refresh only. It tries once, or waits
// as long as the RetryStrategy says: until the context ends at most, or for the lease if the
// context has no deadline.
//
// It fails with ErrNotObtained if somebody else had the lock until then, and with the context's
// error as well if that has ended. An outage is never ErrNotObtained but client.ErrUnavailable.
func (c *Client) Obtain(
	ctx context.Context, key string, ttl time.Duration, options *Options,
) (*Lock, error) {
	return c.ObtainMulti(ctx, []string{key}, ttl, options)
}

// ObtainMulti is Obtain for several keys, which are obtained together or not at all.
func (c *Client) ObtainMulti(
	ctx context.Context, keys []string, ttl time.Duration, options *Options,
) (*Lock, error) {
	if c.wrong != nil {
		return nil, c.wrong
	}
	if options == nil {
		options = &Options{}
	}
	if len(options.Token) > mostToken || options.Token == "*" {
		return nil, &client.ArgumentError{Argument: "token", Reason: "1 to 256 bytes, and not *"}
	}
	settings := dropin.Options(ttl)
	if options.Metadata != "" || options.Token != "" {
		settings = append(settings, client.WithData(options.Metadata))
	}
	lock, err := c.locks.LockAll(keys, settings...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit(shape.In(ctx, shape.Shape{Token: options.Token}), ttl)
	defer cancel()
	grant, err := obtain(ctx, lock, options.strategy())
	if err != nil {
		return nil, err
	}
	return &Lock{Client: c, grant: grant, metadata: options.Metadata}, nil
}

const mostToken = 256

// limit returns a context that ends after the lease if it has no other deadline.
func limit(ctx context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	if _, isLimited := ctx.Deadline(); isLimited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, ttl)
}

// obtain tries once, and then waits in the queue.
func obtain(ctx context.Context, lock *client.Lock, strategy RetryStrategy) (*client.Grant, error) {
	grant, err := lock.TryAcquire(ctx)
	if !isRefusal(err) {
		return grant, err
	}
	first := strategy.NextBackoff()
	if first <= 0 {
		return nil, ErrNotObtained
	}
	wait := patience(ctx, first, strategy)
	grant, err = dropin.Acquire(ctx, lock, wait, func() time.Duration { return first })
	switch {
	case errors.Is(err, context.Canceled):
		return nil, errors.Join(ErrNotObtained, context.Canceled)
	case isRefusal(err) && errors.Is(err, context.DeadlineExceeded):
		return nil, errors.Join(ErrNotObtained, context.DeadlineExceeded)
	case isRefusal(err):
		return nil, ErrNotObtained
	}
	return grant, err
}

// shortestBackoff is the least time that a try counts for, so that the sum of backoffs ends.
const shortestBackoff = time.Millisecond

// patience returns the sum of the backoffs, or the time until the context ends if that is shorter.
func patience(ctx context.Context, first time.Duration, strategy RetryStrategy) time.Duration {
	deadline, _ := ctx.Deadline()
	// The context decides if both end at once.
	longest := max(0, time.Until(deadline)) + shortestBackoff
	var sum time.Duration
	for backoff := first; backoff > 0 && sum < longest; backoff = strategy.NextBackoff() {
		sum += min(max(backoff, shortestBackoff), longest)
	}
	return min(sum, longest)
}

// isRefusal returns true if somebody else has the lock.
func isRefusal(err error) bool {
	return errors.Is(err, client.ErrNotAcquired) || dropin.IsOldLock(err)
}

func (o *Options) strategy() RetryStrategy {
	if o == nil || o.RetryStrategy == nil {
		return NoRetry()
	}
	return o.RetryStrategy
}

// Lock is a lock that was obtained. It ends with its lease, also if it is collected before.
type Lock struct {
	*Client
	grant    *client.Grant
	metadata string
}

// Key returns the first key.
func (l *Lock) Key() string { return l.grant.Keys()[0] }

// Keys returns the keys.
func (l *Lock) Keys() []string { return l.grant.Keys() }

// Token returns the token. Who knows it controls the lock.
func (l *Lock) Token() string { return l.grant.Token() }

// Metadata returns the metadata.
func (l *Lock) Metadata() string { return l.metadata }

// Fence returns the fence, which is greater than that of every earlier grant of the keys.
func (l *Lock) Fence() int64 { return l.grant.Fence() }

// String returns the keys and the state, without the token.
func (l *Lock) String() string {
	if l == nil {
		return "redislock.Lock(none)"
	}
	return fmt.Sprint(l.grant)
}

// TTL returns the remaining lease by the server's clock, or 0 if the lock isn't held any more.
func (l *Lock) TTL(ctx context.Context) (time.Duration, error) {
	if l == nil {
		return 0, ErrLockNotHeld
	}
	left, err := l.grant.TTL(ctx)
	if dropin.IsOldLock(err) {
		return 0, nil
	}
	return left, err
}

// Refresh sets the lease, which counts from now. It fails with ErrNotObtained if the lock isn't
// held any more. In an outage it tries again as the RetryStrategy says, until the context ends at
// most, or for the new lease if the context has no deadline.
func (l *Lock) Refresh(ctx context.Context, ttl time.Duration, options *Options) error {
	if l == nil {
		return ErrNotObtained
	}
	if ttl <= 0 {
		return &client.ArgumentError{Argument: "ttl", Reason: "greater than 0"}
	}
	ctx, cancel := limit(ctx, ttl)
	defer cancel()
	strategy := options.strategy()
	for {
		err := l.grant.Extend(ctx, ttl)
		switch {
		case dropin.IsGone(err):
			return ErrNotObtained
		case !errors.Is(err, client.ErrUnavailable):
			return err
		}
		backoff := strategy.NextBackoff()
		if backoff <= 0 {
			return err
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// Release releases the lock. It fails with ErrLockNotHeld if the lock isn't held any more. In an
// outage it fails with client.ErrUnavailable, and the release goes on in the background.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return ErrLockNotHeld
	}
	err := l.grant.Release(ctx)
	if dropin.IsGone(err) {
		return ErrLockNotHeld
	}
	return err
}
