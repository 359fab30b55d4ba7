package redislock

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
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
	// The longest time that is counted: no end.
	century = 100 * 365 * 24 * time.Hour
	// The value of an option that isn't set.
	unset = math.MinInt
)

// settings are the keys and the options of a lock.
type settings struct {
	keys                                        []string
	lease, margin, keep, maxHold, atLeast, wait time.Duration
	renews, shared, session                     bool
	limit, permits, replicas                    int
	data                                        *string
	onLost                                      func(*Grant)
}

// Option is an option of Locks.Lock and Locks.LockAll, which return an *ArgumentError for a wrong
// value. Times are rounded up to whole milliseconds.
type Option func(*settings)

// WithLease sets how long others wait if this process dies. Default: 30 s.
func WithLease(d time.Duration) Option { return func(s *settings) { s.lease = d } }

// WithWait limits the time that Acquire and Do wait. 0 tries once. Default: no limit except the
// context's.
func WithWait(d time.Duration) Option { return func(s *settings) { s.wait = d } }

// WithShared makes the lock shared: shared holders admit each other.
func WithShared() Option { return func(s *settings) { s.shared = true } }

// WithLimit makes the lock a semaphore of n permits, 1 to 2^32-1, of which a grant takes one.
func WithLimit(n int) Option { return func(s *settings) { s.limit = n } }

// WithPermits makes a grant take n permits of the WithLimit. Default: 1.
func WithPermits(n int) Option { return func(s *settings) { s.permits = n } }

// WithSession ties each grant to a connection of its own, and the grant ends with that connection.
func WithSession() Option { return func(s *settings) { s.session = true } }

// WithKeep sets how long the server keeps the place of a waiter that it doesn't hear of. Default:
// 10 s.
func WithKeep(d time.Duration) Option { return func(s *settings) { s.keep = d } }

// WithoutRenewal makes a grant end with its lease. By default the lease is renewed at a third of
// it.
func WithoutRenewal() Option { return func(s *settings) { s.renews = false } }

// WithMargin sets how long before the end of the lease a grant counts as lost, so that the program
// can stop before anybody else has the lock. It is less than the lease. Default: a tenth of the
// lease, and at most 1 s.
func WithMargin(d time.Duration) Option { return func(s *settings) { s.margin = d } }

// WithMaxHold sets how long the lease is renewed, from the grant: the grant is lost then. Unlimited
// has no end. Default: 24 h.
func WithMaxHold(d time.Duration) Option { return func(s *settings) { s.maxHold = d } }

// WithAtLeast keeps others out until this time after the grant, though the lock is released before.
// Default: 0.
func WithAtLeast(d time.Duration) Option { return func(s *settings) { s.atLeast = d } }

// WithData shows up to 1024 bytes in LOCK.INFO to everyone who may read the key.
func WithData(data string) Option { return func(s *settings) { s.data = &data } }

// WithReplicas makes every acquire wait until n replicas, 1 to 1000, have acknowledged the grant,
// within the command timeout. Otherwise the error is ErrNotReplicated.
func WithReplicas(n int) Option { return func(s *settings) { s.replicas = n } }

// WithOnLost calls a function once for each loss, in a goroutine of its own.
func WithOnLost(onLost func(*Grant)) Option {
	return func(s *settings) { s.onLost = onLost }
}

func newSettings(keys []string, options []Option) (*settings, error) {
	s := &settings{
		keys: slices.Clone(keys), lease: 30 * time.Second, margin: unset, keep: 10 * time.Second,
		maxHold: 24 * time.Hour, wait: Unlimited, renews: true,
		limit: unset, permits: unset, replicas: unset,
	}
	for _, option := range options {
		option(s)
	}
	if s.margin == unset {
		s.margin = min(s.lease/10, longestMargin)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if !s.renews && !s.session {
		// A lease that is never renewed has no limit.
		s.maxHold = Unlimited
	}
	for _, d := range []*time.Duration{&s.lease, &s.margin, &s.keep, &s.maxHold, &s.atLeast, &s.wait} {
		*d = min(*d, century)
	}
	s.lease = min(s.lease, s.maxHold+s.margin)
	return s, nil
}

func (s *settings) check() error {
	const positive, notNegative = "greater than 0", "0 or greater"
	for _, rule := range []struct {
		argument string
		isKept   bool
		mustBe   string
	}{
		{"keys", len(s.keys) > 0, "at least one key"},
		{"keys", areDistinct(s.keys), "different from each other"},
		{"lease", s.lease > 0, positive},
		{"margin", s.margin >= 0, notNegative},
		{"margin", s.margin < s.lease, "less than the lease"},
		{"keep", s.keep > 0, positive},
		{"max hold", s.maxHold > 0, positive},
		{"at least", s.atLeast >= 0, notNegative},
		{"wait", s.wait >= 0, notNegative},
		{"limit", isCount(s.limit, mostPermits), fmt.Sprintf("1 to %d", mostPermits)},
		{"permits", s.permits == unset || s.limit != unset, "set together with a limit"},
		{"permits", isCount(s.permits, s.limit), "1 or greater, and at most the limit"},
		{"replicas", isCount(s.replicas, mostReplicas), fmt.Sprintf("1 to %d", mostReplicas)},
		{"data", s.data == nil || len(*s.data) <= mostData, fmt.Sprintf("at most %d bytes", mostData)},
	} {
		if !rule.isKept {
			return &ArgumentError{rule.argument, rule.mustBe}
		}
	}
	return nil
}

func areDistinct(keys []string) bool {
	sorted := slices.Sorted(slices.Values(keys))
	return len(slices.Compact(sorted)) == len(keys)
}

func isCount(n, most int) bool { return n == unset || n >= 1 && n <= most }

// longestTrace returns how long the server may have a place or a grant of a token that it doesn't
// hear of.
func (s *settings) longestTrace() time.Duration { return max(s.lease, s.keep) }

// --- commands ------------------------------------------------------------------------------------

// call is the commands that a call of the program sends about a token. No text shows the token,
// because a call is always behind a pointer.
type call struct {
	token string
	// True if a command got no reply, and may still arrive.
	isDoubtful atomic.Bool
}

// words returns the words of a command about the keys.
func (s *settings) words(verb, token string, options ...any) []any {
	if len(s.keys) == 1 {
		return append([]any{"LOCK." + verb, s.keys[0], token}, options...)
	}
	words := []any{"LOCK.M" + verb, len(s.keys)}
	for _, key := range s.keys {
		words = append(words, key)
	}
	return append(append(words, token), options...)
}

// keyAt returns the place of the first key in the words of a command.
func keyAt(words []any) int {
	if strings.HasPrefix(words[0].(string), "LOCK.M") {
		return 2
	}
	return 1
}

func (s *settings) acquire(token string, within time.Duration) []any {
	return s.words("ACQUIRE", token, s.grant(within)...)
}

// waitFor returns the WAIT of a part of the time that is left. The last one leaves no place.
func (s *settings) waitFor(token string, block, left, within time.Duration) []any {
	words := append(s.grant(within), "BLOCK", milliseconds(block))
	if block < left {
		words = append(words, "KEEP", milliseconds(min(s.keep, left+time.Second)))
	}
	return s.words("WAIT", token, words...)
}

func (s *settings) extend(token string, lease time.Duration, words ...any) []any {
	return s.words("EXTEND", token, append([]any{"PX", milliseconds(lease)}, words...)...)
}

// leave returns the command that ends what the token has, and for a time what it asks for.
func (s *settings) leave(token string, d time.Duration) []any {
	return s.words("RELEASE", token, "LEAVE", milliseconds(min(d, longestLeave)))
}

// grant returns the words that ask for a grant, which replicas acknowledge within a time.
func (s *settings) grant(within time.Duration) []any {
	words := []any{"PX", milliseconds(s.lease)}
	if s.shared || s.limit > 0 {
		words = append(words, "SHARED")
	}
	if s.limit > 0 {
		words = append(words, "LIMIT", s.limit, "PERMITS", max(s.permits, 1))
	}
	if s.data != nil {
		words = append(words, "DATA", *s.data)
	}
	if s.replicas > 0 {
		words = append(words, "REPLICAS", s.replicas, "WITHIN", milliseconds(within))
	}
	return words
}

// milliseconds returns a time in whole milliseconds, at least 1, rounded up.
func milliseconds(d time.Duration) int64 { return int64(max((d-1)/time.Millisecond+1, 1)) }
