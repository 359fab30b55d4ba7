// Package redislock has the locks of the redis-lock module for programs on go-redis.
//
// New makes Locks from a client of go-redis: of one server, of Sentinel, or of a cluster.
// Locks.Lock makes a Lock, which has no state. Each acquire of it returns a Grant, which holds the
// lock.
//
// Every call takes a context and returns within 250 ms of its end, whatever the server does. A
// call that doesn't wait for the lock also returns within the command timeout, 1 s by default. What
// remains to be cleaned up is done in the background.
package redislock

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redis-lock/redis-lock/clients/go/internal/shape"
)

// Locks makes locks. It is safe for concurrent use.
type Locks struct {
	commands *commands
}

// LocksOption is an option of New.
type LocksOption func(*choices)

type choices struct {
	timeout  time.Duration
	observer Observer
}

// WithCommandTimeout sets the longest time of every call that doesn't wait for a lock, including
// connecting and sending again. Default: 1 s.
func WithCommandTimeout(d time.Duration) LocksOption {
	return func(c *choices) { c.timeout = d }
}

// WithObserver sets the observer.
func WithObserver(observer Observer) LocksOption {
	return func(c *choices) { c.observer = observer }
}

// New returns a maker of locks on the servers of a *redis.Client (also one of NewFailoverClient) or
// of a *redis.ClusterClient, or of what embeds one. It sends nothing. It fails with an
// *ArgumentError.
//
// Locks uses the client's connections. A second client of the same settings has those for waits and
// sessions, and in a cluster all. It is closed when the Locks is closed or collected.
func New(client redis.UniversalClient, options ...LocksOption) (*Locks, error) {
	c := choices{timeout: time.Second}
	for _, option := range options {
		option(&c)
	}
	if c.timeout <= 0 {
		return nil, &ArgumentError{"command timeout", "greater than 0"}
	}
	all, err := newCommands(client, c.observer, c.timeout)
	if err != nil {
		return nil, err
	}
	runtime.AddCleanup(all, func(s *servers) { _ = s.close() }, all.servers)
	return &Locks{all}, nil
}

// Lock returns a lock on one key. It sends nothing. It fails with an *ArgumentError.
func (l *Locks) Lock(key string, options ...Option) (*Lock, error) {
	return l.LockAll([]string{key}, options...)
}

// LockAll returns a lock on several keys, which are granted together or not at all. On a cluster,
// they must be in one slot. It sends nothing. It fails with an *ArgumentError.
func (l *Locks) LockAll(keys []string, options ...Option) (*Lock, error) {
	s, err := newSettings(keys, options)
	if err != nil {
		return nil, err
	}
	return &Lock{s, l.commands}, nil
}

// Adopt returns a grant that another process acquired and detached, by its keys, token and fence.
// The options are those of the lock. It fails with ErrNotHeld if the grant has ended.
func (l *Locks) Adopt(
	ctx context.Context, keys []string, token string, fence int64, options ...Option,
) (*Grant, error) {
	lock, err := l.LockAll(keys, options...)
	if err != nil {
		return nil, err
	}
	if token == "" || len(token) > mostToken || token == "*" {
		return nil, &ArgumentError{"token", "1 to 256 bytes, and not *"}
	}
	h := newHold(lock, newSecret(token), fence)
	// A command of the first process may still arrive.
	h.isUnclear = true
	lease := lock.options.firstLease()
	if err := h.extend(ctx, lease, h.growth(lease)); err != nil {
		h.abandon()
		if errors.Is(err, ErrLost) {
			return nil, ErrNotHeld
		}
		return nil, err
	}
	_, isShaped := shape.Of(ctx)
	return lock.granted(h, isShaped), nil
}

// ReleaseAll releases all grants of this object's locks within the command timeout, and returns how
// many still held. If a release fails, the others are released nevertheless.
func (l *Locks) ReleaseAll(ctx context.Context) (int, error) {
	ctx, until, stop := l.commands.bounded(ctx)
	defer stop()
	all := l.commands.all()
	failures := make(chan error, len(all))
	for _, h := range all {
		go func() { failures <- h.release(ctx, until) }()
	}
	count := 0
	var failed error
	for range all {
		switch err := <-failures; {
		case err == nil:
			count++
		case !errors.Is(err, ErrLost) && !errors.Is(err, ErrNotHeld):
			failed = errors.Join(failed, err)
		}
	}
	return count, failed
}

// Close closes the connections for waits and sessions, and in a cluster all. The program's client
// stays open, and held locks stay held. Later calls fail with redis.ErrClosed.
func (l *Locks) Close() error { return l.commands.servers.close() }

// String returns the address of the servers.
func (l *Locks) String() string { return "redislock.Locks(" + l.commands.servers.name + ")" }
