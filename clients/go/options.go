package redislock

import (
	"fmt"
	"time"
)

// Unlimited is the longest Duration. As a WithMaxHold it sets no end.
const Unlimited time.Duration = 1<<63 - 1

const (
	mostPermits  = 1<<32 - 1
	mostReplicas = 1000
	mostData     = 1024
	mostToken    = 256

	// The longest margin by default.
	longestMargin = time.Second
	// The longest time of LEAVE that the server takes.
	longestLeave = 24 * time.Hour
)

// settings are the keys and the options of a lock.
type settings struct {
	keys                                        []string
	lease, margin, keep, maxHold, atLeast, wait time.Duration
	renews, shared, session                     bool
	limit, permits, replicas                    int
	data                                        *string
	onLost                                      func(*Grant)
	wrong                                       *ArgumentError
}

// Option is an option of Locks.Lock and Locks.LockAll, which return an *ArgumentError for a wrong
// value. Times are rounded up to whole milliseconds.
type Option func(*settings)

// WithLease sets how long others wait if this process dies. Default: 30 s.
func WithLease(d time.Duration) Option {
	return func(s *settings) { s.lease = s.positive("lease", d) }
}

// WithWait limits the time that Acquire and Do wait. 0 tries once. Default: no limit except the
// context's.
func WithWait(d time.Duration) Option {
	return func(s *settings) { s.wait = s.zeroOrMore("wait", d) }
}

// WithShared makes the lock shared: shared holders admit each other.
func WithShared() Option {
	return func(s *settings) { s.shared = true }
}

// WithLimit makes the lock a semaphore of n permits, 1 to 2^32-1, of which a grant takes one.
func WithLimit(n int) Option {
	return func(s *settings) { s.limit = s.count("limit", n, mostPermits) }
}

// WithPermits makes a grant take n permits of the WithLimit. Default: 1.
func WithPermits(n int) Option {
	return func(s *settings) { s.permits = s.count("permits", n, mostPermits) }
}

// WithSession ties each grant to a connection of its own, and the grant ends with that connection.
func WithSession() Option {
	return func(s *settings) { s.session = true }
}

// WithKeep sets how long the server keeps the place of a waiter that it doesn't hear of. Default:
// 10 s.
func WithKeep(d time.Duration) Option {
	return func(s *settings) { s.keep = s.positive("keep", d) }
}

// WithoutRenewal makes a grant end with its lease. By default the lease is renewed at a third of
// it.
func WithoutRenewal() Option {
	return func(s *settings) { s.renews = false }
}

// WithMargin sets how long before the end of the lease a grant counts as lost, so that the program
// can stop before anybody else has the lock. It is less than the lease. Default: a tenth of the
// lease, and at most 1 s.
func WithMargin(d time.Duration) Option {
	return func(s *settings) { s.margin = s.zeroOrMore("margin", d) }
}

// WithMaxHold sets how long the lease is renewed, from the grant: the grant is lost then. Unlimited
// has no end. Default: 24 h.
func WithMaxHold(d time.Duration) Option {
	return func(s *settings) { s.maxHold = s.positive("max hold", d) }
}

// WithAtLeast keeps others out until this time after the grant, though the lock is released before.
// Default: 0.
func WithAtLeast(d time.Duration) Option {
	return func(s *settings) { s.atLeast = s.zeroOrMore("at least", d) }
}

// WithData shows up to 1024 bytes in LOCK.INFO to everyone who may read the key.
func WithData(data string) Option {
	return func(s *settings) {
		if len(data) > mostData {
			s.refuse("data", fmt.Sprintf("at most %d bytes", mostData))
		}
		s.data = &data
	}
}

// WithReplicas makes every acquire wait until n replicas, 1 to 1000, have acknowledged the grant,
// within the command timeout. Otherwise the error is ErrNotReplicated.
func WithReplicas(n int) Option {
	return func(s *settings) { s.replicas = s.count("replicas", n, mostReplicas) }
}

// WithOnLost calls a function once for each loss, in a goroutine of its own.
func WithOnLost(onLost func(*Grant)) Option {
	return func(s *settings) { s.onLost = onLost }
}

const byDefault time.Duration = -1

func newSettings(keys []string, options []Option) (*settings, error) {
	s := &settings{
		keys: append([]string(nil), keys...), lease: 30 * time.Second, margin: byDefault,
		keep: 10 * time.Second, maxHold: 24 * time.Hour, wait: Unlimited, renews: true,
	}
	for _, option := range options {
		option(s)
	}
	if s.margin == byDefault {
		s.margin = min(s.lease/10, longestMargin)
	}
	s.checkTogether()
	if s.wrong != nil {
		return nil, s.wrong
	}
	return s, nil
}

func (s *settings) checkTogether() {
	if len(s.keys) == 0 {
		s.refuse("keys", "at least one key")
	}
	seen := map[string]bool{}
	for _, key := range s.keys {
		if seen[key] {
			s.refuse("keys", "different from each other")
		}
		seen[key] = true
	}
	if s.margin >= s.lease {
		s.refuse("margin", "less than the lease")
	}
	if s.permits > 0 && s.limit == 0 {
		s.refuse("permits", "set together with a limit")
	}
	if s.permits > s.limit {
		s.refuse("permits", "at most the limit")
	}
}

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

func (s *settings) zeroOrMore(argument string, d time.Duration) time.Duration {
	if d < 0 {
		s.refuse(argument, "0 or greater")
	}
	return d
}

func (s *settings) count(argument string, n, most int) int {
	if n < 1 || n > most {
		s.refuse(argument, fmt.Sprintf("1 to %d", most))
	}
	return n
}

func (s *settings) firstLease() time.Duration {
	return min(s.lease, plus(s.maxHold, s.margin))
}

// longestTrace returns how long the server may have a place or a grant of a token that it doesn't
// hear of.
func (s *settings) longestTrace() time.Duration { return max(s.firstLease(), s.keep) }

// --- commands ------------------------------------------------------------------------------------

// command is the words of a command, and the place of its first key.
type command struct {
	words []any
	keyAt int8
}

func (s *settings) command(verb string, token secret, options ...any) command {
	if len(s.keys) == 1 {
		return command{append([]any{"LOCK." + verb, s.keys[0], token()}, options...), 1}
	}
	words := []any{"LOCK.M" + verb, len(s.keys)}
	for _, key := range s.keys {
		words = append(words, key)
	}
	return command{append(append(words, token()), options...), 2}
}

func (s *settings) acquire(token secret, within time.Duration) command {
	return s.command("ACQUIRE", token, s.withReplicas(s.grant(), within)...)
}

// waitFor returns the WAIT of a part of the time that is left. The last one leaves no place.
func (s *settings) waitFor(token secret, block, left, within time.Duration) command {
	words := append(s.grant(), "BLOCK", milliseconds(block))
	if block < left {
		words = append(words, "KEEP", milliseconds(min(s.keep, plus(left, time.Second))))
	}
	return s.command("WAIT", token, s.withReplicas(words, within)...)
}

func (s *settings) extend(token secret, lease time.Duration, words ...any) command {
	return s.command("EXTEND", token, append([]any{"PX", milliseconds(lease)}, words...)...)
}

func (s *settings) release(token secret) command { return s.command("RELEASE", token) }

// releaseAfter returns the command that ends the lock later, without its connection.
func (s *settings) releaseAfter(token secret, rest time.Duration) command {
	if s.session {
		return s.extend(token, rest, "NOSESSION")
	}
	return s.extend(token, rest)
}

func (s *settings) leave(token secret, d time.Duration) command {
	return s.command("RELEASE", token, "LEAVE", milliseconds(min(d, longestLeave)))
}

// cancel returns the command that ends the waits of a token, also those for several keys.
func (s *settings) cancel(token secret) command {
	return command{[]any{"LOCK.CANCEL", s.keys[0], token()}, 1}
}

func (s *settings) grant() []any {
	words := []any{"PX", milliseconds(s.firstLease())}
	if s.shared || s.limit > 0 {
		words = append(words, "SHARED")
	}
	if s.limit > 0 {
		words = append(words, "LIMIT", s.limit, "PERMITS", max(s.permits, 1))
	}
	if s.data != nil {
		words = append(words, "DATA", *s.data)
	}
	return words
}

func (s *settings) withReplicas(words []any, within time.Duration) []any {
	if s.replicas == 0 {
		return words
	}
	return append(words, "REPLICAS", s.replicas, "WITHIN", milliseconds(within))
}

// milliseconds returns a time in whole milliseconds, at least 1, rounded up.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return max(ms, 1)
}

// plus returns the sum of two times, at most the longest one.
func plus(a, b time.Duration) time.Duration {
	if a > Unlimited-b {
		return Unlimited
	}
	return a + b
}
