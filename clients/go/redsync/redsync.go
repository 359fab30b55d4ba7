// Package redsync is used in place of github.com/go-redsync/redsync/v4. A program changes its
// import and its constructor. The locks are those of the redis-lock module, so Lock waits in the
// server's queue instead of trying again and again.
//
// See docs/migrate/redsync.md for what differs.
package redsync

import (
	secret "crypto/rand"
	"encoding/base64"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
)

const (
	shortestDelay = 50 * time.Millisecond
	longestDelay  = 250 * time.Millisecond
)

// Redsync makes mutexes on one server, or on several independent ones.
type Redsync struct {
	nodes []*redislock.Locks
	// A wrong argument, which each call of a mutex returns.
	wrong error
}

// New returns a maker of mutexes on the servers of these clients, each a *redis.Client (also one of
// NewFailoverClient) or a *redis.ClusterClient. It sends nothing. Each call of a mutex fails with a
// *redislock.ArgumentError if there is no client, or one of another type.
//
// One client is one server, or one cluster. Several are independent masters, of which a mutex needs
// the majority: that is the Redlock algorithm.
func New(clients ...redis.UniversalClient) *Redsync {
	r := &Redsync{}
	for _, client := range clients {
		locks, err := dropin.LocksOf(client)
		if err != nil {
			r.wrong = err
		}
		r.nodes = append(r.nodes, locks)
	}
	return r.checked()
}

// NewFromLocks is New with Locks in place of clients. The caller closes them.
func NewFromLocks(locks ...*redislock.Locks) *Redsync {
	r := &Redsync{nodes: append([]*redislock.Locks(nil), locks...)}
	for _, node := range locks {
		if node == nil {
			r.wrong = &redislock.ArgumentError{Argument: "locks", Reason: "not nil"}
		}
	}
	return r.checked()
}

func (r *Redsync) checked() *Redsync {
	if len(r.nodes) == 0 {
		r.wrong = &redislock.ArgumentError{Argument: "clients", Reason: "at least one client"}
	}
	return r
}

// NewMutex returns a mutex with this name, which is its key. It sends nothing. Lock fails with a
// *redislock.ArgumentError if an option is wrong.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{
		nodes: r.nodes, wrong: r.wrong, name: name, expiry: 8 * time.Second, tries: 32,
		drift: 0.01, timeout: 0.05, generate: randomValue,
		delay: func(int) time.Duration { return shortestDelay + rand.N(longestDelay-shortestDelay) },
	}
	for _, option := range options {
		option.Apply(m)
	}
	return m
}

// Option is an option of NewMutex.
type Option interface {
	Apply(*Mutex)
}

// OptionFunc is an Option that is a function.
type OptionFunc func(*Mutex)

// Apply calls the function.
func (f OptionFunc) Apply(mutex *Mutex) { f(mutex) }

// DelayFunc returns the delay before a try. The second try has number 1.
type DelayFunc func(tries int) time.Duration

// WithExpiry sets the lease. Default: 8 s.
func WithExpiry(expiry time.Duration) Option {
	return OptionFunc(func(m *Mutex) { m.expiry = expiry })
}

// WithTries sets how often Lock tries. With one client, Lock waits for as long as the delays
// between the tries would take together; 1 doesn't wait. Default: 32.
func WithTries(tries int) Option { return OptionFunc(func(m *Mutex) { m.tries = tries }) }

// WithRetryDelay sets the delay between tries. Default: 50 to 250 ms, at random.
func WithRetryDelay(delay time.Duration) Option {
	return OptionFunc(func(m *Mutex) { m.delay = func(int) time.Duration { return delay } })
}

// WithRetryDelayFunc sets the delay before each try.
func WithRetryDelayFunc(delay DelayFunc) Option {
	return OptionFunc(func(m *Mutex) { m.delay = delay })
}

// WithDriftFactor sets how much of the expiry Until leaves off, for clocks that differ. Default:
// 0.01.
func WithDriftFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) { m.drift = factor })
}

// WithTimeoutFactor sets how much of the expiry a try may take. Default: 0.05.
func WithTimeoutFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) { m.timeout = factor })
}

// WithGenValueFunc sets the maker of values. A value is shown in LOCK.INFO as the data of the
// holder, up to 1024 bytes. Default: 128 random bits.
func WithGenValueFunc(generate func() (string, error)) Option {
	return OptionFunc(func(m *Mutex) { m.generate = generate })
}

// WithValue makes the mutex that of another one, which was locked with this value: it can unlock
// and extend it.
func WithValue(value string) Option {
	return OptionFunc(func(m *Mutex) { m.owner.Store(&ownership{value: value}) })
}

// WithFailFast makes a call on several nodes return with the answers of the majority.
func WithFailFast(fast bool) Option { return OptionFunc(func(m *Mutex) { m.failFast = fast }) }

// WithShufflePools does nothing, because all nodes are asked at once.
func WithShufflePools(bool) Option { return OptionFunc(func(*Mutex) {}) }

// WithSetNXOnExtend makes Extend acquire a lock that was lost if it is free.
func WithSetNXOnExtend() Option { return OptionFunc(func(m *Mutex) { m.reacquires = true }) }

func randomValue() (string, error) {
	bits := make([]byte, 16)
	_, err := secret.Read(bits)
	return base64.StdEncoding.EncodeToString(bits), err
}
