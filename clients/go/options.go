package redislock

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Unlimited is the longest Duration. As a WithMaxHold it sets no end.
const Unlimited time.Duration = 1<<63 - 1

// secret returns a token, which controls the lock. It is a function because no text form of a
// function, nor of what has it, shows the token.
type secret func() string

func newSecret(token string) secret {
	return func() string { return token }
}

// drawn returns a random token, and a function that draws another one.
func drawn() (token secret, redraw func()) {
	var text atomic.Value
	redraw = func() { text.Store(randomText()) }
	redraw()
	return func() string { return text.Load().(string) }, redraw
}

// settings are the options of a lock.
type settings struct {
	lease, keep, maxHold, atLeast, wait time.Duration
	waitsForever, noRenewal             bool
	token                               secret
	// Draws another token. Nil if the program chose the token.
	redraw                     func()
	shared, session, reentrant bool
	detached, sharesToken      bool
	limit, permits, replicas   int
	data                       *string
	onLost                     func(*Lock)
	wrong                      *ArgumentError
}

// Option is an option of Locks.Lock and Locks.LockAll. A wrong value is returned there as an
// *ArgumentError.
type Option func(*settings)

func (s *settings) refuse(argument, reason string) {
	if s.wrong == nil {
		s.wrong = &ArgumentError{argument, reason}
	}
}

func (s *settings) positive(argument string, d time.Duration) time.Duration {
	if d <= 0 {
		s.refuse(argument, "greater than 0")
	}
	return d
}

func (s *settings) count(argument string, n, most int) int {
	if n < 1 || n > most {
		s.refuse(argument, fmt.Sprintf("1 to %d", most))
	}
	return n
}

const (
	mostPermits  = 1<<32 - 1
	mostReplicas = 1000
	mostData     = 1024
	mostToken    = 256

	shortestLease = time.Millisecond
	leaseRange    = "1 ms or greater"
)

// WithLease sets the time after which the lock ends unless it is renewed, at least 1 ms. The renewals
// come at each third of it. Default: 30 s.
func WithLease(d time.Duration) Option {
	return func(s *settings) {
		if d < shortestLease {
			s.refuse("lease", leaseRange)
		}
		s.lease = d
	}
}

// WithWait limits the time that Acquire and Do wait. 0 tries once. Default: no limit except the
// context's.
func WithWait(d time.Duration) Option {
	return func(s *settings) {
		if d < 0 {
			s.refuse("wait", "0 or greater")
		}
		s.wait, s.waitsForever = d, false
	}
}

// WithToken names the owner to the server. Who knows the token controls the lock. 1 to 256 bytes,
// not "*". Default: 128 random bits.
func WithToken(token string) Option {
	return func(s *settings) {
		if token == "" || len(token) > mostToken || token == "*" {
			s.refuse("token", "1 to 256 bytes, and not *")
		}
		s.token, s.redraw = newSecret(token), nil
	}
}

// WithSharedToken makes the acquire of this Lock end nothing that other Locks with the token hold: one
// that fails leaves the queue and releases nothing. If its reply is lost, the lock may stay until its
// lease is over.
func WithSharedToken() Option {
	return func(s *settings) { s.sharesToken = true }
}

// WithShared makes the lock shared: shared holders admit each other.
func WithShared() Option {
	return func(s *settings) { s.shared = true }
}

// WithLimit makes the lock a semaphore of n permits, 1 to 2^32-1, of which it takes one.
func WithLimit(n int) Option {
	return func(s *settings) { s.limit = s.count("limit", n, mostPermits) }
}

// WithPermits makes the lock take n permits of its WithLimit. Default: 1.
func WithPermits(n int) Option {
	return func(s *settings) { s.permits = s.count("permits", n, mostPermits) }
}

// WithSession ties the lock to a connection of its own. The server renews the lease, and releases
// the lock when that connection closes.
func WithSession() Option {
	return func(s *settings) { s.session = true }
}

// WithKeep sets how long the server keeps the place in the queue without hearing of the waiter.
// Default: 10 s.
func WithKeep(d time.Duration) Option {
	return func(s *settings) { s.keep = s.positive("keep", d) }
}

// WithoutRenewal makes the lock end with its lease.
func WithoutRenewal() Option {
	return func(s *settings) { s.noRenewal = true }
}

// WithDetached makes the grant independent of the Lock: a Lock that is collected while it is held
// isn't released. The lock then ends with its lease, without further renewals, or another Lock with
// the token takes it over with Adopt.
func WithDetached() Option {
	return func(s *settings) { s.detached = true }
}

// WithReentrant admits the owner again, which is the Lock: Acquire adds a hold while the lock is
// held, and it takes as many calls of Release.
func WithReentrant() Option {
	return func(s *settings) { s.reentrant = true }
}

// WithMaxHold sets the longest time that a lock is held: it is lost then. Unlimited sets no end.
// Default: 24 h.
func WithMaxHold(d time.Duration) Option {
	return func(s *settings) { s.maxHold = s.positive("max hold", d) }
}

// WithAtLeast keeps others out until this time after the grant, though the lock is released before.
// Default: 0.
func WithAtLeast(d time.Duration) Option {
	return func(s *settings) {
		if d < 0 {
			s.refuse("at least", "0 or greater")
		}
		s.atLeast = d
	}
}

// WithData shows up to 1024 bytes in LOCK.INFO to everyone who may read the key.
func WithData(data string) Option {
	return func(s *settings) {
		if len(data) > mostData {
			s.refuse("data", "at most 1024 bytes")
		}
		s.data = &data
	}
}

// WithReplicas makes every acquire wait until n replicas, 1 to 1000, have acknowledged the grant,
// for at most the command timeout. Otherwise it is released, and the error is ErrNotReplicated.
func WithReplicas(n int) Option {
	return func(s *settings) { s.replicas = s.count("replicas", n, mostReplicas) }
}

// WithOnLost calls a function once for each loss, in a goroutine of its own. Use the lock that it
// gets: a Lock that its own function refers to can't be collected.
func WithOnLost(onLost func(*Lock)) Option {
	return func(s *settings) { s.onLost = onLost }
}

func newSettings(keys []string, options []Option) (settings, error) {
	s := settings{
		lease: 30 * time.Second, keep: 10 * time.Second, maxHold: 24 * time.Hour, waitsForever: true,
	}
	s.token, s.redraw = drawn()
	for _, option := range options {
		option(&s)
	}
	if len(keys) == 0 {
		s.refuse("keys", "at least one key")
	}
	seen := map[string]bool{}
	for _, key := range keys {
		if seen[key] {
			s.refuse("keys", "different from each other")
		}
		seen[key] = true
	}
	if s.permits > 0 && s.limit == 0 {
		s.refuse("permits", "set together with a limit")
	}
	if s.permits > s.limit {
		s.refuse("permits", "at most the limit")
	}
	if s.wrong != nil {
		return s, s.wrong
	}
	s.shared = s.shared || s.limit > 0
	return s, nil
}
