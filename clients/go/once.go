package redislock

import (
	"context"
	"errors"
	"slices"
)

// Once returns what read returns, or else what compute returns: one caller computes at a time.
//
// The others wait, and then read all at once. So compute must store its result where read finds it.
// Read returns false if there is no result. The options are those of the lock, except WithShared,
// WithLimit and WithPermits. Once fails with ErrNotAcquired if the WithWait was over before there
// was a result.
func Once[T any](
	ctx context.Context, locks *Locks, key string,
	read func(context.Context) (T, bool, error), compute func(context.Context) (T, error),
	options ...Option,
) (result T, err error) {
	lock, err := locks.Lock(key, options...)
	if err != nil {
		return result, err
	}
	readers, err := locks.Lock(key, append(slices.Clip(options), WithShared())...)
	if err != nil {
		return result, err
	}
	result, isThere, err := read(ctx)
	if isThere || err != nil {
		return result, err
	}
	grant, err := lock.TryAcquire(ctx)
	if errors.Is(err, ErrNotAcquired) {
		err = readers.Do(ctx, func(ctx context.Context, _ *Grant) (err error) {
			result, isThere, err = read(ctx)
			return err
		})
		if isThere || err != nil {
			return result, err
		}
		// The one that computed failed, so the others take turns.
		grant, err = lock.Acquire(ctx)
	}
	if err != nil {
		return result, err
	}
	err = grant.Do(ctx, func(ctx context.Context) (err error) {
		if result, isThere, err = read(ctx); isThere || err != nil {
			return err
		}
		result, err = compute(ctx)
		return err
	})
	return result, err
}
