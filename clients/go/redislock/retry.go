package redislock

import (
	"sync/atomic"
	"time"
)

// RetryStrategy says how long Obtain goes on: for the sum of its backoffs, until one is 0 or less.
// The backoffs are asked for at once, when the lock isn't free at the first try.
type RetryStrategy interface {
	// NextBackoff returns the time until the next try.
	NextBackoff() time.Duration
}

type linear time.Duration

func (l linear) NextBackoff() time.Duration { return time.Duration(l) }

// LinearBackoff returns a strategy without an end, whose backoffs are all the same.
func LinearBackoff(backoff time.Duration) RetryStrategy { return linear(backoff) }

// NoRetry returns a strategy that tries once.
func NoRetry() RetryStrategy { return linear(0) }

type limited struct {
	strategy RetryStrategy
	count    atomic.Int64
	most     int64
}

// LimitRetry returns a strategy that ends after this many backoffs of another one. It counts those
// of all calls that share it.
func LimitRetry(strategy RetryStrategy, most int) RetryStrategy {
	return &limited{strategy: strategy, most: int64(most)}
}

func (l *limited) NextBackoff() time.Duration {
	if l.count.Add(1) > l.most {
		return 0
	}
	return l.strategy.NextBackoff()
}

type exponential struct {
	count          atomic.Uint64
	shortest, most time.Duration
}

// The longest exponential backoff is 2^26 ms.
const mostDoublings = 26

// ExponentialBackoff returns a strategy without an end, whose backoffs are 4 ms, 8 ms, 16 ms and so
// on, but at least shortest, and at most longest unless that is 0.
func ExponentialBackoff(shortest, longest time.Duration) RetryStrategy {
	return &exponential{shortest: shortest, most: longest}
}

func (e *exponential) NextBackoff() time.Duration {
	doublings := min(e.count.Add(1)+1, mostDoublings)
	backoff := max(e.shortest, time.Millisecond<<doublings)
	if e.most != 0 && backoff > e.most && backoff > e.shortest {
		return e.most
	}
	return backoff
}
